"""From what a person calls a text to token files that training reads, made once and kept."""

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clearhead.cache import cache_folder
from clearhead.config import DataConfig
from clearhead.data.choices import choose_tokenizer, notes_on_documents, notes_on_lossy_tokenizer
from clearhead.data.corpora import CORPORA
from clearhead.data.documents import TEXT_COLUMN, Source
from clearhead.data.encoded import Side, encode_source, token_type
from clearhead.data.preparation_log import Kept, PreparationLog
from clearhead.data.prepared import Facts, PreparedData, Progress, digest
from clearhead.data.sources import open_source
from clearhead.data.survey import Survey, place_of_cut, survey
from clearhead.data.token_file import TokenFile, write_digests
from clearhead.data.tokenizers import MASK, Tokenizer
from clearhead.errors import DataError
from clearhead.wording import counted

MIN_CHARACTERS = 200
_FORMAT = "1"  # raised when the same text would be encoded or cut in another way
_SIDES = ("train", "val")
_FILES = tuple(f"{name}.bin" for name in _SIDES)


@dataclass(frozen=True)
class TextData:
    """A prepared text: what training and evaluation read.

    Attributes:
        tokenizer: the one that made the ids.
        train, val: ids (N,), memory maps of the smallest unsigned type; no document is in both where that was possible.
        train_bytes, val_bytes: UTF-8 bytes of the text on each side, for bits per byte.
        train_characters, val_characters: characters on each side; ends of documents count in neither.
        n_documents: documents on both sides together.
        distinct_characters: size of the text's alphabet.
        floor: exact entropy, where the corpus knows it and no tokens are masked, in nats per token of the held-out
            text. A model's loss on the tokens of a text is at least what the text itself would cost.
        source: opens the same text again from any folder (standard input was kept as a file).
        notes: sentences about what was chosen, and why.
        fingerprint: equal where content, cut, tokenizer and ids are.
    """

    tokenizer: Tokenizer
    train: NDArray[np.integer]
    val: NDArray[np.integer]
    train_bytes: int
    val_bytes: int
    train_characters: int
    val_characters: int
    n_documents: int
    distinct_characters: int
    floor: float | None
    source: str
    notes: tuple[str, ...]
    fingerprint: str

    @property
    def bytes_per_token(self) -> float:
        """Of the held-out text, in UTF-8: what turns nats per token into bits per byte."""
        return self.val_bytes / len(self.val)


def prepare(
    config: DataConfig,
    *,
    cache: Path | None = None,
    on_progress: Progress | None = None,
    tokenizer: Tokenizer | None = None,
    masks: bool = False,
) -> TextData:
    """Encode and cut the text, or find what an earlier call with the same content and options left in the cache.

    Args:
        config: which text, which tokenizer, how much is held out.
        cache: folder to keep the result in; by default the platform's.
        on_progress: called with the share done, from 0 to 1.
        tokenizer: used in place of what the config asks for.
        masks: the tokenizer is to have a mask and a pad, for a model that fills in what is masked.

    Raises:
        DataError: one sentence: the text is missing, too short, not text, or there is no place to keep the result; or
            the given tokenizer has no mask.
    """
    folder = cache_folder(cache)
    source = open_source(config.source, folder, config.corpus_characters, config.text_column)
    if tokenizer is None and config.tokenizer not in ("auto", "char", "bpe"):
        tokenizer = Tokenizer.load(Path(os.path.expanduser(config.tokenizer)))
    if masks and tokenizer is not None and tokenizer.mask is None:
        raise DataError(
            "the tokenizer has no mask token, without which nothing can be masked; "
            f"set `data.tokenizer` to auto, char, bpe or a tokenizer.json that has one, such as {MASK}"
        )
    content = source.identity()
    progress = on_progress or (lambda share: None)

    def make(new: Path) -> Facts:
        facts = _make(new, source, config, tokenizer, masks, progress)
        cut = facts["characters"][0]
        return facts | {"fingerprint": digest(_FORMAT, content, facts["tokenizer"], cut, facts["ids"])}

    prepared = PreparedData(
        folder / "texts", (_FORMAT, content, config.val_fraction), _FILES, _read, lambda text: (text.tokenizer,)
    ).find_or_make(
        (config.tokenizer, config.bpe_vocab_size, masks),
        None if tokenizer is None else (tokenizer,),
        make,
        continued=True,
    )
    progress(1.0)
    corpus = None if masks else CORPORA.get(config.source)
    per_token = prepared.val_characters / len(prepared.val)
    floor = corpus.floor() * per_token if corpus and corpus.floor else None
    return replace(prepared, source=source.name, floor=floor)


