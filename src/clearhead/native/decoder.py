"""Native decoding: several tokens per call, sampled as in `sampling.py`."""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.config import Dtype, SamplingConfig
from clearhead.errors import UsageError
from clearhead.models import DecoderLM
from clearhead.models.eval_mode import refuse_not_finite
from clearhead.native.boundary import raise_refusal, require, require_cache, require_ids
from clearhead.native.call_inputs import CPU, set_cache, set_positions
from clearhead.native.packing import macs_per_token, pack_decoder
from clearhead.native.structures import Call, Packer, SamplingParams, register_bytes
from clearhead.parts import DecoderCache, SlotRows, last_tokens

PARALLEL_MIN_MACS = 4_000_000  # multiplications per call from which on threads share them
SMALL = 2_000_000  # multiplications per token up to which each thread has its own rows: weights stay in its cache
AT_ONCE, AHEAD = 16, 40_000_000  # limits per call, in tokens and in multiplications per row: some milliseconds


class SamplingInputs(NamedTuple):
    """The sampling of the next tokens of each text, as in `inference/sampling.py`."""

    configs: Sequence[SamplingConfig]  # of each text
    uniforms: Tensor  # (B, steps) a random number for each token
    present: Tensor | None = None  # (B, V) bytes, 1 for tokens of the text; only where one has a repetition penalty


