"""Token ids from elsewhere: whole numbers of the model's vocabulary, or a sentence."""

from collections.abc import Iterable, Sequence
from operator import index
from typing import SupportsIndex

from clearhead.errors import InputError
from clearhead.parts import unknown_id


def known_ids(rows: Iterable[Sequence[SupportsIndex]], vocab_size: int) -> list[list[int]]:
    """The ids of each prompt or source.

    Raises:
        InputError: one has no ids, or one that is no whole number or not in the vocabulary.
    """
    return [_check_ids(number, row, vocab_size) for number, row in enumerate(rows)]


def _check_ids(number: int, row: Sequence[SupportsIndex], vocab_size: int) -> list[int]:
    try:
        ids = [index(token) for token in row]
    except TypeError:
        raise InputError(f"token ids must be whole numbers; text {number} holds others: {str(row)[:60]}") from None
    if not ids:
        raise InputError(f"text {number} has no token ids; give at least one")
    unknown = next((token for token in ids if not 0 <= token < vocab_size), None)
    if unknown is not None:
        raise InputError(unknown_id(unknown, vocab_size))
    return ids
