"""The capture sees what was computed, changes nothing and leaves nothing behind."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from law_models import CHOICES, Choice, make_model, name, random_ids
from pair_models import ENCODER_CHOICES, PAIR_CHOICES, make_encoder, make_translator, some_ids
from torch import Tensor, nn

from clearhead.errors import InputError, UsageError
from clearhead.inspection import activation_names, attention_sites, record
from clearhead.inspection.capture.recording import merge_heads
from clearhead.inspection.capture.trace import NotRecordedError
from clearhead.models import LanguageModel

Make = Callable[[], LanguageModel]
MAKERS: dict[str, tuple[Callable[..., LanguageModel], list[Choice]]] = {
    "decoder": (make_model, CHOICES),
    "encoder": (make_encoder, ENCODER_CHOICES),
    "pair": (make_translator, PAIR_CHOICES),
}
MODELS = [
    pytest.param(partial(make, **choice), 2 if kind == "pair" else 1, id=f"{kind}-{name(choice)}")
    for kind, (make, choices) in MAKERS.items()
    for choice in choices
]


def inputs_for(n_inputs: int) -> tuple[Tensor, ...]:
    return (some_ids(2, 7), some_ids(2, 5, seed=1))[-n_inputs:]


def hooks_of(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize(("make", "n_inputs"), MODELS)
def test_the_output_is_the_same_to_the_last_bit_and_everything_is_seen(make: Make, n_inputs: int) -> None:
    model, inputs = make(), inputs_for(n_inputs)
    with torch.no_grad():
        expected = model(*inputs)
        with record(model) as trace:
            assert torch.equal(model(*inputs), expected)
    assert torch.equal(trace.tensor("output"), expected)
    assert not hooks_of(model)
    missing = set(activation_names(model)) - set(trace.names)
    classes = {type(model.get_submodule(path)).__name__ for path in missing}
    never_called = {"Sublayer"} if model.config.parallel_residual else set()  # only its branch is
    assert classes <= never_called, missing


@pytest.mark.parametrize(("make", "n_inputs"), MODELS)
def test_the_steps_of_attention_are_those_that_led_to_its_output(make: Make, n_inputs: int) -> None:
    model = make()
    with torch.no_grad(), record(model) as trace:
        model(*inputs_for(n_inputs))
    assert attention_sites(model)
    for site in attention_sites(model):
        q, v, scores, weights, mixed = (
            trace.tensor(f"{site.name}.{step}") for step in ("q", "v", "scores", "attention", "mixed")
        )
        value = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
        torch.testing.assert_close(weights @ value, mixed, rtol=0, atol=1e-10)
        torch.testing.assert_close(scores.softmax(-1).nan_to_num(), weights, rtol=0, atol=1e-10)
        with torch.no_grad():
            torch.testing.assert_close(site.module.output(merge_heads(mixed)), trace.tensor(site.name), rtol=0, atol=0)


@pytest.mark.parametrize(("make", "n_inputs"), MODELS)
def test_the_residual_stream_is_what_its_writers_add_up_to(make: Make, n_inputs: int) -> None:
    model = make()
    with torch.no_grad(), record(model) as trace:
        model(*inputs_for(n_inputs))
    stream = trace.residual
    assert len(stream) == model.config.n_layers + 1
    if model.config.norm_position == "post":
        return
    for layer in range(model.config.n_layers):
        own = next(s for s in attention_sites(model) if s.kind == "self" and s.layer == layer)
        cross = [trace[s.name] for s in attention_sites(model) if s.kind == "cross" and s.layer == layer]
        total = stream[layer] + trace[own.name] + sum(cross) + trace.mlp[layer]
        np.testing.assert_allclose(stream[layer + 1], total, rtol=0, atol=1e-10)


@pytest.mark.parametrize("choice", CHOICES, ids=name)
def test_attention_with_a_cache_is_the_last_rows_of_attention_without(choice: dict[str, Any]) -> None:
    model, ids = make_model(**choice), random_ids(2, 9)
    with torch.no_grad(), record(model, "*.attention") as whole:
        model(ids)
    cache = model.new_cache(2, 9)
    with torch.no_grad(), record(model, "*.attention") as trace:
        model(ids[:, :5], cache=cache)
        model(ids[:, 5:], cache=cache)
    for layer, weights in enumerate(trace.attention):
        np.testing.assert_allclose(weights, whole.attention[layer][:, :, 5:], rtol=0, atol=1e-10)


def test_every_hook_is_removed_whatever_happens() -> None:
    model = make_translator().train()
    with pytest.raises(InputError, match="token id"), record(model) as trace:
        model(some_ids(1, 3), some_ids(1, 3) + 99)
    assert not hooks_of(model)
    assert "output" not in trace
    with pytest.raises(UsageError), record(model, ["output", "nothing"]):
        pass
    assert not hooks_of(model)


def test_names_bound_what_is_kept() -> None:
    model, ids = make_model(), random_ids(1, 6)
    with record(model, ["output", "*.1.*.attention"]) as trace:
        model(ids)
    assert trace.names == ["stack.blocks.1.self_attention.part.attention", "output"]
    assert trace.attention[1].shape == (1, 4, 6, 6)
    with pytest.raises(NotRecordedError, match=r"stack\.blocks\.0\.self_attention\.part\.attention"):
        trace.attention[0]
    with pytest.raises(IndexError, match="there is no number 2"):
        trace.attention[2]
    assert trace.get("embedding") is None
    with pytest.raises(UsageError, match="did you mean 'embedding'"), record(model, "embeding"):
        pass


def test_a_stack_can_be_the_model_itself() -> None:
    stack, x = make_model().stack, torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(0)).double()
    with torch.no_grad(), record(stack) as trace:
        stack(x, mask="causal")
    assert trace.residual[0].tolist() == x.tolist()
    assert trace.residual[1].shape == trace.mlp[1].shape == (1, 5, 16)
    assert trace.attention[1].shape == (1, 4, 5, 5)


def test_the_last_call_is_kept() -> None:
    model, ids = make_model(), random_ids(1, 6)
    with record(model, "output") as trace:
        model(ids)
        model(ids[:, :2])
    assert trace["output"].shape[1] == 2


def test_what_is_written_over_later_is_kept_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU(inplace=True))
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    with record(model) as trace:
        model(torch.cat([x, -x]))
    assert (trace["0"] < 0).any()
    assert (trace["1"] >= 0).all()


def test_any_module_can_be_recorded_and_bfloat16_becomes_float32() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).train().bfloat16()
    with record(layer) as trace:
        layer(torch.zeros(1, 3, 8, dtype=torch.bfloat16))
    assert trace["linear1"].dtype == np.float32
    assert trace["self_attn"].shape == (1, 3, 8), "the first tensor of a tuple"
    with pytest.raises(IndexError, match="no such part of this library"):
        trace.attention[0]
