"""What a model loses without a part: edits for `intervene` that take parts out, and the loss without each of them.

A part that writes zero is out of the residual stream. Where the rest of the model counts on what the part writes on
average, its mean is the fairer replacement (Wang et al. 2022, arXiv 2211.00593, section 2.1, of means over a data set).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from clearhead.data import IGNORED
from clearhead.errors import DataError, UsageError
from clearhead.inference.evaluation import token_losses
from clearhead.inspection.capture.intervention import MIXED, Edit, edited, intervene
from clearhead.inspection.capture.sites import (
    AttentionKind,
    AttentionSite,
    BlockSite,
    FeedForwardSite,
    attention_sites,
    block_sites,
    feedforward_sites,
    path,
)
from clearhead.inspection.heads.ablation_table import Ablation, AblationTable
from clearhead.inspection.heads.measures import are_tokens
from clearhead.models import LanguageModel
from clearhead.models.eval_mode import evaluating

Means = Mapping[str, Tensor]
Edits = dict[str, Edit]
Body = Callable[..., Tensor]
Progress = Callable[[int, int], None]


def at_heads(edit: Edit, *heads: int) -> Edit:
    """The edit of `<attention>.mixed`, (B, H, T, K), for these heads alone."""
    return partial(_in_part, edit, 1, heads)


def at_positions(edit: Edit, *positions: int) -> Edit:
    """The edit of an activation (..., T, D) for these tokens alone, counted from 0, or from the end if below 0."""
    return partial(_in_part, edit, -2, positions)


def _in_part(edit: Edit, dim: int, chosen: Sequence[int], value: Tensor) -> Tensor:
    beyond = [index for index in chosen if not -value.shape[dim] <= index < value.shape[dim]]
    if beyond:
        raise UsageError(f"number {beyond[0]} cannot be edited: there are {value.shape[dim]} of them, counted from 0")
    mask = torch.zeros(value.shape[dim], dtype=torch.bool, device=value.device)
    mask[list(chosen)] = True
    shape = [1] * value.dim()
    shape[dim] = -1
    return torch.where(mask.view(shape), edited("the part", edit, value), value)


def without_head(site: AttentionSite, head: int, means: Means | None = None) -> Edits:
    """Edits after which a head of the attention writes nothing, or the mean of what it writes (`mean_activations`)."""
    name = path(site.name, MIXED)
    return {name: at_heads(0.0 if means is None else means[name], head)}


def without_heads(model: nn.Module, heads: Iterable[tuple[AttentionKind, int, int]]) -> Edits:
    """Edits after which these heads, each a kind, a layer and a number, write nothing.

    Raises:
        UsageError: the model has no such attention.
    """
    sites = {(site.kind, site.layer): site for site in attention_sites(model)}
    chosen = dict[str, set[int]]()
    for kind, layer, head in heads:
        site = sites.get((kind, layer))
        if site is None or not 0 <= head < site.module.n_heads:
            raise UsageError(f"the model has no head {head} in layer {layer} of the kind '{kind}'")
        chosen.setdefault(path(site.name, MIXED), set()).add(head)
    return {name: at_heads(0.0, *numbers) for name, numbers in chosen.items()}


def without(names: Sequence[str], means: Means | None = None) -> Edits:
    """Edits after which these modules give zero, or the mean of what they give (`mean_activations`)."""
    return {name: 0.0 if means is None else means[name] for name in names}


def writers(model: nn.Module) -> dict[str, list[str]]:
    """The paths of all that writes to the residual stream, by the path of its block."""
    names = [site.name for site in attention_sites(model)] + [site.name for site in feedforward_sites(model)]
    blocks = [block.name for block in block_sites(model)]
    return {block: [name for name in names if not block or name.startswith(f"{block}.")] for block in blocks}


def ablations(model: nn.Module, means: Means | None = None) -> Iterator[tuple[Ablation, Edits]]:
    """Every head, attention, feed-forward and block, and the edits that take it out."""
    for site in attention_sites(model):
        for head in range(site.module.n_heads):
            yield Ablation("head", site.kind, site.layer, head), without_head(site, head, means)
        yield Ablation("attention", site.kind, site.layer), without([site.name], means)
    by_block = writers(model)
    for feedforward in feedforward_sites(model):
        yield Ablation("feedforward", _kind(feedforward), feedforward.layer), without([feedforward.name], means)
    for block in block_sites(model):
        yield Ablation("block", _kind(block), block.layer), without(by_block[block.name], means)


def _kind(site: BlockSite | FeedForwardSite) -> AttentionKind:
    return "encoder" if site.is_encoder else "self"


def ablate(
    model: LanguageModel,
    batches: Sequence[Sequence[Tensor]],
    *,
    mean: bool = False,
    body: Body | None = None,
    bytes_per_token: float | None = None,
    on_progress: Progress | None = None,
) -> AblationTable:
    """The loss without each head, each attention, each feed-forward and each block, on the same tokens.

    Args:
        model: in any mode; it is evaluated without dropout and left as it was.
        batches: the model's inputs and, last, targets (B, T); a target of -100 is not counted.
        mean: put the mean of what a part writes in its place, over all tokens of the batches; zero by default.
        body: replaces `model.body`, e.g. to apply a document mask.
        bytes_per_token: of the text, in UTF-8, for bits per byte.
        on_progress: called with how many of the losses are computed, and of how many.

    Raises:
        UsageError: the model has no attention.
        DataError: there is no token to predict.
    """
    if not attention_sites(model):
        raise UsageError("the model has no attention, so there are no heads to ablate")
    body = body or model.body
    counts = torch.cat([(batch[-1] != IGNORED).sum(-1) for batch in batches]) if batches else torch.zeros(0)
    if not counts.sum():
        raise DataError("there is nothing to evaluate: the text has no token to predict; give a longer one")
    means = mean_activations(model, batches, body) if mean else None
    parts, results = list(ablations(model, means)), list[Ablation]()
    baseline = row_losses(model, batches, body)
    for done, (part, edits) in enumerate(parts, start=1):
        with intervene(model, edits):
            results.append(part.measured(baseline, row_losses(model, batches, body), counts))
        if on_progress is not None:
            on_progress(done, len(parts))
    tokens = int(counts.sum())
    return AblationTable(
        baseline.sum().item() / tokens, tokens, tuple(results), is_mean=mean, bytes_per_token=bytes_per_token
    )


def row_losses(model: LanguageModel, batches: Sequence[Sequence[Tensor]], body: Body) -> Tensor:
    """The summed loss of every row of the batches, in nats, (rows,) in float64."""
    sums = []
    with evaluating(model), torch.inference_mode():
        for batch in batches:
            *inputs, targets = (tensor.to(model.device) for tensor in batch)
            sums.append(token_losses(model, body(*inputs), targets).cpu().double().sum(-1))  # (B,); MPS has no float64
    return torch.cat(sums)


def mean_activations(model: LanguageModel, batches: Sequence[Sequence[Tensor]], body: Body | None = None) -> Means:
    """What heads, attentions and feed-forwards write, as a mean over all tokens but padding.

    Returns:
        By the names of `intervene`: (H, 1, K) for `<attention>.mixed`, and (D,) for a part.
    """
    sums, counts = dict[str, Tensor](), dict[str, float]()
    weights: dict[bool, Tensor] = {}  # whether in the encoder -> which tokens count, (B, T)
    encoders = {site.name: site.kind == "encoder" for site in attention_sites(model)}
    encoders |= {site.name: site.is_encoder for site in feedforward_sites(model)}

    def add(name: str, is_encoder: bool, value: Tensor) -> Tensor:
        weight = weights[is_encoder].to(value.dtype)
        shaped = weight[:, None, :, None] if value.dim() == 4 else weight[:, :, None]
        summed = (value.detach() * shaped).cpu().double().sum(dim=0).sum(dim=-2, keepdim=value.dim() == 4)
        sums[name] = sums.get(name, torch.zeros_like(summed)) + summed
        counts[name] = counts.get(name, 0) + weights[is_encoder].sum().item()
        return value

    edits = {name: partial(add, name, is_encoder) for name, is_encoder in encoders.items()}
    for site in attention_sites(model):
        name = path(site.name, MIXED)
        edits[name] = partial(add, name, site.kind == "encoder")
    with evaluating(model), torch.inference_mode(), intervene(model, cast(Edits, edits)):
        for batch in batches:
            inputs = [tensor.to(model.device) for tensor in batch[:-1]]
            weights.update({side: are_tokens(model, inputs, is_source=side) for side in (True, False)})
            (body or model.body)(*inputs)
    return {name: total / counts[name] for name, total in sums.items()}
