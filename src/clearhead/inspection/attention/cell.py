"""One cell of an attention map: the numbers between a query, a key and the weight that the one gives the other."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from clearhead.errors import UsageError
from clearhead.inspection.capture.recording import record
from clearhead.inspection.capture.sites import AttentionKind, attention_sites, path
from clearhead.models import LanguageModel
from clearhead.models.eval_mode import evaluating

RECORDED = ("q", "k", "scores", "attention")


@dataclass(frozen=True)
class AttentionCell:
    """How a head comes to a weight: softcap(q . k * scale) + bias = score; exp(score - log_total) = weight.

    Attributes:
        q, k: the query and the key, (K,), normalized and rotated where the model does so.
        product: their dot product.
        scale: what it is multiplied by.
        softcap: the bound of a soft cap on the scaled product; None without one.
        bias: what the positions add, as with ALiBi; 0 without such.
        score: what the softmax reads; None where the mask forbids it.
        log_total: the logarithm of the sum of exp(score) over the keys; None where the query may see none.
        weight: what the head gives the key.
    """

    kind: AttentionKind
    layer: int
    head: int
    q: tuple[float, ...]
    k: tuple[float, ...]
    product: float
    scale: float
    softcap: float | None
    bias: float
    score: float | None
    log_total: float | None
    weight: float

    def as_dict(self) -> dict[str, object]:
        """As plain data."""
        return asdict(self)


def attention_cell(
    model: LanguageModel, inputs: Sequence[Tensor], of: AttentionKind, layer: int, head: int, query: int, key: int
) -> AttentionCell:
    """How a head of the model comes to one of its weights.

    Args:
        model: in any mode; dropout is off and the model is left as it was.
        inputs: what the model takes, in one row each: ids (1, T), or of a translator (1, T_src) and (1, T).
        of, layer, head: which head, counted from 0.
        query, key: which of the tokens, counted from 0.

    Raises:
        UsageError: there is no such attention, layer, head or token.
    """
    site = next((site for site in attention_sites(model) if (site.kind, site.layer) == (of, layer)), None)
    if site is None:
        raise UsageError(f"the model has no attention of the kind '{of}' in layer {layer}")
    names = {step: path(site.name, step) for step in RECORDED}
    with evaluating(model), torch.no_grad(), record(model, names.values()) as trace:
        model.body(*inputs)
    q, k, scores, weights = (trace.tensor(names[step])[0].double() for step in RECORDED)  # without the batch
    n_heads, n_queries, n_keys = scores.shape
    for name, number, count in (("head", head, n_heads), ("query", query, n_queries), ("key", key, n_keys)):
        if not 0 <= number < count:
            raise UsageError(f"there is no {name} {number}: there are {count}, counted from 0")
    vectors = q[head, query], k[head * len(k) // n_heads, key]  # (K,) each; groups of heads share a key
    scoring, product = site.module.scoring, float(vectors[0] @ vectors[1])
    scaled = product * scoring.factor(q.shape[-1])
    capped = (
        scaled if scoring.softcap is None else scoring.softcap * float(torch.tensor(scaled / scoring.softcap).tanh())
    )
    score, total = float(scores[head, query, key]), float(scores[head, query].logsumexp(-1))
    is_allowed = score > -torch.inf
    return AttentionCell(
        of,
        layer,
        head,
        tuple(vectors[0].tolist()),
        tuple(vectors[1].tolist()),
        product,
        scoring.factor(q.shape[-1]),
        scoring.softcap,
        score - capped if is_allowed else 0.0,
        score if is_allowed else None,
        total if total > -torch.inf else None,
        float(weights[head, query, key]),
    )
