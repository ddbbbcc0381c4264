"""Every planted fault applies, runs, and differs from its healthy twin; and the proof of that is no rubber stamp."""

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from calls import CALLS
from differences import witness
from faults import HERE, HOSTS, Fault, all_faults, built, host_source, write
from judging import within

import clearhead

FAULTS = all_faults()
# one in twelve; the others with the campaigns
SOME = [pytest.param(fault, marks=[pytest.mark.campaign] if n % 12 else []) for n, fault in enumerate(FAULTS)]
BY_TITLE = {fault.title: fault for fault in FAULTS}


def host_path(host: str) -> Path:
    return HERE / "hosts" / f"{host}.py"


def test_there_are_enough_of_them_and_each_has_a_name_of_its_own() -> None:
    assert len(HOSTS) >= 8
    assert set(HOSTS) == set(CALLS)
    assert len(FAULTS) >= 150
    assert len(BY_TITLE) == len(FAULTS)
    assert len({fault.source() for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("host", [host for host in HOSTS if host.startswith("clearhead_")])
def test_a_fault_of_our_own_parts_names_lines_that_are_there(host: str) -> None:
    """Each is planted by replacing a text of the library, which somebody may have rewritten since."""
    for fault in (fault for fault in FAULTS if fault.host == host):
        module = ast.parse(fault.source())
        [changes] = [
            ast.literal_eval(node.value)
            for node in module.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CHANGES"
        ]
        for path, (old, _) in changes.items():
            count = (Path(clearhead.__file__).parent / path).read_text(encoding="utf-8").count(old)
            assert count == 1, f"{fault.title}: {old!r} stands {count} times in {path}"


@pytest.mark.sampled(8)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # torch has an opinion on one of the mutants
@pytest.mark.parametrize("fault", SOME, ids=lambda fault: fault.title)
def test_a_fault_runs_and_differs_from_its_healthy_twin(fault: Fault, tmp_path: Path) -> None:
    mutant = write(fault, tmp_path)
    assert witness(CALLS[fault.host], host_path(fault.host), mutant) is not None
    paths = {path for file in (mutant, host_path(fault.host)) for path, _ in built(file).named_modules()}
    for pattern in fault.modules:
        assert any(within(path, pattern) for path in paths), f"there is no module {pattern}"


@pytest.mark.sampled
@pytest.mark.parametrize("host", HOSTS)
def test_a_host_does_not_differ_from_itself(host: str, tmp_path: Path) -> None:
    same = tmp_path / "same.py"
    same.write_text(host_source(host) + "\n# as before\n", encoding="utf-8")
    assert witness(CALLS[host], host_path(host), same) is None


HARMLESS: dict[str, tuple[str, Callable[[str], str]]] = {
    "the same mask written otherwise": ("gpt", lambda text: text.replace("== 0, float", "< 0.5, float")),
    "a mask joined with itself": (
        "seq2seq_pre",
        lambda text: text.replace("(h, h, h, tgt_mask)", "(h, h, h, tgt_mask & tgt_mask)"),
    ),
    "another layout of rotary pairs, for queries and keys alike": (
        "cached",
        lambda text: text.replace(
            "torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)",
            "torch.cat((even * cos - odd * sin, even * sin + odd * cos), dim=-1)",
        ),
    ),
}


@pytest.mark.parametrize("what", HARMLESS)
def test_what_changes_nothing_is_no_fault(what: str, tmp_path: Path) -> None:
    host, change = HARMLESS[what]
    assert change(host_source(host)) != host_source(host)
    path = tmp_path / "harmless.py"
    path.write_text(change(host_source(host)), encoding="utf-8")
    assert witness(CALLS[host], host_path(host), path) is None


@pytest.mark.parametrize(("old", "count"), [("no such text", "not 0"), ("self.proj", "not 2")])
def test_what_is_replaced_must_occur_exactly_once(old: str, count: str) -> None:
    fault = replace(BY_TITLE["gpt/no-scale"], changes=((old, "something else"),))
    with pytest.raises(ValueError, match=count):
        fault.source()
