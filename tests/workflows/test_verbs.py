"""evaluate, generate, describe: the same figures by different ways."""

import json
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from workflow_helpers import STEPS, some_text, tiny, trained, write_text

import clearhead
from clearhead import inference
from clearhead.config import RunConfig
from clearhead.config.presets import PRESETS
from clearhead.data import Tokenizer
from clearhead.errors import ClearheadError, DataError, FaultError, UsageError
from clearhead.inspection import estimate_cost
from clearhead.options import merge
from clearhead.workflows import (
    CheckPassed,
    Finished,
    Notice,
    Preparing,
    Run,
    Sampled,
    Score,
    Started,
    WorkflowEvent,
    describe,
    evaluate,
    generate,
    hardware,
    resume,
    summary,
    train,
    training,
)
from clearhead.workflows.hardware import choose_device, enough_memory, threads
from clearhead.workflows.tasks import CausalTask


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("trained")
    source = folder / "my.txt"
    source.write_text(some_text(900), encoding="utf-8")
    return train(source, out=folder / "run", options=tiny(precision="float32"))


def test_the_held_out_loss_is_the_best_one_of_the_training(run: Run) -> None:
    figures = summary(run)
    score = evaluate(run)
    assert isinstance(score, Score)
    assert score.bits_per_byte is not None
    assert math.isclose(score.loss, figures["best_val_loss"], rel_tol=1e-6)
    assert score.tokens == 89
    assert math.isclose(score.perplexity, math.exp(score.loss))
    assert math.isclose(score.bits_per_byte, score.loss / math.log(2) * 89 / 90, rel_tol=1e-9)


@pytest.mark.parametrize(("precision", "apart"), [("float32", 1e-6), ("bfloat16", 1e-2)])
def test_a_training_evaluates_in_its_own_precision(run: Run, precision: str, apart: float) -> None:
    model, types = run.model(), set[torch.dtype]()
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda _, args, output: types.add(output.dtype))
    config = RunConfig.read(run.config.model_dump(), {"train": {"precision": precision}})
    assert math.isclose(run.task().evaluate(model, config).loss, run.evaluate().loss, rel_tol=apart)
    assert types == {getattr(torch, precision)}


def test_the_figures_do_not_depend_on_the_batch_size(run: Run) -> None:
    write_text(400)
    scores = [evaluate(run, "my.txt", options=size) for size in ({}, *({"batch_size": n} for n in (1, 2, 7, 1000)))]
    assert {score.tokens for score in scores if isinstance(score, Score)} == {399}
    for score in scores:
        assert math.isclose(score.loss, scores[0].loss, rel_tol=1e-6)
    with pytest.raises(UsageError, match="batch_size"):
        evaluate(run, "my.txt", options={"batch_size": 0})


def test_the_loss_is_the_mean_over_windows_side_by_side(run: Run) -> None:
    """By hand, with nothing of the library but the model and the tokenizer."""
    text = write_text(200).read_text(encoding="utf-8")
    ids, model = torch.tensor(run.tokenizer.encode(text)), run.model()
    losses = []
    with torch.no_grad():
        for start in range(0, len(ids) - 1, 16):
            window = ids[start : start + 17]
            losses.append(F.cross_entropy(model(window[None, :-1])[0], window[1:], reduction="none"))
    assert math.isclose(evaluate(run, "my.txt").loss, torch.cat(losses).mean().item(), rel_tol=1e-5)


def test_the_summary_tells_the_training(run: Run) -> None:
    figures = summary(run)
    assert list(figures) == [
        *("run", "parameters", "vocab_size", "steps", "seconds", "train_loss", "val_loss", "best_val_loss"),
        *("first_loss", "tokens_per_second", "bits_per_byte"),
    ]
    assert figures["parameters"] == sum(parameter.numel() for parameter in run.model().parameters())
    assert figures["vocab_size"] == run.tokenizer.vocab_size
    assert figures["steps"] == STEPS
    assert abs(figures["first_loss"] - math.log(figures["vocab_size"])) < 0.02 * figures["first_loss"]
    assert figures["best_val_loss"] <= figures["val_loss"]


