"""The losses of a model without each of its parts, as a table and as a picture."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from torch import Tensor

from clearhead.inspection.capture.sites import AttentionKind
from clearhead.inspection.curves.curve import bits_per_byte, in_bits
from clearhead.inspection.grid import grid, table
from clearhead.inspection.heads.measures import STACKS
from clearhead.inspection.view import Row, View
from clearhead.pages import text

Part = Literal["head", "attention", "feedforward", "block"]
PARTS: dict[Part, str] = {"attention": "attention", "feedforward": "feed-forward", "block": "block"}
ORDER: tuple[AttentionKind, ...] = ("encoder", "self", "cross")


@dataclass(frozen=True)
class Ablation:
    """A part of the model, and the loss without it, in nats per token.

    Attributes:
        part: what it is.
        kind: the attention's; of a feed-forward or a block, whether it is in the `encoder`, else `self`.
        layer, head: counted from 0.
        change: by how much the loss without it is higher.
        standard_error: of the change, over the windows or sentences; None of a single one.
    """

    part: Part
    kind: AttentionKind
    layer: int
    head: int | None = None
    loss: float = 0.0
    change: float = 0.0
    standard_error: float | None = None

    def measured(self, before: Tensor, after: Tensor, counts: Tensor) -> "Ablation":
        """With the losses of each row before and after, and how many tokens each row counts, all (rows,)."""
        n_rows, tokens = len(counts), counts.sum().item()
        change = ((after - before).sum() / tokens).item()
        spread = (after - before - change * counts).square().sum() * n_rows / max(1, n_rows - 1)  # of a ratio of sums
        error = spread.sqrt().item() / tokens if n_rows > 1 else None
        return replace(self, loss=after.sum().item() / tokens, change=change, standard_error=error)

    @property
    def name(self) -> str:
        """In words."""
        if self.part == "block":
            return f"{STACKS[self.kind]}block {self.layer}"
        layer = f"{STACKS[self.kind]}layer {self.layer}"
        if self.part == "head":
            return f"{layer} head {self.head}"
        return layer if self.kind == "cross" else f"{layer} {PARTS[self.part]}"


class Grid(NamedTuple):
    """Changes of the loss, layer by layer."""

    columns: list[str]
    rows: list[str]
    cells: list[list[float | None]]


@dataclass(frozen=True, repr=False)
class AblationTable(View):
    """The loss without each part.

    Attributes:
        loss: of the whole model, in nats per token.
        tokens: that were predicted.
        ablations: every part.
        is_mean: whether a part's mean was put in its place; else zero was.
        bytes_per_token: of the text, in UTF-8, where it is one.
    """

    loss: float
    tokens: int
    ablations: tuple[Ablation, ...]
    is_mean: bool = False
    bytes_per_token: float | None = None

    def of(self, part: Part) -> list[Ablation]:
        """The parts of this sort, those that the model needs most first."""
        return sorted((entry for entry in self.ablations if entry.part == part), key=lambda entry: -entry.change)

    @property
    def replacement(self) -> str:
        """What a part writes instead of what it computes."""
        return "its mean" if self.is_mean else "zero"

    @property
    def title(self) -> str:
        return "Loss without each part"

    @property
    def verdict(self) -> str:
        head, block = (max(self.of(part), key=lambda entry: abs(entry.change)) for part in ("head", "block"))
        bits = in_bits(self.loss, self.bytes_per_token)
        return (
            f"The loss is {self.loss:.4f} nats per token{bits and f',{bits},'} on {self.tokens:,} tokens. It changes "
            f"most without {head.name} among the heads ({head.change:+.4f}) and {block.name} among the blocks "
            f"({block.change:+.4f})."
        )

    def rows(self) -> Sequence[Row]:
        rows = []
        for entry in self.ablations:
            row: Row = vars(entry).copy()
            if self.bytes_per_token is not None:
                row["change_bits_per_byte"] = bits_per_byte(entry.change, self.bytes_per_token)
            rows.append(row)
        return rows

    def as_dict(self) -> dict[str, object]:
        bits = None if self.bytes_per_token is None else bits_per_byte(self.loss, self.bytes_per_token)
        return {
            "loss": self.loss,
            "bits_per_byte": bits,
            "tokens": self.tokens,
            "replacement": "mean" if self.is_mean else "zero",
            "ablations": list(self.rows()),
        }

    def grids(self) -> Iterator[Grid]:
        """The changes of the encoder, of the decoder, and of its cross-attention, as far as the model has them."""
        for kind in ORDER:
            changes = {
                (entry.layer, entry.part, entry.head): entry.change for entry in self.ablations if entry.kind == kind
            }
            heads = sorted({head for _, _, head in changes if head is not None})
            parts = [part for part in PARTS if any(key[1] == part for key in changes)]
            layers = list(dict.fromkeys(layer for layer, _, _ in changes))
            columns = [*(("head", head) for head in heads), *((part, None) for part in parts)]
            if changes:
                yield Grid(
                    [f"head {head}" for head in heads] + [PARTS[part] for part in parts],
                    [f"{STACKS[kind]}layer {layer}" for layer in layers],
                    [[changes.get((layer, *column)) for column in columns] for layer in layers],
                )

    def svg(self) -> str:
        grids = list(self.grids())
        columns = max((part.columns for part in grids), key=len)
        rows = [name for part in grids for name in part.rows]
        cells = [row + [None] * (len(columns) - len(row)) for part in grids for row in part.cells]
        return grid("ablation", "Change of the loss without each part, in nats per token", columns, rows, cells)

    def main(self) -> str:
        head = ("", "loss", "change", "standard error")
        ordered = sorted(self.ablations, key=lambda entry: -entry.change)
        rows = [(entry.name, entry.loss, entry.change, entry.standard_error) for entry in ordered]
        caption = (
            f"A part writes {self.replacement} instead of what it computes. The standard error is over the windows or "
            "sentences of the text."
        )
        return f'<figure class="wide">{self.svg()}<figcaption>{text(caption)}</figcaption></figure>{table(head, rows)}'

    @property
    def style(self) -> str:
        return ".wide { overflow-x: auto; margin: 1.5rem 0; }"
