"""The corpora with a name. A new one is a line in `CORPORA`."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from clearhead.data import stories
from clearhead.data.documents import Document, Source, files_source
from clearhead.data.download import published
from clearhead.data.grammar_score import GrammarScore

_STORIES_CHARACTERS = 1_000_000
_STORIES_SEED = 1

_SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
_SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


@dataclass(frozen=True)
class CorpusGrammar:
    """The grammar that a corpus is drawn from, as a reader.

    `score` reads texts that a model wrote, one draw each, with the `end` that closes it if it is whole; none of the
    grammar's is longer than `longest` characters.
    """

    score: Callable[[Sequence[str]], GrammarScore]
    end: str
    longest: int


@dataclass(frozen=True)
class Corpus:
    """A text that is known by name.

    `source` opens it (the argument is the cache folder); `floor` is its exact entropy in nats per character, `grammar`
    what it is drawn from, and `sized` makes it with so many characters, where a grammar is known.
    """

    name: str
    about: str
    source: Callable[[Path], Source]
    floor: Callable[[], float] | None = None
    grammar: CorpusGrammar | None = None
    sized: Callable[[int], Source] | None = None

    def open(self, cache: Path, characters: int | None = None) -> Source:
        """The corpus, with so many characters where it can be made with any number."""
        return self.source(cache) if characters is None or self.sized is None else self.sized(characters)


def _stories(characters: int) -> Source:
    def documents() -> Iterator[Document]:
        yield Document("stories", iter([stories.text(characters, _STORIES_SEED)]))

    identity = f"stories {stories.VERSION} {characters} {_STORIES_SEED}"
    return Source("stories", lambda: hashlib.sha256(identity.encode()).hexdigest(), documents)


def _shakespeare(cache: Path) -> Source:
    path = published("shakespeare.txt", _SHAKESPEARE, _SHAKESPEARE_SHA256, cache)
    return files_source("shakespeare", [path])


CORPORA = {
    corpus.name: corpus
    for corpus in (
        Corpus(
            "stories",
            "small stories from a grammar that ships with the library; their exact entropy is known; as long as wanted",
            lambda cache: _stories(_STORIES_CHARACTERS),
            stories.entropy_per_character,
            CorpusGrammar(stories.score, stories.SEPARATOR, stories.MAX_CHARACTERS),
            _stories,
        ),
        Corpus("shakespeare", "Tiny Shakespeare: 40,000 lines of the plays; a download of 1.1 MB", _shakespeare),
    )
}
