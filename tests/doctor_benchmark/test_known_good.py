"""The sweep over released models: three families through its program, its table of exceptions, and its arithmetic."""

import pytest

pytest.importorskip("transformers", reason="the released models are those of transformers: pip install it")

from known_good import (
    Examined,
    architectures,
    by_design,
    examine,
    exceptions,
    left_out,
    measures,
    sweep,
    table_of_findings,
)

from clearhead.doctor.catalogue.faults import CATALOGUE

FAMILIES = {"GPT2LMHeadModel": "causal", "BertForMaskedLM": "bidirectional", "T5ForConditionalGeneration": "seq2seq"}


@pytest.mark.campaign
def test_three_families_on_both_attentions_in_processes_of_their_own() -> None:
    cases = list(sweep(FAMILIES, "quick", timeout=120))
    assert [(case.architecture, case.backend) for case in cases] == [
        (name, backend) for name in FAMILIES for backend in ("eager", "sdpa")
    ]
    done = [case for case in cases if case.outcome == "examined"]
    assert len(done) >= 5, left_out(cases)
    assert all(case.report["kind"] == case.meant for case in done)
    assert not [case for case in done if case.ids("fail")], table_of_findings(cases, "fail")
    assert any("pairs with a false alarm (fail) | 0 of" in line for line in measures(cases))


def test_what_hangs_is_ended_and_listed() -> None:
    (eager, sdpa) = sweep({"GPT2LMHeadModel": "causal"}, "quick", timeout=0.001)
    assert {eager.outcome, sdpa.outcome} == {"not finished"}
    assert "more than 0.001 seconds" in left_out([eager, sdpa])[2]


def test_what_cannot_be_built_is_listed_with_its_reason() -> None:
    case = examine("NoSuchModel", "eager", "causal", "quick", {})
    assert case.outcome == "not built"
    assert "transformers knows no 'NoSuchModel'" in left_out([case])[2]


def test_every_exception_is_of_a_class_and_a_check_that_exist() -> None:
    known = architectures()
    assert len(known) >= 190
    for exception in exceptions():
        assert exception.architecture in known
        assert exception.id in CATALOGUE
        assert exception.reason


def test_an_exception_that_is_none_any_more_is_told() -> None:
    declared = exceptions()[0]
    report = {"checks": [], "findings": [], "kind": "causal", "seconds": 0.1}
    case = Examined(declared.architecture, "eager", "causal", "examined", report=report)
    assert "no longer" in by_design([case], [declared])[2]
