"""A model as functions of tensors alone, as graphs are: nothing remembered between calls, no ranges of positions.

Files, inputs and outputs have the names that the ecosystem's exporters give them:

| file                 | inputs                                                                 | outputs             |
|----------------------|------------------------------------------------------------------------|---------------------|
| `model.onnx`         | `input_ids`, `attention_mask`, and of a decoder PAST                   | `logits`, PRESENT   |
| `encoder_model.onnx` | `input_ids`, `attention_mask`                                          | `last_hidden_state` |
| `decoder_model.onnx` | `input_ids`, `encoder_hidden_states`, `encoder_attention_mask`, PAST   | `logits`, PRESENT   |

PAST are `past_key_values.N.key` and `past_key_values.N.value` of every layer N, (B, H_kv, P, K), of length P = 0 in a
first call; PRESENT are `present.N.key` and `present.N.value`, (B, H_kv, P + T, K), a next call's past. Masks are 1 for
a token and 0 for padding, on either side; a decoder's (B, P + T) covers its past too. An encoder with kinds of segments
has a third input, `token_type_ids`. A decoder with tables of n-grams has `past_key_values.tokens` at the end of PAST,
(B, n - 1), all 0 in a first call, and `present.tokens` at the end of PRESENT.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead.models import CausalLM, EncoderDecoder, EncoderLM, LanguageModel, Memory
from clearhead.parts import DecoderCache, SelfAttentionCache
from clearhead.parts.cache import KeysValues, Project, by_layer
from clearhead.parts.masks import Positions

MODEL, ENCODER, DECODER = "model.onnx", "encoder_model.onnx", "decoder_model.onnx"
SEGMENTS = "token_type_ids"
BATCH, LENGTH, PAST, TOTAL, SOURCE = "batch", "length", "past_length", "total_length", "source_length"
SIZES = {BATCH: 2, LENGTH: 3, PAST: 4, TOTAL: 7, SOURCE: 5}  # of what a graph is traced with; any others do as well


class Value(NamedTuple):
    """An input or output: the sizes of its axes, where a name stands for any size."""

    name: str
    shape: tuple[str | int, ...]
    whole: bool = True  # whether it holds int64, or float32

    def axes(self) -> dict[int, str]:
        """The axes of any size."""
        return {axis: size for axis, size in enumerate(self.shape) if isinstance(size, str)}

    def example(self) -> Tensor:
        """Such a tensor; as ids, a mask or states, ones will do."""
        shape = [SIZES[size] if isinstance(size, str) else size for size in self.shape]
        return torch.ones(shape, dtype=torch.int64 if self.whole else torch.float32)


class Graph(NamedTuple):
    """What goes into one .onnx file; the module takes a tensor for each of the inputs."""

    file: str
    module: nn.Module
    inputs: list[Value]
    outputs: list[Value]


class Grown(SelfAttentionCache):
    """Appends by making new tensors."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values  # (B, H_kv, P, K)

    def update(self, project: Project) -> KeysValues:
        keys, values = project()
        self.keys = torch.cat((self.keys, keys), dim=2)  # (B, H_kv, P + T, K)
        self.values = torch.cat((self.values, values), dim=2)  # (B, H_kv, P + T, K)
        return self.keys, self.values


class GrownCache(DecoderCache):
    """A cache made anew for each call, of what earlier ones put out and of the positions (B, P + T) of all tokens."""

    def __init__(self, past: Sequence[Tensor], positions: Tensor) -> None:
        pairs, tokens = by_layer(past)
        super().__init__([Grown(*pair) for pair in pairs], capacity=0, tokens=tokens)
        self.positions = positions

    def extend(
        self, positions: Tensor | None, columns: int, *, limit: int | None = None
    ) -> tuple[Positions, Positions]:
        return self.last(columns), self.positions

    def last(self, columns: int) -> Tensor:
        """Positions (B, T) of this call's tokens."""
        assert isinstance(self.positions, Tensor)
        return self.positions[:, -columns:]


