"""What each attention head does, in four numbers: how spread its attention is, and which of three patterns it follows.

A head that attends to the token before, and one in a later layer that attends to what came after an earlier occurrence
of the current token, together continue a sequence that they have seen before: they are what induction is made of
(Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; Olsson et al. 2022, arXiv 2209.11895). The
three scores are the mean attention to the tokens that the pattern names, as Olsson et al. and TransformerLens measure
them: on random tokens that are repeated, in which nothing else could be attended to for its meaning.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from clearhead.errors import UsageError
from clearhead.inspection.capture.recording import record
from clearhead.inspection.capture.sites import AttentionKind, AttentionSite, attention_sites, path
from clearhead.inspection.grid import grid, table
from clearhead.inspection.view import Row, View
from clearhead.models import LanguageModel
from clearhead.models.eval_mode import evaluating
from clearhead.parts.masks import positions_of

Measure = Literal["entropy", "previous_token", "duplicate_token", "induction"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
PATTERNS = MEASURES[1:]
LONGEST = 50  # tokens that are drawn and then repeated
STACKS: dict[AttentionKind, str] = {"self": "", "cross": "cross-attention ", "encoder": "encoder "}


@dataclass(frozen=True)
class Head:
    """A head's measures, each a mean over the tokens at which it can be taken; None where there are none.

    Attributes:
        kind, layer, head: which it is, counted from 0.
        entropy: of its attention, in bits; 2 to its power is how many tokens it looks at.
        previous_token: attention to the token before.
        duplicate_token: attention to earlier occurrences of the same token.
        induction: attention to the tokens that came after earlier occurrences of the same token.
    """

    kind: AttentionKind
    layer: int
    head: int
    entropy: float
    previous_token: float | None = None
    duplicate_token: float | None = None
    induction: float | None = None

    @property
    def name(self) -> str:
        """In words."""
        return f"{STACKS[self.kind]}layer {self.layer} head {self.head}"


@dataclass(frozen=True, repr=False)
class HeadTable(View):
    """The measures of every head of a model.

    Attributes:
        heads: in the order in which they compute.
        tokens: over how many they were measured, padding apart.
    """

    heads: tuple[Head, ...]
    tokens: int

    def strongest(self, measure: Measure = "induction") -> list[Head]:
        """The heads for which it can be taken, those with the most of it first."""
        measured = [head for head in self.heads if getattr(head, measure) is not None]
        return sorted(measured, key=lambda head: -getattr(head, measure))

    @property
    def title(self) -> str:
        return "Attention heads"

    @property
    def verdict(self) -> str:
        best = [(pattern, self.strongest(pattern)[:1]) for pattern in PATTERNS]
        clauses = [
            f"{pattern.replace('_', ' ')} {getattr(head, pattern):.2f} in {head.name}"
            for pattern, heads in best
            for head in heads
        ]
        return f"The most attention to each pattern: {', '.join(clauses)}." if clauses else "No pattern was measured."

    def rows(self) -> Sequence[Row]:
        return [vars(head).copy() for head in self.heads]

    def as_dict(self) -> dict[str, object]:
        return {"tokens": self.tokens, "heads": list(self.rows())}

    def svg(self, measure: Measure = "induction") -> str:
        layers = list(dict.fromkeys((head.kind, head.layer) for head in self.heads))
        by_layer = [[head for head in self.heads if (head.kind, head.layer) == layer] for layer in layers]
        columns = [f"head {index}" for index in range(max(map(len, by_layer)))]
        cells = [[getattr(head, measure) for head in heads] for heads in by_layer]
        names = [f"{STACKS[kind]}layer {layer}" for kind, layer in layers]
        title = f"{measure.replace('_', ' ').capitalize()}, by layer and head"
        return grid(measure, title, columns, names, cells, largest=None if measure == "entropy" else 1.0)

    def main(self) -> str:
        pictures = "".join(f'<figure class="wide">{self.svg(measure)}</figure>' for measure in reversed(MEASURES))
        head = ("", *(measure.replace("_", " ") for measure in MEASURES))
        rows = [(head.name, *(getattr(head, measure) for measure in MEASURES)) for head in self.heads]
        return pictures + table(head, rows)

    @property
    def style(self) -> str:
        return ".wide { overflow-x: auto; margin-top: 1.5rem; }"


def measure_heads(model: LanguageModel, *inputs: Tensor, rows: int = 8, seed: int = 0) -> HeadTable:
    """The measures of every head, on random tokens of which each row holds some twice, or on inputs of your own.

    Args:
        model: in any mode; dropout is off and it is left as it was.
        inputs: what the model reads, (B, T), for an encoder-decoder source and target; padding is not counted. Random
            tokens by default, all different and then repeated: up to 50, as far as context and vocabulary allow.
        rows, seed: of the random tokens.

    Raises:
        UsageError: the model has no attention, or a context too short to repeat anything in.
    """
    sites = attention_sites(model)
    if not sites:
        raise UsageError("the model has no attention, so it has no heads to measure")
    inputs = inputs or _repeated_inputs(model, rows, seed)
    names = [path(site.name, "attention") for site in sites]
    with evaluating(model), torch.no_grad(), record(model, names) as trace:
        model(*(ids.to(model.device) for ids in inputs))
    inputs = tuple(ids.cpu() for ids in inputs)
    heads: list[Head] = []
    for site, name in zip(sites, names, strict=True):
        is_source = site.kind == "encoder"
        queries = inputs[0 if is_source else -1]
        heads += _measure(site, trace.tensor(name), queries, are_tokens(model, inputs, is_source=is_source))
    return HeadTable(tuple(heads), int(are_tokens(model, inputs, is_source=False).sum()))


def are_tokens(model: LanguageModel, inputs: Sequence[Tensor], *, is_source: bool) -> Tensor:
    """Which of the first of the inputs, or of the last, are tokens and not padding, (B, T).

    A translator's start token is one, even where it has padding's id (T5, Marian).
    """
    ids, config = inputs[0 if is_source else -1], model.config
    is_target = config.architecture == "encoder_decoder" and not is_source
    positions = positions_of(ids, config.pad_id, start_id=config.decoder_start_id if is_target else None)
    return torch.ones_like(ids, dtype=torch.bool) if isinstance(positions, range) else positions >= 0


def repeated_tokens(vocab_size: int, period: int, *, rows: int, seed: int = 0, pad_id: int | None = None) -> Tensor:
    """Ids (rows, 2 * period): `period` different tokens, none of them padding, and the same again."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.arange(vocab_size)
    ids = ids if pad_id is None else ids[ids != pad_id]
    first = torch.stack([ids[torch.randperm(len(ids), generator=generator)[:period]] for _ in range(rows)])
    return torch.cat((first, first), dim=1)


