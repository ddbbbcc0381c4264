"""Native beam search: the memory, the logits after each hypothesis, and the likeliest continuations."""

import ctypes
from operator import is_

import torch
from torch import Tensor

from clearhead.errors import InputError, UsageError
from clearhead.models import EncoderDecoder, Memory
from clearhead.models.eval_mode import refuse_not_finite
from clearhead.native.boundary import pointers_to, raise_refusal, require, require_cache, require_ids
from clearhead.native.call_inputs import CPU, set_cache, set_positions
from clearhead.native.decoder import PARALLEL_MIN_MACS
from clearhead.native.packing import macs_per_token, pack_decoder, pack_encoder
from clearhead.native.structures import BeamCall, Call, Packer, Pointer, register_bytes
from clearhead.parts import DecoderCache, attention_mask, refuse_beyond
from clearhead.parts.masks import Mask, Positions

NOT_FINITE = 3  # as in checks.h


class NativeTranslator:
    """A translator's weights, packed for native code, and its calls. Cache, masks and positions are the model's."""

    def __init__(self, model: EncoderDecoder, library: ctypes.CDLL) -> None:
        """
        Raises:
            UnknownPartError: native code does not implement a part of the model.
        """
        self.model, self._library = model, library
        self._packer = Packer("float32", model.embedding.weight.dtype, register_bytes(library))
        self._encoder, self._decoder = pack_encoder(model, self._packer), pack_decoder(model, self._packer)
        self._macs = macs_per_token(model)
        self._added: Tensor | None = None  # (block_size, D), where positions are bounded, and only added
        if model.positions.bounded:
            D, size = model.config.d_model, model.config.block_size
            nothing = torch.zeros(1, size, D, dtype=self._packer.dtype, device=CPU)
            self._added = model.positions.add(nothing, range(size))[0].detach().contiguous()
        self._call, self._held = Call(), list[object]()  # of the last step, and what it points to
        self._memory_mask: Mask = None

    @torch.no_grad()
    def begin(self, source: Tensor, positions: Positions, capacity: int) -> tuple[Memory, DecoderCache]:
        """As `inference.beam_backend.BeamBackend.begin`; the cache also holds keys and values of the memory."""
        require_ids(source)
        if isinstance(positions, Tensor):
            require("positions", positions, (*source.shape,), torch.int64)
        refuse_beyond(positions, self.model.config.block_size)
        S, T, D = *source.shape, self.model.config.d_model
        source, cache = source.contiguous(), self.model.new_cache(S, capacity)
        own, cross = self._encoder.stack, self._decoder.stack
        room = [self._empty(S, own.n_kv_heads, T, own.head_dim) for _ in range(2)]  # a layer's are not read after it
        for layer in cache.memory_layers:
            keys, values = (self._empty(S, cross.n_kv_heads, T, cross.head_dim) for _ in range(2))
            layer.held = keys, values
        call = Call(texts=S, n_tokens=T, steps=1, ids=source.data_ptr(), threads=self._threads(S * T), both_ways=True)
        call.caches, call.memories = pointers_to(room * own.n_layers), pointers_to(_held_by(cache))
        call.cached, call.capacity = S, T
        mask = attention_mask(positions, positions, causal=False, device=CPU)
        nothing, states = torch.zeros(1, T, D, dtype=self._packer.dtype, device=CPU), self._empty(S, T, D)
        held = set_positions(call, self.model.source_positions, positions, positions, mask, nothing)
        encoder, decoder, pointer = ctypes.byref(self._encoder), ctypes.byref(self._decoder), states.data_ptr()
        refusal = self._library.clearhead_encode(encoder, decoder, ctypes.byref(call), Pointer(pointer))
        del held  # which native code has read
        raise_refusal(refusal, self._encoder, source)
        return Memory(states, positions), cache

    @torch.no_grad()
    def forward(self, tokens: Tensor, position: int, memory: Memory, cache: DecoderCache, tree_mask: Tensor) -> Tensor:
        """As `inference.beam_backend.BeamBackend.forward`, with what `begin` returned."""
        require_ids(tokens)
        S, b, config = *tokens.shape, self.model.config
        tokens, tree_mask = tokens.contiguous(), tree_mask.contiguous()
        call = Call.from_buffer_copy(self._call_of(memory, cache, S))
        require("tree_mask", tree_mask, (S, b, cache.length + b), torch.bool)
        logits = self._empty(S, b, config.vocab_size)
        call.n_tokens, call.ids, call.threads = b, tokens.data_ptr(), self._threads(S * b)
        call.length, call.logits_to_keep, call.logits = cache.length, b, logits.data_ptr()
        with cache.restored_on_failure():
            query, key = cache.extend(None if b == 1 else torch.full_like(tokens, position), b)
            held = self._set_step(call, position, query, key, tree_mask)
            refusal = self._library.clearhead_write(ctypes.byref(self._decoder), ctypes.byref(call))
            del held  # which native code has read
            raise_refusal(refusal, self._decoder, tokens)
        cache.advance(b)
        return logits

    def _set_step(self, call: Call, position: int, query: Positions, key: Positions, tree_mask: Tensor) -> list[Tensor]:
        """Set positions and mask in `call`; returns tensors to keep alive.

        All sentences have the same positions, none of them behind the query's: the tree mask is the whole mask.
        """
        if self._added is None:
            query, key = (part[:1] if isinstance(part, Tensor) else part for part in (query, key))
            nothing = torch.zeros(1, call.n_tokens, self.model.config.d_model, dtype=self._packer.dtype, device=CPU)
            return set_positions(call, self.model.positions, query, key, tree_mask, nothing)
        refuse_beyond(range(position + 1), len(self._added))
        call.added = self._added[position].data_ptr()
        call.mask, call.mask_stride = tree_mask.data_ptr(), tree_mask.stride(0)
        return []

    def _call_of(self, memory: Memory, cache: DecoderCache, S: int) -> Call:
        """What is the same for all steps of a search, checked and set once for a memory and a cache.

        Raises:
            InputError, UsageError: the cache holds nothing of a source, or of another one, or does not fit the model.
        """
        held_by_cache, positions = _held_by(cache), memory.positions
        held: list[object] = [*cache.keys_and_values, *held_by_cache, memory.states, positions]
        is_known = len(held) == len(self._held) and all(map(is_, held, self._held))
        if not is_known or self._call.texts != S or any(layer.length != cache.length for layer in cache.layers):
            require_cache(cache, self._decoder, self._packer.dtype, S, 0)
            call, stack, T = Call(texts=S, steps=1), self._decoder.stack, memory.states.shape[1]
            if len(held_by_cache) != 2 * stack.n_layers:
                raise UsageError("the cache has no keys of a source; get it from `begin`")
            shape = (S, stack.n_kv_heads, T, stack.head_dim)
            for part in held_by_cache:
                require("what the cache holds of the source", part, shape, self._packer.dtype)
            set_cache(call, cache, 0)
            call.memories, call.memory_length = pointers_to(held_by_cache), T
            mask = attention_mask(range(1), positions, causal=False, device=CPU)
            if isinstance(mask, Tensor):
                mask = mask.flatten(1).contiguous()  # (S, 1, 1, T_src) -> (S, T_src)
                require("the source's mask", mask, (S, T), torch.bool)
                call.memory_mask = mask.data_ptr()
            self._call, self._held, self._memory_mask = call, held, mask
        return self._call

    def top_continuations(self, logits: Tensor, before: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, parents and tokens, (S, n) each, as in `BeamBackend`; of equally likely ones the first."""
        S, b, V = *before.shape, self.model.config.vocab_size
        logits, before = logits.contiguous(), before.to(logits.dtype).contiguous()
        require("logits", logits, (S, b, V), self._packer.dtype)
        if n < 1:
            raise UsageError(f"the {n} likeliest continuations cannot be found; ask for one at least")
        pad = self.model.config.pad_id
        call = BeamCall(sentences=S, hypotheses=b, vocab_size=V, n_best=n, threads=self._threads(S * b))
        call.padding = -1 if pad is None else pad
        scores = self._empty(S, n)
        parents, tokens = torch.empty(2, S, n, dtype=torch.int64, device=CPU)
        call.logits, call.before, call.scores = logits.data_ptr(), before.data_ptr(), scores.data_ptr()
        call.parents, call.tokens = parents.data_ptr(), tokens.data_ptr()
        refusal = self._library.clearhead_continue(ctypes.byref(call))
        if refusal == NOT_FINITE:
            refuse_not_finite(logits)
        if refusal:
            raise InputError("native code cannot search among these logits: their parts do not fit together")
        return scores, parents, tokens

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self._packer.dtype, device=CPU)

    def _threads(self, rows: int) -> int:
        return torch.get_num_threads() if rows * self._macs >= PARALLEL_MIN_MACS else 1


def _held_by(cache: DecoderCache) -> list[Tensor]:
    """The memory's keys and values of each layer in turn."""
    return [part for layer in cache.memory_layers for part in layer.held or ()]
