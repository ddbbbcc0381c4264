"""The table between our state dicts and torch's: bit for bit, both ways, and refusals that name what is wrong."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch_pairs import Both, randomize

from clearhead.errors import DataError
from clearhead.interop import from_torch, to_torch
from clearhead.parts import FEEDFORWARDS, Attention, Block, LayerNorm, ProjectionConfig, RMSNorm, Sublayer

State = dict[str, Tensor]
Pair = Callable[[Both], tuple[nn.Module, nn.Module]]


def attention(both: Both) -> tuple[nn.Module, nn.Module]:
    return both.attention(), both.multihead_attention()


def encoder_layer(both: Both) -> tuple[nn.Module, nn.Module]:
    return both.block(cross=False), both.encoder_layer()


def decoder_layer(both: Both) -> tuple[nn.Module, nn.Module]:
    return both.block(cross=True), both.decoder_layer()


def encoder(both: Both) -> tuple[nn.Module, nn.Module]:
    return both.stack(1, cross=False, final_norm=True), both.encoder(1, final_norm=True)


def open_encoder(both: Both) -> tuple[nn.Module, nn.Module]:
    return both.stack(11, cross=False, final_norm=False), both.encoder(11, final_norm=False)


def decoder(both: Both) -> tuple[nn.Module, nn.Module]:
    return both.stack(3, cross=True, final_norm=True), both.decoder(3, final_norm=True)


def open_decoder(both: Both) -> tuple[nn.Module, nn.Module]:
    return both.stack(2, cross=True, final_norm=False), both.decoder(2, final_norm=False)


def transformer(both: Both) -> tuple[nn.Module, nn.Module]:
    stacks = {
        "encoder": both.stack(3, cross=False, final_norm=True),
        "decoder": both.stack(2, cross=True, final_norm=True),
    }
    return nn.ModuleDict(stacks), both.transformer(3, 2)


def open_transformer(both: Both) -> tuple[nn.Module, nn.Module]:
    stacks = {
        "encoder": both.stack(1, cross=False, final_norm=False),
        "decoder": both.stack(2, cross=True, final_norm=False),
    }
    transformer = nn.Transformer(
        custom_encoder=both.encoder(1, final_norm=False),
        custom_decoder=both.decoder(2, final_norm=False),
        **both.torch_options,
    )
    return nn.ModuleDict(stacks), transformer


PAIRS: list[Pair] = [
    attention,
    encoder_layer,
    decoder_layer,
    encoder,
    open_encoder,
    decoder,
    open_decoder,
    transformer,
    open_transformer,
]


def assert_bits_equal(actual: State, expected: State) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype
        assert actual[name].shape == tensor.shape
        assert torch.equal(actual[name].view(torch.uint8), tensor.contiguous().view(torch.uint8)), name


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_there_and_back_is_bit_identical(pair: Pair, bias: bool, dtype: torch.dtype) -> None:
    """Both modules take the other's weights strictly: none is missing, none is left over."""
    ours, reference = (module.to(dtype) for module in pair(Both(("pre", "relu", bias), seed=1)))
    for module in (ours, reference):
        randomize(module.double())
        module.to(dtype)
    there = reference.state_dict()
    own = from_torch(there)
    ours.load_state_dict(own)
    assert_bits_equal(to_torch(own), there)

    randomize(reference.double(), seed=1)  # something else
    reference.to(dtype).load_state_dict(to_torch(ours.state_dict()))
    assert_bits_equal(from_torch(reference.state_dict()), dict(ours.state_dict()))


@pytest.mark.parametrize("pair", PAIRS)
def test_no_memory_is_shared(pair: Pair) -> None:
    torch_state = pair(Both())[1].state_dict()
    own = from_torch(torch_state)
    addresses = [
        tensor.untyped_storage().data_ptr() for state in (torch_state, own, to_torch(own)) for tensor in state.values()
    ]
    assert len(set(addresses)) == len(addresses)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("bias", [True, False])
def test_what_is_missing_or_left_over_is_listed(pair: Pair, bias: bool) -> None:
    for convert, module in zip((to_torch, from_torch), pair(Both(("pre", "relu", bias))), strict=True):
        state = dict(module.state_dict())
        for name in state:
            if name.endswith("norm.bias") or ("norm" in name and not bias):
                continue  # torch's norms may lack a bias, and its stacks a norm
            lacking = {other: tensor for other, tensor in state.items() if other != name}
            with pytest.raises(DataError, match=f" {name} is missing") as caught:
                convert({**lacking, "strange": torch.ones(2), "odd.weight": torch.ones(2)})
            assert "odd.weight is left over, strange is left over;" in str(caught.value)
            assert str(caught.value).count("is missing") == 1
            assert str(caught.value).count("is left over") == 2


