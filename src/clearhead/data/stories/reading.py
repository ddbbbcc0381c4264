"""What the grammar says of sampled stories: which it accepts, and whether words mean what the story introduced."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clearhead.data.grammar_score import GrammarScore, share
from clearhead.data.stories.parse import derivations
from clearhead.data.stories.sentences import Reading, Sentences, cut

SEPARATOR = "\n\n"


@dataclass
class _Tally:
    references: int = 0
    agreeing: int = 0
    names: int = 0
    kept: int = 0


def score(sentences: Sentences, texts: Sequence[str]) -> GrammarScore:
    """Read some sampled stories.

    Args:
        sentences: those of the corpus's grammar.
        texts: one story each, with the blank line that ends it; of one that breaks off, the last sentence is left out.
    """
    tally, n_sentences, accepted = _Tally(), 0, 0
    for text in texts:
        readings = [sentences.readings(sentence) for sentence in _whole(text)]
        n_sentences += len(readings)
        accepted += sum(map(bool, readings))
        _refer(filter(None, readings), tally)
    whole = sum(bool(derivations(sentences.grammar, text)) for text in texts)
    return GrammarScore(
        sentences=n_sentences,
        accepted_sentences=share(accepted, n_sentences),
        agreement=share(tally.agreeing, tally.references),
        stories=len(texts),
        accepted_stories=share(whole, len(texts)),
        kept_names=share(tally.kept, tally.names),
    )


def _whole(text: str) -> list[str]:
    """The sentences that the sample has not cut off."""
    sentences = cut(text)
    return sentences if text.endswith(SEPARATOR) else sentences[:-1]


def _refer(story: Iterable[Sequence[Reading]], tally: _Tally) -> None:
    """Count the words that refer back in a story's accepted sentences, and those that mean what was introduced.

    Of several readings of a sentence that one counts which refers most to what the story has introduced, and of
    these the one that agrees most. What no accepted sentence introduced, its first mention introduces.
    """
    known: dict[str, int] = {}
    hero: str | None = None
    for readings in story:
        reading = max(readings, key=lambda reading: _fit(reading, known))
        for reference in reading.references:
            if reference.variable not in known:
                if reference.is_name:
                    known[reference.variable] = int(reference.possible.argmax())
                continue
            agrees = bool(reference.possible[known[reference.variable]])
            tally.references += 1
            tally.agreeing += agrees
            if reference.variable == hero and reference.is_name:
                tally.names += 1
                tally.kept += agrees
        for variable, word in reading.introduced:
            known[variable] = word
            hero = hero or variable


def _fit(reading: Reading, known: dict[str, int]) -> tuple[int, int]:
    back = [reference for reference in reading.references if reference.variable in known]
    return len(back), sum(bool(reference.possible[known[reference.variable]]) for reference in back)
