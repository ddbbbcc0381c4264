"""Our decoder layer under torch's signature: it stands in `nn.TransformerDecoder` and in `nn.Transformer`."""

import copy
import inspect
from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch_pairs import CHOICES, Both, Choice, Form, Masks, Side, numbers, randomize

from clearhead.interop.torch_layers import TransformerDecoderLayer


def test_the_signatures_are_torchs() -> None:
    for ours, reference in (
        (TransformerDecoderLayer.__init__, nn.TransformerDecoderLayer.__init__),
        (TransformerDecoderLayer.forward, nn.TransformerDecoderLayer.forward),
    ):
        own, its = inspect.signature(ours).parameters, inspect.signature(reference).parameters
        assert list(own) == list(its)
        assert [parameter.default for parameter in own.values()] == [parameter.default for parameter in its.values()]


@pytest.mark.parametrize("choice", CHOICES)
def test_a_seed_gives_torchs_weights(choice: Choice) -> None:
    options = Both(choice).torch_options
    torch.manual_seed(0)
    reference = nn.TransformerDecoderLayer(**options).state_dict()
    torch.manual_seed(0)
    ours = TransformerDecoderLayer(**options).state_dict()
    assert ours.keys() == reference.keys()
    assert all(torch.equal(ours[name], reference[name]) for name in reference)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize(("side", "source_side"), [(None, "left"), ("right", None), ("right", "right")])
@pytest.mark.parametrize("form", ["boolean", "additive"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_in_a_decoder_of_torch(choice: Choice, side: Side, source_side: Side, form: Form, batch_first: bool) -> None:
    both = Both(choice, seed=8)
    options = {**both.torch_options, "batch_first": batch_first}
    reference = nn.TransformerDecoder(nn.TransformerDecoderLayer(**options), 2)  # type: ignore[arg-type]
    ours = nn.TransformerDecoder(TransformerDecoderLayer(**options), 2)  # type: ignore[arg-type]
    randomize(reference)
    ours.load_state_dict(reference.state_dict())
    masks = Masks(both.positions(both.T, side), causal=True, form=form)
    source = Masks(both.positions(both.T_src, source_side), causal=False, form=form)

    def outputs(decoder: nn.Module) -> Tensor:
        inputs = (tensor if batch_first else tensor.transpose(0, 1) for tensor in (both.x(), both.memory()))
        y: Tensor = decoder(
            *inputs, masks.future, tgt_key_padding_mask=masks.padding, memory_key_padding_mask=source.padding
        )
        return (y if batch_first else y.transpose(0, 1))[masks.real.expand(both.B, both.T)]

    torch.testing.assert_close(outputs(ours), outputs(reference), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["boolean", "additive"])
def test_a_mask_for_every_head_and_a_sentence_without_a_batch(form: Literal["boolean", "additive"]) -> None:
    both = Both(seed=9)
    reference = nn.TransformerDecoderLayer(**both.torch_options).eval()
    ours = TransformerDecoderLayer(**both.torch_options).eval()
    randomize(reference)
    ours.load_state_dict(reference.state_dict())
    B, H, T, T_src = both.B, both.n_heads, both.T, both.T_src
    scores = numbers(B * H, T, T_src, seed=1)  # added, or where positive, forbidden, but for the first token
    memory_mask = scores if form == "additive" else (scores > 0) & (torch.arange(T_src) > 0)
    inputs = both.x(), both.memory()
    torch.testing.assert_close(
        ours(*inputs, memory_mask=memory_mask), reference(*inputs, memory_mask=memory_mask), rtol=0, atol=1e-12
    )
    single, memory = (tensor[0] for tensor in inputs)
    padding = torch.arange(T_src) > 0
    torch.testing.assert_close(
        ours(single, memory, memory_key_padding_mask=padding),
        reference(single, memory, memory_key_padding_mask=padding),
        rtol=0,
        atol=1e-12,
    )
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    torch.testing.assert_close(
        ours(*inputs, tgt_is_causal=True), reference(*inputs, future, tgt_is_causal=True), rtol=0, atol=1e-12
    )


def test_training_drops_in_three_places() -> None:
    torch.manual_seed(0)
    ours = TransformerDecoderLayer(16, 2, 32, dropout=0.5, batch_first=True)
    x, memory = torch.randn(1, 5, 16), torch.randn(1, 4, 16)
    assert not torch.equal(ours(x, memory), ours(x, memory))
    assert torch.equal(ours.eval()(x, memory), ours(x, memory))
    dropped = [module.p for module in ours.modules() if isinstance(module, nn.Dropout)]
    assert dropped == [0.5] * 4, "three sublayers and the feed-forward's hidden layer"
    assert [ours.block.self_attention.part.dropout, ours.block.cross_attention.part.dropout] == [0.5] * 2  # type: ignore[union-attr]


def test_a_copy_reads_and_writes_torchs_names() -> None:
    ours = TransformerDecoderLayer(8, 2, 16)
    copied = copy.deepcopy(ours)
    state = nn.TransformerDecoderLayer(8, 2, 16).state_dict()
    copied.load_state_dict(state)
    assert all(torch.equal(copied.state_dict()[name], state[name]) for name in state)
    assert not torch.equal(ours.state_dict()["linear1.weight"], state["linear1.weight"])
