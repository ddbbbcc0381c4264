"""Our parts and torch's own layers give the same numbers from the same weights."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.parts import Attention, Block, FeedForward, LayerNorm, Sublayer, attention_mask, forbidden_from_allowed
from clearhead.parts.sublayer import NormPlace

D, H, D_FF, T, T_SRC = 16, 4, 24, 7, 5
Activation = Callable[[Tensor], Tensor]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randomise(module: nn.Module) -> None:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)


def copy_attention(ours: nn.Module, theirs: nn.MultiheadAttention) -> None:
    """torch keeps the three projections in one matrix."""
    assert isinstance(ours, Attention)
    assert theirs.in_proj_weight is not None
    with torch.no_grad():
        for index, linear in enumerate((ours.query, ours.key, ours.value)):
            linear.weight.copy_(theirs.in_proj_weight.chunk(3)[index])
            linear.bias.copy_(theirs.in_proj_bias.chunk(3)[index])
        ours.output.load_state_dict(theirs.out_proj.state_dict())


def copy_rest(ours: Block, theirs: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> None:
    feedforward = ours.feedforward.part
    assert isinstance(feedforward, FeedForward)
    feedforward.up.load_state_dict(theirs.linear1.state_dict())
    feedforward.down.load_state_dict(theirs.linear2.state_dict())
    norms = [sublayer.norm for sublayer in (ours.self_attention, ours.cross_attention, ours.feedforward) if sublayer]
    for index, norm in enumerate(norms, start=1):
        norm.load_state_dict(theirs.get_submodule(f"norm{index}").state_dict())


def make_block(place: NormPlace, activation: Activation, *, cross: bool) -> Block:
    def around(part: nn.Module) -> Sublayer:
        return Sublayer(part, LayerNorm(D), place=place)

    return Block(
        around(Attention(D, H, bias=True)),
        around(FeedForward(activation, D, D_FF, bias=True)),
        around(Attention(D, H, bias=True)) if cross else None,
    ).double()


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_equals_multihead_attention(cross: bool, causal: bool) -> None:
    theirs = nn.MultiheadAttention(D, H, batch_first=True, dtype=torch.float64)
    randomise(theirs)
    ours = Attention(D, H, bias=True).double()
    copy_attention(ours, theirs)
    x, memory = draw(2, T, D), draw(2, T_SRC, D, seed=1) if cross else None
    source = x if memory is None else memory
    allowed = torch.ones(T, source.shape[1], dtype=torch.bool)
    allowed = allowed.tril() if causal else allowed
    expected, _ = theirs(x, source, source, attn_mask=forbidden_from_allowed(allowed))
    close(ours(x, memory, mask=allowed), expected)


def test_padding_equals_a_key_padding_mask() -> None:
    theirs = nn.MultiheadAttention(D, H, batch_first=True, dtype=torch.float64)
    randomise(theirs)
    ours = Attention(D, H, bias=True).double()
    copy_attention(ours, theirs)
    x, positions = draw(2, T, D), torch.tensor([[*range(T)], [*range(T - 3), -1, -1, -1]])
    real = positions >= 0
    expected, _ = theirs(x, x, x, key_padding_mask=forbidden_from_allowed(real))
    mask = attention_mask(positions, positions, causal=False)
    close(ours(x, mask=mask)[real], expected[real])


@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("activation", [F.relu, F.gelu])
@pytest.mark.parametrize("causal", [False, True])
def test_our_block_equals_the_encoder_layer(place: NormPlace, activation: Activation, causal: bool) -> None:
    theirs = nn.TransformerEncoderLayer(
        D, H, D_FF, 0.0, activation, batch_first=True, norm_first=place == "pre", dtype=torch.float64
    )
    randomise(theirs)
    ours = make_block(place, activation, cross=False)
    copy_attention(ours.self_attention.part, theirs.self_attn)
    copy_rest(ours, theirs)
    x = draw(2, T, D)
    forbidden = nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64) if causal else None
    close(ours(x, mask="causal" if causal else None), theirs(x, src_mask=forbidden))


@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("activation", [F.relu, F.gelu])
def test_our_block_with_cross_attention_equals_the_decoder_layer(place: NormPlace, activation: Activation) -> None:
    theirs = nn.TransformerDecoderLayer(
        D, H, D_FF, 0.0, activation, batch_first=True, norm_first=place == "pre", dtype=torch.float64
    )
    randomise(theirs)
    ours = make_block(place, activation, cross=True)
    assert ours.cross_attention is not None
    copy_attention(ours.self_attention.part, theirs.self_attn)
    copy_attention(ours.cross_attention.part, theirs.multihead_attn)
    copy_rest(ours, theirs)
    x, memory = draw(2, T, D), draw(2, T_SRC, D, seed=1)
    forbidden = nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64)
    close(ours(x, memory, mask="causal"), theirs(x, memory, tgt_mask=forbidden))
