"""What a model expects at each position of a text, how it is surprised, and how that comes about over its layers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from clearhead.errors import UsageError
from clearhead.inspection.capture.recording import record
from clearhead.inspection.labels import visible
from clearhead.inspection.prediction import page, svg
from clearhead.inspection.prediction.lens import has_final_norm, lens_logits, lens_names
from clearhead.inspection.view import Row, View
from clearhead.models import LanguageModel
from clearhead.models.eval_mode import evaluating, refuse_not_finite
from clearhead.wording import counted

Objective = Literal["causal", "masked", "seq2seq"]
Spell = Callable[[int | None, int], str]  # the text of the second token where it stands after the first, if any
LN2 = math.log(2)


class TokenProbability(NamedTuple):
    """A token that may stand there, and how probable it is."""

    token: str
    probability: float


@dataclass(frozen=True)
class PositionPrediction:
    """What the model expects at a position.

    Attributes:
        token: what it reads there.
        following: the token that follows; for a masked model the token itself. None where the text ends, or is masked.
        log_probability: of that token, in nats.
        rank: of that token: 1 for the likeliest.
        entropy: of the distribution, in bits.
        top: the likeliest tokens, the best first.
    """

    token: str
    following: str | None
    log_probability: float | None
    rank: int | None
    entropy: float
    top: tuple[TokenProbability, ...]

    @property
    def probability(self) -> float | None:
        """Of the token that follows."""
        return None if self.log_probability is None else math.exp(self.log_probability)

    @property
    def nats(self) -> float | None:
        """The surprisal of the token that follows."""
        return None if self.log_probability is None else -self.log_probability

    @property
    def bits(self) -> float | None:
        """The same in bits."""
        return None if self.log_probability is None else -self.log_probability / LN2

    def as_dict(self) -> Row:
        """As plain data."""
        return {
            "token": self.token,
            "following": self.following,
            "probability": self.probability,
            "surprisal_bits": self.bits,
            "surprisal_nats": self.nats,
            "rank": self.rank,
            "entropy_bits": self.entropy,
        }


@dataclass(frozen=True)
class LensCell:
    """What the head would say between two blocks: its likeliest token, and the rank of the one that follows."""

    token: str
    probability: float
    rank: int | None


@dataclass(frozen=True)
class Lens:
    """The logit lens: a row for the input and one after each block, a cell for each position."""

    rows: tuple[tuple[LensCell, ...], ...]
    has_norm: bool
    has_ngrams: bool


@dataclass(frozen=True)
class Prediction(View):
    """What a model expects at each position of a text."""

    objective: Objective
    positions: tuple[PositionPrediction, ...]
    lens: Lens | None = None

    @property
    def loss(self) -> float | None:
        """The mean surprisal, in nats per token; None where nothing follows."""
        nats = [position.nats for position in self.positions if position.nats is not None]
        return sum(nats) / len(nats) if nats else None

    @property
    def colored(self) -> list[tuple[str, PositionPrediction | None]]:
        """Each token of the text with the position that predicted it; the first of a text is not predicted."""
        if self.objective == "masked":
            return [(position.token, position) for position in self.positions]
        known = [(position.following, position) for position in self.positions]
        return [(self.positions[0].token, None), *((token, p) for token, p in known if token is not None)]

    @property
    def title(self) -> str:
        return {
            "causal": "Next-token probabilities",
            "masked": "Probabilities of each token",
            "seq2seq": "Probabilities of the translation",
        }[self.objective]

    @property
    def verdict(self) -> str:
        sentences = []
        known = [position for position in self.positions if position.bits is not None]
        if self.loss is not None:
            worst = max(known, key=lambda position: position.bits or 0)
            sentences.append(
                f"{self.loss / LN2:.2f} bits ({self.loss:.2f} nats) of surprisal per token over "
                f"{counted(len(known), 'token')}; the most, {worst.bits:.1f} bits, at "
                f"“{visible(worst.following or '', 24)}”."
            )
        for position in islice((p for p in self.positions if p.following is None), 3):
            best = position.top[0]
            which = "The masked token" if self.objective == "masked" else "The next token"
            sentences.append(f"{which} is most likely “{visible(best.token, 24)}”, at {best.probability:.1%}.")
        return " ".join(sentences)

    def rows(self) -> Sequence[Row]:
        """A row for each position; with a lens one for each layer and position, layer 0 being the input."""
        if self.lens is not None:
            return [
                {
                    "layer": layer,
                    "position": index,
                    "token": position.token,
                    "following": position.following,
                    "likeliest": cell.token,
                    "probability": cell.probability,
                    "rank": cell.rank,
                }
                for layer, cells in enumerate(self.lens.rows)
                for index, (position, cell) in enumerate(zip(self.positions, cells, strict=True))
            ]
        return [
            {"position": index, **position.as_dict(), **_columns(position)}
            for index, position in enumerate(self.positions)
        ]

    def as_dict(self) -> dict[str, object]:
        return {
            "objective": self.objective,
            "loss": self.loss,
            "positions": [
                position.as_dict() | {"top": [candidate._asdict() for candidate in position.top]}
                for position in self.positions
            ],
            "lens": None if self.lens is None else [[vars(cell) for cell in cells] for cells in self.lens.rows],
        }

    def svg(self) -> str:
        return svg.bars(self) if self.lens is None else svg.grid(self, self.lens)

    def main(self) -> str:
        return page.main(self)

    @property
    def style(self) -> str:
        return page.STYLE

    @property
    def scripts(self) -> Sequence[str]:
        return page.scripts()

    def data(self) -> Mapping[str, object]:
        return page.data(self)


def _columns(position: PositionPrediction) -> Row:
    columns: Row = {}
    for number, candidate in enumerate(position.top, start=1):
        columns |= {f"top_{number}": candidate.token, f"top_{number}_probability": candidate.probability}
    return columns


def predict(
    model: LanguageModel,
    inputs: Sequence[Tensor],
    labels: Sequence[str],
    following: Sequence[int | None],
    spell: Spell,
    *,
    objective: Objective = "causal",
    top_k: int = 10,
    lens: bool = False,
) -> Prediction:
    """What the model expects at each position.

    Args:
        model: in any mode; dropout is off and the model is left as it was.
        inputs: what it takes, in one row each: ids (1, T), or of a translator (1, T_src) and (1, T).
        labels: a text for each of the T tokens.
        following: the token that follows each of them, or None.
        spell: the text of a token where it stands after another.
        objective: what the model learned.
        top_k: how many of the likeliest tokens to keep.
        lens: also look between the layers.

    Raises:
        UsageError: `top_k` is less than 1, or there are no layers to look between.
        ClearheadError: the model's output is not finite.
    """
    if top_k < 1:
        raise UsageError(f"`top_k` must be at least 1, not {top_k}")
    names = lens_names(model) if lens else []
    ids: list[int] = inputs[-1][0].tolist()
    before = [None, *ids[:-1]] if objective == "masked" else ids  # the token that stands before what is expected
    with evaluating(model), torch.no_grad(), record(model, names) as trace:
        logits = model.head(model.body(*inputs))[0].float().cpu()  # (T, V)
        refuse_not_finite(logits)
        positions = _positions(logits, before, labels, following, spell, top_k)
        if not lens:
            return Prediction(objective, positions)
        cells = [_cells(layer[0].float().cpu(), before, following, spell) for layer in lens_logits(model, trace)]
    view = Lens(tuple(cells), has_final_norm(model), "logit_ngrams" in names)
    return Prediction(objective, positions, view)


def _positions(
    logits: Tensor,
    before: Sequence[int | None],
    labels: Sequence[str],
    following: Sequence[int | None],
    spell: Spell,
    top_k: int,
) -> tuple[PositionPrediction, ...]:
    log_probs = logits.log_softmax(-1)  # (T, V)
    entropies = (-(log_probs.exp() * log_probs).sum(-1) / LN2).tolist()
    best, tokens = log_probs.topk(min(top_k, logits.shape[-1]))
    positions = []
    for index, label in enumerate(labels):
        target = following[index]
        top = zip(tokens[index].tolist(), best[index].exp().tolist(), strict=True)
        positions.append(
            PositionPrediction(
                label,
                None if target is None else spell(before[index], target),
                None if target is None else float(log_probs[index, target]),
                None if target is None else _rank(logits[index], target),
                entropies[index],
                tuple(TokenProbability(spell(before[index], token), share) for token, share in top),
            )
        )
    return tuple(positions)


def _cells(
    logits: Tensor, before: Sequence[int | None], following: Sequence[int | None], spell: Spell
) -> tuple[LensCell, ...]:
    shares, tokens = logits.softmax(-1).max(-1)
    return tuple(
        LensCell(spell(before[index], token), share, None if target is None else _rank(logits[index], target))
        for index, (token, share, target) in enumerate(zip(tokens.tolist(), shares.tolist(), following, strict=True))
    )


def _rank(logits: Tensor, target: int) -> int:
    return 1 + int((logits > logits[target]).sum())
