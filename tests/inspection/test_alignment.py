"""Where the decoder looked: the weights are the ones that were used, and words are found from tokens."""

from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from clearhead.config import ModelConfig
from clearhead.data import Tokenizer
from clearhead.inspection import attention_sites, record
from clearhead.inspection.attention.alignment import (
    alignment,
    token_texts,
    word_alignment,
    words_of_tokens,
)
from clearhead.models import EncoderDecoder
from clearhead.parts import (
    POSITIONS,
    Attention,
    PositionOptions,
    ProjectionConfig,
    RMSNorm,
    Scoring,
    attention_mask,
    positions_from_lengths,
)

Module = TypeVar("Module", bound=nn.Module)
END = 1
T_Q, T_K, D, H = 5, 7, 16, 4


def make_attention(**options: Any) -> Attention:
    return randomized(Attention(D, H, **options))


def randomized(module: Module) -> Module:
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in module.double().eval().parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5)
    return module


def make_model(**options: Any) -> EncoderDecoder:
    shape = {"vocab_size": 11, "block_size": 16, "n_layers": 3, "n_heads": H, "d_model": D, "pad_id": 0}
    return randomized(EncoderDecoder(ModelConfig.read({"architecture": "encoder_decoder"}, shape, options)))


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def attention_weights(attention: Attention, *inputs: Tensor, **options: Any) -> Tensor:
    with record(attention, "attention") as trace:
        attention(*inputs, **options)
    return trace.tensor("attention")


def cross_attentions(model: EncoderDecoder) -> list[Attention]:
    return [site.module for site in attention_sites(model) if site.kind == "cross"]


