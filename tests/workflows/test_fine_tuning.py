"""`train` from a trained model: its options, its tokenizer, its weights; a new optimizer and smaller steps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pair_helpers import tiny_translator, write_pairs
from workflow_helpers import some_text, trained, write_text

from clearhead.errors import InterruptedRunError, UsageError
from clearhead.options import merge
from clearhead.training import Stepped
from clearhead.workflows import Notice, Run, Sampled, WorkflowEvent, import_model, resume, train

QUICK: dict[str, Any] = {"train": {"steps": 3, "batch_size": 4, "threads": 1, "precision": "float32"}}


@pytest.fixture
def first() -> Run:
    return trained("first")


def tuned(start_from: str | Path | Run, out: str = "second", **changes: Any) -> tuple[Run, list[WorkflowEvent]]:
    Path("other.txt").write_text(some_text(700, seed=5), encoding="utf-8")
    events: list[WorkflowEvent] = []
    options = merge(QUICK, changes)
    return train("other.txt", start_from=start_from, out=out, options=options, on_event=events.append), events


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(Run(folder).model().state_dict())


def test_it_begins_with_the_trained_weights(first: Run) -> None:
    second, _ = tuned(first, train={"learning_rate": 1e-30, "weight_decay": 0})
    for name, tensor in weights(first.folder).items():
        torch.testing.assert_close(weights(second.folder)[name], tensor, rtol=0, atol=1e-12)
    third, _ = tuned(first, "third", train={"learning_rate": 1e-2})
    assert not torch.equal(weights(third.folder)["embedding.weight"], weights(first.folder)["embedding.weight"])


def test_model_and_tokenizer_are_those_of_the_run(first: Run) -> None:
    second, _ = tuned("first")
    assert second.config.model == first.config.model
    assert second.tokenizer.fingerprint == first.tokenizer.fingerprint
    assert second.config.data.source.endswith("other.txt")
    assert second.imported_from is None


def test_the_steps_are_a_tenth_and_the_optimizer_stays(first: Run) -> None:
    second, events = tuned(first)
    before, after = first.config.train, second.config.train
    assert after.learning_rate == pytest.approx(before.learning_rate / 10)
    assert (after.optimizer, after.beta2, after.schedule) == (before.optimizer, before.beta2, before.schedule)
    notices = [event.text for event in events if isinstance(event, Notice)]
    assert any(text.startswith("learning rate: ") and "a tenth" in text for text in notices)
    assert any("from first" in text for text in notices)
    third, events = tuned(first, "third", train={"learning_rate": 0.05})
    assert third.config.train.learning_rate == 0.05
    assert not any("a tenth" in event.text for event in events if isinstance(event, Notice))


def test_a_sample_before_and_after(first: Run) -> None:
    second, events = tuned(first)
    steps = [event.step for event in events if isinstance(event, Sampled)]
    assert steps[0] == 0
    assert steps[-1] == 3
    assert "Trained further from first: " in (second.folder / "report.html").read_text(encoding="utf-8")
    samples = (second.folder / "samples.md").read_text(encoding="utf-8")
    assert "## Before the first step, as it came from first" in samples
    assert "## After 3 steps" in samples
    record = next(record for record in second.records() if record["kind"] == "origin")
    assert record == {"kind": "origin", "step": 0, "from": "first"}


def stop_after(step: int) -> Callable[[WorkflowEvent], None]:
    def on_event(event: WorkflowEvent) -> None:
        if isinstance(event, Stepped | Sampled) and event.step >= step:
            raise KeyboardInterrupt

    return on_event


@pytest.mark.sampled(1)
@pytest.mark.parametrize("step", [0, 1, 2])
def test_an_interrupted_one_goes_on_from_the_trained_weights(step: int, first: Run) -> None:
    whole, _ = tuned(first, "whole")
    with pytest.raises((InterruptedRunError, KeyboardInterrupt)):
        train("other.txt", start_from=first, out="cut", options=QUICK, on_event=stop_after(step))
    resume("cut")
    assert all(torch.equal(weights(Path("cut"))[name], tensor) for name, tensor in weights(whole.folder).items())


def test_an_imported_model_is_trained_further(first: Run) -> None:
    imported = import_model(first.folder, out="imported")
    by_run, _ = tuned(imported, "by-run")
    by_folder, _ = tuned("first/../first", "by-folder")
    assert by_run.config.train.learning_rate == pytest.approx(3e-5)
    assert by_run.config.train.optimizer == "adamw"
    assert by_folder.config.model.d_model == by_run.config.model.d_model
    assert resume("by-run", options={"train": {"steps": 5}}).config.train.steps == 5


@pytest.mark.parametrize("positions", ["learned", "rope"])
def test_a_shorter_block_and_another_dropout_may_be_had(positions: str) -> None:
    first = trained("first", {"model": {"positions": positions, "dropout": 0.0}})
    model, still = {"block_size": 8, "dropout": 0.3}, {"learning_rate": 1e-30, "weight_decay": 0}
    second, _ = tuned(first, model=model, train=still)
    assert second.config.model == first.config.model.model_copy(update={"block_size": 8, "dropout": 0.3})
    ids = torch.tensor([[1, 4, 2, 7, 3]])
    with torch.no_grad():
        torch.testing.assert_close(second.model()(ids), first.model()(ids), rtol=0, atol=1e-6)


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"model": {"d_model": "32"}}, "`model.d_model` is 16 in first, not 32; leave it out"),
    ({"model": {"norm": "layernorm"}}, "`model.norm` is rmsnorm in first"),
    ({"model": {"block_size": 32}}, "`model.block_size` 32 is more than the 16 of first"),
    ({"objective": "seq2seq"}, "objective"),
    ({"data": {"tokenizer": "char"}}, "first brings its tokenizer; leave out `data.tokenizer`"),
    ({"data": {"source": "pairs"}}, "pairs is sentence pairs, but first learned 'causal'"),
]


@pytest.mark.parametrize(("options", "message"), CONTRADICTIONS, ids=[message for _, message in CONTRADICTIONS])
def test_what_contradicts_the_run_is_refused(options: dict[str, Any], message: str, first: Run) -> None:
    with pytest.raises(UsageError) as refused:
        train(None, start_from="first", out="second", options=options)
    assert message in str(refused.value)
    assert not Path("second").exists()


def test_a_preset_is_another_model(first: Run) -> None:
    with pytest.raises(UsageError, match="`preset='small'` would contradict"):
        train("my.txt", start_from="first", preset="small")


def test_what_agrees_is_no_contradiction(first: Run) -> None:
    options = first.config.model_dump(include={"model": {"d_model", "norm"}, "objective": True})
    second, _ = tuned(first, **options)
    assert second.config.model == first.config.model


def test_a_short_text_makes_the_block_shorter(first: Run) -> None:
    Path("short.txt").write_text(some_text(210), encoding="utf-8")
    second = train("short.txt", start_from=trained("long", {"model": {"block_size": 128}}), out="s", options=QUICK)
    assert second.config.model.block_size < 128


def test_a_translator_is_trained_further() -> None:
    first = train(write_pairs(), out="first", options=tiny_translator())
    second = train(write_pairs(120, "other.tsv", seed=7), start_from=first, out="second", options=QUICK)
    assert second.config.model == first.config.model
    assert [t.fingerprint for t in second.tokenizers] == [t.fingerprint for t in first.tokenizers]
    with pytest.raises(UsageError, match="a text and no sentence pairs, but first learned 'seq2seq'"):
        train(write_text(), start_from=first)


def test_an_encoder_is_trained_further() -> None:
    options = {"objective": "masked", "data": {"tokenizer": "bpe", "bpe_vocab_size": 280}}
    from_preset = {"model": {"architecture": "encoder", "norm": "rmsnorm", "positions": "rope"}}
    first = trained("first", merge(options, from_preset))
    second, _ = tuned(first)
    assert second.config.objective == "masked"
    assert second.config.model == first.config.model
