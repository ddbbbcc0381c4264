"""Models on which the laws are tried: small, in float64, with weights large enough for every part to matter."""

import itertools
import random
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from model_options import listed_choices
from torch import Tensor, nn

from clearhead.config import ModelConfig
from clearhead.models import CausalLM, DecoderLM
from clearhead.native.facade import SUPPORTED_OPTIONS
from clearhead.native.structures import Packer, UnknownPartError
from clearhead.parts import NORMS, SlotCache

VOCAB_SIZE, BLOCK_SIZE, N_LAYERS, WINDOW = 11, 24, 2, 5

NUMBERS: dict[str, tuple[Any, ...]] = {
    "n_kv_heads": (4, 2, 1),
    "head_dim": (4, 8),
    "partial_rotary_factor": (1.0, 0.5),
    "attention_softcap": (None, 1.5),
    "sliding_window": (None, WINDOW),
    "embedding_ngrams": (1, 3),
    "logit_ngrams": (1, 2, 4),
    "ngram_rows": (7, 150),  # shared by all, or by all but bigrams
}
# What the laws hold fixed: sizes, what another architecture has (see `pair_models`), and what acts in training alone.
FIXED = {
    *("architecture", "vocab_size", "block_size", "n_layers", "n_heads", "d_model", "d_ff", "norm_eps", "rope_theta"),
    *("relative_buckets", "relative_max_distance", "source_vocab_size", "pad_id", "n_encoder_layers"),
    *("n_token_types", "decoder_start_id", "init", "dropout", "attention_dropout", "feedforward_dropout"),
}
OPTIONS = listed_choices(*FIXED) | NUMBERS
Choice = dict[str, Any]
Model = TypeVar("Model", bound=nn.Module)


def pairs(choice: Choice) -> set[tuple[tuple[str, Any], tuple[str, Any]]]:
    """Every two options of a choice, together, in the order of the options."""
    return set(itertools.combinations(choice.items(), 2))


def possible(choice: Choice) -> bool:
    """Whether the options, or those that are chosen yet, go together."""
    return (choice.get("parallel_residual"), choice.get("norm_position")) != (True, "post")


def pairwise(options: dict[str, tuple[Any, ...]]) -> Iterator[Choice]:
    """Few choices in which every value of an option meets every value of every other that it goes with."""
    draw = random.Random(0)
    values = [(option, value) for option, known in options.items() for value in known]
    missing = dict.fromkeys(two for two in itertools.combinations(values, 2) if two[0][0] != two[1][0])
    missing = dict.fromkeys(pair for pair in missing if possible(dict(pair)))
    while missing:
        required = dict(next(iter(missing)))
        drawn = ({option: draw.choice(known) for option, known in options.items()} | required for _ in range(60))
        best = max(filter(possible, drawn), key=lambda choice: len(pairs(choice) & missing.keys()))
        for pair in pairs(best):
            missing.pop(pair, None)
        yield best


def known_to_native(options: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """The options, of which the native engine does not know all, with its default alone where it does not."""
    known = {option: values if option in SUPPORTED_OPTIONS else values[:1] for option, values in options.items()}
    return known | {"norm": tuple(filter(is_native_norm, options["norm"]))}


def is_native_norm(kind: str) -> bool:
    """Whether the native engine knows it."""
    try:
        Packer("float32", torch.float64, 64).norm(NORMS[kind](4, 1e-5))
    except UnknownPartError:
        return False
    return True


CHOICES = list(pairwise(OPTIONS))
NATIVE_CHOICES = list(pairwise(known_to_native(OPTIONS)))


def name(choice: Choice) -> str:
    """A choice as the id of a test."""
    return "-".join(f"{value}" if isinstance(value, str) else f"{key}={value}" for key, value in choice.items())


def make_model(**choice: Any) -> DecoderLM:
    """A model of this choice; later options win."""
    shape = {"vocab_size": VOCAB_SIZE, "block_size": BLOCK_SIZE, "n_layers": N_LAYERS, "n_heads": 4, "d_model": 16}
    shape |= {"relative_buckets": 8, "relative_max_distance": 12}
    return randomized(DecoderLM(ModelConfig.read(shape, choice)))


def randomized(model: Model) -> Model:
    """In float64, without dropout, and with weights large enough for every part to matter."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.double().eval().parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(noise * 0.3 if parameter.dim() > 1 else parameter + noise * 0.1)
    return model


def random_ids(*shape: int, seed: int = 0) -> torch.Tensor:
    """Token ids of this shape."""
    return torch.randint(VOCAB_SIZE, shape, generator=torch.Generator().manual_seed(seed))


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal but for the rounding of float64."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def slots_read(model: CausalLM, ids: Tensor, lengths: list[int], capacity: int) -> tuple[SlotCache, list[int]]:
    """A cache whose rows hold the first tokens of these (B, T), as many as their lengths say; and their slots."""
    cache = SlotCache(model.new_cache)
    slots = cache.take(len(lengths), capacity)
    rows = cache.rows(slots, lengths)
    model(ids, cache=rows)
    cache.keep(rows)
    return cache, slots
