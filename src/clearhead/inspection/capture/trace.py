"""What a model computed, by name."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.inspection.capture.sites import AttentionKind, attention_sites, feedforward_sites, main_stack, path
from clearhead.inspection.notebook import show_trace
from clearhead.suggestions import did_you_mean

Array = NDArray[Any]


class NotRecordedError(InputError, KeyError):
    """No activation of this name was recorded."""

    def __str__(self) -> str:  # a KeyError would show it in quotation marks
        return str(self.args[0])


class ByLayer(Sequence[Array]):
    """The same activation of every layer: index it by the layer, counted from 0."""

    def __init__(self, trace: "Trace", names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._trace = trace

    def __getitem__(self, layer: Any) -> Any:
        if isinstance(layer, slice):
            return [self._trace[name] for name in self.names[layer]]
        if not self.names:
            raise IndexError(
                "the model has no such part of this library; `trace.names` lists what its own modules gave, and "
                "`clearhead.import_model` makes a run of a Hugging Face model, in which every part is seen"
            )
        if not -len(self.names) <= layer < len(self.names):
            raise IndexError(f"there are {len(self.names)} of them, counted from 0; there is no number {layer}")
        return self._trace[self.names[layer]]

    def get(self, layer: int) -> Array | None:
        """The activation of a layer, None where it was not recorded."""
        return self._trace.get(self.names[layer])

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"ByLayer({', '.join(self.names)})"


class Trace(Mapping[str, Array]):
    """The activations of a model's last call inside `record`: name -> NumPy array.

    Names are the paths of modules, as in `model.named_modules()`, whose outputs they are. What is computed between
    modules is named after the module in whose `forward` it happens:

    | name | shape | what |
    |---|---|---|
    | `<attention>.q`, `.k`, `.v` | (B, H, T_q, K); (B, H_kv, T_k, K) twice | split into heads, normalized, rotated |
    | `<attention>.scores` | (B, H, T_q, T_k) | scaled, capped, with bias; -inf where the mask forbids |
    | `<attention>.attention` | (B, H, T_q, T_k) | the softmax of the scores: rows that sum to 1, or zeros |
    | `<attention>.mixed` | (B, H, T_q, K) | attention times v, what each head writes before Wo |
    | `<feed-forward>.hidden` | (B, T, d_ff) | what Wo of the feed-forward, `down`, reads |
    | `<stack>.input` | (B, T, D) | embedded tokens with their positions: the residual stream before the first block |
    | `output` | | what the model itself returns: its logits (B, T, V) |
    """

    def __init__(self, model: nn.Module) -> None:
        self._values: dict[str, Tensor] = {}
        self._attentions = attention_sites(model)
        self._feedforwards = [site.name for site in feedforward_sites(model) if not site.is_encoder]
        stack = main_stack(model)
        self._residuals = [] if stack is None else [path(stack.name, "input"), *(block.name for block in stack.blocks)]

    def keep(self, name: str, value: Tensor) -> None:
        """Keep a copy on the CPU; `record` calls this."""
        self._values.pop(name, None)  # the last call decides the order, too
        self._values[name] = value.detach().to("cpu", copy=True)

    @property
    def names(self) -> list[str]:
        """The names of what was recorded, in the order in which it was computed."""
        return list(self._values)

    def tensor(self, name: str) -> Tensor:
        """An activation as a tensor on the CPU, in the model's own dtype.

        Raises:
            NotRecordedError: there is none of this name.
        """
        if name not in self._values:
            hint = did_you_mean(name, self._values) or "; `trace.names` lists what was recorded"
            raise NotRecordedError(f"no activation '{name}' was recorded{hint}")
        return self._values[name]

    def __getitem__(self, name: str) -> Array:
        value = self.tensor(name)
        array: Array = (value.float() if value.dtype == torch.bfloat16 else value).numpy()  # NumPy has no bfloat16
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Trace({len(self)} activations)"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return show_trace(self)

    @property
    def attention(self) -> ByLayer:
        """The weights of each layer's self-attention, (B, H, T, T); of an encoder-decoder, its decoder's."""
        return self._of_attentions("self", "attention")

    @property
    def cross_attention(self) -> ByLayer:
        """The weights with which each layer of the decoder reads the source, (B, H, T, T_src)."""
        return self._of_attentions("cross", "attention")

    @property
    def encoder_attention(self) -> ByLayer:
        """The weights of each layer's self-attention in an encoder-decoder's encoder, (B, H, T_src, T_src)."""
        return self._of_attentions("encoder", "attention")

    @property
    def scores(self) -> ByLayer:
        """What the softmax of each layer's self-attention reads, (B, H, T, T)."""
        return self._of_attentions("self", "scores")

    @property
    def residual(self) -> ByLayer:
        """The residual stream (B, T, D) before each block, and after the last: n_layers + 1 of them."""
        return ByLayer(self, self._residuals)

    @property
    def mlp(self) -> ByLayer:
        """What each layer's feed-forward gives, (B, T, D), before it is added to the residual stream."""
        return ByLayer(self, self._feedforwards)

    def _of_attentions(self, kind: AttentionKind, what: str) -> ByLayer:
        return ByLayer(self, [path(site.name, what) for site in self._attentions if site.kind == kind])
