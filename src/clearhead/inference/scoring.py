"""How good translations are, by sacreBLEU (Post 2018, arXiv 1804.08771), so that the figures compare with others'."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple

from clearhead.errors import UsageError


class CorpusScores(NamedTuple):
    """BLEU and chrF from 0 to 100 on text as it is written: detokenized, cased. `signature` says how it was counted."""

    bleu: float
    chrf: float
    signature: str


def can_score() -> bool:
    """Whether sacreBLEU is installed."""
    return find_spec("sacrebleu") is not None


def require_sacrebleu() -> None:
    """Refuse to go on without sacreBLEU.

    Raises:
        UsageError: sacreBLEU is not installed.
    """
    if not can_score():
        raise UsageError("BLEU is sacreBLEU's; install it with: pip install 'clearhead[translate]'")


def corpus_scores(translations: Sequence[str], references: Sequence[str]) -> CorpusScores:
    """Translations against one reference each.

    Raises:
        UsageError: sacreBLEU is not installed.
    """
    require_sacrebleu()
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    bleu, chrf = BLEU(), CHRF()
    scores = [metric.corpus_score(list(translations), [list(references)]).score for metric in (bleu, chrf)]
    signature = f"BLEU {bleu.get_signature()}, chrF {chrf.get_signature()}"
    return CorpusScores(scores[0], scores[1], signature)
