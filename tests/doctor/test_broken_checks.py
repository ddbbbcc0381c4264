"""A check that raises is no check that has nothing to say: the report tells so, in every form."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from doctor_helpers import HOSTS, made, write
from schema_helpers import problems

from clearhead.doctor import Finding, Report, check, examination
from clearhead.doctor.checks import CHECKS
from clearhead.doctor.report import junit, page, sarif
from clearhead.errors import DataError

SCHEMA: dict[str, Any] = json.loads(files("clearhead.doctor.report").joinpath("schema.json").read_text("utf-8"))
ERROR = "could not be made (KeyError: 'a mistake of ours')"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Report:
    """Of a healthy model; the check of norms raises."""

    def raises(subject: object) -> list[Finding]:
        raise KeyError("a mistake of ours")

    broken = [replace(one, run=raises) if one.name == "norms" else one for one in CHECKS]
    monkeypatch.setattr(examination, "CHECKS", tuple(broken))
    return check(made(HOSTS / "gpt.py"))


def test_to_a_person(report: Report) -> None:
    first, *lines = str(report).splitlines()
    assert first.startswith("GPT was examined in part, and no fault was found there; 1 check could not be made;")
    assert f"  broke     norms {ERROR}: N01 N02 N06 were not looked for" in lines
    (skipped,) = [line for line in report.text(verbose=True).splitlines() if line.startswith("  skipped")]
    assert "caches" in skipped
    assert "norms" not in skipped
    assert "1 check could not be made" in page.render(report)
    with pytest.raises(DataError, match="1 check could not be made"):
        report.raise_if_failed()


def test_to_a_program(report: Report) -> None:
    told = json.loads(json.dumps(report.as_json()))
    assert (told["verdict"], told["broken"]) == ("partial", ["norms"])
    assert report.exit_code == 3
    assert not list(problems(told, SCHEMA, SCHEMA))
    assert Report.from_json(told).broken == ("norms",)
    (run,) = json.loads(sarif.render(report))["runs"]
    assert run["invocations"][0]["executionSuccessful"] is False
    assert ET.fromstring(junit.render(report)).get("errors") == "1"
    notes = run["invocations"][0]["toolExecutionNotifications"]
    assert [note["message"]["text"] for note in notes if note["level"] == "warning"] == [f"norms: skip, {ERROR}"]


CONDITIONED = (
    ("        self.ln1 = nn.LayerNorm(D)\n", "        self.ln1 = ScaledNorm()\n"),
    ("        self.ln2 = nn.LayerNorm(D)\n", "        self.ln2 = ScaledNorm()\n"),
    ("        self.ln_f = nn.LayerNorm(D)\n", "        self.ln_f = ScaledNorm()\n"),
    ("self.attn(self.ln1(x))", "self.attn(self.ln1(x, 2.0))"),
    ("self.mlp(self.ln2(x))", "self.mlp(self.ln2(x, 2.0))"),
    ("self.head(self.ln_f(x))", "self.head(self.ln_f(x, 2.0))"),
    (
        "class MLP(nn.Module):",
        "class ScaledNorm(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.weight = nn.Parameter(torch.ones(D))\n\n"
        "    def forward(self, x, scale):\n"
        "        return scale * F.layer_norm(x, (D,), self.weight)\n\n\n"
        "class MLP(nn.Module):",
    ),
)
ONLY_EVALUATES = (
    "        T = idx.size(1)\n",
    "        assert not self.training and not torch.is_grad_enabled(), 'inference only'\n        T = idx.size(1)\n",
)
TAKES_NO_MASK_OF_OURS = (
    "    def forward(self, idx, targets=None):\n",
    "    def forward(self, idx, targets=None, padding_mask=None):\n"
    "        assert padding_mask is None or padding_mask.dim() == 5, 'blocks'\n",
)


def checked(report: Report, name: str) -> tuple[str, str]:
    return next((one.status, one.note) for one in report.checks if one.name == name)


def test_norms_that_could_not_be_called_again_are_not_said_to_hold(tmp_path: Path) -> None:
    report = check(made(write(tmp_path, "gpt", *CONDITIONED)), only=["norms"])
    assert checked(report, "norms") == ("skip", "none of its norms can be called by itself (TypeError)")
    assert (report.verdict, report.exit_code) == ("unknown", 3)


def test_a_path_that_could_not_be_run_is_told(tmp_path: Path) -> None:
    report = check(made(write(tmp_path, "gpt", ONLY_EVALUATES)), only=["paths"], level="quick")
    assert "train(), with gradients (could not be run: AssertionError)" in report.paths


def test_masks_that_take_no_form_are_not_said_to_hide_padding(tmp_path: Path) -> None:
    report = check(made(write(tmp_path, "gpt", TAKES_NO_MASK_OF_OURS)), only=["paddings"])
    assert checked(report, "paddings") == ("skip", "'padding_mask' takes a mask in none of the known forms")
