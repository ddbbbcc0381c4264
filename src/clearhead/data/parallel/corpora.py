"""The corpora of sentence pairs with a name. A new one is a line in `PAIR_CORPORA`."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from clearhead.cache import new_folder, writing
from clearhead.data.download import published
from clearhead.data.grammar_score import GrammarScore
from clearhead.data.parallel.reading import Pair, PairSource, side_by_side, two_columns
from clearhead.files import damage

_PAIRS_SEED = 1
_PAIRS = {"train": 100_000, "seen": 1_000, "unseen": 1_000}

_MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
_MULTI30K_SHA256 = {
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
}


@dataclass(frozen=True)
class PairCorpus:
    """Sentence pairs that are known by name.

    `splits` are its parts, the one for training first; `validation` is the one that is held out while training;
    `source` opens a split (the arguments are its name and the cache folder); `score` reads translations into the
    second language, where they are drawn from a grammar that can read.
    """

    name: str
    about: str
    splits: tuple[str, ...]
    validation: str
    source: Callable[[str, Path], PairSource]
    score: Callable[[Sequence[str]], GrammarScore] | None = None

    def open(self, split: str, cache: Path) -> PairSource:
        """A split, under the name by which a person asks for it."""
        assert split in self.splits
        return replace(self.source(split, cache), name=f"{self.name}:{split}", target=None)


def _pairs(split: str, cache: Path) -> PairSource:
    from clearhead.data import pairs  # two languages: nobody else's process has to load them

    name = f"pairs-{pairs.VERSION}-{_PAIRS_SEED}-{split}-{_PAIRS[split]}"

    def sentences() -> Iterator[Pair]:
        """Drawn once and kept, for they are read several times and drawing them takes much longer than reading."""
        kept = cache / "corpora" / name
        if damage(kept) is not None:
            drawn = islice(pairs.sentence_pairs(split, _PAIRS_SEED), _PAIRS[split])
            with writing(cache), new_folder(kept) as new:
                lines = (f"{english}\t{german}\n" for english, german in drawn)
                (new / "pairs.tsv").write_text("".join(lines), encoding="utf-8")
        return two_columns(kept / "pairs.tsv").pairs()

    return PairSource("pairs", None, lambda: hashlib.sha256(name.encode()).hexdigest(), sentences)


def _score_german(translations: Sequence[str]) -> GrammarScore:
    from clearhead.data import pairs

    return pairs.score(translations)


def _multi30k(split: str, cache: Path) -> PairSource:
    return side_by_side(*(_multi30k_file(f"{split}.{language}", cache) for language in ("de", "en")))


def _multi30k_file(name: str, cache: Path) -> Path:
    return published(f"multi30k/{name}", f"{_MULTI30K}/{name}.gz", _MULTI30K_SHA256[name], cache)


PAIR_CORPORA = {
    corpus.name: corpus
    for corpus in (
        PairCorpus(
            "pairs",
            "English to German from a grammar that ships with the library; its references are exact; 100,000 pairs",
            tuple(_PAIRS),
            "seen",
            _pairs,
            _score_german,
        ),
        PairCorpus(
            "multi30k",
            "German to English: 29,000 descriptions of photographs; a download of 1.4 MB",
            ("train", "val", "test_2016_flickr"),
            "val",
            _multi30k,
        ),
    )
}
