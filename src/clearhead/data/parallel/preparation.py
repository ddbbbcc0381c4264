"""From what a person calls sentence pairs to files of token ids that training reads, made once and kept."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from clearhead.cache import cache_folder
from clearhead.config import DataConfig
from clearhead.data.choices import notes_on_round_trip
from clearhead.data.encoded import token_type
from clearhead.data.parallel.encoded import EncodedPairs, Placed, ids_files, open_encoded, write_pairs
from clearhead.data.parallel.reading import Pair
from clearhead.data.parallel.sources import Opened, open_pairs
from clearhead.data.parallel.survey import (
    MAX_HELD_OUT,
    Keys,
    PairSurvey,
    describe_faults,
    good_pairs,
    hold_out,
    key_of,
    survey_pairs,
)
from clearhead.data.parallel.vocabularies import Tokenizers, load_tokenizers, make_tokenizers, special_tokens
from clearhead.data.prepared import Facts, PreparedData, Progress, digest, fingerprints
from clearhead.data.token_file import write_digests
from clearhead.data.tokenizers import Tokenizer
from clearhead.errors import DataError
from clearhead.files import write_text
from clearhead.options import option

_FORMAT = "pairs 1"  # raised when the same pairs would be encoded or cut in another way
_CUTS = ("train", "val")
_TOKENIZERS = ("source", "target")
_REPEATED = 0.1  # a larger share of repetitions is worth a note


@dataclass(frozen=True)
class PairData:
    """Prepared sentence pairs: what training and evaluation read.

    Attributes:
        source_tokenizer, target_tokenizer: the ones that made the ids; the same object when the vocabulary is joint.
        end, pad: ids of their special tokens, the same in both.
        train, val: the pairs on each side of the cut, memory maps.
        val_texts: the held-out pairs as (source, target), in the order of `val`.
        n_pairs: pairs on both sides of the cut together.
        n_skipped: pairs that were left out because nobody could learn from them.
        source, target: open the same pairs again, from any folder.
        notes: clauses about what was chosen, and why.
        fingerprint: equal where content, cut, tokenizers and ids are.
    """

    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    end: int
    pad: int
    train: EncodedPairs
    val: EncodedPairs
    val_texts: list[tuple[str, str]]
    n_pairs: int
    n_skipped: int
    source: str
    target: str | None
    notes: tuple[str, ...]
    fingerprint: str


def prepare_pairs(
    config: DataConfig,
    *,
    cache: Path | None = None,
    on_progress: Progress | None = None,
    tokenizers: Tokenizers | None = None,
) -> PairData:
    """Check, cut and encode the pairs, or find what an earlier call with the same content and options left.

    A corpus that has validation pairs of its own is cut there. Of any other, about `val_fraction` of the pairs are
    held out, but at most 2,000, by a digest of their source sentence: none of these is on both sides.

    Args:
        config: which pairs, in which direction, which tokenizers, how much is held out.
        cache: folder to keep the result in; by default the platform's.
        on_progress: called with the share done, from 0 to 1.
        tokenizers: of source and target, used in place of what the config asks for.

    Raises:
        DataError: one sentence: the pairs are missing, too few, no text, of unequal number, or bad where
            `data.bad_pairs` is refuse; or a tokenizer lacks a special token; or there is no place for the result.
    """
    folder = cache_folder(cache)
    opened = open_pairs(config.source, config.target, folder, reverse=config.reverse)
    tokenizers = tokenizers or load_tokenizers(config)
    if tokenizers is not None:
        special_tokens(tokenizers)
    content = [part.identity() for part in opened if part]
    progress = on_progress or (lambda share: None)
    prepared = PreparedData(
        folder / "pairs",
        (_FORMAT, content, config.val_fraction, config.bad_pairs),
        ids_files(_CUTS),
        _read,
        lambda entry: entry.tokenizers,
    ).find_or_make(
        (config.tokenizer, config.bpe_vocab_size, config.vocabulary),
        tokenizers,
        partial(_make, opened=opened, content=content, config=config, known=tokenizers, progress=progress),
    )
    progress(1.0)
    facts = prepared.facts
    end, pad = special_tokens(prepared.tokenizers)
    return PairData(
        source_tokenizer=prepared.tokenizers[0],
        target_tokenizer=prepared.tokenizers[1],
        end=end,
        pad=pad,
        train=prepared.train,
        val=prepared.val,
        val_texts=prepared.val_texts,
        n_pairs=len(prepared.train) + len(prepared.val),
        n_skipped=facts["n_skipped"],
        source=opened.train.name,
        target=opened.train.target,
        notes=tuple(facts["notes"]),
        fingerprint=facts["fingerprint"],
    )


def _make(
    folder: Path,
    *,
    opened: Opened,
    content: list[str],
    config: DataConfig,
    known: Tokenizers | None,
    progress: Progress,
) -> Facts:
    """Fill an entry of the cache with ids, tokenizers and held-out texts; what to remember about them."""
    surveys = [survey_pairs(part) for part in opened if part]
    n_skipped = sum(part.n_bad for part in surveys)
    notes = _notes_on_faults(opened, surveys, config)
    progress(0.2)
    held_out = _held_out(opened, surveys[0], config)
    notes += _notes_on_cut(opened, surveys[0], config)

    def training() -> Iterator[Pair]:
        return (placed.pair for placed in _split_pairs(opened, held_out) if placed.cut == 0)

    if known is None:
        alphabets = ["".join({*"".join(part.alphabets[side] for part in surveys)}) for side in (0, 1)]
        tokenizers, note = make_tokenizers(training, surveys[0].characters, (alphabets[0], alphabets[1]), config)
        notes.insert(0, note)
    else:
        tokenizers = known
        texts = zip(next(training())[1:], tokenizers, strict=True)
        notes += [note for text, tokenizer in texts for note in notes_on_round_trip(text, tokenizer)]
    progress(0.3)
    n_pairs, done = sum(len(part.keys) for part in surveys), 0
    val_texts: list[tuple[str, str]] = []
    for count in write_pairs(folder, _noting(_split_pairs(opened, held_out), val_texts), tokenizers, _CUTS):
        done += count
        progress(0.3 + 0.7 * min(1.0, done / n_pairs))
    if done != n_pairs:
        raise DataError(f"{config.source} changed while it was read; run the command again")
    write_text(folder / "val.json", json.dumps(val_texts, ensure_ascii=False))
    for name, tokenizer in zip(_TOKENIZERS, tokenizers, strict=True):
        tokenizer.save(folder, name=name)
    ids = [write_digests(folder / name) for name in ids_files(_CUTS)]
    return {
        "joint": tokenizers[0] is tokenizers[1],
        "tokenizers": fingerprints(tokenizers),
        "dtypes": [token_type(tokenizer).str for tokenizer in tokenizers],
        "n_pairs": n_pairs,
        "n_skipped": n_skipped,
        "notes": notes,
        "fingerprint": digest(_FORMAT, content, fingerprints(tokenizers), held_out.tolist(), ids),
    }


def _split_pairs(opened: Opened, held_out: Keys) -> Iterator[Placed]:
    """Every good pair with its side of the cut."""
    chosen = frozenset(held_out.tolist())
    for pair in good_pairs(opened.train):
        yield Placed(pair, int(bool(chosen) and key_of(pair.source) in chosen), opened.train.name)
    if opened.val:
        for pair in good_pairs(opened.val):
            yield Placed(pair, 1, opened.val.name)


def _noting(pairs: Iterable[Placed], texts: list[tuple[str, str]]) -> Iterator[Placed]:
    """The same pairs; the sentences of those that are held out are put into `texts` on the way."""
    for placed in pairs:
        if placed.cut == 1:
            texts.append((placed.pair.source, placed.pair.target))
        yield placed


def _held_out(opened: Opened, survey: PairSurvey, config: DataConfig) -> Keys:
    """The keys of the source sentences that are held out; none where the corpus holds pairs out by itself."""
    chosen = hold_out(survey.keys, config.val_fraction, config.source)  # which refuses too few pairs
    return np.empty(0, dtype=np.uint64) if opened.val else chosen


def _notes_on_faults(opened: Opened, surveys: list[PairSurvey], config: DataConfig) -> list[str]:
    """What was skipped.

    Raises:
        DataError: the config refuses pairs with a fault, and there are some.
    """
    faults = [(part, survey) for part, survey in zip(filter(None, opened), surveys, strict=True) if survey.bad]
    if config.bad_pairs == "refuse" and faults:
        part, survey = faults[0]
        raise DataError(
            f"{part.name}: {describe_faults(survey.bad)}; mend them, or set {option('data.bad_pairs', 'skip')}"
        )
    return [f"skipped of {part.name}: {describe_faults(survey.bad)}" for part, survey in faults]


def _notes_on_cut(opened: Opened, survey: PairSurvey, config: DataConfig) -> list[str]:
    """How the held-out pairs were chosen, and whether many pairs come again and again."""
    if opened.val:
        notes = [f"held out: {opened.val.name}"]
    else:
        share = f"data.val_fraction {config.val_fraction:g}, at most {MAX_HELD_OUT:,}"
        notes = [f"held out: {share}, chosen so that no source sentence is on both sides"]
    repeated = len(survey.keys) - survey.n_different
    if repeated > _REPEATED * len(survey.keys):
        notes.append(f"{repeated:,} of {len(survey.keys):,} pairs repeat an earlier one; they are kept")
    return notes


class _Entry(NamedTuple):
    """An entry of the cache, opened."""

    facts: Facts
    tokenizers: Tokenizers
    train: EncodedPairs
    val: EncodedPairs
    val_texts: list[tuple[str, str]]


def _read(entry: Path, facts: Facts) -> _Entry:
    """What an entry of the cache holds.

    Raises:
        ValueError: its files are not of one making.
    """
    source, target = (entry / f"{name}.json" for name in _TOKENIZERS)
    own = Tokenizer.load(source)
    tokenizers = (own, own if facts["joint"] else Tokenizer.load(target))
    train, val = (open_encoded(entry, cut, facts["dtypes"]) for cut in _CUTS)
    texts = [(source, target) for source, target in json.loads((entry / "val.json").read_text(encoding="utf-8"))]
    whole = len(train) + len(val) == facts["n_pairs"] and len(texts) == len(val)
    if not whole or facts["tokenizers"] != fingerprints(tokenizers):
        raise ValueError(f"the files of {entry} are not of one making")
    return _Entry(facts, tokenizers, train, val, texts)
