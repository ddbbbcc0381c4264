"""One decoder step: read tokens into the cache and sample the next ones, with the eager or the native backend."""

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

FEW = 100_000  # prompt length squared up to which native prefill is faster than torch's


class DecoderStep(Protocol):
    """A backend that reads tokens of each row into a cache and samples the next ones."""

    @property
    def at_once(self) -> int:
        """How many tokens of each row to request from one call of `write`."""

    def read(
        self, ids: Tensor, cache: DecoderCache, positions: Tensor | None = None, *, logits_to_keep: int = 1
    ) -> Tensor:
        """The logits (B, logits_to_keep, V) after the last of these tokens (B, T) of each row.

        Args:
            positions: (B, T) where the tokens stand, -1 for padding; without it, they go on where the cache ends.
            logits_to_keep: how many of the last tokens to return logits for; 0 is allowed.
        """

    def of_prompt(self, length: int) -> "DecoderStep":
        """The backend that prefills a prompt of this length. Itself: prompts are batched. Another: one at a time.

        The choice ignores the other prompts, so that a prompt's result never depends on them.
        """

    def write(self, ids: Tensor, cache: DecoderCache, texts: Sequence[Text], steps: int) -> list[list[int]]:
        """Read a token (B,) of each row and return the next `steps`; the last of them is not read.

        Args:
            texts: how each row's tokens are sampled.
            steps: new tokens per row.
        """


class EagerDecoderStep:
    """The eager backend: one model call per token."""

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
        assert steps == self.at_once, "an eager step writes one token, which its text must record before the next"
        return draw_ahead(texts, self.read(ids[:, None], cache), ids.new_empty(len(ids), 0)).tolist()


class NativeDecoderStep:
    """The native backend: several tokens per call."""

    def __init__(self, model: DecoderLM, dtype: Dtype, library: ctypes.CDLL) -> None:
        """
        Raises:
            UnknownPartError: native code does not implement a part of the model.
        """
        self.model = model
        self._native, self._eager = NativeDecoder(model, dtype, library), EagerDecoderStep(model)
        self.at_once = self._native.at_once

    def read(
        self, ids: Tensor, cache: DecoderCache, positions: Tensor | None = None, *, logits_to_keep: int = 1
    ) -> Tensor:
        return self._native.read(ids, cache, positions, logits_to_keep=logits_to_keep)

    def of_prompt(self, length: int) -> DecoderStep:
        """Eager for a long prompt, where torch's attention is faster."""
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