class NativeDecoder:
    """A decoder's weights, packed for native code, and its calls. Cache and positions are the model's."""

    def __init__(self, model: DecoderLM, dtype: Dtype, library: ctypes.CDLL) -> None:
        """
        Raises:
            UnknownPartError: native code does not implement a part of the model.
        """
        self.model, self._library = model, library
        self._packer = Packer(dtype, model.embedding.weight.dtype, register_bytes(library))
        self._decoder = pack_decoder(model, self._packer)
        self._macs, self.dtype = macs_per_token(model), self._packer.dtype
        self.max_steps = max(1, min(AT_ONCE, AHEAD // self._macs))

    def forward(self, ids: Tensor, cache: DecoderCache, *, logits_to_keep: int = 1) -> Tensor:
        """The logits (B, logits_to_keep, V) after the last tokens (B, T) of each text, as in `DecoderBackend`."""
        return self._run(ids, cache, logits_to_keep=logits_to_keep)[1]

    def decode(self, ids: Tensor, cache: DecoderCache, sampling: SamplingInputs) -> list[list[int]]:
        """Read a token (B,) of each text and return the next ones, one per random number; the last is unread."""
        if len(sampling.configs) != len(ids):
            raise UsageError(f"{len(ids)} tokens to go on from, and {len(sampling.configs)} texts")
        tokens, logits = self._run(ids[:, None], cache, sampling=sampling)
        refuse_not_finite(logits)  # of the last step: what is broken stays so
        written: list[list[int]] = tokens.tolist()
        return written

    @torch.no_grad()
    def _run(
        self,
        ids: Tensor,
        cache: DecoderCache,
        *,
        sampling: SamplingInputs | None = None,
        logits_to_keep: int = 1,
    ) -> tuple[Tensor, Tensor]:
        """Make one native call: sampled tokens (B, steps), and logits (B, logits_to_keep, V) after the last ones read.

        Raises:
            UsageError: the inputs are invalid; the cache is then unchanged.
        """
        require_ids(ids)
        steps = 1 if sampling is None else sampling.uniforms.shape[1]
        B, G, config, places = *ids.shape, self.model.config, ids.shape[1] + steps - 1
        if not 0 <= logits_to_keep <= G or steps < 1 or (steps > 1 < G):
            raise UsageError(
                f"cannot return the logits of the last {logits_to_keep} of {G} tokens and draw {steps} more"
            )
        if not isinstance(cache, SlotRows) and isinstance(cache.positions, Tensor):
            raise UsageError("native code reads rows of unequal lengths from the slots of a SlotCache alone")
        require_cache(cache, self._decoder, self._packer.dtype, B, places)
        ids = ids.contiguous()
        logits = torch.empty(B, logits_to_keep, config.vocab_size, dtype=self._packer.dtype, device=CPU)
        tokens = _tokens(ids, cache, steps)  # (B, history + places + 1)
        history = tokens.shape[1] - places - 1
        call = Call(
            texts=B, n_tokens=G, steps=steps, logits_to_keep=logits_to_keep, tokens=tokens[:, history:].data_ptr()
        )
        call.token_stride, call.history, call.logits = tokens.shape[1], history, logits.data_ptr()
        call.ids, call.window = ids.data_ptr(), config.sliding_window or 0
        call.apart, call.threads = self._shared_out(B, G, places, cache.length)
        limit = config.block_size if self.model.ends_at_block_size else None
        with cache.restored_on_failure():
            query, key = cache.extend(None, places, limit=limit)
            rows = set_cache(call, cache, places)
            nothing = logits.new_zeros(1, places, config.d_model)
            placed = set_positions(call, self.model.positions, query, key, None, nothing)
            held = [*rows, *placed, *_set_sampling(call, sampling, logits)]  # kept alive during the call
            refusal = self._library.clearhead_write(ctypes.byref(self._decoder), ctypes.byref(call))
            raise_refusal(refusal, self._decoder, ids)
        del held
        cache.advance(places)
        if history and steps == 1:
            last_tokens(ids, history + 1, query, None, cache)  # which skips padding
        elif history:
            cache.tokens = tokens[:, places:-1]
        return tokens[:, history + G :] - 1, logits

    def _shared_out(self, texts: int, tokens: int, places: int, length: int) -> tuple[bool, int]:
        """Whether each thread computes texts of its own, and the number of threads."""
        apart, threads = texts > 1 and self._macs <= SMALL, torch.get_num_threads()
        stack = self._decoder.stack
        token = self._macs + 2 * stack.n_layers * stack.d_model * length  # with attention's
        if token * texts * (places if apart else tokens) < PARALLEL_MIN_MACS:
            return apart, 1
        return apart, min(threads, texts) if apart else threads


def _tokens(ids: Tensor, cache: DecoderCache, drawn: int) -> Tensor:
    """Earlier tokens for the n-gram tables, those to read, and room for new ones: (B, N), as in `last_tokens`."""
    tokens = ids + 1
    if isinstance(cache, SlotRows):
        tokens = tokens.where(cache.is_real(ids.shape[1]), 0)
    before = [] if cache.tokens is None else [cache.tokens]
    return torch.cat((*before, tokens, ids.new_zeros(len(ids), drawn)), dim=1)


def _set_sampling(call: Call, sampling: SamplingInputs | None, logits: Tensor) -> list[object]:
    """Set the sampling in `call`; return tensors to keep alive."""
    if sampling is None:
        return []
    samplings = (SamplingParams * len(sampling.configs))(
        *(_sampling_params(config, logits.shape[2]) for config in sampling.configs)
    )
    uniforms = sampling.uniforms.to(logits.dtype).contiguous()  # (B, steps)
    require("uniforms", uniforms, (call.texts, call.steps), logits.dtype)
    call.samplings, call.uniforms = ctypes.addressof(samplings), uniforms.data_ptr()
    if sampling.present is None:
        return [samplings, uniforms]
    present = sampling.present.contiguous()
    require("present", present, (call.texts, logits.shape[2]), torch.uint8)
    call.present = present.data_ptr()
    return [samplings, uniforms, present]


def _sampling_params(config: SamplingConfig, vocab_size: int) -> SamplingParams:
    return SamplingParams(
        greedy=config.greedy,
        top_k=min(config.top_k or vocab_size, vocab_size),
        penalty=config.repetition_penalty,
        temperature=config.temperature,
        top_p=config.top_p or 1.0,
        min_p=config.min_p or 0.0,
    )
