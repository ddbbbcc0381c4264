"""Our stacks and whole translators, and torch's encoder, decoder and `nn.Transformer`: outputs and all gradients."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch_pairs import CHOICES, Both, Choice, Form, Masks, Side, assert_same, numbers, randomize, share_weights

from clearhead.config import ModelConfig
from clearhead.interop import to_torch
from clearhead.models import EncoderDecoder

PAD = 0


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("final_norm", [True, False])
@pytest.mark.parametrize(("side", "causal"), [("left", False), ("right", True)])
def test_encoder(choice: Choice, final_norm: bool, side: Side, causal: bool) -> None:
    both = Both(choice, seed=3)
    ours, reference = both.stack(3, cross=False, final_norm=final_norm), both.encoder(3, final_norm=final_norm)
    share_weights(ours, reference)
    masks = Masks(both.positions(both.T, side), causal=causal)

    def compute(x: Tensor) -> Tensor:
        return ours(x, mask=masks.ours)  # type: ignore[no-any-return]

    def compute_torch(x: Tensor) -> Tensor:
        return reference(x, masks.future, masks.padding)  # type: ignore[no-any-return]

    assert_same(ours, reference, compute, compute_torch, [both.x()], masks.real)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("final_norm", [True, False])
@pytest.mark.parametrize("source_side", ["left", "right"])
def test_decoder(choice: Choice, final_norm: bool, source_side: Side) -> None:
    both = Both(choice, seed=4)
    ours, reference = both.stack(3, cross=True, final_norm=final_norm), both.decoder(3, final_norm=final_norm)
    share_weights(ours, reference)
    masks = Masks(both.positions(both.T, "right"), causal=True)
    source = Masks(both.positions(both.T_src, source_side), causal=False)

    def compute(x: Tensor, memory: Tensor) -> Tensor:
        return ours(x, memory, mask=masks.ours, memory_mask=source.for_memory(both.T))  # type: ignore[no-any-return]

    def compute_torch(x: Tensor, memory: Tensor) -> Tensor:
        return reference(  # type: ignore[no-any-return]
            x,
            memory,
            masks.future,
            tgt_key_padding_mask=masks.padding,
            memory_key_padding_mask=source.padding,
        )

    assert_same(ours, reference, compute, compute_torch, [both.x(), both.memory()], masks.real)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize(
    ("source_side", "side", "form"),
    [(None, None, "boolean"), ("left", None, "additive"), ("left", "right", "boolean"), ("right", "right", "additive")],
)
def test_transformer(choice: Choice, source_side: Side, side: Side, form: Form) -> None:
    """As it is built by default, with a norm at the end of both stacks wherever the norms stand."""
    both = Both(choice, seed=5)
    encoder, decoder = (both.stack(n, cross=cross, final_norm=True) for n, cross in ((2, False), (3, True)))
    ours, reference = nn.ModuleDict({"encoder": encoder, "decoder": decoder}), both.transformer(2, 3)
    share_weights(ours, reference)
    masks = Masks(both.positions(both.T, side), causal=True, form=form)
    source = Masks(both.positions(both.T_src, source_side), causal=False, form=form)

    def compute(src: Tensor, tgt: Tensor) -> Tensor:
        memory = encoder(src, mask=source.ours)
        return decoder(tgt, memory, mask=masks.ours, memory_mask=source.for_memory(both.T))  # type: ignore[no-any-return]

    def compute_torch(src: Tensor, tgt: Tensor) -> Tensor:
        return reference(  # type: ignore[no-any-return]
            src,
            tgt,
            tgt_mask=masks.future,
            src_key_padding_mask=source.padding,
            tgt_key_padding_mask=masks.padding,
            memory_key_padding_mask=source.padding,
        )

    assert_same(ours, reference, compute, compute_torch, [both.memory(), both.x()], masks.real)


def translator(both: Both) -> EncoderDecoder:
    """A model in float64 whose stacks have an equal in torch."""
    config = ModelConfig.read(
        {
            "architecture": "encoder_decoder",
            "vocab_size": 11,
            "block_size": 16,
            "n_layers": 2,
            "n_encoder_layers": 3,
            "n_heads": both.n_heads,
            "d_model": both.d_model,
            "d_ff": both.d_ff,
            "norm": "layernorm",
            "norm_position": both.norm_position,
            "norm_eps": both.eps,
            "feedforward": both.activation,
            "positions": "learned",
            "bias": both.bias,
            "pad_id": PAD,
        }
    )
    return EncoderDecoder(config).double()


def torch_stacks(both: Both) -> nn.Transformer:
    """Torch's equal of the model's stacks: without norms at their ends where the model is post-norm."""
    final_norm = both.norm_position == "pre"
    return nn.Transformer(
        custom_encoder=both.encoder(3, final_norm=final_norm),
        custom_decoder=both.decoder(2, final_norm=final_norm),
        **both.torch_options,
    )


def ids(*lengths: int) -> Tensor:
    """Rows of random tokens, filled up on the right."""
    rows = torch.randint(1, 11, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(0))
    return rows.masked_fill(torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None], PAD)


@pytest.mark.parametrize("choice", CHOICES)
def test_a_translator_is_a_transformer_between_embeddings(choice: Choice) -> None:
    both = Both(choice, seed=6)
    model = translator(both)
    ours = nn.ModuleDict({"encoder": model.encoder, "decoder": model.decoder})
    randomize(ours)
    if not both.bias:  # torch then has none in the norms either
        with torch.no_grad():
            for name, parameter in ours.named_parameters():
                parameter.mul_(not name.endswith("bias"))
    reference = torch_stacks(both)
    reference.load_state_dict(to_torch(ours.state_dict()))
    source, target = ids(7, 3, 5), ids(4, 6, 1)
    names = ["embedding.weight", "source_positions.weight", "positions.weight"]

    def compute(*tables: Tensor) -> Tensor:
        return functional_call(model, dict(zip(names, tables, strict=True)), (source, target))  # type: ignore[no-any-return]

    def compute_torch(embedding: Tensor, source_position_table: Tensor, position_table: Tensor) -> Tensor:
        hidden = reference(
            embedding[source] + source_position_table[: source.shape[1]],
            embedding[target] + position_table[: target.shape[1]],
            tgt_mask=torch.ones(2 * target.shape[1:], dtype=torch.bool).triu(1),
            src_key_padding_mask=source == PAD,
            tgt_key_padding_mask=target == PAD,
            memory_key_padding_mask=source == PAD,
        )
        return hidden @ embedding.T  # type: ignore[no-any-return]

    tables = [numbers(*model.get_parameter(name).shape, seed=seed) for seed, name in enumerate(names)]
    assert_same(ours, reference, compute, compute_torch, tables, target != PAD)