def encode_for_evaluation(
    source: str, tokenizer: Tokenizer, *, cache: Path | None = None, column: str = TEXT_COLUMN
) -> tuple[NDArray[np.integer], int]:
    """A whole text with a given tokenizer: its ids (N,) and its UTF-8 bytes.

    Raises:
        DataError: the text cannot be read, is shorter than two tokens, or has a character without a token.
    """
    text = open_source(source, cache_folder(cache), column=column)
    surveyed = survey(text)
    parts = list(encode_source(text, tokenizer, cut=surveyed.characters, separate=len(surveyed.lengths) > 1))
    ids: NDArray[np.integer] = np.empty(0, dtype=np.int64)
    if surveyed.characters:
        ids = np.concatenate([part.ids for part in parts])
    if len(ids) < 2:
        what = "is too short to evaluate on; at least two tokens are needed"
        raise DataError(
            f"{_source_name(source)} {what if surveyed.characters else 'is empty; there is nothing to evaluate on'}"
        )
    return ids, sum(part.n_bytes for part in parts)


def _make(
    folder: Path, source: Source, config: DataConfig, tokenizer: Tokenizer | None, masks: bool, progress: Progress
) -> Facts:
    """Fill an entry of the cache with train.bin, val.bin and the tokenizer; what to remember about them."""
    log = PreparationLog(folder)
    surveyed = log.survey()
    if surveyed is None:
        surveyed = survey(source)
        if log.is_due:
            log.keep_survey(surveyed)
    _refuse_short(surveyed.characters, config.source)
    progress(0.2)
    before = log.read()
    if before is not None:
        tokenizer, notes = before.tokenizer, before.notes
    elif tokenizer is None:
        tokenizer, note = choose_tokenizer(source, surveyed, config, masks=masks)
        notes = [note]
    else:
        notes = notes_on_lossy_tokenizer(source, surveyed, tokenizer)
    progress(0.3)
    cut = place_of_cut(surveyed.lengths, config.val_fraction)
    log.tokenizer, log.notes = tokenizer, notes
    sides = _encode(log, source, surveyed, cut, before, progress)
    notes = notes + notes_on_documents(surveyed, cut, tokenizer)
    log.remove()
    if sides[0].characters + sides[1].characters != surveyed.characters:
        raise DataError(f"{_source_name(config.source)} changed while it was read; run the command again")
    for name, side in zip(_SIDES, sides, strict=True):
        if side.tokens < 2:
            raise DataError(
                f"`data.val_fraction` {config.val_fraction} of {surveyed.characters:,} characters leaves "
                f"{counted(side.tokens, 'token')} for {name}; at least 2 are needed"
            )
    tokenizer.save(folder)
    return {
        "ids": [write_digests(folder / f"{name}.bin") for name in _SIDES],
        "tokenizer": tokenizer.fingerprint,
        "dtype": token_type(tokenizer).str,
        "tokens": [side.tokens for side in sides],
        "bytes": [side.n_bytes for side in sides],
        "characters": [side.characters for side in sides],
        "n_documents": len(surveyed.lengths),
        "distinct_characters": len(surveyed.alphabet),
        "notes": notes,
    }


def _encode(
    log: PreparationLog, source: Source, surveyed: Survey, cut: int, before: Kept | None, progress: Progress
) -> list[Side]:
    """Write both sides' files, from where an earlier process got to; how much is on them."""
    tokenizer, separate, done = log.tokenizer, len(surveyed.lengths) > 1, (0, 0)
    assert tokenizer is not None
    with ExitStack() as files:
        sides = [Side(files.enter_context((log.folder / name).open("ab"))) for name in _FILES]
        for side, held in zip(sides, [(0, 0, 0)] * 2 if before is None else before.sides, strict=True):
            side.tokens, side.characters, side.n_bytes = held
            side.file.truncate(side.tokens * token_type(tokenizer).itemsize)
        if before is not None:
            done = (before.documents, sides[0].characters + sides[1].characters)
        for encoded in encode_source(source, tokenizer, cut=cut, separate=separate, done=done):
            sides[encoded.side].write(encoded)
            progress(0.3 + 0.7 * (sides[0].characters + sides[1].characters) / surveyed.characters)
            if encoded.documents is not None and log.is_due:
                log.keep(encoded.documents, sides)
    return sides


def _read(entry: Path, facts: Facts) -> TextData:
    """What an entry of the cache holds."""
    tokenizer = Tokenizer.load(entry)
    train, val = (TokenFile(entry / f"{name}.bin", facts["dtype"]) for name in _SIDES)
    return TextData(
        tokenizer=tokenizer,
        train=train,
        val=val,
        train_bytes=facts["bytes"][0],
        val_bytes=facts["bytes"][1],
        train_characters=facts["characters"][0],
        val_characters=facts["characters"][1],
        n_documents=facts["n_documents"],
        distinct_characters=facts["distinct_characters"],
        floor=None,
        source="",
        notes=tuple(facts["notes"]),
        fingerprint=facts["fingerprint"],
    )


def _refuse_short(characters: int, source: str) -> None:
    if not characters:
        raise DataError(f"{_source_name(source)} is empty; give a text of at least {MIN_CHARACTERS} characters")
    if characters < MIN_CHARACTERS:
        length = counted(characters, "character")
        raise DataError(f"{_source_name(source)} has {length}; at least {MIN_CHARACTERS} are needed to train")


def _source_name(source: str) -> str:
    return "standard input" if source == "-" else source