@pytest.mark.parametrize("name", ["small", "tutorial", "bigram", "llama"])
def test_a_model_on_paper_has_the_parameters_of_the_real_one(name: str) -> None:
    config = RunConfig.read(PRESETS[name].options, {"model": {"vocab_size": 70}})
    costs = describe(preset=name, options={"model": {"vocab_size": 70}})
    assert costs.parameters == sum(parameter.numel() for parameter in clearhead.build_model(config.model).parameters())


def test_a_run_or_a_preset_or_options_are_described(run: Run) -> None:
    assert describe(run) == estimate_cost(run.config.model, run.config.train)
    larger = RunConfig.read(run.config.model_dump(), {"train": {"batch_size": 9}}).train
    assert describe(run, options={"train": {"batch_size": 9}}) == estimate_cost(run.config.model, larger)
    assert describe(options={"model": {"n_layers": 3}}).parameters < describe(preset="small").parameters
    assert {describe(preset=name).parameters > 0 for name in PRESETS} == {True}
    with pytest.raises(UsageError, match="a run or a preset, not both"):
        describe(run, preset="small")
    with pytest.raises(DataError, match="no run here yet"):
        describe()


def test_the_same_seed_writes_the_same_text(run: Run) -> None:
    options: dict[str, Any] = {"max_new_tokens": 30, "num_samples": 2}
    first = generate(run, ["the", "a king"], **options, seed=5)
    assert first == generate(run, ["the", "a king"], **options, seed=5)
    assert first != generate(run, ["the", "a king"], **options, seed=6)
    assert [len(texts) for texts in first] == [2, 2]
    assert all(text.startswith("the") for text in first[0])
    assert run.generate("the", max_new_tokens=30, seed=5) == first[0][0]


def test_pieces_are_told_as_they_are_written(run: Run) -> None:
    pieces: list[str] = []
    text = generate(run, "the", seed=1, on_text=lambda piece: pieces.append(piece.text))
    assert "the" + "".join(pieces) == text
    assert len(pieces) > 20


def test_a_prompt_longer_than_the_window_is_cut_and_said(run: Run) -> None:
    notices: list[str] = []
    generate(run, "the king " * 10, max_new_tokens=2, on_notice=notices.append)
    assert "only its last 16 are read" in notices[0]


