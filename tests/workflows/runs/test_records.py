"""Each line of metrics.jsonl is judged by itself; a damaged one tells nothing and harms nothing."""

import json
import math
import random
from typing import Any

import pytest
from workflow_helpers import STEPS, some_records

from clearhead.workflows import Run, list_all, resume, summary
from clearhead.workflows.runs.history import History
from clearhead.workflows.runs.records import record_of


def test_a_damaged_record_tells_nothing_and_harms_nothing() -> None:
    """Each character of a log's lines, flipped in each bit."""
    lines = [json.dumps(record) for record in some_records(2, every=2)]
    lines += [json.dumps({"kind": "mean", "step": 2, "loss": 1.0, "used": True, "checkpoints": 2})]
    lines += [json.dumps({"kind": "origin", "step": 0, "from": "runs/a"})]
    for line in lines:
        for index in range(len(line)):
            for bit in range(7):
                damaged = line[:index] + chr(ord(line[index]) ^ 1 << bit) + line[index + 1 :]
                if record := record_of(damaged):
                    curve = History.of([record]).curve(None)
                    assert all(map(math.isfinite, (*curve.losses, curve.last_step)))


@pytest.mark.parametrize("value", [10**400, math.nan, math.inf, True, "1", None, [1], {"a": 1}])
def test_a_value_of_another_type_tells_nothing(value: Any) -> None:
    for record in some_records(1, every=1):
        for key in record:
            changed = record_of(json.dumps(record | {key: value}))
            history = History.of([changed] if changed else [])
            history.curve(None)
            assert history.train_loss is None or math.isfinite(history.train_loss)


def test_a_record_is_judged_once() -> None:
    """By `record_of`, on the way in: a history takes what it is given as it is."""
    (record,) = [record for record in some_records(1) if record["kind"] == "step"]
    assert History.of([record | {"loss": 1e301}]).train_loss == 1e301
    assert record_of(json.dumps(record | {"loss": 1e301})) is None


def test_records_are_judged_one_by_one(finished: Run) -> None:
    """A flipped bit in a key raised a KeyError after the training had finished."""
    whole = list(finished.records())
    lines = finished.metrics.read_text(encoding="utf-8").splitlines()
    spoiled = [
        *(line.replace('"loss"', '"lo3s"') for line in lines),
        *(line.replace('"seconds"', '"sekonds"') for line in lines if '"seconds"' in line),
        *(line.replace('"text"', '"texd"') for line in lines if '"text"' in line),
        *(line.replace('"step": ', '"step": -9') for line in lines),
        *(line.replace('"kind": "', '"kind": 5, "x": "') for line in lines),
        "[" * 100_000,
        '{"kind": "step", "step": ' + "9" * 5000 + "}",
        '{"kind": "step", "step": 1, "loss": 1e999, "tokens": 1, "seconds": 1}',
        '{"kind": "step", "step": 1, "loss": NaN, "tokens": 1, "seconds": 1}',
        '{"kind": "mean", "step": 1, "loss": 1.0, "used": "no"}',
        '{"kind": "sample", "step": 1, "text": "a", "scores": {"bleu": "high"}}',
        '{"kind": "origin", "step": 0, "from": ["a"]}',
        '{"kind": [], "step": 0}',
    ]
    spoiled = [line for line in spoiled if line not in lines]
    finished.metrics.write_text("\n".join([*spoiled, *lines]) + "\n", encoding="utf-8")
    assert list(finished.records()) == whole
    resume(finished)
    assert summary(finished)["steps"] == STEPS
    assert list_all() is not None


def test_every_flipped_bit_of_the_records_leaves_the_run_readable(finished: Run) -> None:
    content, draw = finished.metrics.read_bytes(), random.Random(1)
    for _ in range(300):
        at = draw.randrange(len(content))
        finished.metrics.write_bytes(content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :])
        json.dumps(summary(finished), allow_nan=False)
