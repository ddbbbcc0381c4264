"""What a model is not asked for: tokens beyond its block_size, ids beyond its vocabulary. One sentence each."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.errors import UsageError
from clearhead.models import BigramLM, CausalLM, DecoderLM, EncoderDecoder, EncoderLM, build_model
from clearhead.parts import positions_from_lengths

SHAPE = {"vocab_size": 11, "block_size": 8, "n_layers": 1, "n_heads": 2, "d_model": 8, "d_ff": 8}
POSITIONS = ["learned", "sinusoidal", "rope", "alibi", "relative", "none"]
TOO_MANY = "9 tokens are more than the model's block_size of 8"
every_kind = pytest.mark.parametrize("positions", POSITIONS)
Ask = Callable[[int], Tensor]


def ids(*shape: int) -> Tensor:
    return torch.randint(2, 11, shape, generator=torch.Generator().manual_seed(0))


def decoder(**options: object) -> DecoderLM:
    return DecoderLM(ModelConfig.read(SHAPE, options)).eval()


def translator(positions: str) -> EncoderDecoder:
    options = {"architecture": "encoder_decoder", "positions": positions, "pad_id": 0}
    return EncoderDecoder(ModelConfig.read(SHAPE, options)).eval()


def refused_beyond(ask: Ask) -> None:
    ask(8)
    with pytest.raises(UsageError, match=TOO_MANY):
        ask(9)


@every_kind
@torch.inference_mode()
def test_no_model_reads_more_than_a_block(positions: str) -> None:
    options = {"positions": positions, "architecture": "encoder"}
    model, encoder, pair = (
        decoder(positions=positions),
        EncoderLM(ModelConfig.read(SHAPE, options)),
        translator(positions),
    )
    refused_beyond(lambda T: model(ids(2, T)))
    refused_beyond(lambda T: encoder(ids(2, T)))
    refused_beyond(lambda T: pair(ids(2, T), ids(2, 3)))
    refused_beyond(lambda T: pair(ids(2, 3), ids(2, T)))
    refused_beyond(lambda T: model(ids(2, T), positions=positions_from_lengths(torch.tensor([T, 3]), T)))


@every_kind
@torch.inference_mode()
def test_padding_is_no_token(positions: str) -> None:
    """Rows may be wider than a block, where what is beyond it is padding."""
    places = positions_from_lengths(torch.tensor([8, 3]), 12, "left")
    assert decoder(positions=positions)(ids(2, 12), positions=places).shape == (2, 12, 11)


@every_kind
@torch.inference_mode()
def test_a_cache_goes_on_to_the_end_of_a_block(positions: str) -> None:
    model = decoder(positions=positions)

    def ask(T: int) -> Tensor:
        cache = model.new_cache(1, 20)
        model(ids(1, T - 2), cache=cache)
        return model(ids(1, 2), cache=cache)  # type: ignore[no-any-return]

    refused_beyond(ask)


@pytest.mark.parametrize("positions", ["rope", "alibi", "relative", "none"])
@torch.inference_mode()
def test_an_endless_window_has_no_end(positions: str) -> None:
    model = decoder(positions=positions, sliding_window=4)
    assert model(ids(1, 30)).shape == (1, 30, 11)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_a_window_over_bounded_positions_ends(positions: str) -> None:
    refused_beyond(lambda T: decoder(positions=positions, sliding_window=4)(ids(1, T)))


@every_kind
@torch.inference_mode()
def test_a_translation_may_grow_where_positions_have_no_end(positions: str) -> None:
    model = translator(positions)
    memory = model.encode(ids(1, 8))

    def ask(T: int) -> Tensor:
        cache = model.new_cache(1, 20)
        for step in ids(1, T)[0]:
            hidden = model.decode(step.view(1, 1), memory, cache=cache)
        return hidden

    if model.positions.bounded:
        refused_beyond(ask)
    else:
        ask(20)


@pytest.mark.sampled(1)
@every_kind
def test_a_compiled_graph_has_no_break(positions: str) -> None:
    model = decoder(positions=positions)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.inference_mode():
        assert torch.equal(compiled(ids(2, 8)), model(ids(2, 8)))
    torch._dynamo.reset()
    with torch.inference_mode(), pytest.raises(UsageError, match=TOO_MANY):
        torch.compile(model, backend="eager")(ids(2, 9))
    torch._dynamo.reset()


@pytest.mark.parametrize("architecture", ["decoder", "encoder", "bigram"])
@torch.inference_mode()
def test_an_unknown_id_is_named(architecture: str) -> None:
    model = build_model(ModelConfig.read(SHAPE, {"architecture": architecture}))
    for bad in (11, -1, 2**40):
        with pytest.raises(UsageError, match=rf"token id {bad} is not in the model's vocabulary of 11 tokens, 0 to 10"):
            model(torch.tensor([[1, bad]]))
    with pytest.raises(UsageError, match="token ids are whole numbers"):
        model(torch.tensor([[1.5]]))


@torch.inference_mode()
def test_an_unknown_id_of_a_pair_is_named() -> None:
    model = translator("rope")
    for source, target in (([[1, 11]], [[1]]), ([[1]], [[1, 11]])):
        with pytest.raises(UsageError, match="token id 11"):
            model(torch.tensor(source), torch.tensor(target))


@pytest.mark.parametrize("kind", [DecoderLM, BigramLM])
@torch.inference_mode()
def test_an_unknown_id_leaves_the_cache_as_it_was(kind: type[CausalLM]) -> None:
    architecture = "bigram" if kind is BigramLM else "decoder"
    model = kind(ModelConfig.read(SHAPE, {"architecture": architecture}))
    cache = model.new_cache(1, 8)
    with pytest.raises(UsageError):
        model(torch.tensor([[99]]), cache=cache)
    assert cache.length == 0


@every_kind
@torch.no_grad()
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's own, of attention
def test_vmap_goes_over_rows_of_positions(positions: str) -> None:
    """There no tensor says what it holds, so nothing is judged."""
    model = decoder(positions=positions)
    tokens, places = ids(3, 6), positions_from_lengths(torch.tensor([6, 4, 2]), 6)
    logits = torch.vmap(lambda row, at: model(row[None], positions=at[None])[0])(tokens, places)
    assert torch.allclose(logits, model(tokens, positions=places), atol=1e-5)
