"""What counts as detected, as the right module and as the right cause."""

from dataclasses import replace

import pytest
from faults import Fault
from judging import Finding, Report, judge, named_causes, within

FAULT = Fault(
    host="gpt",
    name="a-fault",
    kind="causal",
    id="M01",
    also=("M03",),
    modules=("blocks.*.attn",),
    silence=3,
    tier="exact",
    changes=(("old", "new"),),
)


def finding(id: str, status: str, module: str | None = None, causes: tuple[str, ...] = ()) -> Finding:
    ranked = [{"id": cause, "score": 1.0 / (rank + 1)} for rank, cause in enumerate(causes)]
    return {"id": id, "status": status, "where": {"module": module}, "causes": ranked}  # type: ignore[typeddict-item]


def report(*findings: Finding) -> Report:
    return {"verdict": "faulty" if findings else "healthy", "findings": list(findings), "checks": []}


HEALTHY = report()


def test_an_exact_fault_needs_a_fail_and_a_heuristic_one_a_warning() -> None:
    warned = report(finding("M01", "warn", "blocks.0.attn"))
    assert not judge(FAULT, warned, HEALTHY).detected
    assert judge(replace(FAULT, tier="heuristic"), warned, HEALTHY).detected
    assert judge(FAULT, report(finding("X99", "fail")), HEALTHY).detected
    assert not judge(FAULT, report(finding("M01", "pass")), HEALTHY).detected


def test_what_the_healthy_twin_is_told_as_well_is_no_detection() -> None:
    alarm = report(finding("M01", "fail", "blocks.0.attn"))
    assert not judge(FAULT, alarm, alarm).detected
    assert judge(FAULT, alarm, report(finding("M01", "warn"))).detected


@pytest.mark.parametrize(
    ("module", "right"),
    [
        ("blocks.0.attn", True),
        ("blocks.1.attn.proj", True),
        ("blocks.0.mlp", False),
        ("blocks.0", False),
        (None, False),
    ],
)
def test_the_module_is_right_if_it_is_guilty_or_inside_it(module: str | None, right: bool) -> None:
    assert judge(FAULT, report(finding("M01", "fail", module)), HEALTHY).module is right


def test_the_first_failure_names_the_module_even_behind_a_warning() -> None:
    both = report(finding("E03", "warn", "tok_emb"), finding("M01", "fail", "blocks.0.attn"))
    assert judge(FAULT, both, HEALTHY).module is True


def test_modules_count_only_where_one_is_guilty() -> None:
    verdicts = report(finding("M01", "fail", "blocks.0.attn"))
    assert judge(replace(FAULT, modules=("",)), verdicts, HEALTHY).module is None
    assert judge(replace(FAULT, modules=("", "head")), verdicts, HEALTHY).module is False
    assert judge(FAULT, HEALTHY, HEALTHY).module is False


def test_causes_are_counted_in_the_order_in_which_they_are_read() -> None:
    findings = [finding("M06", "fail", causes=("M06", "M03")), finding("M01", "fail"), finding("P01", "warn")]
    assert named_causes(findings) == ["M06", "M03", "M01", "P01"]
    assert judge(FAULT, report(*findings), HEALTHY).cause == 2
    assert judge(replace(FAULT, also=()), report(*findings), HEALTHY).cause == 3
    assert judge(replace(FAULT, id="K01", also=()), report(*findings), HEALTHY).cause is None


@pytest.mark.parametrize(
    ("module", "pattern", "expected"),
    [
        ("", "", True),
        ("head", "", False),
        ("", "head", False),
        ("blocks.10", "blocks.1", False),
        ("a.b.c", "*.b", True),
    ],
)
def test_patterns_of_paths(module: str, pattern: str, expected: bool) -> None:
    assert within(module, pattern) is expected
