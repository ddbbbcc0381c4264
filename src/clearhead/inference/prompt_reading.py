"""How the prompts of new rows are read: those of one length together, equal ones once, long ones in pieces."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from clearhead.inference.decoder_backend import DecoderBackend
from clearhead.inference.prefixes import Row
from clearhead.inference.text_options import OnLogits
from clearhead.models.eval_mode import refuse_not_finite
from clearhead.parts import SlotCache, SlotRows

Ids = tuple[int, ...]
MakeRoom = Callable[[Sequence[int], Sequence[int]], None]


class PromptReader:
    """Reads the rest of texts into rows that hold their beginnings."""

    def __init__(self, cache: SlotCache, make_room: MakeRoom, device: torch.device, prompt_tokens: int) -> None:
        """
        Args:
            cache: of the rows.
            make_room: called with slots, and how many more columns each of them needs.
            device: of the model.
            prompt_tokens: over all rows, read in one call of the model at most.
        """
        self._cache, self._make_room, self._device, self._prompt_tokens = cache, make_room, device, prompt_tokens

    def read(
        self,
        backend: DecoderBackend,
        rows: Sequence[Row],
        texts: Sequence[Sequence[int]],
        observers: Sequence[OnLogits | None],
    ) -> Generator[None, None, Tensor]:
        """Read the rest of these texts in as many pieces as there are calls: the logits (B, V) after each.

        Args:
            backend: reads them, or says who does.
            rows: that hold as much of their texts as has been read; nothing, where somebody must see all logits.
            texts: at least one token each.
            observers: see all logits of each text.
        """
        keys = [*map(tuple, texts)]
        first, watched = dict[Ids, Row](), dict[Ids, list[OnLogits]]()
        for row, text, observer in zip(rows, keys, observers, strict=True):
            first.setdefault(text, row)
            if observer is not None:
                watched.setdefault(text, []).append(observer)
        logits = dict[Ids, Tensor]()
        for group in _groups(backend, first, watched):
            if logits:
                yield
            held, watching = [first[text] for text in group], [watched.get(text, []) for text in group]
            logits |= zip(group, (yield from self._read_group(backend, group, held, watching)), strict=True)
        for row, text in zip(rows, keys, strict=True):
            if row is not first[text]:
                self._cache.copy(first[text].slot, row.slot)
                row.ids, row.chunked = [*text], first[text].chunked
        together = torch.stack([logits[text] for text in keys])  # (B, V)
        refuse_not_finite(together)
        return together

    def _read_group(
        self,
        backend: DecoderBackend,
        texts: Sequence[Ids],
        rows: Sequence[Row],
        observers: Sequence[Sequence[OnLogits]],
    ) -> Generator[None, None, Tensor]:
        """Read the rest of texts of one length, chunk by chunk; return the logits (B, V) after them."""
        T, held = len(texts[0]), len(rows[0].ids)
        reader, chunk = backend.for_prefill(T), max(1, self._prompt_tokens // len(rows))
        unread = torch.tensor([text[held:] for text in texts], device=self._device)  # (B, T)
        slots, start, last = [row.slot for row in rows], held, unread[:, :0]
        for number, ids in enumerate(torch.split(unread, chunk, dim=1)):
            if number:
                yield
            start += ids.shape[1]
            pieces = self._read_chunk(reader, ids, slots, logits_to_keep=int(start == T), all_logits=any(observers))
            column = start - ids.shape[1]
            for last in pieces:
                for own, some in zip(last, observers, strict=True):
                    for observe in some:
                        observe(column, own)
                column += last.shape[1]
        for text, row in zip(texts, rows, strict=True):
            row.ids, row.chunked = [*text], 0 if reader is backend else T
        return last[:, -1]

    def _read_chunk(
        self, backend: DecoderBackend, ids: Tensor, slots: Sequence[int], *, logits_to_keep: int, all_logits: bool
    ) -> Iterator[Tensor]:
        """Read the next tokens (B, T) of the rows in some slots: the last logits (B, logits_to_keep, V), or all."""
        self._make_room(slots, [ids.shape[1]] * len(slots))
        read: SlotRows = self._cache.rows(slots)
        if all_logits:
            yield from backend.logits_in_pieces(ids, read)
        else:
            yield backend.forward(ids, read, logits_to_keep=logits_to_keep)
        self._cache.keep(read)


def _groups(backend: DecoderBackend, rows: Mapping[Ids, Row], watched: Mapping[Ids, object]) -> list[list[Ids]]:
    """Texts with as many tokens to read, behind as many; one that another backend reads stays by itself."""
    groups = dict[tuple[int, int, bool] | Ids, list[Ids]]()
    for text, row in rows.items():
        is_shared = backend.for_prefill(len(text)) is backend
        groups.setdefault((len(text), len(row.ids), text in watched) if is_shared else text, []).append(text)
    return [*groups.values()]
