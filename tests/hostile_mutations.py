"""Model folders of strangers, made wrong by structured mutation: one folder for each seed, the same one every time.

A hash of the seed divides them into an open part, which may be looked at and mended for, and a locked one, which is run
when that is done.
"""

import copy
import hashlib
import random
from pathlib import Path
from typing import NamedTuple

from file_mutations import OF_FILES, damaged
from hostile_values import as_bytes
from strangers_tokenizers import KINDS, state_of
from tokenizer_mutations import OF_TOKENIZERS


class Hostile(NamedTuple):
    """What is wrong with a folder: the tokenizer that it began with, which mutations, and its files."""

    kind: str
    mutations: tuple[str, ...]
    files: dict[str, bytes | Path]  # a path: a link to it


def is_locked(seed: int) -> bool:
    """Whether the seed belongs to the locked part."""
    return hashlib.sha256(str(seed).encode()).digest()[0] % 2 == 1


def mutated(seed: int, base: dict[str, bytes]) -> Hostile:
    """The folder of this seed.

    Args:
        base: files of a healthy folder but for its tokenizer.json.
    """
    draw = random.Random(seed)
    kind = draw.choice(sorted(KINDS))
    files: dict[str, bytes | Path] = dict(base)
    names = []
    state = copy.deepcopy(state_of(kind))
    if draw.random() < 0.65:
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            change = draw.choice(OF_TOKENIZERS)
            names.append(change.__name__)
            try:
                state = change(draw, state) or state
            except (KeyError, TypeError, AttributeError, IndexError, ValueError):
                names[-1] += " (nothing to change)"  # an earlier one took it away
        files["tokenizer.json"] = as_bytes(state)
        if draw.random() < 0.1:
            names.append("damaged")
            files["tokenizer.json"] = damaged(draw, as_bytes(state))
    else:
        files["tokenizer.json"] = as_bytes(state)
        change_file = draw.choice(OF_FILES)
        names.append(change_file.__name__)
        change_file(draw, files)
    return Hostile(kind, tuple(names), files)
