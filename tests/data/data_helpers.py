"""Texts on disk for the tests of the data floor."""

from pathlib import Path

from clearhead.data import TextData

PROSE = "The cat's 3 mats -- l'été, 猫 -- are   here.\r\n\r\nAnd <|endoftext|> there!\n" * 12


def file(folder: Path, text: str = PROSE, name: str = "my.txt") -> str:
    """The path of a new file with that text."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return str(path)


def folder_of(folder: Path, *texts: str) -> str:
    """The folder, with each text in a file of its own."""
    for i, text in enumerate(texts):
        file(folder, text, f"{i:03}.txt")
    return str(folder)


def ends(data: TextData) -> int:
    """The id after each document."""
    assert data.tokenizer.end_of_document is not None
    return data.tokenizer.end_of_document


def entries(cache: Path) -> list[Path]:
    """What the cache holds of prepared texts, and what was left unfinished."""
    return sorted((cache / "texts").iterdir())
