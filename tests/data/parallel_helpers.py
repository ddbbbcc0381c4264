"""Sentence pairs on disk for the tests of the data floor."""

import json
import random
from pathlib import Path

from data_helpers import file

Texts = list[tuple[str, str]]

WORDS = ["Haus", "Bäume", "geht", "schön", "über", "猫", "rot;", "und", "--", "l'été", "zwei"]


def made_pairs(n: int, seed: int = 0) -> Texts:
    """Different short sentences and, as translations, the same words backwards in capitals."""
    rng = random.Random(seed)
    texts = []
    for i in range(n):
        chosen = [*rng.choices(WORDS, k=rng.randint(1, 9)), str(i)]
        texts.append((" ".join(chosen), " ".join(reversed(chosen)).upper()))
    return texts


def table(folder: Path, texts: Texts, name: str = "my.tsv") -> str:
    """The path of a new .tsv of those pairs."""
    return file(folder, "".join(f"{source}\t{target}\n" for source, target in texts), name)


def two_files(folder: Path, texts: Texts, name: str = "my") -> tuple[str, str]:
    """The paths of two new files of those pairs, line by line."""
    return (
        file(folder, "".join(f"{source}\n" for source, _ in texts), f"{name}.de"),
        file(folder, "".join(f"{target}\n" for _, target in texts), f"{name}.en"),
    )


def json_lines(folder: Path, texts: Texts, name: str = "my.jsonl") -> str:
    """The path of a new .jsonl of those pairs."""
    lines = (json.dumps({"source": source, "target": target}) + "\n" for source, target in texts)
    return file(folder, "".join(lines), name)
