"""What people type in Python: a run's verbs, its history, its curves."""

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from workflow_helpers import STEPS, tiny, trained

import clearhead as ch
from clearhead.errors import ArgumentError, DataError, UsageError
from clearhead.workflows import Run


def test_texts_have_the_shape_of_the_prompts(finished: Run) -> None:
    text = ch.generate(finished, "the king", max_new_tokens=9, seed=1)
    assert isinstance(text, str)
    assert text.startswith("the king")
    assert len(text) > len("the king")
    assert finished.generate("the king", max_new_tokens=9, seed=1) == text
    assert ch.generate("run", "the king", max_new_tokens=9, seed=1) == text

    two = finished.generate("the king", num_samples=2, max_new_tokens=9, seed=1)
    assert len(two) == 2
    assert two[0] == text != two[1]

    prompts = ["the king", "a queen"]
    assert finished.generate(prompts, max_new_tokens=9, seed=1)[0] == text
    both = finished.generate(tuple(prompts), num_samples=2, max_new_tokens=9, seed=1)
    assert both[0] == two
    assert [sample.startswith("a queen") for sample in both[1]] == [True, True]
    assert finished.generate([]) == []


def test_options_are_keywords_and_wrong_ones_a_sentence(finished: Run) -> None:
    greedy = finished.generate("the", greedy=True, max_new_tokens=9, engine="eager")
    assert greedy == finished.generate("the", greedy=True, max_new_tokens=9, draft="ngrams")
    with pytest.raises(UsageError, match=r"^unknown option 'temprature'; did you mean 'temperature'"):
        finished.generate("the", temprature=1)
    with pytest.raises(UsageError, match=r"^num_samples must be at least 1, not 0"):
        finished.generate("the", num_samples=0)


def test_every_verb_says_what_an_unknown_keyword_was_meant_to_be() -> None:
    verbs: list[Callable[..., object]] = [ch.train, ch.resume, ch.evaluate, ch.export, ch.fill, ch.load, ch.describe]
    verbs += [ch.import_model, ch.compare_runs, ch.translate, ch.worked_example, ch.fit]
    for verb in verbs:
        with pytest.raises(ArgumentError, match=rf"^{verb.__name__} has no argument 'colour'; it has "):
            verb(colour=1)
    for verb, wrong, meant in (
        (ch.train, {"minuts": 1}, "`minutes`"),
        (ch.train, {"lr": 0.1}, "`options={'train.learning_rate': 0.1}`"),
        (ch.resume, {"steps": 20}, "`options={'train.steps': 20}`"),
        (ch.translate, {"beam": 4}, "`options={'beam_size': 4}`"),
        (ch.fit, {"optim": None}, "`optimizer`"),
    ):
        with pytest.raises(ArgumentError, match=rf"; did you mean {re.escape(meant)}\?$"):
            verb(**wrong)


def test_an_unseen_character_in_a_prompt_is_a_sentence(finished: Run) -> None:
    with pytest.raises(DataError, match=r"'é' \(U\+00E9\)") as error:
        finished.generate("thé")
    assert "\n" not in str(error.value)


def test_a_run_exports_itself(finished: Run) -> None:
    exported = finished.export("safetensors", "out")
    assert exported.certificate.passed
    assert exported.path == Path("out/model.safetensors")


def test_a_config_is_described(finished: Run) -> None:
    config = finished.config
    assert ch.describe(config) == ch.describe(finished)
    assert ch.describe(config.model).parameters == ch.describe(finished).parameters
    with pytest.raises(UsageError, match="a run or a preset, not both"):
        ch.describe(config, preset="small")
    with pytest.raises(UsageError, match="a config says everything"):
        ch.describe(config, options={"model": {"n_layers": 2}})


def test_the_history_has_a_row_per_step(finished: Run) -> None:
    rows = finished.history
    assert [row["step"] for row in rows] == [*range(1, STEPS + 1)]
    names = ["step", "train_loss", "val_loss", "learning_rate", "gradient_norm", "tokens", "seconds"]
    assert all(list(row) == names for row in rows)
    assert [row["step"] for row in rows if row["val_loss"] is not None] == [4, 8, STEPS]
    assert rows[0]["train_loss"] == ch.workflows.summary(finished)["first_loss"]
    assert all(row["learning_rate"] and row["gradient_norm"] for row in rows)


def test_the_curves_show_themselves(finished: Run) -> None:
    plot = finished.plot()
    picture = plot._repr_svg_()
    assert picture.startswith("<svg")
    assert "Training curve of run" in picture
    assert [step for step, _ in plot.curve.train] == [*range(1, STEPS + 1)]
    assert "●" in repr(plot)
    plot.save("loss.svg")
    assert Path("loss.svg").read_text(encoding="utf-8") == picture


def test_the_curves_have_the_floor_while_the_text_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ch.train("stories", out="stories", options=tiny(steps=1, eval_tokens=500), check=False)
    floor = run.plot().curve.floor
    assert floor is not None
    assert 0 < floor < math.log(run.config.model.vocab_size)
    other = trained()
    Path("my.txt").unlink()
    assert other.plot().curve.floor is None
