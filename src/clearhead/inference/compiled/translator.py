"""A beam search's next tokens by compiled code: the logits after each hypothesis, and the likeliest continuations."""

import ctypes

import torch
from torch import Tensor

from clearhead.inference.compiled.decoder import ENOUGH
from clearhead.inference.compiled.describing import described, products_of
from clearhead.inference.compiled.layout import Call, Continuing, Packer
from clearhead.inference.compiled.placing import CPU, pointers_to, tell_cache, tell_places
from clearhead.inference.mode import refuse_not_finite
from clearhead.inference.readers import Continuations, PlainReader
from clearhead.models import EncoderDecoder, Memory
from clearhead.parts import DecoderCache, attention_mask


class CompiledReader:
    """What compiled code computes; the cache, the masks and the positions are the model's own."""

    def __init__(self, model: EncoderDecoder, library: ctypes.CDLL) -> None:
        """
        Raises:
            UnknownPartError: it has a part that compiled code does not know.
        """
        self.model, self._library, self._first = model, library, PlainReader(model)
        self._packer = Packer("full", model.embedding.weight.dtype)
        self._decoder = described(model, self._packer)
        self._products = products_of(model)

    @torch.no_grad()
    def read(self, tokens: Tensor, place: int, memory: Memory, cache: DecoderCache, among: Tensor) -> Tensor:
        """As `Reader.read`; the first tokens by the model's own call, which makes keys and values of the memory."""
        if cache.length == 0:
            return self._first.read(tokens, place, memory, cache, among)
        S, b, config = *tokens.shape, self.model.config
        logits = torch.empty(S, b, config.vocab_size, dtype=self._packer.dtype, device=CPU)
        line = torch.cat((tokens + 1, tokens.new_zeros(S, 1)), dim=1)  # (S, b + 1)
        call = Call(texts=S, given=b, steps=1, wanted=b, line=line.data_ptr(), line_row=b + 1, logits=logits.data_ptr())
        call.threads = self._threads(S * b)
        tell_cache(call, cache)
        alone = b == 1  # all columns are its own
        query, key = cache.extend(None if alone else torch.full_like(tokens, place), b)
        mask = attention_mask(query, key, causal=True, among=None if alone else among, device=CPU)
        nothing = logits.new_zeros(1, b, config.d_model)
        held = [*tell_places(call, self.model.positions, query, key, mask, nothing), *_tell_memory(call, memory, cache)]
        self._library.clearhead_write(ctypes.byref(self._decoder), ctypes.byref(call))
        del held  # which compiled code read
        for layer in cache.layers:
            layer.length += b
        return logits

    def likeliest(self, logits: Tensor, before: Tensor, n: int) -> Continuations:
        """As `Reader.likeliest`; of equally likely ones the first."""
        S, b, V = logits.shape
        pad = self.model.config.pad_id
        call = Continuing(sentences=S, hypotheses=b, vocab_size=V, wanted=n, threads=self._threads(S * b))
        call.padding = -1 if pad is None else pad
        logits, before = logits.contiguous(), before.to(logits.dtype).contiguous()
        totals, scores = torch.empty_like(before), logits.new_empty(S, n)
        places = torch.empty(S, n, dtype=torch.int64, device=CPU)
        call.logits, call.before = logits.data_ptr(), before.data_ptr()
        call.totals, call.scores, call.places = totals.data_ptr(), scores.data_ptr(), places.data_ptr()
        self._library.clearhead_continue(ctypes.byref(call))
        refuse_not_finite(totals)
        return Continuations(scores, places // V, places % V)

    def _threads(self, rows: int) -> int:
        return torch.get_num_threads() if rows * self._products >= ENOUGH else 1


def _tell_memory(call: Call, memory: Memory, cache: DecoderCache) -> list[Tensor]:
    """Tell the call what is known of the source; what it then points to."""
    known = [part for layer in cache.memory_layers for part in layer.held or ()]
    assert all(part.dtype == cache.layers[0].keys.dtype for part in known), "torch.autocast was turned on meanwhile"
    call.memories, call.memory_length = pointers_to(known), known[0].shape[2]  # (S, H_kv, T_src, K)
    mask = attention_mask(range(1), memory.positions, causal=False, device=CPU)
    if isinstance(mask, Tensor):
        known.append(mask.flatten(1).contiguous())  # (S, 1, 1, T_src) -> (S, T_src)
        call.memory_mask = known[-1].data_ptr()
    return known
