"""What each token adds to a logit, as colored text and as a table."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from clearhead.inspection.capture.trace import Array
from clearhead.inspection.view import Row, View
from clearhead.pages import one_line, printable, text

Method = Literal["integrated_gradients", "gradient_x_input"]
NAMES: dict[Method, str] = {"integrated_gradients": "Integrated gradients", "gradient_x_input": "Gradient x input"}


class TokenScore(NamedTuple):
    """A token's share, and the token: its side, its position, counted from 0, and its text."""

    side: str
    position: int
    token: str
    score: float


@dataclass(frozen=True, repr=False)
class Attribution(View):
    """How much each token adds to the logit of a target, or to its difference from that of a contrast.

    Attributes:
        scores: of the tokens up to the last, (T,).
        source_scores: of a translator's source, (T_src,).
        position: whose logits they are, counted from 0.
        target, contrast: token ids.
        method: how the scores were computed.
        value, baseline: the logit or the difference, and what it is without any token: all their vectors zero.
        tokens, source_tokens: a text for each.
    """

    scores: Array
    source_scores: Array | None
    position: int
    target: int
    contrast: int | None
    method: Method
    value: float
    baseline: float
    tokens: tuple[str, ...] = ()
    source_tokens: tuple[str, ...] = ()

    @property
    def gap(self) -> float:
        """What is missing from completeness, value - baseline = the sum of all scores; more `steps` lessen it."""
        sources = 0.0 if self.source_scores is None else float(self.source_scores.sum())
        return self.value - self.baseline - float(self.scores.sum()) - sources

    def named(self, tokens: Sequence[str], source_tokens: Sequence[str] = ()) -> "Attribution":
        """With a text for each token, to show."""
        return replace(self, tokens=tuple(tokens), source_tokens=tuple(source_tokens))

    @property
    def title(self) -> str:
        contrast = "" if self.contrast is None else f" rather than {self.contrast}"
        return f"What leads to token {self.target}{contrast} after position {self.position}"

    @property
    def verdict(self) -> str:
        strongest = max(self.entries(), key=lambda entry: abs(entry.score))
        return (
            f"{NAMES[self.method]}: {self.value:.3f}, from {self.baseline:.3f} without any token. The most comes from "
            f"{strongest.side} token {strongest.position}, {one_line(repr(strongest.token))}: "
            f"{strongest.score:+.3f}. {self.gap:+.3f} is not accounted for."
        )

    def entries(self) -> list[TokenScore]:
        """Every token's, the source's first."""
        sides = [("source", self.source_scores, self.source_tokens), ("target", self.scores, self.tokens)]
        if self.source_scores is None:
            sides = [("prompt", self.scores, self.tokens)]
        return [
            TokenScore(side, position, tokens[position] if position < len(tokens) else "", float(score))
            for side, scores, tokens in sides
            if scores is not None
            for position, score in enumerate(scores)
        ]

    def rows(self) -> Sequence[Row]:
        return [entry._asdict() for entry in self.entries()]

    def as_dict(self) -> dict[str, object]:
        fields = ("position", "target", "contrast", "method", "value", "baseline", "gap")
        return {field: getattr(self, field) for field in fields} | {"tokens": list(self.rows())}

    def main(self) -> str:
        entries = self.entries()
        most = max(abs(entry.score) for entry in entries) or 1.0
        sides = dict.fromkeys(entry.side for entry in entries)
        marks = {side: "".join(_mark(entry, most) for entry in entries if entry.side == side) for side in sides}
        return "".join(f"<h2>{side.capitalize()}</h2><p>{marked}</p>" for side, marked in marks.items())

    @property
    def style(self) -> str:
        return """
mark { color: inherit; border-radius: 3px; padding: .2em .1em; line-height: 2.4; white-space: pre-wrap;
  background: color-mix(in srgb, var(--hue) calc(var(--share) * 55%), transparent); }
mark.above { --hue: #0072b2; } mark.below { --hue: #c44e00; }
mark small { opacity: .75; font-variant-numeric: tabular-nums; padding-left: .2em; }
"""


def _mark(entry: TokenScore, most: float) -> str:
    score = entry.score
    shown = printable(entry.token).replace("\n", "⏎") or f"#{entry.position}"
    color, share = "below" if score < 0 else "above", abs(score) / most
    return f'<mark class="{color}" style="--share: {share:.3f}">{text(shown)}<small>{score:+.2f}</small></mark> '
