"""The worked example, printed for a person and for a program."""

from typing import Any

import numpy as np
import pytest
from command_helpers import Caller

from clearhead import reference

PRINTED = {  # elsewhere, to four decimals; the others are in tests/parity
    "self-attention": "  token 0 -0.2127 -0.0391  0.2221 -0.0998  0.1540 -0.0465 -0.0045 -0.1185",
    "out": "  token 2  1.3633  0.0677  0.4245 -0.9663 -2.0952  0.4925  0.6174  0.0961",
}


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


def sections(shown: str) -> dict[str, list[str]]:
    """What is shown of each intermediate, by its name."""
    return {lines[0].split("  ")[0]: lines[1:] for lines in (part.splitlines() for part in shown.split("\n\n"))}


@pytest.mark.parametrize("argv", [[], ["--torch"], ["--norm-position", "pre"], ["--norm-position", "pre", "--torch"]])
def test_every_intermediate_is_shown_on_a_narrow_terminal(argv: list[str], call: Caller) -> None:
    code, out, err = call("worked-example", *argv)
    assert (code, err) == (0, "")
    assert "\x1b" not in out, "no colors where there is no terminal"
    assert max(map(len, out.splitlines())) <= 80
    shown = sections(out)
    for step in reference.worked_example("pre" if "pre" in argv else "post").intermediates:
        lines = shown[step.name]
        assert lines[0] == f"  = {step.equation}"
        rows = [line for line in lines[1:] if "torch" not in line and "difference" not in line]
        assert len(" ".join(rows).split()) >= step.values.size


def test_the_figures_are_those_that_were_printed(call: Caller) -> None:
    shown = sections(call("worked-example").out)
    for name, row in PRINTED.items():
        assert row in shown[name]


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_torch_agrees_and_is_asked_about_everything_that_it_hands_out(norm_position: str, call: Caller) -> None:
    result = call("worked-example", "--torch", "--norm-position", norm_position, "--json").json
    assert result["norm_position"] == norm_position
    kept = {"x", "memory", "self-attention scores", "cross-attention scores"}
    for step, twin in zip(result["intermediates"], reference.worked_example(norm_position).intermediates, strict=True):
        check(step, twin)
        assert ("torch" in step) == ("difference" in step) == (step["name"] not in kept)
        if "torch" in step:
            apart = np.abs(np.array(step["torch"]) - twin.values)
            assert apart.shape == twin.values.shape
            assert step["difference"] == apart.max() <= 1e-12


def check(step: dict[str, Any], twin: reference.Intermediate) -> None:
    assert (step["name"], step["equation"], step["axes"]) == (twin.name, twin.equation, twin.axes.split())
    assert tuple(step["shape"]) == twin.values.shape
    assert len(step["axes"]) == len(step["shape"])
    np.testing.assert_array_equal(np.array(step["values"]), twin.values)


def test_without_torch_as_json(call: Caller) -> None:
    result = call("worked-example", "--json").json
    assert [step["name"] for step in result["intermediates"]][-1] == "out"
    assert not any("torch" in step for step in result["intermediates"])


def test_another_norm_position_is_refused(call: Caller) -> None:
    refused = call("worked-example", "--norm-position", "around")
    assert refused.code == 2
    assert "'pre' or 'post', not 'around'" in refused.err


def test_the_verb_may_be_written_as_it_is_shown_only(call: Caller) -> None:
    assert "did you mean 'worked-example'?" in call("worked_example").err