class Causal(nn.Module):
    """ids (B, T), mask (B, P + T), past keys and values -> logits (B, T, V), and all keys and values."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        ids, mask, *past = inputs
        cache = GrownCache(past, positions_from(mask))
        return self.model(ids, positions=cache.last(ids.shape[1]), cache=cache), *cache.tensors


class TwoWay(nn.Module):
    """ids, mask, and where the model has kinds of segments those (B, T) -> logits (B, T, V)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tensor:
        ids, mask, *kinds = inputs
        token_type_ids = kinds[0] if kinds else None
        return self.model(ids, positions=positions_from(mask), token_type_ids=token_type_ids)  # type: ignore[no-any-return]


class Encode(nn.Module):
    """source, mask (B, T_src) -> memory (B, T_src, D)."""

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tensor:
        source, mask = inputs
        return self.model.encode(source, positions=positions_from(mask)).states


class Decode(nn.Module):
    """target (B, T), memory (B, T_src, D), its mask (B, T_src), past keys and values -> as `Causal`."""

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        target, states, mask, *past = inputs
        columns = torch.arange(past[0].shape[2] + target.shape[1])
        cache = GrownCache(past, columns.expand(target.shape[0], -1))  # (P + T,) -> (B, P + T)
        hidden = self.model.decode(target, Memory(states, positions_from(mask)), cache=cache)
        return self.model.head(hidden), *cache.tensors


def positions_from(mask: Tensor) -> Tensor:
    """Where tokens stand, -1 for padding, (B, T), from what is 1 for tokens and 0 for padding on either side."""
    return mask.cumsum(dim=1).sub(1).masked_fill(mask == 0, -1)


def keys_and_values(model: CausalLM | EncoderDecoder, prefix: str, length: str) -> list[Value]:
    """A tensor for the keys of each layer that the model's cache has, one for its values, one for the last tokens."""
    values, cache = [], model.new_cache(1, 0)
    for layer, held in enumerate(cache.layers):
        _, heads, _, width = held.keys.shape
        shape = (BATCH, heads, length, width)
        values += [Value(f"{prefix}.{layer}.{kind}", shape, whole=False) for kind in ("key", "value")]
    return values if cache.tokens is None else [*values, Value(f"{prefix}.tokens", (BATCH, cache.tokens.shape[1]))]


def _logits(model: LanguageModel) -> Value:
    return Value("logits", (BATCH, LENGTH, model.config.vocab_size), whole=False)


def _causal(model: CausalLM) -> list[Graph]:
    past, present = keys_and_values(model, "past_key_values", PAST), keys_and_values(model, "present", TOTAL)
    inputs = [Value("input_ids", (BATCH, LENGTH)), Value("attention_mask", (BATCH, TOTAL)), *past]
    return [Graph(MODEL, Causal(model), inputs, [_logits(model), *present])]


def _two_way(model: EncoderLM) -> list[Graph]:
    names = ["input_ids", "attention_mask", *([SEGMENTS] if model.config.n_token_types else [])]
    inputs = [Value(name, (BATCH, LENGTH)) for name in names]
    return [Graph(MODEL, TwoWay(model), inputs, [_logits(model)])]


def _pair(model: EncoderDecoder) -> list[Graph]:
    past, present = keys_and_values(model, "past_key_values", PAST), keys_and_values(model, "present", TOTAL)
    shape = (BATCH, SOURCE, model.config.d_model)
    source = [Value("input_ids", (BATCH, SOURCE)), Value("attention_mask", (BATCH, SOURCE))]
    memory = [Value("encoder_hidden_states", shape, whole=False), Value("encoder_attention_mask", (BATCH, SOURCE))]
    target = Value("input_ids", (BATCH, LENGTH))
    return [
        Graph(ENCODER, Encode(model), source, [Value("last_hidden_state", shape, whole=False)]),
        Graph(DECODER, Decode(model), [target, *memory, *past], [_logits(model), *present]),
    ]


# Each takes the model of its own architecture.
GRAPHS: dict[str, Callable[[Any], list[Graph]]] = {
    "decoder": _causal,
    "bigram": _causal,
    "encoder": _two_way,
    "encoder_decoder": _pair,
}
