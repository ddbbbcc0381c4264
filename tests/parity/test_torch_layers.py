"""Our block and torch's encoder and decoder layers: one set of weights, outputs and all gradients."""

from itertools import combinations

import pytest
import torch
from torch import Tensor
from torch_pairs import CHOICES, NORM_POSITIONS, Both, Choice, Form, Masks, Side, assert_same, share_weights

from clearhead.interop import from_torch
from clearhead.parts.sublayer import NormPosition

SEEDS = range(2)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize(
    ("side", "causal"), [(None, False), ("left", False), ("right", False), (None, True), ("right", True)]
)
@pytest.mark.parametrize(("form", "seed"), [("boolean", 0), ("additive", 1)])
def test_encoder_layer(choice: Choice, side: Side, causal: bool, form: Form, seed: int) -> None:
    both = Both(choice, seed)
    ours, reference = both.block(cross=False), both.encoder_layer()
    share_weights(ours, reference, seed)
    masks = Masks(both.positions(both.T, side), causal=causal, form=form)

    def compute(x: Tensor) -> Tensor:
        return ours(x, mask=masks.ours)  # type: ignore[no-any-return]

    def compute_torch(x: Tensor) -> Tensor:
        return reference(x, masks.future, masks.padding)  # type: ignore[no-any-return]

    assert_same(ours, reference, compute, compute_torch, [both.x()], masks.real)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("source_side", [None, "left", "right"])
@pytest.mark.parametrize("side", [None, "right"])
@pytest.mark.parametrize(("form", "seed"), [("boolean", 0), ("additive", 1)])
def test_decoder_layer(choice: Choice, source_side: Side, side: Side, form: Form, seed: int) -> None:
    both = Both(choice, seed)
    ours, reference = both.block(cross=True), both.decoder_layer()
    share_weights(ours, reference, seed)
    masks = Masks(both.positions(both.T, side), causal=True, form=form)
    source = Masks(both.positions(both.T_src, source_side), causal=False, form=form)

    def compute(x: Tensor, memory: Tensor) -> Tensor:
        return ours(x, memory, mask=masks.ours, memory_mask=source.for_memory(both.T))  # type: ignore[no-any-return]

    def compute_torch(x: Tensor, memory: Tensor) -> Tensor:
        return reference(  # type: ignore[no-any-return]
            x,
            memory,
            tgt_mask=masks.future,
            tgt_key_padding_mask=masks.padding,
            memory_key_padding_mask=source.padding,
        )

    assert_same(ours, reference, compute, compute_torch, [both.x(), both.memory()], masks.real)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("seed", SEEDS)
@torch.inference_mode()
def test_the_short_cut_of_evaluation(choice: Choice, seed: int) -> None:
    """Without gradients torch computes an encoder layer by a kernel of its own."""
    both = Both(choice, seed)
    ours, reference = both.block(cross=False), both.encoder_layer().eval()
    share_weights(ours, reference, seed)
    torch.testing.assert_close(ours(both.x()), reference(both.x()), rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm_position", NORM_POSITIONS)
def test_no_two_modules_can_be_exchanged_unnoticed(norm_position: NormPosition) -> None:
    """A table that calls any module by the name of another gives other numbers, so that the tests above see it."""
    both = Both((norm_position, "relu", True))
    block, reference = both.block(cross=True), both.decoder_layer()
    share_weights(block, reference)
    expected = reference(both.x(), both.memory(), tgt_mask=Masks(range(both.T), causal=True).future)
    right = from_torch(reference.state_dict())
    weights = [name for name in right if name.endswith("weight")]
    tried = 0
    for first, second in combinations([name.removesuffix("weight") for name in weights], 2):
        if right[f"{first}weight"].shape != right[f"{second}weight"].shape:
            continue
        exchanged = {
            f"{a}{kind}": right[f"{b}{kind}"]
            for a, b in ((first, second), (second, first))
            for kind in ("weight", "bias")
        }
        block.load_state_dict(right | exchanged)
        output = block(both.x(), both.memory(), mask="causal")
        assert (output - expected).abs().max() > 1e-3, f"{first} and {second}"
        tried += 1
    assert tried == 28 + 3  # pairs of eight maps of attention, and of three norms


def test_a_weight_that_is_off_by_little_is_noticed() -> None:
    both = Both(("pre", "gelu", True))
    ours, reference = both.block(cross=False), both.encoder_layer()
    for name, parameter in ours.named_parameters():
        share_weights(ours, reference)
        with torch.no_grad():
            parameter.view(-1)[0] += 1e-9
        if not name.endswith("key.bias"):  # which adds the same to every score of a query
            with pytest.raises(AssertionError, match=r"^(outputs|gradients of)"):
                assert_same(ours, reference, ours, reference, [both.x()])
