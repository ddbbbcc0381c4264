"""Faults in the library's own parts that were hidden once: by the residual stream, by rounding, by a config's word."""

from pathlib import Path

import pytest
import torch
from faults import HERE, all_faults, built, write

from clearhead.doctor import check

BY_TITLE = {fault.title: fault for fault in all_faults()}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("title", "id", "module"),
    [
        ("clearhead_decoder/does-not-see-itself", "M07", "stack.blocks.0.self_attention.part"),
        ("clearhead_decoder/window-ignored", "M16", "stack.blocks.0.self_attention.part"),
        ("clearhead_decoder/scores-not-scaled", "A01", "stack.blocks.0.self_attention.part"),
        ("clearhead_decoder/no-residual", "N04", "stack.blocks.0.self_attention"),
        ("clearhead_translator/no-residual", "N04", "encoder.blocks.0.self_attention"),
        ("clearhead_decoder/dropout-in-evaluation", "T09", "dropout"),
    ],
)
def test_a_fault_is_found_in_its_place(title: str, id: str, module: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    report = check(built(write(BY_TITLE[title], tmp_path)))
    assert [(finding.id, finding.where.module) for finding in report.findings][:1] == [(id, module)]


@pytest.mark.parametrize("host", ["clearhead_decoder", "clearhead_translator"])
def test_without_a_fault_there_is_nothing_to_say(host: str) -> None:
    torch.manual_seed(0)
    report = check(built(HERE / "hosts" / f"{host}.py"))
    assert not report.findings