def _repeated_inputs(model: LanguageModel, rows: int, seed: int) -> tuple[Tensor, ...]:
    config = model.config
    sizes = [config.vocab_size]
    if config.architecture == "encoder_decoder":
        sizes.insert(0, config.source_vocab_size or config.vocab_size)
    period = min(LONGEST, config.block_size // 2, *(size - 1 for size in sizes))
    if period < 2:
        raise UsageError(
            f"a context of {config.block_size} tokens, of which there are {min(sizes)}, is too short to repeat "
            "anything in; measure the heads on inputs of your own"
        )
    return tuple(
        repeated_tokens(size, period, rows=rows, seed=seed + side, pad_id=config.pad_id)
        for side, size in enumerate(sizes)
    )


def _measure(site: AttentionSite, attention: Tensor, ids: Tensor, is_token: Tensor) -> list[Head]:
    """The heads of one attention, with weights (B, H, T_q, T_k), ids of the queries and which are counted, (B, T_q)."""
    attention = attention.double()
    entropies = _mean(torch.special.entr(attention).sum(-1) / math.log(2), is_token)
    measures: dict[str, list[float | None]] = {}
    if site.kind != "cross":
        for pattern, target in zip(PATTERNS, _targets(ids, is_token), strict=True):
            measures[pattern] = _mean((attention * target[:, None]).sum(-1), target.any(-1))
    return [
        Head(site.kind, site.layer, head, entropy or 0.0, **{name: by_head[head] for name, by_head in measures.items()})
        for head, entropy in enumerate(entropies)
    ]


def _targets(ids: Tensor, is_token: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each of `PATTERNS`, which keys a query is to attend to, (B, T, T)."""
    T = ids.shape[1]
    before = torch.ones(T, T, dtype=torch.bool).tril(-1)  # keys that stand before the query
    tokens = is_token[:, :, None] & is_token[:, None, :]  # (B, T, T)
    same = (ids[:, :, None] == ids[:, None, :]) & tokens & before
    after = torch.zeros_like(same)
    after[:, :, 1:] = same[:, :, :-1]  # the key after an earlier occurrence
    previous = before & ~before.tril(-2)
    return previous & tokens, same, after & tokens & before


def _mean(values: Tensor, counted: Tensor) -> list[float | None]:
    """(B, H, T) over the counted queries (B, T) -> by head."""
    total = int(counted.sum())
    if not total:
        return [None] * values.shape[1]
    sums = (values * counted[:, None]).sum(dim=(0, 2))  # (H,)
    return [value / total for value in sums.tolist()]
