"""Token ids from elsewhere: whole numbers of the model's vocabulary, or a sentence."""

from collections.abc import Iterable, Sequence
from operator import index
from typing import SupportsIndex

from clearhead.errors import InputError
from clearhead.options import shown
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
        raise InputError(_not_ids(number, row)) from None
    if not ids:
        raise InputError(f"text {number} has no token ids; give at least one")
    unknown = next((token for token in ids if not 0 <= token < vocab_size), None)
    if unknown is not None:
        raise InputError(unknown_id(unknown, vocab_size))
    return ids


def _not_ids(number: int, row: object) -> str:
    """What a text is, where it is no list of ids: it may be an id, a string, or several texts."""
    shape: Sequence[int] | None = getattr(row, "shape", None)
    if isinstance(row, str):
        fault = "is a string; encode it with the model's tokenizer"
    elif not isinstance(row, Iterable) or (shape is not None and len(shape) == 0):
        fault = f"is {shown(row)}; put the ids of a text into a list of their own"
    elif shape is not None and len(shape) > 1:
        fault = f"has the shape {tuple(shape)}; give its rows, one to a text"
    elif any(isinstance(token, list | tuple) for token in row):
        fault = "is a list of lists; give them one to a text"
    else:
        return f"token ids must be whole numbers; text {number} holds others: {str(row)[:60]}"
    return f"each text is a list of token ids, such as [5, 17], and text {number} {fault}"
