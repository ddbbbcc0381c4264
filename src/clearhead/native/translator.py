"""Native beam-search steps: logits after each hypothesis, and the likeliest continuations."""

import ctypes

import torch
from torch import Tensor

from clearhead.errors import InputError, UsageError
from clearhead.models import EncoderDecoder, Memory
from clearhead.models.eval_mode import refuse_not_finite
from clearhead.native.boundary import (
    pointers_to,
    raise_refusal,
    require,
    require_cache,
    require_ids,
)
from clearhead.native.call_inputs import CPU, set_cache, set_positions
from clearhead.native.decoder import PARALLEL_MIN_MACS
from clearhead.native.packing import macs_per_token, pack_decoder
from clearhead.native.structures import BeamCall, Call, Decoder, Packer, register_bytes
from clearhead.parts import DecoderCache, attention_mask


class NativeTranslator:
    """A translator's decoder, packed for native code, and its calls. Cache, masks and positions are the model's."""

    def __init__(self, model: EncoderDecoder, library: ctypes.CDLL) -> None:
        """
        Raises:
            UnknownPartError: native code does not implement a part of the model.
        """
        self.model, self._library = model, library
        self._packer = Packer("float32", model.embedding.weight.dtype, register_bytes(library))
        self._decoder = pack_decoder(model, self._packer)
        self._macs = macs_per_token(model)

    @torch.no_grad()
    def forward(self, tokens: Tensor, position: int, memory: Memory, cache: DecoderCache, tree_mask: Tensor) -> Tensor:
        """As `inference.beam_backend.BeamBackend.forward`, once the cache holds keys and values of the memory."""
        require_ids(tokens)
        S, b, config = *tokens.shape, self.model.config
        require_cache(cache, self._decoder, self._packer.dtype, S, b)
        require("tree_mask", tree_mask.contiguous(), (S, b, cache.length + b), torch.bool)
        tokens = tokens.contiguous()
        logits = torch.empty(S, b, config.vocab_size, dtype=self._packer.dtype, device=CPU)
        shifted = torch.cat((tokens + 1, tokens.new_zeros(S, 1)), dim=1)  # (S, b + 1)
        call = Call(texts=S, n_tokens=b, steps=1, logits_to_keep=b, logits=logits.data_ptr())
        call.tokens, call.token_stride = shifted.data_ptr(), b + 1
        call.ids, call.threads = tokens.data_ptr(), self._threads(S * b)
        set_cache(call, cache)
        alone = b == 1  # all columns are its own then
        limit = config.block_size if self.model.positions.bounded else None
        with cache.restored_on_failure():
            query, key = cache.extend(None if alone else torch.full_like(tokens, position), b, limit=limit)
            mask = attention_mask(query, key, causal=True, tree_mask=None if alone else tree_mask, device=CPU)
            nothing = logits.new_zeros(1, b, config.d_model)
            held = set_positions(call, self.model.positions, query, key, mask, nothing)
            held += _set_memory(call, memory, cache, self._decoder)  # as long as native code reads it
            raise_refusal(
                self._library.clearhead_write(ctypes.byref(self._decoder), ctypes.byref(call)), self._decoder, tokens
            )
        del held
        for layer in cache.layers:
            layer.length += b
        return logits

    def top_continuations(self, logits: Tensor, before: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, parents and tokens, (S, n) each, as in `BeamBackend`; of equally likely ones the first."""
        S, b, V = *before.shape, self.model.config.vocab_size
        require("logits", logits.contiguous(), (S, b, V), self._packer.dtype)
        if n < 1:
            raise UsageError(f"the {n} likeliest continuations cannot be found; ask for one at least")
        pad = self.model.config.pad_id
        call = BeamCall(sentences=S, hypotheses=b, vocab_size=V, n_best=n, threads=self._threads(S * b))
        call.padding = -1 if pad is None else pad
        logits, before = logits.contiguous(), before.to(logits.dtype).contiguous()
        totals, scores = torch.empty_like(before), logits.new_empty(S, n)
        places = torch.empty(S, n, dtype=torch.int64, device=CPU)
        call.logits, call.before = logits.data_ptr(), before.data_ptr()
        call.totals, call.scores, call.places = totals.data_ptr(), scores.data_ptr(), places.data_ptr()
        if self._library.clearhead_continue(ctypes.byref(call)):
            raise InputError("native code cannot search among these logits: their parts do not fit together")
        refuse_not_finite(totals)
        return scores, places // V, places % V

    def _threads(self, rows: int) -> int:
        return torch.get_num_threads() if rows * self._macs >= PARALLEL_MIN_MACS else 1


def _set_memory(call: Call, memory: Memory, cache: DecoderCache, decoder: Decoder) -> list[Tensor]:
    """Set the memory pointers in `call`; return the tensors to keep alive.

    Raises:
        UsageError: the cache holds nothing of a source, or of another one.
    """
    stack, T = decoder.stack, memory.states.shape[1]
    known = [part for layer in cache.memory_layers for part in layer.held or ()]
    if len(known) != 2 * stack.n_layers:
        raise UsageError("the cache has no encoder keys; run the first step eagerly")
    shape = (call.texts, stack.n_kv_heads, T, stack.head_dim)
    for part in known:  # another type where torch.autocast was turned on meanwhile
        require("what the cache holds of the source", part, shape, cache.layers[0].keys.dtype)
    call.memories, call.memory_length = pointers_to(known), T
    mask = attention_mask(range(1), memory.positions, causal=False, device=CPU)
    if isinstance(mask, Tensor):
        known.append(mask.flatten(1).contiguous())  # (S, 1, 1, T_src) -> (S, T_src)
        require("the source's mask", known[-1], (call.texts, T), torch.bool)
        call.memory_mask = known[-1].data_ptr()
    return known
