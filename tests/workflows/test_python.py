"""What people type in Python: a run's verbs, its history, its curves."""

import json
import math
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from workflow_helpers import STEPS, tiny, trained

import clearhead as ch
from clearhead.errors import ArgumentError, DataError, UsageError
from clearhead.workflows import Run
from clearhead.workflows.generating import Text


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


def test_a_notebook_shows_a_generated_text_with_its_lines() -> None:
    """IPython's printer has no other part in it than these two."""
    text, shown = Text("one\ntwo \x1b[31m"), list[str]()
    text._repr_pretty_(SimpleNamespace(stack=[1], text=shown.append), cycle=False)
    text._repr_pretty_(SimpleNamespace(stack=[1, 2], text=shown.append), cycle=False)
    assert shown == ["one\ntwo \u241b[31m", repr(text)], "alone, and in a list"
    assert (text, repr(text), json.dumps(text)) == (
        "one\ntwo \x1b[31m",
        r"'one\ntwo \x1b[31m'",
        r'"one\ntwo \u001b[31m"',
    )
    assert type(pickle.loads(pickle.dumps(text))) is Text


def test_a_notebook_shows_results_as_they_print(finished: Run) -> None:
    for result, line in ((finished.evaluate(), "bits per byte  "), (ch.describe(finished), "FLOPs per token      ")):
        shown = list[str]()
        result._repr_pretty_(SimpleNamespace(stack=[1], text=shown.append), cycle=False)
        assert shown == [str(result)]
        assert f"\n{line}" in str(result)


def test_generated_texts_are_shown_so(finished: Run) -> None:
    assert type(finished.generate("the", max_new_tokens=2)) is Text
    assert [type(text) for text in finished.generate(["the"], max_new_tokens=2)] == [Text]


@pytest.mark.parametrize(
    ("prompt", "held"),
    [
        (5, "int"),
        (None, "NoneType"),
        (b"the", "bytes of int"),
        (["the", 5], "list of int"),
        (torch.tensor([1]), "Tensor of Tensor"),
    ],
)
def test_what_is_no_prompt_is_a_sentence(prompt: Any, held: str, finished: Run) -> None:
    sentence = f"a prompt is a text or a list of texts, not {held}; for ids take `model.generate`"
    with pytest.raises(TypeError, match=f"^{re.escape(sentence)}$"):
        finished.generate(prompt)


def test_the_newest_run_is_implied_and_a_text_is_no_run(finished: Run) -> None:
    with pytest.raises(DataError, match=r"^there is no run 'the king', and none here yet; `ch\.train\(\)` makes one$"):
        ch.generate("the king")
    shutil.copytree("run", "runs/a")
    with pytest.raises(DataError, match=r"with the newest run: `ch\.generate\(prompt='the king'\)`$"):
        ch.generate("the king")
    with pytest.raises(DataError, match=r"^there is no run 'other'; the runs here are a$"):
        ch.generate("other", "the king")
    text = finished.generate("the king", max_new_tokens=9, seed=1)
    generate: Any = ch.generate  # a type checker would take a method's first argument for one that may be left out
    assert generate(prompt="the king", max_new_tokens=9, seed=1) == text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"minutes": "1"}, "`minutes` must be a number, not a str"),
        ({"preset": ch.PRESETS["tiny"]}, "`preset` is the name of one, as in 'tiny', not a Preset"),
        (
            {"config": ch.RunConfig()},
            "`config` is the path of a TOML file, not a RunConfig; for options take `options`",
        ),
    ],
)
def test_a_wrong_kind_of_argument_is_a_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(sentence)}$"):
        ch.train("my.txt", **arguments)


def test_what_is_no_run_by_its_kind_is_a_sentence() -> None:
    wrong: Any = 5
    with pytest.raises(TypeError, match=r"^a run is a folder, a name, or None for the newest, not an int$"):
        ch.load(wrong)


def test_a_text_in_the_place_of_its_file_is_a_sentence() -> None:
    with pytest.raises(DataError, match=r"^there is no file, .* 'Once upon a .*\.\.\. \([\d,]+ characters\); "):
        ch.train("Once upon a time. " * 200)


def test_python_knows_what_a_misspelled_export_was_meant_to_be() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import clearhead\nclearhead.trian"], capture_output=True, text=True, timeout=60
    )
    assert "has no attribute 'trian'. Did you mean: 'train'?" in done.stderr


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
    assert ch.describe(finished.model()) == ch.describe(config.model)
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


@pytest.mark.campaign
def test_the_curves_have_the_floor_while_the_text_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ch.train("stories", out="stories", options=tiny(steps=1, eval_tokens=500), check=False)
    floor = run.plot().curve.floor
    assert floor is not None
    assert 0 < floor < math.log(run.config.model.vocab_size)
    other = trained()
    Path("my.txt").unlink()
    assert other.plot().curve.floor is None
