"""The verdict says no more than what was examined."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from doctor_helpers import made, write
from torch import Tensor, nn

from clearhead.doctor import Report, Spec, check
from clearhead.doctor.catalogue.symptoms import SYMPTOMS, diagnose
from clearhead.doctor.checks.base import finding
from clearhead.doctor.report import junit, sarif
from clearhead.errors import DataError

UNMASKED = ('        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))\n', "")
AVERAGED = ("self.head(self.ln_f(x))", "self.head(self.ln_f(x) + x.mean(1, keepdim=True))")  # no mask takes it away


@pytest.fixture(scope="module")
def waived(tmp_path_factory: pytest.TempPathFactory) -> Report:
    model = made(write(tmp_path_factory.mktemp("host"), "gpt", UNMASKED))
    return check(model, Spec(kind="causal", allow={"M01": "a joke"}))


def test_what_a_waived_fault_blocks_is_missing(waived: Report) -> None:
    blocked = [one for one in waived.checks if one.status == "blocked"]
    assert blocked
    assert (waived.verdict, waived.exit_code) == ("partial", 3)
    assert f"; {len(blocked)} checks blocked by a waived one" in waived.summary
    assert {*blocked} <= {*waived.unjudged}
    with pytest.raises(DataError, match="blocked"):
        waived.raise_if_failed()
    assert '"executionSuccessful": false' in sarif.render(waived)
    assert f'errors="{len(waived.unjudged)}"' in junit.render(waived)


def test_what_a_fault_blocks_waits_for_the_fault(tmp_path: Path) -> None:
    report = check(made(write(tmp_path, "gpt", AVERAGED)), Spec(kind="causal"))
    assert [one for one in report.checks if one.status == "blocked"]
    assert (report.verdict, report.exit_code, report.unjudged) == ("faulty", 4, ())


def test_a_waived_fault_that_blocks_nothing_leaves_the_model_healthy(waived: Report) -> None:
    made_all = [replace(one, status="pass", note="") if one.status == "blocked" else one for one in waived.checks]
    report = replace(waived, checks=tuple(made_all))
    assert (report.verdict, report.exit_code) == ("healthy", 0)


def test_each_word_of_only_needs_an_answer_of_its_own(tmp_path: Path) -> None:
    model = made(write(tmp_path, "gpt"))
    report = check(model, only=["K01", "M01"])
    assert (report.verdict, report.exit_code) == ("partial", 3)
    assert [one.name for one in report.unjudged] == ["caches", "generations"]
    assert "; K01 could not be judged" in report.summary
    open_ = next(line for line in str(report).splitlines() if line.startswith("  open      K01"))
    assert "it takes no cache" in open_
    with pytest.raises(DataError, match="K01 could not be judged"):
        report.raise_if_failed()
    both = check(model, only=["M01", "norms"])
    assert (both.verdict, both.exit_code) == ("partial", 0)


def test_a_warning_elsewhere_keeps_no_fault_from_being_refuted(tmp_path: Path) -> None:
    report = check(made(write(tmp_path, "gpt")))
    assert report.verdict == "healthy"
    warned = replace(
        report,
        findings=(replace(finding("N08", "a sign of it", status="warn"), check="storage"),),
        checks=tuple(replace(one, status="warn") if one.name == "storage" else one for one in report.checks),
    )
    diagnosis = diagnose(SYMPTOMS["order-does-not-matter"], warned)
    by_id = {cause.id: cause for cause in diagnosis.causes}
    assert by_id["P01"].answer == "no", by_id["P01"]
    of_storage = {cause.id: cause for cause in diagnose(SYMPTOMS["different-after-loading"], warned).causes}
    assert of_storage["I05"].answer == "unknown"
    assert of_storage["I05"].sentence == "I05: open, 'storage' found N08"


def test_a_check_that_passed_is_said_to_have_passed(tmp_path: Path) -> None:
    report = check(made(write(tmp_path, "gpt")))
    failed = replace(
        report,
        findings=(replace(finding("N10", "a proof of it"), check="streams"),),
        checks=tuple(replace(one, status="fail") if one.name == "streams" else one for one in report.checks),
    )
    diagnosis = diagnose(SYMPTOMS["order-does-not-matter"], failed)
    cause = next(cause for cause in diagnosis.causes if cause.id == "P01")
    assert cause.answer == "unknown"
    assert cause.sentence == (
        "P01: open, it was looked for and not found, but N10 was, and may hide it; fix that and ask again"
    )
    assert "could not be examined" not in "\n".join(text for text, _ in diagnosis.lines())


def test_a_norm_in_a_layer_without_effect_is_named_where_it_stands(tmp_path: Path) -> None:
    dropped = ("return x + self.mlp(self.ln2(x))", "self.ln2(x); return x + self.mlp(x)")
    found = check(made(write(tmp_path, "gpt", dropped)))["A13"]
    assert found.where.module == "blocks.0.ln2"
    assert found.evidence.witness.startswith("other values in blocks.0.ln2.weight")


def test_the_first_line_says_why_a_kind_was_assumed() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.table, self.places = nn.Embedding(31, 16), nn.Embedding(24, 16)
            self.body = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
            self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 31)

        def forward(self, ids: Tensor) -> Tensor:
            positions = torch.arange(ids.shape[1])
            logits: Tensor = self.head(self.norm(self.body(self.table(ids) + self.places(positions))))
            return logits

    report = check(Tagger(), only=["M01"])
    assert "; assumed to be bidirectional because it is called Tagger: as causal (--kind causal)" in report.summary
