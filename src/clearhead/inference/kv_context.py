"""The key-value cache of a changing batch: rows join, advance at their own pace, roll back and leave."""

import sys
from collections.abc import Collection, Generator, Sequence
from itertools import chain
from operator import add

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.inference.decoder_backend import DecoderBackend, EagerDecoderBackend
from clearhead.inference.prefixes import Row, longest_shared
from clearhead.inference.prompt_reading import PromptReader
from clearhead.inference.requests import GenerationRequest
from clearhead.inference.text_options import OnLogits
from clearhead.models import CausalLM
from clearhead.models.eval_mode import OnNotice
from clearhead.parts import SlotCache

PREFILL_TOKENS = 512  # read per call, over all new rows, so that memory grows only linearly with the prompt
SPARE = 64  # the fewest columns that a cache grows by


class KVContext:
    """Rows 0, 1, ... in the order in which they joined; when some leave, the others move up.

    Each row has a slot of the cache to itself, where nothing of it moves, so its context depends on that row alone:

    - A model with a sliding window and positions without end runs indefinitely, evicting keys outside the window.
    - Any other model has read at most `block_size` tokens of a row. A row that is full goes on with its last
      block_size // 2 tokens, read again from position 0: about two tokens are read for each one written.
    """

    def __init__(
        self,
        model: CausalLM,
        on_notice: OnNotice | None = None,
        backend: DecoderBackend | None = None,
        *,
        slots: int = 0,
        prompt_tokens: int = PREFILL_TOKENS,
    ) -> None:
        """
        Args:
            model: whose dropout is off.
            on_notice: called when a row outgrows the model.
            backend: the eager one by default.
            slots: rows for which room is reserved now, as much as a text can need; more rows copy the cache.
            prompt_tokens: of new rows, read in one call of the model at most.
        """
        self.model, self.backend, self._on_notice = model, backend or EagerDecoderBackend(model), on_notice
        self._device = model.device  # cached: model.device is slow
        self._limit = model.config.block_size if model.receptive_field is None else None
        self._has_slid = False
        self._rows = list[Row]()
        self._left = dict[int, Row]()  # what free slots hold, by slot
        self._shares = slots > 0  # whether prompts are looked for in what rows hold
        self._cache, self._prompt_tokens = SlotCache(model.new_cache), prompt_tokens
        self._reader = PromptReader(self._cache, self._make_room, self._device, prompt_tokens)
        if slots:
            self._cache.reserve(slots, self._columns(sys.maxsize))

    def prefill(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> Tensor:
        """Prefill the prompts of new rows; return the logits (B', V) after each.

        Args:
            prompts: at least one token each.
            new_tokens: how many tokens to reserve room for per row; more are possible, but may copy the cache.
        """
        return _result_of(self.prefill_in_pieces(prompts, new_tokens))

    @torch.inference_mode()
    def prefill_in_pieces(
        self, prompts: Sequence[Sequence[int]], new_tokens: int, observers: Sequence[OnLogits | None] = ()
    ) -> Generator[None, None, Tensor]:
        """As `prefill`, in as many pieces as there are calls of the model; other rows may go on between two of them.

        The new rows join with the last piece.

        Args:
            observers: of each prompt, by default none; it sees all logits, so none of it is taken from other rows.
        """
        texts, observers = self._truncate(prompts), observers or [None] * len(prompts)
        self._cache.make_free(len(texts), self._columns(max(map(len, texts)) + new_tokens))
        watched = {tuple(text) for text, observer in zip(texts, observers, strict=True) if observer is not None}
        rows = [self._begin(text, self._shares and tuple(text) not in watched) for text in texts]
        try:
            logits = yield from self._reader.read(self.backend, rows, texts, observers)
        except BaseException:  # also where nobody waits for them any more
            self._cache.release([row.slot for row in rows])
            raise
        self._rows += rows
        return logits

    @torch.inference_mode()
    def forward(self, tokens: Sequence[Sequence[int]], rows: Sequence[int] | None = None) -> Tensor:
        """Read these tokens of each row; return the logits (B, T, V) after each. T, at least 1, is the longest row's.

        A row must have `room` for them, or it slides earlier than it would if it read them one by one.

        Args:
            rows: whose tokens they are; of all by default.
        """
        held = self._rows if rows is None else [self._rows[row] for row in rows]
        counts = [len(more) for more in tokens]
        self._prepare_for(held, counts)
        read, width = self._cache.rows([row.slot for row in held], counts), max(counts)
        ids = torch.tensor([[*more, *[0] * (width - len(more))] for more in tokens], device=self._device)  # (B, T)
        logits = self.backend.forward(ids, read, logits_to_keep=width)
        self._cache.keep(read)
        for row, more in zip(held, tokens, strict=True):
            row.ids.extend(more)
        return logits

    @torch.inference_mode()
    def decode(self, requests: Sequence[GenerationRequest], rows: Sequence[int] | None = None) -> list[list[int]]:
        """Read the last token of each row's text and write the next ones, equally many per row; the last is unread.

        Args:
            requests: one for each row.
            rows: all by default.
        """
        held = self._rows if rows is None else [self._rows[row] for row in rows]
        rooms = [room for room in map(self._room, held) if room is not None]
        steps = min(max(request.remaining for request in requests), self.backend.max_steps, *rooms)
        self._prepare_for(held, [steps] * len(held))
        read, last = self._cache.rows([row.slot for row in held]), [request.last_token for request in requests]
        sampled = self.backend.decode(torch.tensor(last, device=self._device), read, requests, steps)
        self._cache.keep(read)
        for row, first, more in zip(held, last, sampled, strict=True):
            row.ids += [first, *more[:-1]]
        return sampled

    @torch.inference_mode()
    def rollback(self, counts: Sequence[int], rows: Sequence[int] | None = None) -> None:
        """Roll back: each row, or each of these, forgets this many of its last tokens."""
        held = self._rows if rows is None else [self._rows[row] for row in rows]
        for row, count in zip(held, counts, strict=True):
            self._forget(row, count)

    def reorder(self, rows: Sequence[int], broken: Collection[int] = ()) -> None:
        """Keep these rows, in this order, and drop the others, whose slots are then free.

        Args:
            broken: rows that hold numbers which are none; nobody reads these again.
        """
        for number, row in enumerate(self._rows):
            if number not in rows:
                self._cache.release([row.slot])
                if number not in broken:
                    self._left[row.slot] = row
        self._rows = [self._rows[row] for row in rows]

    def room(self, row: int) -> int | None:
        """How many tokens a row can read in one call; None: no limit."""
        return self._room(self._rows[row])

    def _room(self, row: Row) -> int | None:
        if self._limit is None:
            return None
        read = len(row.ids)
        return self._limit - (read if read < self._limit else self._limit // 2)

    @property
    def max_rollback(self) -> int:
        """How many of the last tokens can always be rolled back."""
        return self._kept_columns() if self._limit is None else self._limit // 2

    def refuse_longer(self, prompts: Sequence[Sequence[int]]) -> None:
        """Refuse prompts that the model cannot read whole.

        Raises:
            InputError: says how long one is, and how long it may be.
        """
        longest = max(map(len, prompts), default=0)
        if self._limit is not None and longest > self._limit:
            raise InputError(
                f"a prompt of {longest} tokens cannot be scored: the model's context has {self._limit}; shorten it"
            )

    def _truncate(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """The prompts, cut on the left to the model's block_size where it has one."""
        longest = max(map(len, prompts))
        if self._limit and longest > self._limit:
            self._notify(
                f"the prompt has {longest} tokens, more than the model's block_size: "
                f"only its last {self._limit} are read"
            )
        return [list(prompt)[-self._limit :] if self._limit else list(prompt) for prompt in prompts]

    def _columns(self, tokens: int) -> int:
        """Columns for a row of so many tokens: no more than it needs, and enough that few of them are evicted."""
        if self._limit is not None:
            return min(tokens, self._limit)
        kept = self._kept_columns()
        return min(tokens, kept + max(PREFILL_TOKENS, kept))

    def _kept_columns(self) -> int:
        """Columns that a later token may still attend to."""
        window = self.model.receptive_field
        return self.model.config.block_size if window is None else max(1, window - 1)

    def _begin(self, text: Sequence[int], shares: bool) -> Row:
        """A row in a slot of its own, which may hold what others hold of a prompt already, but for its last token."""
        source, shared = self._source_of(text) if shares else (None, 0)
        if source is None:
            [slot] = self._cache.take(1, 0)
        elif source.slot not in self._left:
            [slot] = self._cache.take(1, 0)
            self._cache.copy(source.slot, slot)
        else:
            slot = source.slot
            self._cache.take_back(slot)
            if 2 * shared < len(source.ids) and self._cache.free:  # it holds more, which another prompt may begin with
                [slot] = self._cache.take(1, 0)
                self._cache.copy(source.slot, slot)
                self._cache.release([source.slot])
        self._left.pop(slot, None)
        row = Row(slot, [] if source is None else [*source.ids])
        self._forget(row, len(row.ids) - shared)
        return row

    def _source_of(self, text: Sequence[int]) -> tuple[Row | None, int]:
        """The row that holds most of the beginning of a text, and how many tokens of it."""
        chunk = self._prompt_tokens if self.backend.for_prefill(len(text)) is not self.backend else None
        rows = chain(self._rows, self._left.values())
        whole = [row for row in rows if self._cache.length(row.slot) == len(row.ids)]  # nothing was evicted
        return longest_shared(whole, text, chunk)

    def _forget(self, row: Row, count: int) -> None:
        """A row forgets so many of its last tokens."""
        if count:
            del row.ids[-count:]
            self._cache.rollback(row.slot, count, row.ids)

    def _prepare_for(self, rows: Sequence[Row], counts: Sequence[int]) -> None:
        """Make room for this many more tokens in each of these rows."""
        if self._limit is not None:
            pairs = zip(rows, counts, strict=True)
            full = [(row, more) for row, more in pairs if len(row.ids) + more > self._limit]
            if full:
                kept = min(self._limit // 2, self._limit - max(more for _, more in full))
                self._slide([row for row, _ in full], kept)
        self._make_room([row.slot for row in rows], counts)

    def _slide(self, full: Sequence[Row], kept: int) -> None:
        """Slide full rows: keep only their last tokens, and read these again from position 0."""
        if not self._has_slid:
            self._notify(
                f"the text has outgrown the model's block_size of {self._limit} tokens: "
                f"from here on the model sees only its last {max(1, kept)} to {self._limit}"
            )
        self._has_slid = True
        texts = [row.ids[-kept:] if kept else [] for row in full]
        for row in full:
            self._cache.clear(row.slot)
            row.ids, row.chunked = [], 0
        if kept:
            _result_of(self._reader.read(self.backend, full, texts, [None] * len(full)))

    def _make_room(self, slots: Sequence[int], counts: Sequence[int]) -> None:
        """Make room for more columns in these slots: by evicting those that no later token sees, or by growing."""
        for slot, count in zip(slots, counts, strict=True):
            if self._limit is None and self._cache.length(slot) + count > self._cache.capacity:
                self._cache.evict(slot, self._kept_columns())
        needed = max(map(add, map(self._cache.length, slots), counts))
        if needed > self._cache.capacity:
            self._cache.reserve(0, min(needed + max(SPARE, needed // 2), self._limit or sys.maxsize))

    def _notify(self, sentence: str) -> None:
        if self._on_notice:
            self._on_notice(sentence)


def _result_of(pieces: Generator[None, None, Tensor]) -> Tensor:
    """What comes of all pieces."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
