"""Every weight of a model on paper: its parameters, its operations per token and its bytes. No torch."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from clearhead.config import ModelConfig
from clearhead.inspection.cost.architectures import attended_tokens
from clearhead.inspection.cost.memory import FLOAT32
from clearhead.inspection.view import Row, View
from clearhead.pages import text
from clearhead.reference.arrays import Shape
from clearhead.reference.shapes import weight_shapes

By = Literal["weight", "sublayer"]

SYMBOLS = {  # the paper's, where it has one (Vaswani et al. 2017, section 3)
    "query": "Wq",
    "key": "Wk",
    "value": "Wv",
    "output": "Wo",
    "up": "W1",
    "down": "W2",
    "gate": "Wgate",
}
SUBLAYERS = ("self_attention", "cross_attention", "feedforward")
LOOKED_UP = {"embedding", "source_embedding", "segments", "positions", "source_positions"}  # nothing is multiplied
LOOKED_UP |= {"embedding_ngrams", "logit_ngrams"}


@dataclass(frozen=True)
class Weight:
    """A weight with its bias, or attention's own products, which have no weight.

    Attributes:
        stack: the path of its stack, such as `decoder`; empty outside the blocks.
        sublayer: `self_attention`, `cross_attention`, `feedforward`, `norms`; outside the blocks the module's name.
        name: its path within the block or the model.
        symbol: as in the paper.
        shape: of the matrix (out, in), or of the vector; empty for attention's products.
        parameters, flops_per_token: of one block.
        count: in how many blocks it stands.
    """

    stack: str
    sublayer: str
    name: str
    symbol: str
    shape: Shape
    parameters: int
    flops_per_token: int
    count: int = 1

    @property
    def n_bytes(self) -> int:
        """Bytes in float32."""
        return FLOAT32 * self.parameters

    @property
    def is_in_blocks(self) -> bool:
        """Whether it stands in the blocks of a stack."""
        return bool(self.stack)


@dataclass(frozen=True)
class Total:
    """The sum over some weights: of one block, and in how many blocks they stand."""

    stack: str
    name: str
    parameters: int
    flops_per_token: int
    count: int

    symbol: str = ""
    shape: Shape = ()

    @property
    def sublayer(self) -> str:
        """What is summed up, which may be a whole block."""
        return self.name

    @property
    def n_bytes(self) -> int:
        """Bytes in float32."""
        return FLOAT32 * self.parameters


@dataclass(frozen=True)
class WeightTable(View):
    """The weights of a model in the order of its modules, or their totals by sublayer."""

    weights: tuple[Weight, ...]
    by: By = "weight"

    @property
    def parameters(self) -> int:
        """Of the whole model; a tied head is its embedding, and counted once."""
        return sum(weight.count * weight.parameters for weight in self.weights)

    @property
    def flops_per_token(self) -> int:
        """Of one forward pass at full context, as in `estimate_cost`."""
        return sum(weight.count * weight.flops_per_token for weight in self.weights)

    def parts(self) -> Iterator[tuple[list[Weight], Total]]:
        """The weights of each sublayer, with their total; norms of a block are together, behind its sublayers."""
        for (stack, in_blocks), group in groupby(self.weights, key=lambda weight: (weight.stack, weight.is_in_blocks)):
            members = list(group)
            for sublayer in dict.fromkeys(weight.sublayer for weight in members):
                weights = [weight for weight in members if weight.sublayer == sublayer]
                yield weights, total(stack, sublayer, weights)
            if in_blocks:
                yield [], total(stack, "block", members)

    @property
    def title(self) -> str:
        return "Weights" if self.by == "weight" else "Sublayers"

    @property
    def verdict(self) -> str:
        return f"{self.parameters:,} parameters, {self.flops_per_token:,} FLOPs per token."

    def rows(self) -> Sequence[Row]:
        return [
            {
                "stack": entry.stack,
                "sublayer": entry.sublayer,
                "weight": entry.name if isinstance(entry, Weight) else "",
                "symbol": entry.symbol,
                "shape": "x".join(map(str, entry.shape)),
                "parameters": entry.parameters,
                "flops_per_token": entry.flops_per_token,
                "bytes": entry.n_bytes,
                "count": entry.count,
            }
            for entry in self.entries()
        ]

    def entries(self) -> Iterator[Weight | Total]:
        """What the table has, row by row: with `by` weight, a total behind the weights of a sublayer of several."""
        for weights, summed in self.parts():
            if self.by == "weight":
                yield from weights
            if self.by == "sublayer" or len(weights) != 1:
                yield summed

    def as_dict(self) -> dict[str, object]:
        return {
            "parameters": self.parameters,
            "flops_per_token": self.flops_per_token,
            "bytes": FLOAT32 * self.parameters,
            "by": self.by,
            "rows": list(self.rows()),
        }

    def main(self) -> str:
        head = ("", "symbol", "shape", "parameters", "FLOPs per token", "bytes", "times")
        body = "".join(_html_row(entry) for entry in self.entries())
        columns = "".join(f'<th scope="col">{text(name)}</th>' for name in head)
        return f"<table><thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table>"


def _html_row(entry: Weight | Total) -> str:
    numbers = (f"{number:,}" for number in (entry.parameters, entry.flops_per_token, entry.n_bytes, entry.count))
    tag = "td" if isinstance(entry, Weight) else "th"
    cells = "".join(
        f"<{tag}>{text(cell)}</{tag}>" for cell in (entry.symbol, " x ".join(map(str, entry.shape)), *numbers)
    )
    return f'<tr><th scope="row">{text(f"{entry.stack} {entry.name}".strip())}</th>{cells}</tr>'


def total(stack: str, name: str, weights: Sequence[Weight]) -> Total:
    """The sum over weights of one stack."""
    parameters, flops = (
        sum(getattr(weight, field) for weight in weights) for field in ("parameters", "flops_per_token")
    )
    return Total(stack, name, parameters, flops, max(weight.count for weight in weights))


def weigh(config: ModelConfig, *, by: By = "weight") -> WeightTable:
    """The weights of the model that a config describes.

    One block of each stack is listed, and how many there are: a config may ask for more blocks than can be listed.
    """
    shallow = config.model_copy(update={"n_layers": 1, "n_encoder_layers": 1})
    shapes = weight_shapes(shallow)
    modules = dict.fromkeys(name.rpartition(".")[0] for name in shapes)
    weights = [_weight(module, shapes, config) for module in modules]
    if config.architecture != "bigram" and config.tie_embeddings:
        shape = shapes["embedding.weight"]
        weights.append(Weight("", "lm_head", "lm_head", "E, tied", shape, 0, _multiplied(shape)))
    return WeightTable(tuple(_with_products(_ordered(weights), config)), by)


def _weight(module: str, shapes: dict[str, Shape], config: ModelConfig) -> Weight:
    own = {name: shape for name, shape in shapes.items() if name.rpartition(".")[0] == module}
    shape = own.get(f"{module}.weight", ())
    stack, _, inside = module.rpartition(".blocks.0.")
    name = inside or module
    is_norm = name.rpartition(".")[2].endswith("norm")
    if stack:
        sublayer = "norms" if is_norm else name.partition(".")[0]
    else:
        sublayer = name if is_norm else name.partition(".")[0]
    is_matrix = len(shape) == 2 and sublayer not in LOOKED_UP and config.architecture != "bigram"
    count = {"": 1, "encoder": config.n_encoder_layers}.get(stack, config.n_layers)
    symbol = SYMBOLS.get(name.rpartition(".")[2], "E" if sublayer.endswith("embedding") else "")
    parameters = sum(map(math.prod, own.values()))
    return Weight(stack, sublayer, name, symbol, shape, parameters, _multiplied(shape) if is_matrix else 0, count)


def _multiplied(shape: Shape) -> int:
    """Operations per token of a product with a matrix: one multiplication and one addition for each of its numbers."""
    return 2 * math.prod(shape)


def _ordered(weights: Sequence[Weight]) -> list[Weight]:
    """Inside a block its sublayers in the order in which they compute, and the norms behind them; the rest as it is."""
    runs = ((stack, list(members)) for stack, members in groupby(weights, key=lambda weight: weight.stack))
    return [weight for stack, members in runs for weight in (sorted(members, key=_rank) if stack else members)]


def _rank(weight: Weight) -> tuple[int, int]:
    symbols = list(SYMBOLS.values())
    sublayer = (*SUBLAYERS, "norms").index(weight.sublayer)
    return sublayer, symbols.index(weight.symbol) if weight.symbol in symbols else len(symbols)


def _with_products(weights: Sequence[Weight], config: ModelConfig) -> Iterator[Weight]:
    """Behind the maps of each attention: its products of queries with keys, and of its weights with values."""
    flops = 4 * config.n_heads * config.head_dim * attended_tokens(config)
    for weight, following in zip(weights, [*weights[1:], None], strict=True):
        yield weight
        ends = following is None or (following.stack, following.sublayer) != (weight.stack, weight.sublayer)
        if ends and weight.sublayer in SUBLAYERS[:2]:
            name = f"{weight.sublayer}.part"
            yield Weight(weight.stack, weight.sublayer, name, "QK, AV", (), 0, flops, weight.count)
