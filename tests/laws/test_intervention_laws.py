"""Interventions put their value in place, and nothing else changes."""

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from law_models import CHOICES, make_model, name, random_ids
from pair_models import PAIR_CHOICES, make_translator, some_ids
from torch import Tensor, nn
from torch.nn.modules.activation import MultiheadAttention

from clearhead.errors import UsageError
from clearhead.inspection import attention_sites, intervene, record
from clearhead.inspection.capture.recording import IN_ATTENTION

RECOMPUTED = set(IN_ATTENTION) - {"mixed"}


@pytest.mark.parametrize("choice", CHOICES, ids=name)
def test_the_same_value_changes_no_bit(choice: dict[str, Any]) -> None:
    model, ids = make_model(**choice), random_ids(2, 7)
    with torch.no_grad(), record(model) as trace:
        expected = model(ids)
    names = [name for name in trace.names if name.rpartition(".")[2] not in RECOMPUTED]
    with torch.no_grad():
        for name in names:
            with intervene(model, {name: trace[name]}):
                assert torch.equal(model(ids), expected), name
        with intervene(model, {name: trace[name] for name in names}):
            assert torch.equal(model(ids), expected)


@pytest.mark.parametrize("choice", PAIR_CHOICES, ids=name)
def test_a_head_that_writes_nothing_is_zeroed_columns_of_its_output_map(choice: dict[str, Any]) -> None:
    model, inputs = make_translator(**choice), (some_ids(2, 7), some_ids(2, 5, seed=1))
    for site in attention_sites(model):
        K = site.module.head_dim
        with torch.no_grad(), intervene(model, {f"{site.name}.mixed": without_head(1)}):
            actual = model(*inputs)
        weight = site.module.output.weight
        kept = weight.detach().clone()
        with torch.no_grad():
            weight[:, K : 2 * K] = 0
            expected = model(*inputs)
            weight.copy_(kept)
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)
            assert not torch.allclose(actual, model(*inputs)), "the head matters"


def without_head(head: int) -> Any:
    def zero(mixed: Tensor) -> Tensor:
        mixed = mixed.clone()
        mixed[:, head] = 0
        return mixed

    return zero


def test_a_patch_from_another_trace_gives_the_other_output() -> None:
    model, first, second = make_model(), random_ids(1, 6), random_ids(1, 6, seed=1)
    with torch.no_grad(), record(model, ["*.input", "output"]) as trace:
        model(second)
    with torch.no_grad(), intervene(model, {"stack.input": trace["stack.input"]}):
        np.testing.assert_array_equal(model(first).numpy(), trace["output"])


@pytest.mark.parametrize("is_outside", [True, False])
def test_a_trace_holds_what_was_put_in_place_whichever_came_first(is_outside: bool) -> None:
    model, ids = make_model(), random_ids(1, 6)
    edited, recorded = intervene(model, {"stack.blocks.0.feedforward.part": 2.0}), record(model)
    with torch.no_grad(), ExitStack() as contexts:
        if is_outside:
            contexts.enter_context(edited)
        trace = contexts.enter_context(recorded)
        if not is_outside:
            contexts.enter_context(edited)
        model(ids)
    assert (trace["stack.blocks.0.feedforward.part"] == 2).all()
    assert (trace.mlp[0] == 2).all()


def test_gradients_flow_through_what_was_put_in_place() -> None:
    model, ids = make_model(), random_ids(1, 6)
    vector = torch.zeros(16, dtype=torch.float64, requires_grad=True)
    with intervene(model, {"stack.blocks.0": lambda x: x + vector}):
        model(ids)[0, -1, 0].backward()
    assert vector.grad is not None
    assert vector.grad.abs().sum() > 0


def test_tuples_keep_their_other_parts() -> None:
    attention, x = MultiheadAttention(8, 2, batch_first=True), torch.ones(1, 3, 8)
    with intervene(attention, {"output": 0.0}):
        output, weights = attention(x, x, x)
    assert (output == 0).all()
    assert weights.shape == (1, 3, 3)


def hooks_of(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize(
    ("edits", "sentence"),
    [
        ({"stack.blocks.0": np.zeros(15)}, r"has the shape \(1, 6, 16\); what is put in its place is \(15,\)"),
        ({"stack.blocks.0": lambda x: x[0]}, r"what is put in its place is \(6, 16\)"),
        ({"stack.blocks.0": lambda x: None}, "what is put in its place is NoneType"),
        ({"stack.blocks.9": 0.0}, "computes nothing named 'stack.blocks.9'"),
        ({"stack.blocks.0.self_attention.part.scores": 0.0}, "fused attention never holds it"),
        ({"stack.blocks.7.self_attention.part.mixed": 0.0}, "computes nothing named"),
        ({"positions": 0.0}, "computes nothing named 'positions'"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_everything_is_as_before(edits: dict[str, Any], sentence: str) -> None:
    model, ids = make_model(), random_ids(1, 6)
    expected = model(ids)
    with pytest.raises(UsageError, match=sentence), intervene(model, {"embedding": 0.0, **edits}):
        model(ids)
    assert torch.equal(model(ids), expected)
    assert not hooks_of(model)


def test_an_edit_of_what_is_never_computed_is_told_and_not_passed_over() -> None:
    model, ids = make_model(parallel_residual=True), random_ids(1, 6)
    name = "stack.blocks.0.self_attention"  # of a parallel block only the branch is called
    with pytest.raises(UsageError, match=f"never computed '{name}'"), intervene(model, {name: 0.0}):
        model(ids)
    with intervene(model, {name: 0.0}):
        pass  # nothing was called, so nothing was passed over
    assert not hooks_of(model)
