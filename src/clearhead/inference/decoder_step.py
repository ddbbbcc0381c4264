"""One step of a decoder: reading tokens into the cache and drawing those that follow, eagerly or natively."""

import ctypes
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from clearhead.config import Dtype
from clearhead.inference.requests import Text, draw_ahead, present_in
from clearhead.models import CausalLM, DecoderLM
from clearhead.native import Draws, NativeDecoder
from clearhead.parts import DecoderCache

FEW = 100_000  # tokens of a text times what they may see, up to which native code reads them sooner than torch does


class DecoderStep(Protocol):
    """Reads tokens of each row into a cache, and draws those that follow."""

    @property
    def at_once(self) -> int:
        """How many tokens of each row one call of `write` should ask for."""

    def read(
        self, ids: Tensor, cache: DecoderCache, positions: Tensor | None = None, *, logits_to_keep: int = 1
    ) -> Tensor:
        """The logits (B, logits_to_keep, V) after the last of these tokens (B, T) of each row.

        Args:
            positions: (B, T) where the tokens stand, -1 for padding; without it, they go on where the cache ends.
            logits_to_keep: after how many of them; 0 is allowed.
        """

    def of_prompt(self, length: int) -> "DecoderStep":
        """Who reads a prompt of so many tokens: this writer, beside others, or another one, each by itself.

        The length of the others has no say, or what is computed for a prompt would depend on them.
        """

    def write(self, ids: Tensor, cache: DecoderCache, texts: Sequence[Text], steps: int) -> list[list[int]]:
        """Read a token (B,) of each row, and all but the last of those that follow: these, of each row.

        Args:
            texts: how each row's tokens are drawn.
            steps: how many follow.
        """


class EagerDecoderStep:
    """Each token by a call of the model."""

    at_once = 1

    def __init__(self, model: CausalLM) -> None:
        self.model = model

    def read(
        self, ids: Tensor, cache: DecoderCache, positions: Tensor | None = None, *, logits_to_keep: int = 1
    ) -> Tensor:
        hidden = self.model.body(ids, positions=positions, cache=cache)  # (B, T, D)
        return self.model.head(hidden[:, ids.shape[1] - logits_to_keep :])

    def of_prompt(self, length: int) -> DecoderStep:
        return self

    def write(self, ids: Tensor, cache: DecoderCache, texts: Sequence[Text], steps: int) -> list[list[int]]:
        assert steps == self.at_once, "each token is drawn by the text, which is then told of it"
        return draw_ahead(texts, self.read(ids[:, None], cache), ids.new_empty(len(ids), 0)).tolist()


class NativeDecoderStep:
    """Several tokens in one call of native code."""

    def __init__(self, model: DecoderLM, dtype: Dtype, library: ctypes.CDLL) -> None:
        """
        Raises:
            UnknownPartError: it has a part that native code does not know.
        """
        self.model = model
        self._native, self._eager = NativeDecoder(model, dtype, library), EagerDecoderStep(model)
        self.at_once = self._native.at_once

    def read(
        self, ids: Tensor, cache: DecoderCache, positions: Tensor | None = None, *, logits_to_keep: int = 1
    ) -> Tensor:
        return self._native.read(ids, cache, positions, logits_to_keep=logits_to_keep)

    def of_prompt(self, length: int) -> DecoderStep:
        """Eager for a long prompt: torch has attention of many to many in fewer passes."""
        return self._eager if length * length > FEW else self

    def write(self, ids: Tensor, cache: DecoderCache, texts: Sequence[Text], steps: int) -> list[list[int]]:
        zeros = [0.0] * steps
        uniforms = torch.tensor(
            [zeros if text.config.greedy else text.uniforms(0, steps) for text in texts],
            dtype=self._native.dtype,
            device="cpu",
        )  # (B, steps)
        penalized = any(text.config.repetition_penalty != 1 for text in texts)
        present = present_in(texts, self.model.config.vocab_size) if penalized else None  # (B, V)
        return self._native.write(ids, cache, Draws([text.config for text in texts], uniforms, present))