def test_a_layer_between_others_is_missed() -> None:
    state = both_sides_of_three()
    for convert, stem in ((from_torch, "layers.1."), (to_torch, "blocks.1.")):
        kept = {name: tensor for name, tensor in state[convert is to_torch].items() if not name.startswith(stem)}
        with pytest.raises(DataError, match=r"\.2\.\S+ is left over"):
            convert(kept)


def both_sides_of_three() -> tuple[State, State]:
    torch_state = Both().encoder(3, final_norm=True).state_dict()
    return torch_state, from_torch(torch_state)


def test_nothing_is_no_module() -> None:
    for convert in (from_torch, to_torch):
        with pytest.raises(DataError, match="is missing"):
            convert({})


def test_torch_attention_of_other_widths_or_with_more_keys_is_refused() -> None:
    with pytest.raises(DataError, match="in_proj_weight is missing, k_proj_weight is left over"):
        from_torch(nn.MultiheadAttention(8, 2, kdim=6, vdim=4).state_dict())
    with pytest.raises(DataError, match=r"nn.MultiheadAttention.*: bias_k is left over, bias_v is left over;"):
        from_torch(nn.MultiheadAttention(8, 2, add_bias_kv=True).state_dict())
    state = dict(nn.MultiheadAttention(8, 2).state_dict())
    state["in_proj_weight"], state["in_proj_bias"] = torch.ones(7, 8), torch.tensor(1.0)
    with pytest.raises(DataError, match=r"in_proj_weight of shape \[7, 8\].*in_proj_bias of shape \[\] cannot be cut"):
        from_torch(state)


def block(part: nn.Module | None = None, norm: nn.Module | None = None, *, bias: bool = True) -> Block:
    """Of width 8, with this attention and this norm before it."""
    return Block(
        Sublayer(part or Attention(8, 4, projections=ProjectionConfig(bias)), norm or LayerNorm(8)),
        Sublayer(FEEDFORWARDS["relu"](8, 6, bias=bias), LayerNorm(8)),
    )


def test_what_torch_does_not_have_is_refused() -> None:
    gated, grouped = block(), block(Attention(8, 4, 2, projections=ProjectionConfig(True)))
    gated.feedforward.part = FEEDFORWARDS["swiglu"](8, 6)
    normed = block(Attention(8, 4, projections=ProjectionConfig(True, qk_norm=RMSNorm)))
    bare = block(norm=RMSNorm(8))
    model = nn.ModuleDict({"embedding": nn.Embedding(3, 8), "blocks": nn.ModuleList([block()]), "norm": LayerNorm(8)})
    refused = {
        r"query.weight \[8, 8\], .*key.weight \[4, 8\].*build ours with n_kv_heads = n_heads": grouped,
        r"key_norm.weight is left over, .*query_norm.weight is left over": normed,
        r"EncoderLayer.*: self_attention.norm.bias is missing; torch.nn has LayerNorm": bare,
        r"gate.weight is left over.*without a gate": gated,
        r"embedding.weight is left over.*of a model, pass the stacks alone": model,
    }
    for message, module in refused.items():
        with pytest.raises(DataError, match=message):
            to_torch(module.state_dict())


def test_a_norm_with_a_bias_among_maps_without() -> None:
    """Torch's bias=False takes the biases of the norms too: read as zeros, and written only as zeros."""
    torch_state = nn.TransformerEncoderLayer(8, 4, 6, bias=False).state_dict()
    assert not [name for name in torch_state if name.endswith("bias")]
    own = from_torch(torch_state)
    zeros = [name for name in own if name.endswith("bias")]
    assert zeros == ["self_attention.norm.bias", "feedforward.norm.bias"]
    assert not any(own[name].any() for name in zeros)
    assert to_torch(own).keys() == torch_state.keys()

    with torch.no_grad():
        own[zeros[0]][3] = own[zeros[1]][0] = 1e-30
    with pytest.raises(DataError, match=f"{zeros[0]} is not zero.*{zeros[1]} is not zero.*bias = true"):
        to_torch(own)

    norm = nn.LayerNorm(8)  # of a stack whose layers have none
    randomize(norm)
    stack = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 4, 6, bias=False), 2, norm, enable_nested_tensor=False)
    assert torch.equal(from_torch(stack.state_dict())["norm.bias"], norm.bias)
