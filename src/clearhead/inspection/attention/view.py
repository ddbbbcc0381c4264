"""Where the heads of a model look: every layer and head at a glance, and one of them in detail."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from clearhead.errors import UsageError
from clearhead.inspection.attention import page, svg
from clearhead.inspection.attention.focus import HeadFocus, focus_of_heads
from clearhead.inspection.capture.recording import record
from clearhead.inspection.capture.sites import AttentionKind, attention_sites
from clearhead.inspection.capture.trace import Array
from clearhead.inspection.view import Row, View
from clearhead.models import LanguageModel
from clearhead.models.eval_mode import evaluating, refuse_not_finite
from clearhead.pages import one_line
from clearhead.wording import counted

NAMES: dict[AttentionKind, str] = {"self": "self-attention", "cross": "cross-attention", "encoder": "encoder attention"}


@dataclass(frozen=True, eq=False)
class AttentionView(View):
    """The attention of every layer and head, or with `layer` and `head` of one.

    Attributes:
        kind: self, cross or encoder.
        weights: (L, H, T_q, T_k), rows that sum to 1.
        allowed: (T_q, T_k), False where the mask forbids.
        queries, keys: a text for each token that attends, and for each that is attended to.
        layer, head: counted from 0; both or neither.
    """

    kind: AttentionKind
    weights: Array
    allowed: Array
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    layer: int | None = None
    head: int | None = None

    @property
    def is_overview(self) -> bool:
        """Whether it is about every head."""
        return self.layer is None

    @cached_property
    def heads(self) -> list[HeadFocus]:
        """How sharply each head looks, and where: layer by layer."""
        return focus_of_heads(self.weights, self.allowed, self.keys, relative=self.kind != "cross")

    @property
    def shown(self) -> HeadFocus:
        """The head that is drawn large: the chosen one, or of all the one that looks most sharply."""
        heads: list[HeadFocus] = self.heads
        if self.layer is None or self.head is None:
            return min(heads, key=lambda focus: focus.entropy)
        n_heads: int = self.weights.shape[1]
        return heads[self.layer * n_heads + self.head]

    @property
    def matrix(self) -> Array:
        """The weights of the head that is drawn large, (T_q, T_k)."""
        matrix: Array = self.weights[self.shown.layer, self.shown.head]
        return matrix

    @property
    def title(self) -> str:
        name = NAMES[self.kind].capitalize()
        return name if self.is_overview else f"{name} of layer {self.layer}, head {self.head}"

    @property
    def verdict(self) -> str:
        shown = self.shown
        if not self.is_overview:
            return f"{shown.sentence[0].upper()}{shown.sentence[1:]}."
        layers, heads = self.weights.shape[:2]
        size = f"{counted(layers, 'layer')} of {counted(heads, 'head')}"
        return f"{size}. The sharpest is layer {shown.layer}, head {shown.head}: {shown.sentence}."

    def rows(self) -> Sequence[Row]:
        """Of every head how it looks, or of one every weight that the mask allows."""
        if self.is_overview:
            return [focus.as_dict() for focus in self.heads]
        return [
            {
                "query": query,
                "query_token": self.queries[query],
                "key": key,
                "key_token": self.keys[key],
                "weight": float(self.matrix[query, key]),
            }
            for query, key in np.argwhere(self.allowed).tolist()
        ]

    def as_dict(self) -> dict[str, object]:
        return {
            "of": self.kind,
            "queries": list(self.queries),
            "keys": list(self.keys),
            "heads": [focus.as_dict() for focus in ([*self.heads] if self.is_overview else [self.shown])],
            "weights": None if self.is_overview else self.matrix.tolist(),
        }

    def svg(self) -> str:
        return svg.overview(self) if self.is_overview else svg.large(self)

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


def attend(
    model: LanguageModel,
    inputs: Sequence[Tensor],
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    *,
    of: AttentionKind | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> AttentionView:
    """Where each token looks, in every layer and head, or in one.

    Args:
        model: in any mode; dropout is off and the model is left as it was.
        inputs: what the model takes, in one row each: ids (1, T), or of a translator (1, T_src) and (1, T).
        queries: a text for each token that attends.
        keys: a text for each token that is attended to; the queries without it.
        of: which attention; by default cross-attention where there is one, else self-attention.
        layer, head: counted from 0; both, or neither for an overview.

    Raises:
        UsageError: `of` is no kind of attention, or the model has no such attention, layer or head.
        ClearheadError: the model's output is not finite.
    """
    if of is not None and of not in get_args(AttentionKind):
        known: tuple[str, ...] = get_args(AttentionKind)
        raise UsageError(f"`of` must be {', '.join(known[:-1])} or {known[-1]}, not '{one_line(str(of))}'")
    kinds = {site.kind for site in attention_sites(model)}
    of = of or default_kind(model)
    sites = [site for site in attention_sites(model) if site.kind == of]
    if not sites:
        others = " or ".join(f"`of={kind}`" for kind in NAMES if kind in kinds)
        raise UsageError(f"this model has no {NAMES[of]}; {f'choose {others}' if others else 'it has none at all'}")
    _refuse_missing(layer, head, len(sites), sites[0].module.n_heads)
    names = [f"{site.name}.attention" for site in sites]
    with evaluating(model), torch.no_grad(), record(model, [*names, f"{sites[0].name}.scores"]) as trace:
        model.body(*inputs)
    weights = torch.stack([trace.tensor(name)[0].float() for name in names])  # (L, H, T_q, T_k)
    refuse_not_finite(weights.sum())  # of numbers from 0 to 1: finite if and only if all are
    allowed = ~trace.tensor(f"{sites[0].name}.scores")[0].isneginf().all(dim=0)  # (T_q, T_k)
    keys = queries if keys is None else keys
    return AttentionView(of, weights.numpy(), allowed.numpy(), tuple(queries), tuple(keys), layer, head)


def default_kind(model: LanguageModel) -> AttentionKind:
    """Cross-attention of a translator, self-attention of every other model."""
    return "cross" if any(site.kind == "cross" for site in attention_sites(model)) else "self"


def _refuse_missing(layer: int | None, head: int | None, n_layers: int, n_heads: int) -> None:
    if (layer is None) != (head is None):
        raise UsageError("`layer` and `head` name one head together; give both, or neither for an overview")
    for name, number, count in (("layer", layer, n_layers), ("head", head, n_heads)):
        if number is not None and not 0 <= number < count:
            last = "only 0" if count == 1 else f"0 to {count - 1}"
            raise UsageError(f"there is no {name} {number}: the model has {counted(count, name)}, {last}")
