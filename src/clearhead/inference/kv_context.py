"""The key-value cache of a changing batch: rows join, advance at their own pace, roll back and leave."""

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from clearhead.inference.decoder_backend import DecoderBackend, EagerDecoderBackend
from clearhead.inference.requests import GenerationRequest
from clearhead.models import CausalLM
from clearhead.models.eval_mode import OnNotice, refuse_not_finite
from clearhead.parts import DecoderCache, positions_from_lengths

Row = tuple[int, ...]
PREFILL_TOKENS = 1024  # prefilled per call, over all rows, so that memory grows only linearly with the prompt
SPARE = 64  # the fewest columns that a cache grows by


class KVContext:
    """Rows 0, 1, ... in the order in which they joined; when some leave, the others move up.

    They are aligned on the right, so prompts of unequal length are padded on the left. Each row's context depends on
    that row alone:

    - A model with a sliding window and positions without end runs indefinitely, evicting keys outside the window.
    - Any other model has read at most `block_size` tokens of a row. A row that is full goes on with its last
      block_size // 2 tokens, read again from position 0: about two tokens are read for each one written.
    """

    def __init__(
        self, model: CausalLM, on_notice: OnNotice | None = None, backend: DecoderBackend | None = None
    ) -> None:
        self.model, self.backend, self._on_notice = model, backend or EagerDecoderBackend(model), on_notice
        self._device = model.device  # cached: model.device is slow
        self._limit = model.config.block_size if model.receptive_field is None else None
        self._has_slid = False
        self._ids = list[list[int]]()  # each row's tokens since its window last slid
        self._cache: DecoderCache
        self._surplus: Sequence[int] = ()  # padding or rolled-back columns at the end of each row

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> Tensor:
        """Prefill the prompts of new rows; return the logits (B', V) after each.

        Args:
            prompts: at least one token each.
            new_tokens: how many tokens to reserve room for per row; more are possible, but copy the cache.
        """
        self._apply_rollback()
        truncated = self._truncate(prompts)
        new_cache, logits = self._prefill(truncated, new_tokens)
        if self._ids:
            self._cache.append([new_cache], (len(self._ids), len(truncated)))
        else:
            self._cache = new_cache
        self._ids += truncated
        self._surplus = [0] * len(self._ids)
        return logits

    @torch.inference_mode()
    def forward(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        """Read these tokens of each row; return the logits (B, T, V) after each. T, at least 1, is the longest row's.

        A row must have `room` for them, or it slides earlier than it would if it read them one by one.
        """
        lengths = [len(more) for more in tokens]
        width = max(lengths)
        self._prepare_for(lengths)
        positions = None if min(lengths) == width else self._next_positions(lengths)
        for row, more in zip(self._ids, tokens, strict=True):
            row.extend(more)
        self._surplus = [width - length for length in lengths]
        ids = torch.tensor([[*more, *[0] * (width - len(more))] for more in tokens], device=self._device)  # (B, T)
        return self.backend.forward(ids, self._cache, positions, logits_to_keep=width)

    @torch.inference_mode()
    def decode(self, requests: Sequence[GenerationRequest]) -> list[list[int]]:
        """Read the last token of each row's text and write the next ones, equally many per row; the last is unread."""
        rooms = [room for room in map(self.room, range(len(requests))) if room is not None]
        steps = min(max(request.remaining for request in requests), self.backend.max_steps, *rooms)
        self._prepare_for([steps] * len(requests))
        last = [request.last_token for request in requests]
        sampled = self.backend.decode(torch.tensor(last, device=self._device), self._cache, requests, steps)
        for row, first, more in zip(self._ids, last, sampled, strict=True):
            row += [first, *more[:-1]]
        return sampled

    def rollback(self, counts: Sequence[int]) -> None:
        """Roll back: each row forgets this many of its last tokens."""
        for row, count in zip(self._ids, counts, strict=True):
            del row[len(row) - count :]
        self._surplus = [old + new for old, new in zip(self._surplus, counts, strict=True)]

    @torch.inference_mode()
    def reorder(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order, and drop the others."""
        self._apply_rollback()
        self._ids = [self._ids[row] for row in rows]
        self._surplus = [0] * len(rows)
        self._cache.reorder(torch.tensor(rows, dtype=torch.int64, device=self._device))

    def room(self, row: int) -> int | None:
        """How many tokens a row can read in one call; None: no limit."""
        if self._limit is None:
            return None
        read = len(self._ids[row])
        return self._limit - (read if read < self._limit else self._limit // 2)

    def has_room(self, row: int) -> bool:
        """Whether a row can read the most tokens of one call without sliding its window."""
        return self._limit is None or len(self._ids[row]) + self.backend.max_steps <= self._limit

    @property
    def max_rollback(self) -> int:
        """How many of the last tokens can always be rolled back."""
        return self._kept_columns() if self._limit is None else self._limit // 2

    def _truncate(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """The prompts, cut on the left to the model's block_size where it has one."""
        longest = max(map(len, prompts))
        if self._limit and longest > self._limit:
            self._notify(
                f"the prompt has {longest} tokens, more than the model's block_size: "
                f"only its last {self._limit} are read"
            )
        return [list(prompt)[-self._limit :] if self._limit else list(prompt) for prompt in prompts]

    def _prefill(self, rows: Sequence[Sequence[int]], new_tokens: int) -> tuple[DecoderCache, Tensor]:
        """Prefill: a cache with room for new tokens, and the logits (B, V) after each row. Equal rows are read once."""
        groups = self._groups(list(dict.fromkeys(map(tuple, rows))))
        capacity, caches, logits = self._capacity(new_tokens, rows), list[DecoderCache](), list[Tensor]()
        for group in groups:
            room = capacity if len(groups) == 1 else self._capacity(0, group)
            caches.append(self.model.new_cache(len(group), room))
            logits.append(self._prefill_group(caches[-1], group))
        cache, logits_of_rows = caches[0], torch.cat(logits)  # (B', V)
        refuse_not_finite(logits_of_rows)
        if len(groups) > 1:
            cache.append(caches[1:], [len(group) for group in groups], capacity)
        unique = {row: number for number, row in enumerate(chain(*groups))}
        order = [unique[tuple(row)] for row in rows]
        if order != list(range(len(unique))):
            index = torch.tensor(order, device=self._device)
            cache.reorder(index)
            logits_of_rows = logits_of_rows.index_select(0, index)
        return cache, logits_of_rows

    def _groups(self, rows: Sequence[Row]) -> list[list[Row]]:
        """Group the rows for prefill: those of this backend in one batch, any other row by itself."""
        batched = [row for row in rows if self.backend.for_prefill(len(row)) is self.backend]
        single = [[row] for row in rows if self.backend.for_prefill(len(row)) is not self.backend]
        return [batched, *single] if batched else single

    def _capacity(self, new_tokens: int, prompts: Sequence[Sequence[int]]) -> int:
        """Columns to allocate: no more than the text needs, and enough that the cache is seldom compacted."""
        total = max(map(len, prompts)) + new_tokens
        if self.model.receptive_field is not None:
            return min(total, self._kept_columns() + max(self._chunk(len(prompts)), self.model.receptive_field))
        ragged = len(set(map(len, prompts))) > 1  # each row then slides at a time of its own
        return min(total, self.model.config.block_size * (2 if ragged else 1))

    def _kept_columns(self) -> int:
        """Columns that a later token may still attend to."""
        window = self.model.receptive_field
        return self.model.config.block_size if window is None else max(1, window - 1)

    def _make_room(self, cache: DecoderCache, columns: int) -> None:
        if cache.length + columns > cache.capacity:
            cache.drop(cache.length - self._kept_columns())

    def _chunk(self, rows: int) -> int:
        return max(1, PREFILL_TOKENS // rows)

    def _prefill_group(self, cache: DecoderCache, rows: Sequence[Sequence[int]]) -> Tensor:
        """Prefill an empty cache with a group of rows, chunk by chunk; return the logits (B, V) after them."""
        width, device = max(map(len, rows)), self._device
        backend = self.backend.for_prefill(width)
        ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows], device=device)  # (B, T)
        positions = None
        if any(len(row) < width for row in rows):
            positions = positions_from_lengths(torch.tensor([len(row) for row in rows], device=device), width, "left")
        chunk = self._chunk(len(rows))
        for start in range(0, width, chunk):
            now = slice(start, min(start + chunk, width))
            self._make_room(cache, now.stop - start)
            chunk_positions = None if positions is None else positions[:, now]
            logits = backend.forward(
                ids[:, now], cache, chunk_positions, logits_to_keep=int(now.stop == width)
            )  # (B, 0 or 1, V)
        return logits[:, -1]

    def _slide(self, full: Sequence[int], kept: int) -> None:
        """Slide full rows: keep only their last tokens, and read these again from position 0."""
        if not self._has_slid:
            self._notify(
                f"the text has outgrown the model's block_size of {self._limit} tokens: "
                f"from here on the model sees only its last {max(1, kept)} to {self._limit}"
            )
        self._has_slid = True
        for row in full:
            self._ids[row] = self._ids[row][-kept:] if kept else []
        rows = [tuple(self._ids[row]) for row in full]
        if len(full) == len(self._ids) and len(self._groups(rows)) == 1:
            self._cache.reset()
            if kept:
                self._prefill_group(self._cache, rows)
            return
        new_cache = self._prefill(rows, 0)[0] if kept else self.model.new_cache(len(full), 0)
        self._cache.replace(torch.tensor(full, device=self._device), new_cache)

    def _notify(self, sentence: str) -> None:
        if self._on_notice:
            self._on_notice(sentence)

    def _apply_rollback(self) -> None:
        """Apply pending rollbacks: drop the surplus columns at the end of each row."""
        if any(self._surplus):
            surplus = torch.tensor(self._surplus, device=self._device)
            self._cache.rollback(surplus, self._last_tokens())
            self._surplus = [0] * len(self._ids)

    def _last_tokens(self) -> Tensor | None:
        """The `tokens` (B, n - 1) of the cache, recomputed from these rows."""
        held = self._cache.tokens
        if held is None:
            return None
        width = held.shape[1]
        last = [[token + 1 for token in ids[-width:]] for ids in self._ids]
        return torch.tensor([[0] * (width - len(row)) + row for row in last], device=held.device)

    def _prepare_for(self, lengths: Sequence[int]) -> None:
        """Make room for this many more tokens in each row."""
        self._apply_rollback()
        limit = self._limit
        if limit is not None:
            full = [row for row, more in enumerate(lengths) if len(self._ids[row]) + more > limit]
            if full:
                self._slide(full, min(limit // 2, limit - max(lengths[row] for row in full)))
        self._make_room_for(max(lengths))

    def _make_room_for(self, columns: int) -> None:
        cache, held = self._cache, min(self._kept_columns(), max(map(len, self._ids)))
        if cache.length + columns <= cache.capacity:
            return
        if cache.length > held:
            cache.drop(cache.length - held)
        needed = held + columns
        if 4 * needed > 3 * cache.capacity:  # or columns would be moved again soon
            cache.resize(needed + max(SPARE, needed // 2))

    def _next_positions(self, lengths: Sequence[int]) -> Tensor:
        """Positions (B, T) of the next tokens of each row, -1 after the last."""
        held, device = self._cache.positions, self._device
        start = torch.full((len(lengths),), held.stop, device=device) if isinstance(held, range) else held[:, -1] + 1
        steps = torch.arange(max(lengths), device=device)
        inside = steps < torch.tensor(lengths, device=device)[:, None]  # (B, T)
        return (start[:, None] + steps).where(inside, -1)
