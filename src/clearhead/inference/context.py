"""What a model has read of every row of a batch, in a cache that never outgrows the model's window."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from clearhead.inference.engine import ReadToken, call
from clearhead.inference.mode import Notice, refuse_not_finite
from clearhead.models import CausalLM
from clearhead.parts import DecoderCache, padded_positions

PREFILL_TOKENS = 1024  # read in one call, over all rows: the memory of a long prompt grows with the prompt alone


class Reader:
    """How prompts are read, and what a row goes on with when it has outgrown the model.

    Rows are aligned on the right, so prompts of unequal length are padded on the left. Each row's context depends on
    that row alone:

    - A model with a sliding window and positions without end reads on for ever; columns that have left the window go.
    - Any other model has read at most `block_size` tokens of a row. A row that is full goes on with its last
      block_size // 2 tokens, read again from position 0: about two tokens are read for each one written.
    """

    def __init__(self, model: CausalLM, notice: Notice | None = None, read_token: ReadToken | None = None) -> None:
        self.model, self._notice = model, notice
        self.read_token = read_token or partial(call, model)
        self._limit = model.config.block_size if model.endless_window is None else None
        self._slid = False
        self._ids = list[list[int]]()  # what each row has read since it slid
        self._cache: DecoderCache

    def _begun(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """What is read of the prompts."""
        longest = max(map(len, prompts))
        if self._limit and longest > self._limit:
            self._say(
                f"the prompt has {longest} tokens, more than the model's block_size: "
                f"only its last {self._limit} are read"
            )
        return [list(prompt)[-self._limit :] if self._limit else list(prompt) for prompt in prompts]

    def _read_prompts(self, rows: Sequence[Sequence[int]], new_tokens: int) -> tuple[DecoderCache, Tensor]:
        """A cache with room for more, and the logits (B, V) after the rows; equal ones are read once."""
        unique = list(dict.fromkeys(map(tuple, rows)))
        cache = self.model.new_cache(len(unique), self._capacity(new_tokens, unique))
        logits = self._read_rows(cache, unique)
        refuse_not_finite(logits)
        if len(unique) < len(rows):
            index = torch.tensor([unique.index(tuple(row)) for row in rows], device=self.model.device)
            cache.select(index)
            logits = logits.index_select(0, index)
        return cache, logits

    def _capacity(self, new_tokens: int, prompts: Sequence[Sequence[int]]) -> int:
        """Columns of the cache: no more than the text needs, and enough that old ones are moved seldom."""
        total = max(map(len, prompts)) + new_tokens
        if self.model.endless_window is not None:
            return min(total, self._kept_columns() + max(self._chunk(len(prompts)), self.model.endless_window))
        ragged = len(set(map(len, prompts))) > 1  # each row then slides at a time of its own
        return min(total, self.model.config.block_size * (2 if ragged else 1))

    def _kept_columns(self) -> int:
        """Columns that a later token may still attend to."""
        window = self.model.endless_window
        return self.model.config.block_size if window is None else max(1, window - 1)

    def _make_room(self, cache: DecoderCache, columns: int) -> None:
        if cache.length + columns > cache.capacity:
            cache.drop(cache.length - self._kept_columns())

    def _chunk(self, rows: int) -> int:
        return max(1, PREFILL_TOKENS // rows)

    def _read_rows(self, cache: DecoderCache, rows: Sequence[Sequence[int]]) -> Tensor:
        """Read the rows, chunk by chunk, into an empty cache; the logits (B, V) after them."""
        width, device = max(map(len, rows)), self.model.device
        ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows], device=device)  # (B, T)
        positions = None
        if any(len(row) < width for row in rows):
            positions = padded_positions(torch.tensor([len(row) for row in rows], device=device), width, "left")
        chunk = self._chunk(len(rows))
        for start in range(0, width, chunk):
            now = slice(start, min(start + chunk, width))
            self._make_room(cache, now.stop - start)
            here = None if positions is None else positions[:, now]
            hidden = self.model.hidden(ids[:, now], positions=here, cache=cache)
        return self.model.head(hidden[:, -1])

    def _slide(self, full: Sequence[int], kept: int) -> None:
        """Rows that are full forget all but their last tokens, which are read again where a text begins."""
        if not self._slid:
            self._say(
                f"the text has outgrown the model's block_size of {self._limit} tokens: "
                f"from here on the model sees only its last {max(1, kept)} to {self._limit}"
            )
        self._slid = True
        for row in full:
            self._ids[row] = self._ids[row][-kept:] if kept else []
        fresh = self._cache if len(full) == len(self._ids) else self.model.new_cache(len(full), kept)
        fresh.reset()
        if kept:
            self._read_rows(fresh, [self._ids[row] for row in full])
        if fresh is not self._cache:
            self._cache.replace(torch.tensor(full, device=self.model.device), fresh)

    def _say(self, sentence: str) -> None:
        if self._notice:
            self._notice(sentence)


class Context(Reader):
    """Reads prompts, then one token per row at a time; `logits` (B, V) are always those of the next token."""

    def __init__(
        self,
        model: CausalLM,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        notice: Notice | None = None,
        read_token: ReadToken | None = None,
    ) -> None:
        super().__init__(model, notice, read_token)
        self._ids = self._begun(prompts)
        with torch.inference_mode():
            self._cache, self.logits = self._read_prompts(self._ids, new_tokens)

    @torch.inference_mode()
    def read(self, ids: Tensor) -> None:
        """Read one token (B,) per row."""
        if self._limit is not None:
            full = [row for row, read in enumerate(self._ids) if len(read) == self._limit]
            if full:
                self._slide(full, self._limit // 2)
            for row, token in zip(self._ids, ids.tolist(), strict=True):
                row.append(token)
        self._make_room(self._cache, 1)
        self.logits = self.read_token(ids, self._cache)

    @torch.inference_mode()
    def keep(self, rows: list[int]) -> None:
        """Go on with these rows of the batch, in this order."""
        self._ids = [self._ids[row] for row in rows]
        index = torch.tensor(rows, device=self.model.device)
        self._cache.select(index)
        self.logits = self.logits.index_select(0, index)