def test_texts_without_a_word_are_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop string may come first by right."""
    monkeypatch.setattr(inference, "generate", lambda model, tokenizer, prompts, *args, **options: [["", " on"]])
    notices: list[str] = []
    assert generate(run, "the", num_samples=2, on_notice=notices.append) == ["the", "the on"]
    assert notices == ["the model adds nothing to the prompt in 1 of 2 texts; give another `seed`, or another prompt"]
    generate(run, "the", num_samples=2, stop=(" ",), on_notice=notices.append)
    assert len(notices) == 1


def test_an_unseen_character_is_named_with_its_place(run: Run) -> None:
    with pytest.raises(DataError, match=r"'é' \(U\+00E9\) at line 2, column 3"):
        generate(run, "the\nkié")


def test_what_is_told_comes_in_order() -> None:
    events: list[WorkflowEvent] = []
    done = trained(on_event=events.append)
    kinds = [type(event) for event in events]
    assert kinds[:2] == [Preparing, Notice]
    assert kinds.index(Started) == kinds.count(Notice) + kinds.count(Preparing) + 1
    assert kinds[-1] is Finished
    assert kinds.count(Sampled) == 3
    assert [event.text[:16] for event in events if isinstance(event, CheckPassed)] == ["preflight passed"]
    names = {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json", "clearhead.toml"}
    names |= {"metrics.jsonl", "samples.md", "report.html", "checkpoints", "manifest.json", "tokenizer_config.json"}
    assert names <= {path.name for path in done.folder.iterdir()}
    assert not [path for path in done.folder.rglob("*") if "unfinished" in path.name]


def test_the_options_of_a_run_train_the_same_run_again() -> None:
    first = trained("first")
    again = train(config=first.folder / "clearhead.toml", out="again")
    assert again.config == first.config
    assert (again.folder / "model.safetensors").read_bytes() == (first.folder / "model.safetensors").read_bytes()


def test_another_seed_is_another_training() -> None:
    first, other = trained("first"), trained("other", options={"seed": 2})
    assert (other.folder / "model.safetensors").read_bytes() != (first.folder / "model.safetensors").read_bytes()


def test_a_failed_preflight_ends_it_before_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_the_future(task: Any, config: Any) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
        ids = torch.arange(64).reshape(4, 16) % 10
        return lambda step: (ids, ids)

    monkeypatch.setattr(CausalTask, "batches", from_the_future)
    with pytest.raises(FaultError, match="targets"):
        trained()
    assert not Path("run").exists()
    write_text()
    assert train("my.txt", out="run", options=tiny(steps=1), check=False).generate("the", max_new_tokens=1)


@pytest.mark.parametrize("device", ["nonsense", "meta", "cuda:99", "cpu:x"])
def test_a_device_that_is_not_there_is_a_sentence(device: str) -> None:
    with pytest.raises(UsageError, match="choose auto or cpu"):
        choose_device(device)
    assert choose_device("cpu").type == "cpu"


def test_threads_are_borrowed() -> None:
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("x"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_too_little_memory_names_the_option_to_lower(
    error: Exception, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    write_text()
    monkeypatch.setattr(clearhead.inference, "generate", fail)
    with pytest.raises(ClearheadError, match=r"lower `num_samples`"):
        generate(run, ["the"])
    monkeypatch.setattr(clearhead.inference, "evaluate", fail)
    with pytest.raises(ClearheadError, match=r"lower `batch_size`"):
        evaluate(run, "my.txt", options={"batch_size": 5})
    monkeypatch.setattr(training, "build", fail)
    with pytest.raises(ClearheadError, match=r"lower `train\.batch_size`"):
        trained()
    assert not Path("run").exists()


def test_other_errors_keep_their_traceback() -> None:
    with pytest.raises(RuntimeError, match="a bug"), enough_memory("x"):
        raise RuntimeError("a bug")


def test_the_speed_is_measured_without_leaving_a_trace(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "PROBE_STEPS", 3)
    state = torch.random.get_rng_state()
    assert hardware.seconds_per_step(run.config, run.task()) > 0
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_stranger_s_tokenizer_may_end_texts_with_its_padding() -> None:
    """Many do; where nothing is padded, it is no fault."""
    write_text()
    Tokenizer.characters(some_text(900), end=True).save(Path("theirs"))
    config = Path("theirs/tokenizer_config.json")
    settings = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**settings, "pad_token": settings["eos_token"]}), encoding="utf-8")
    run = train("my.txt", options=merge(tiny(), {"data": {"tokenizer": "theirs/tokenizer.json"}}))
    assert run.generate("the", max_new_tokens=3).startswith("the")


def test_masked_documents_are_kept_apart_where_asked() -> None:
    Path("texts").mkdir()
    for number in range(6):
        Path(f"texts/{number}.txt").write_text(some_text(200, number), encoding="utf-8")
    data = {"document_mask": True, "bpe_vocab_size": 300}
    options = merge(tiny(precision="float32"), {"objective": "masked", "data": data})
    run = train("texts", options=options)
    assert run.fill("the [MASK] says").startswith("the")
    apart = evaluate(run)
    assert isinstance(apart, Score)
    assert apart.loss == pytest.approx(summary(run)["best_val_loss"], rel=1e-6)


def test_one_character_again_and_again_cannot_be_masked() -> None:
    write_text().write_text("a" * 500, encoding="utf-8")
    with pytest.raises(DataError, match="nothing to learn"):
        train("my.txt", options=merge(tiny(), {"objective": "masked", "data": {"tokenizer": "char"}}))


def test_a_run_without_scores_in_its_samples_can_go_on() -> None:
    """As those were that an earlier version wrote."""
    run = trained()
    old = run.metrics.read_text(encoding="utf-8").replace(', "scores": {}', "")
    assert "scores" not in old
    run.metrics.write_text(old, encoding="utf-8")
    assert summary(resume(run, options={"train": {"steps": STEPS + 1}}))["steps"] == STEPS + 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["pipe", "pipe.jsonl"])
def test_a_training_says_that_it_waits_for_a_pipe(name: str) -> None:
    """Nobody writes to it before that is said."""
    os.mkfifo(name)
    writer = threading.Thread(target=Path(name).write_text, args=[some_text(900)], daemon=True)

    def on_event(event: WorkflowEvent) -> None:
        if isinstance(event, Notice) and event.text.endswith(f"{name}: waiting for it to be written to, and closed"):
            writer.start()

    train(name, out="run", options=tiny(), on_event=on_event)
    writer.join(timeout=10)
