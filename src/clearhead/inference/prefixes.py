"""Prompts that begin as other texts do: what these have read is not read again, and not a bit differs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FEWEST_SHARED = 16  # tokens; for fewer it is not worth it


@dataclass
class Row:
    """A row of a batch, or what a free slot still holds of one that has left.

    Args:
        slot: of the cache.
        ids: its tokens since its window last slid; one for each column, unless some were evicted.
        chunked: how many of them were read in chunks, as another backend reads long prompts.
    """

    slot: int
    ids: list[int]
    chunked: int = 0


def longest_shared(rows: Iterable[Row], text: Sequence[int], chunk: int | None) -> tuple[Row | None, int]:
    """The row that holds most of the beginning of a text as it would be read itself, and how many tokens of it.

    The last token is never among them: the logits after it are wanted.

    Args:
        rows: which have a column for each of their ids.
        text: ids.
        chunk: if the text is read in chunks, their size: only whole ones of a row that was read like that are the same,
            to the last bit. None: it is read as tokens are generated, whatever stands beside them.
    """
    best: tuple[Row | None, int] = None, 0
    for row in rows:
        if chunk is None and row.chunked:
            continue
        most = min(len(row.ids) if chunk is None else row.chunked, len(text) - 1)
        shared = next((n for n in range(most) if row.ids[n] != text[n]), most)
        shared -= shared % (chunk or 1)
        if shared > max(best[1], FEWEST_SHARED - 1):
            best = row, shared
    return best