def mixed(attention: Attention, weights: Tensor, source: Tensor) -> Tensor:
    """What the module must have returned: weights times values, through the output."""
    values = attention.value(source).view(*source.shape[:2], -1, attention.head_dim).transpose(1, 2)
    values = torch.cat([values[:, [head * values.shape[1] // H]] for head in range(H)], dim=1)
    together: Tensor = attention.output((weights @ values).transpose(1, 2).flatten(2))
    return together


ATTENTIONS = [
    {},
    {"projections": ProjectionConfig(True)},
    {"n_kv_heads": 2, "projections": ProjectionConfig(qk_norm=RMSNorm), "scoring": Scoring(1.0)},
    {"n_kv_heads": 1, "projections": ProjectionConfig(True, qk_norm=RMSNorm)},
]


@pytest.mark.parametrize("options", ATTENTIONS, ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_cross_attention_weights_are_those_that_were_used(options: dict[str, Any], masked: bool) -> None:
    attention, x, memory = make_attention(**options), draw(3, T_Q, D), draw(3, T_K, D, seed=1)
    positions = positions_from_lengths(torch.tensor([7, 4, 1]), T_K)
    mask = attention_mask(range(T_Q), positions, causal=False) if masked else None
    weights = attention_weights(attention, x, memory, mask=mask)
    assert weights.shape == (3, H, T_Q, T_K)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, H, T_Q, dtype=torch.float64))
    torch.testing.assert_close(mixed(attention, weights, memory), attention(x, memory, mask=mask))
    assert not masked or (weights[(positions < 0)[:, None, None].expand_as(weights)] == 0).all()


@pytest.mark.parametrize("name", POSITIONS)
def test_self_attention_weights_too(name: str) -> None:
    attention, x = make_attention(n_kv_heads=2, projections=ProjectionConfig(qk_norm=RMSNorm)), draw(2, T_Q, D)
    position_options = PositionOptions(d_model=D, n_heads=H, block_size=16, rotary_width=D // H)
    kind_of_positions, positions = randomized(POSITIONS[name](position_options)), range(T_Q)
    for mask in ("causal", attention_mask(positions, positions, causal=True, window=2)):
        options: dict[str, Any] = {
            "mask": mask,
            "rotate": kind_of_positions.rotate(positions, x.device),
            "bias": kind_of_positions.bias(positions, positions, x.device),
        }
        weights = attention_weights(attention, x, **options)
        assert (weights.triu(1) == 0).all()
        torch.testing.assert_close(mixed(attention, weights, x), attention(x, **options), rtol=0, atol=1e-6)


def test_a_query_that_may_see_nothing_has_no_weights() -> None:
    weights = attention_weights(make_attention(), draw(1, 2, D), mask=torch.tensor([[True, False], [False, False]]))
    assert weights[0, 0].tolist() == [[1, 0], [0, 0]]


@pytest.mark.parametrize("options", [{}, {"norm_position": "post", "n_kv_heads": 2, "qk_norm": True}], ids=str)
def test_the_alignment_is_what_the_decoder_did(options: dict[str, Any]) -> None:
    model, source, target = make_model(**options), [4, 5, 6, 7, END], [3, 8, 9]
    used: list[tuple[Tensor, Tensor, Tensor]] = []
    for attention in cross_attentions(model):
        attention.register_forward_hook(lambda _, args, output: used.append((*args, output)))
    layers = [alignment(model, source, target, end=END, layer=layer) for layer in range(3)]
    used.clear()
    mean = alignment(model, source, target, end=END)
    assert mean.shape == (3, 5)
    torch.testing.assert_close(mean, torch.stack(layers).mean(0))
    torch.testing.assert_close(mean.sum(-1), torch.ones(3, dtype=torch.float64))
    assert not torch.equal(layers[0], layers[2])
    states = model.encode(torch.tensor([source])).states
    for attention, weights, (x, memory, output) in zip(cross_attentions(model), layers, list(used), strict=True):
        torch.testing.assert_close(memory, states)
        own = attention_weights(attention, x, memory)
        torch.testing.assert_close(mixed(attention, own, memory), output)
        torch.testing.assert_close(own.mean(1)[0], weights)


def test_a_row_belongs_to_the_token_that_was_written_then() -> None:
    model, source = make_model(), [4, 5, 6, END]
    full = alignment(model, source, [3, 8, 9], end=END)
    torch.testing.assert_close(alignment(model, source, [3], end=END), full[:1])
    torch.testing.assert_close(alignment(model, source, [3, 8, 4], end=END), full)  # the last one was not read yet
    other = alignment(model, source, [3, 4, 9], end=END)
    torch.testing.assert_close(other[:2], full[:2])
    assert not torch.equal(other[2], full[2])
    assert alignment(model, source, [], end=END).shape == (0, 4)


def test_the_first_row_belongs_to_the_token_that_the_config_begins_with() -> None:
    source, target = [4, 5, 6, END], [3, 8, 9]
    other = alignment(make_model(decoder_start_id=7, pad_id=7), source, target, end=END)
    torch.testing.assert_close(other, alignment(make_model(), source, target, end=7), rtol=0, atol=1e-12)
    assert not torch.allclose(other[0], alignment(make_model(), source, target, end=END)[0])


def test_the_model_is_left_as_it_was() -> None:
    model = make_model(attention_dropout=0.5).train()
    first = alignment(model, [4, 5, END], [3, 4], end=END)
    assert torch.equal(first, alignment(model, [4, 5, END], [3, 4], end=END)), "dropout is off"
    assert model.training


SENTENCES = ["Der Käse ist müde.", "a  b", " leads", "", "🙂 smiles, 🙂🙂", "ab\tcd\nef ", "ein Wort"]


@pytest.mark.parametrize("kind", ["bytes", "sentences", "characters"])
def test_tokens_become_the_words_of_the_text(kind: str) -> None:
    if kind == "characters":
        tokenizer = Tokenizer.characters("".join(SENTENCES), end=True)
    else:
        tokenizer = Tokenizer.train_bpe(iter(SENTENCES * 2), 270, end=True, sentences=kind == "sentences")
    for sentence in SENTENCES:
        ids = [*tokenizer.encode(sentence).tolist(), tokenizer.end_of_document]
        texts = token_texts(tokenizer.decode, ids)
        assert len(texts) == len(ids)
        assert "".join(texts) == tokenizer.decode(ids)
        word_numbers = words_of_tokens(texts)
        assert word_numbers[-1] is None, "the end is in no word"
        for number, word in enumerate("".join(texts).split()):
            assert "".join(text for text, own in zip(texts, word_numbers, strict=True) if own == number).strip() == word


def test_part_of_a_character_belongs_to_its_word() -> None:
    assert words_of_tokens(["a", "", "ä", " ", "", "🙂", "", " b", ""]) == [0, 0, 0, None, 1, 1, None, 2, None]
    assert words_of_tokens([]) == []
    assert words_of_tokens(["", " "]) == [None, None]


def pharaoh(weights: list[list[float]], source: Sequence[str], target: Sequence[str]) -> list[tuple[int, int]]:
    return word_alignment(torch.tensor(weights), list(source), list(target))


def test_words_are_aligned_by_the_weight_of_all_their_tokens() -> None:
    source = ["the", " ca", "t", " s", "leeps", ""]
    target = ["Kat", "ze", " schläft", ""]
    weights = [
        [0.4, 0.3, 0.2, 0.0, 0.0, 0.1],  # "the" is likeliest alone, "cat" has more together
        [0.3, 0.1, 0.4, 0.0, 0.1, 0.1],
        [0.0, 0.0, 0.1, 0.1, 0.2, 0.6],  # the end is no word
        [0.0, 0.0, 0.0, 0.0, 0.0, 1.0],
    ]
    assert pharaoh(weights, source, target) == [(1, 0), (2, 1)]


def test_words_that_look_nowhere_are_left_out() -> None:
    assert pharaoh([[0.0, 1.0], [0.5, 0.5]], ["a", ""], ["x", " y"]) == [(0, 1)]
    assert pharaoh([[1.0]], [""], ["x"]) == []
    with pytest.raises(AssertionError, match="a row for each target"):
        pharaoh([[1.0]], ["a", "b"], ["x"])
