"""Sentence pairs that a tiny translator learns in a moment: a word for a word, adjectives moved behind their nouns."""

import random
from pathlib import Path
from typing import Any

from clearhead.options import merge

NOUNS = {"dog": "hund", "cat": "katze", "house": "haus", "tree": "baum", "child": "kind", "bird": "vogel"}
ADJECTIVES = {"small": "klein", "big": "groß", "old": "alt", "green": "grün"}
VERBS = {"sees": "sieht", "likes": "mag", "finds": "findet"}


def pair(draw: random.Random) -> tuple[str, str]:
    """One sentence and its translation, which is exact."""
    source, target = [], []
    for category in (NOUNS, VERBS, NOUNS):
        word = draw.choice(list(category))
        if category is NOUNS and draw.random() < 0.5:
            adjective = draw.choice(list(ADJECTIVES))
            source += [adjective, word]
            target += [category[word], ADJECTIVES[adjective]]
        else:
            source.append(word)
            target.append(category[word])
    return " ".join(source) + ".", " ".join(target) + "."


def some_pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    return [pair(draw) for _ in range(count)]


def write_pairs(count: int = 200, name: str = "my.tsv", seed: int = 0) -> Path:
    """Two columns, into the current folder."""
    path = Path(name)
    path.write_text("".join(f"{s}\t{t}\n" for s, t in some_pairs(count, seed)), encoding="utf-8")
    return path


def tiny_translator(**options: Any) -> dict[str, Any]:
    """Options of a training that takes a moment."""
    return merge(
        {
            "model": {"n_layers": 1, "n_heads": 2, "d_model": 16, "d_ff": 32, "block_size": 32, "dropout": 0.1},
            "data": {"bpe_vocab_size": 300},
            "train": {"steps": 9, "batch_size": 8, "eval_every": 4, "save_every": 3, "threads": 1},
        },
        options,
    )
