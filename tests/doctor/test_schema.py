"""What every verb prints with --json is as the schema says."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from doctor_helpers import made, write
from schema_helpers import problems

from clearhead import doctor
from clearhead.doctor.catalogue.symptoms import diagnose, symptom
from clearhead.doctor.loss_examination import examine_loss
from clearhead.errors import UsageError

SCHEMA: dict[str, Any] = json.loads(files("clearhead.doctor.report").joinpath("schema.json").read_text("utf-8"))


def wrong(told: Any, definition: str | None = None) -> list[str]:
    """What is wrong with plain data after it went through text."""
    schema = SCHEMA["$defs"][definition] if definition else SCHEMA
    return list(problems(json.loads(json.dumps(told, allow_nan=False)), schema, SCHEMA))


def test_a_comparison(tmp_path: Path) -> None:
    healthy = made(write(tmp_path, "gpt"))
    other = made(write(tmp_path, "gpt", ("F.gelu(self.fc1(x))", "F.relu(self.fc1(x))")))
    for theirs, verdict in ((healthy, "equal"), (other, "different")):
        told = doctor.compare(healthy, theirs).as_json()
        assert told["verdict"] == verdict
        assert wrong(told, "comparison") == []
        assert len(wrong(told | {"verdict": "alike"}, "comparison")) == 1


def test_a_training_and_a_symptom(tmp_path: Path) -> None:
    model = made(write(tmp_path, "gpt"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with doctor.watch(model, optimizer) as watched:
        for seed in (0, 1):
            ids = torch.randint(61, (2, 12), generator=torch.Generator().manual_seed(seed))
            model(ids, ids)[1].backward()  # and nothing is cleared
            optimizer.step()
    report = watched.report()
    assert report.verdict == "faulty"
    assert wrong(report.as_json()) == []
    told = diagnose(symptom("repeats"), report, ["it falls too fast"]).as_json()
    assert wrong(told) == []
    assert len(wrong(told | {"symptom": told["symptom"] | {"signs": "none"}})) == 1


def test_a_loss() -> None:
    told = examine_loss(lambda logits, ids: F.cross_entropy(logits.flatten(0, 1), ids.flatten()), "mine").as_json()
    assert wrong({key: value for key, value in told.items() if key != "lines"}, "loss") == []


def test_what_only_a_training_shows_is_not_looked_for_in_a_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"T01, .* is looked for in no model; .* watch the training"):
        doctor.check(made(write(tmp_path, "gpt")), only=["T01"])
