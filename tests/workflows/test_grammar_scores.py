"""What a corpus's grammar says of a run: after its training, in its report, when it is evaluated."""

import itertools
import json
import shutil
from collections.abc import Sequence
from typing import Any

import pytest
from pair_helpers import tiny_translator
from workflow_helpers import tiny

from clearhead import inference
from clearhead.data import stories
from clearhead.workflows import Run, Score, TranslationScore, WorkflowEvent, evaluate, list_all, resume, summary, train
from clearhead.workflows.events import Read
from clearhead.workflows.tasks.translation import TranslationTask

SHARES = ("accepted_sentences", "accepted_stories", "agreement", "kept_names")


@pytest.fixture
def perfect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that write what the corpus's grammar does, whatever they have learned."""
    drawn = [story.removesuffix(stories.SEPARATOR) for story in itertools.islice(stories.stories(seed=41), 24)]

    def write(model: object, tokenizer: object, prompts: Sequence[str], config: Any, **options: object) -> Any:
        return [drawn[: config.num_samples] for _ in prompts]

    monkeypatch.setattr(inference, "generate", write)


def train_on_stories(events: list[WorkflowEvent], steps: int = 2) -> Run:
    return train("stories", out="run", options=tiny(steps=steps, eval_tokens=500), check=False, on_event=events.append)


@pytest.mark.campaign
@pytest.mark.usefixtures("perfect")
def test_a_model_that_writes_as_the_grammar_does_is_wholly_accepted() -> None:
    events: list[WorkflowEvent] = []
    run = train_on_stories(events)
    (read,) = [event for event in events if isinstance(event, Read)]
    assert read.score.stories == 24
    assert read.score.shares() == dict.fromkeys(SHARES, 1.0)
    assert {name: summary(run)[name] for name in SHARES} == dict.fromkeys(SHARES, 1.0)
    assert "100.0%" in (run.folder / "report.html").read_text(encoding="utf-8")
    score = evaluate(run)
    assert isinstance(score, Score)
    assert score.grammar == read.score


@pytest.mark.campaign
def test_a_model_that_has_learned_nothing_is_refused_and_more_steps_ask_again() -> None:
    events: list[WorkflowEvent] = []
    run = train_on_stories(events)
    assert summary(run)["accepted_sentences"] < 0.1
    resume(run)  # nothing to do, and nothing forgotten
    assert summary(run)["accepted_sentences"] < 0.1
    resume(run, options={"train": {"steps": 3}})
    lines = (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [record["step"] for record in map(json.loads, lines) if record["kind"] == "grammar"] == [2, 3]


def test_a_run_on_another_text_has_no_such_score(finished: Run) -> None:
    assert not {*summary(finished)} & {*SHARES}
    score = evaluate(finished)
    assert isinstance(score, Score)
    assert score.grammar is None


def test_translations_into_german_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clearhead.data.parallel.corpora._PAIRS", {"train": 300, "seen": 40, "unseen": 40})

    def write(task: TranslationTask, model: object, sources: Sequence[str]) -> list[str]:
        known = dict(task.prepared.val_texts)
        return [known[source] for source in sources]

    monkeypatch.setattr(TranslationTask, "_translated", write)
    events: list[WorkflowEvent] = []
    run = train("pairs", out="run", options=tiny_translator(), check=False, on_event=events.append)
    (read,) = [event for event in events if isinstance(event, Read)]
    assert read.score.sentences == 40
    assert read.score.shares() == {"accepted_sentences": 1.0, "agreement": 1.0}
    score = evaluate(run)  # whose translations nobody replaced
    assert isinstance(score, TranslationScore)
    assert score.grammar is not None
    assert score.grammar.accepted_sentences == 0


def test_the_line_says_every_share() -> None:
    line = stories.score([*itertools.islice(stories.stories(seed=42), 3)]).line()
    assert line.count("100.0%") == 4
    assert "3 whole stories" in line


def test_bits_per_byte_stand_beside_every_loss(finished: Run) -> None:
    figures = summary(finished)
    score = evaluate(finished)
    assert isinstance(score, Score)
    assert score.bits_per_byte is not None
    assert figures["bits_per_byte"] / figures["best_val_loss"] == pytest.approx(
        score.bits_per_byte / score.loss, rel=0.05
    )  # the last token of a text predicts nothing
    shutil.copytree(finished.folder, "runs/run")
    (listed,) = list_all().runs.values()
    assert f"{figures['bits_per_byte']:.4f} bits per byte" in listed
    assert "the same in bits per byte" in (finished.folder / "report.html").read_text(encoding="utf-8")
