"""The backends of a decoder, eager and native: read tokens into the cache, and sample the next ones."""

import ctypes
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from clearhead.config import Dtype
from clearhead.inference.requests import GenerationRequest
from clearhead.inference.sampling_ahead import present_in, sample_ahead
from clearhead.models import CausalLM, DecoderLM, rows_at_once
from clearhead.native import NativeDecoder, SamplingInputs
from clearhead.parts import DecoderCache, SlotRows

FEW = 100_000  # prompt length squared up to which native prefill is faster than torch's
PIECE = 1 << 23  # logits that native code returns of a prompt at once: enough tokens to read a matrix for


class DecoderBackend(Protocol):
    """A backend that reads tokens of each row into a cache and samples the next ones."""

    @property
    def max_steps(self) -> int:
        """How many tokens of each row to request from one call of `decode`."""

    def forward(self, ids: Tensor, cache: DecoderCache, *, logits_to_keep: int = 1) -> Tensor:
        """The logits (B, logits_to_keep, V) after the last of these tokens (B, T) of each row.

        Args:
            cache: of rows that go on where they end; those of a `SlotCache` may have fewer tokens than others.
            logits_to_keep: how many of the last tokens to return logits for; 0 is allowed.
        """

    def logits_in_pieces(self, ids: Tensor, cache: SlotRows) -> Iterator[Tensor]:
        """The logits (B, T', V) after each of these tokens (B, T), some at a time: all of them may not fit in memory.

        The tokens are read when all pieces were taken. The last piece ends with what `forward` returns.
        """

    def for_prefill(self, length: int) -> "DecoderBackend":
        """The backend that prefills a prompt of this length. Itself: prompts are batched. Another: one at a time.

        The choice ignores the other prompts, so that a prompt's result never depends on them.
        """

    def decode(
        self, ids: Tensor, cache: DecoderCache, requests: Sequence[GenerationRequest], steps: int
    ) -> list[list[int]]:
        """Read a token (B,) of each row and return the next `steps`; the last of them is not read.

        Args:
            requests: how each row's tokens are sampled.
            steps: new tokens per row.
        """


class EagerDecoderBackend:
    """The eager backend: one model call per token."""

    max_steps = 1

    def __init__(self, model: CausalLM) -> None:
        self.model = model

    def forward(self, ids: Tensor, cache: DecoderCache, *, logits_to_keep: int = 1) -> Tensor:
        hidden = self.model.body(ids, cache=cache)  # (B, T, D)
        return self.model.head(hidden[:, ids.shape[1] - logits_to_keep :])

    def logits_in_pieces(self, ids: Tensor, cache: SlotRows) -> Iterator[Tensor]:
        hidden = self.model.body(ids, cache=cache)  # (B, T, D)
        columns = max(1, rows_at_once(self.model.config.vocab_size, ids.device) // len(ids))
        for start in range(0, ids.shape[1] - 1, columns):
            yield self.model.head(hidden[:, start : min(start + columns, ids.shape[1] - 1)])
        yield self.model.head(hidden[:, -1:])  # by itself, as `forward` computes it: to the last bit

    def for_prefill(self, length: int) -> DecoderBackend:
        return self

    def decode(
        self, ids: Tensor, cache: DecoderCache, requests: Sequence[GenerationRequest], steps: int
    ) -> list[list[int]]:
        assert steps == self.max_steps, "an eager step writes one token, which its request must record before the next"
        return sample_ahead(requests, self.forward(ids[:, None], cache), ids.new_empty(len(ids), 0)).tolist()


class NativeDecoderBackend:
    """The native backend: several tokens per call."""

    def __init__(self, model: DecoderLM, dtype: Dtype, library: ctypes.CDLL) -> None:
        """
        Raises:
            UnknownPartError: native code does not implement a part of the model.
        """
        self.model = model
        self._native, self._eager = NativeDecoder(model, dtype, library), EagerDecoderBackend(model)
        self.max_steps = self._native.max_steps

    def forward(self, ids: Tensor, cache: DecoderCache, *, logits_to_keep: int = 1) -> Tensor:
        return self._native.forward(ids, cache, logits_to_keep=logits_to_keep)

    def logits_in_pieces(self, ids: Tensor, cache: SlotRows) -> Iterator[Tensor]:
        columns = max(1, PIECE // (len(ids) * self.model.config.vocab_size))
        for some in torch.split(ids, columns, dim=1):
            yield self.forward(some, cache, logits_to_keep=some.shape[1])

    def for_prefill(self, length: int) -> DecoderBackend:
        """Eager for a long prompt, where torch's attention is faster."""
        return self._eager if length * length > FEW else self

    def decode(
        self, ids: Tensor, cache: DecoderCache, requests: Sequence[GenerationRequest], steps: int
    ) -> list[list[int]]:
        zeros = [0.0] * steps
        uniforms = torch.tensor(
            [zeros if request.config.greedy else request.uniforms(0, steps) for request in requests],
            dtype=self._native.dtype,
            device="cpu",
        )  # (B, steps)
        penalized = any(request.config.repetition_penalty != 1 for request in requests)
        present = present_in(requests, self.model.config.vocab_size) if penalized else None  # (B, V)
        return self._native.decode(
            ids, cache, SamplingInputs([request.config for request in requests], uniforms, present)
        )
