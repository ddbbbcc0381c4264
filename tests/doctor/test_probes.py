"""Probes against what is known in closed form."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from clearhead.doctor import xray
from clearhead.doctor.calling.outputs import arrange, find_logits, follow
from clearhead.doctor.catalogue.faults import CATALOGUE
from clearhead.doctor.checks import CHECKS
from clearhead.doctor.checks.base import Check
from clearhead.doctor.checks.parts.layouts import scrambled
from clearhead.doctor.probes.dependency import shape_of
from clearhead.doctor.probes.flow import Flow
from clearhead.doctor.probes.tracing import home_of, recorded_modules, recorded_ops
from clearhead.doctor.training.checks import TRAINING_CHECKS
from clearhead.doctor.training.preflight import OF_A_TRAINING

B, T, V = 3, 7, 31


def square(rule: Callable[[int, int], bool], n: int = 9) -> Tensor:
    return torch.tensor([[rule(i, j) for j in range(n)] for i in range(n)])


SHAPES = [
    ("causal", 0, lambda i, j: j <= i),
    ("full", 0, lambda i, j: True),
    ("deaf", 0, lambda i, j: False),
    ("alone", 0, lambda i, j: i == j),
    ("strict", 0, lambda i, j: j < i),
    ("reversed", 0, lambda i, j: j >= i),
    ("reversed", 0, lambda i, j: j > i),
    ("window", 3, lambda i, j: 0 <= i - j < 3),
    ("ahead", 1, lambda i, j: j <= i + 1),
    ("ahead", 3, lambda i, j: j <= i + 3),
    ("prefix", 4, lambda i, j: j <= i or j < 4),
    ("chunks", 4, lambda i, j: j // 4 <= i // 4),
    ("band", 2, lambda i, j: abs(i - j) <= 2),
    ("gaps", 0, lambda i, j: j <= i and (i - j) % 3 == 0),
    ("mixed", 0, lambda i, j: (i * j) % 2 == 0),
]


@pytest.mark.parametrize(("name", "number", "rule"), SHAPES)
def test_shapes_have_names(name: str, number: int, rule: Callable[[int, int], bool]) -> None:
    assert shape_of(square(rule)) == (name, number)


def random_logits(seed: int = 0, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(B, T, V, generator=generator)
    ids = torch.stack([torch.randperm(V, generator=generator)[:T] for _ in range(B)])
    return logits, ids


@settings(max_examples=25, deadline=None)
@given(
    offset=st.integers(0, 2),
    smoothing=st.sampled_from([0.0, 0.1, 0.3]),
    seed=st.integers(0, 10**6),
    spread=st.sampled_from([0.1, 1.0, 3.0]),
    weighted=st.booleans(),
)
def test_the_xray_gives_back_what_the_loss_was_made_of(
    offset: int, smoothing: float, seed: int, spread: float, weighted: bool
) -> None:
    logits, ids = random_logits(seed, spread)
    weights = torch.rand(B, T - offset, generator=torch.Generator().manual_seed(seed)) + 0.5
    weights = weights if weighted else torch.ones_like(weights)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        each = F.cross_entropy(
            x[:, : T - offset].flatten(0, 1), y[:, offset:].flatten(), label_smoothing=smoothing, reduction="none"
        )
        return (each * weights.flatten()).sum()

    seen = xray(loss, logits, ids)
    assert seen.offset == offset
    assert seen.residual < 1e-4
    assert torch.equal(seen.targets[:, : T - offset], ids[:, offset:])
    assert torch.allclose(seen.weights[:, : T - offset], weights, rtol=1e-3)
    assert torch.allclose(seen.smoothing[:, : T - offset], torch.tensor(smoothing), atol=2e-3)
    assert not seen.weights[:, T - offset :].any()


def test_the_xray_reads_a_loss_that_was_computed_already() -> None:
    logits, ids = random_logits()
    logits.requires_grad_()
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    seen = xray(loss, logits, ids)
    assert seen.offset == 1
    assert float(seen.weights.sum()) == pytest.approx(1, abs=1e-5)
    assert seen.table().count("\n") == B * T
    loss.backward()  # type: ignore[no-untyped-call]  # the graph is still there


@pytest.mark.parametrize("margin", [6.0, 9.0, 12.0, 15.0])
def test_the_xray_reads_what_is_asked_of_targets_that_are_nearly_sure(margin: float) -> None:
    logits, ids = random_logits()
    sure = logits + margin * F.one_hot(ids, V)
    seen = xray(lambda x, y: F.cross_entropy(x.flatten(0, 1), y.flatten()), sure, ids)
    assert (seen.offset, seen.residual < 1e-3) == (0, True), seen.sentence
    for loss in (F.binary_cross_entropy_with_logits, F.mse_loss):
        leaf = sure.clone().requires_grad_()
        assert xray(loss(leaf, F.one_hot(ids, V).float()), leaf, ids).residual > 1e-2


def test_what_is_no_cross_entropy_has_a_residual() -> None:
    logits, ids = random_logits()
    for loss in (
        lambda x, y: F.cross_entropy(x.softmax(-1).flatten(0, 1), y.flatten()),
        lambda x, y: F.nll_loss(x.flatten(0, 1), y.flatten()),
        lambda x, y: F.cross_entropy(x.reshape(B, V, T), y),
        lambda x, y: F.mse_loss(x, F.one_hot(y, V).float()),
    ):
        assert xray(loss, logits, ids).residual > 1e-2


@pytest.mark.parametrize("heads", [2, 3])
def test_only_a_reshape_that_mixes_tokens_is_told(heads: int) -> None:
    rows, length, width = 19, 13, 5
    x = torch.randn(rows, length, heads * width)

    def found(change: Callable[[Tensor], Tensor]) -> bool:
        with recorded_ops() as ops:
            change(x)
        return scrambled(ops.calls, length) is not None or scrambled(ops.calls, rows) is not None

    assert not found(lambda x: x.view(rows, length, heads, width).transpose(1, 2))
    assert not found(lambda x: x.view(rows, length, heads, width).transpose(1, 2).transpose(1, 2).reshape(x.shape))
    assert not found(lambda x: x.view(rows * length, -1).view(rows, length, -1))
    assert found(lambda x: x.view(rows, heads, length, width))
    assert found(lambda x: x.view(rows, length, heads, width).transpose(1, 2).reshape(x.shape))
    assert found(lambda x: x.transpose(1, 2).reshape(x.shape))
    assert found(lambda x: x.view(length, rows, -1).transpose(0, 1))
    assert found(lambda x: x.view(rows * heads, length, width))


@dataclass(slots=True)
class Answer:
    logits: Tensor


class LargerAnswer(Answer):
    """Has what its parent has slots for, and a dict of its own."""


def test_logits_are_found_wherever_they_are() -> None:
    logits, other = torch.randn(5, 13, V), torch.randn(5, 13, 8)
    for value, path in (
        (logits, ()),
        ((other, logits), (1,)),
        ({"a": other, "logits": logits}, ("logits",)),
        ([{"x": [other, logits]}], (0, "x", 1)),
        (Answer(logits), ("logits",)),
        (LargerAnswer(logits), ("logits",)),
    ):
        assert find_logits(value, 5, 13, V) == path
        assert follow(value, path) is logits
    assert find_logits(torch.zeros(5), 5, 13, V) is None
    assert find_logits(torch.zeros(5, 13, V, dtype=torch.long), 5, 13, V) is None
    for turned in (logits.transpose(0, 1), logits.transpose(1, 2), logits.flatten(0, 1)):
        arranged = arrange(turned, 5, 13)
        assert arranged is not None
        assert torch.equal(arranged, logits)


ALL: tuple[Check[Any], ...] = (*CHECKS, *TRAINING_CHECKS)
COVERED = {id for check in ALL for id in check.covers}


def test_every_id_of_a_check_is_in_the_catalogue_and_every_entry_has_a_check() -> None:
    assert set(CATALOGUE) >= COVERED
    assert {check.id for check in ALL} <= COVERED
    for checks in ([(c.name, c.needs) for c in CHECKS], [(c.name, c.needs) for c in TRAINING_CHECKS]):
        names = [name for name, _ in checks]
        assert len(set(names)) == len(names)
        for number, (_, needs) in enumerate(checks):
            assert set(needs) <= set(names[:number]), "what a check rests on comes before it"


def test_no_entry_of_the_catalogue_is_without_a_check() -> None:
    judged_only = {"A07", "M21", "P04"}  # words of those who judge; no check looks for what no stranger had
    assert set(CATALOGUE) - COVERED - OF_A_TRAINING == judged_only


@pytest.mark.parametrize("id", CATALOGUE)
def test_every_entry_says_what_to_do(id: str) -> None:
    entry = CATALOGUE[id]
    for text in (entry.title, entry.symptom, entry.mechanism, entry.fix, entry.mutant):
        assert text.strip()
        assert not text.endswith(".")


def test_what_lends_only_its_shape_is_no_source() -> None:
    x = torch.randn(2, 5, 3)
    with recorded_ops() as ops:
        y = torch.arange(3).float().expand_as(x) * 2
        z = x * 2
    flow = Flow(ops.calls)
    assert not flow.comes_from(y, len(ops.calls), x)
    assert flow.comes_from(z, len(ops.calls), x)


def test_what_hands_a_tensor_on_did_not_make_it_and_what_writes_into_it_did() -> None:
    x = torch.randn(2, 5, 3)
    with recorded_ops() as ops:
        y = x * 2
        y.float()
        y.mul_(3)
        y.float()
    flow = Flow(ops.calls)
    at = flow.maker(y, len(ops.calls))
    assert at is not None
    assert ops.calls[at].name == "mul_"
    before = flow.maker(y, at)
    assert before is not None
    assert ops.calls[before].name != "float"


def test_what_a_part_was_given_is_told_where_another_part_fails_and_the_model_goes_on() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError

    class Goes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fast, self.slow = Fails(), nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            with suppress(ValueError):
                self.fast(-x)
            return self.slow(x)  # type: ignore[no-any-return]

    model, x = Goes(), torch.ones(2)
    with recorded_modules(model) as calls:
        model(x)
    assert [(call.name, call.depth) for call in calls] == [("slow", 1), ("", 0)]
    assert all(torch.equal(call.inputs[0], x) for call in calls)


def test_code_beside_torch_is_not_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(torch.__file__).parent
    near = str(folder.with_name(f"{folder.name}vision") / "model.py")
    monkeypatch.setattr(inspect, "getsourcefile", lambda of: near)
    assert home_of(nn.Linear(1, 1))[0] == near
    monkeypatch.setattr(inspect, "getsourcefile", lambda of: str(folder / "nn" / "linear.py"))
    assert home_of(nn.Linear(1, 1)) == (None, None)
