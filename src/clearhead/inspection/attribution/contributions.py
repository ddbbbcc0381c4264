"""Direct logit attribution: what each part of a pre-norm model adds to a logit, with the final norm's scale frozen.

The residual stream is the sum of what embedding, heads and feed-forwards write. The final norm divides it by a number,
one per token, and the head multiplies it by a matrix: with that number as it is, the logit is a sum as well (Elhage et
al. 2021, "A Mathematical Framework for Transformer Circuits"; TransformerLens calls it direct logit attribution). What
a part does through later parts is in their numbers, not in its own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from clearhead.errors import UsageError
from clearhead.inspection.attribution.tokens import Ids, aim, checked_position, model_inputs
from clearhead.inspection.capture.recording import record
from clearhead.inspection.capture.sites import (
    AttentionKind,
    AttentionSite,
    StackSite,
    attention_sites,
    feedforward_sites,
    main_stack,
    path,
)
from clearhead.inspection.capture.trace import Trace
from clearhead.inspection.grid import grid, table
from clearhead.inspection.heads.measures import STACKS
from clearhead.inspection.view import Row, View
from clearhead.models import LanguageModel
from clearhead.models.eval_mode import evaluating
from clearhead.parts.lm_head import LMHead
from clearhead.parts.norms import LayerNorm, RMSNorm
from clearhead.parts.positions import PositionEncoding

At = Callable[[str], Tensor]  # the name of an activation -> it, at the position
OUTSIDE = ("embedding", "embedding_ngrams", "segments")  # what the residual stream begins with, besides positions


@dataclass(frozen=True)
class Contribution:
    """What a part adds to the logit, or to the difference of two.

    Attributes:
        part: `embedding`, `positions`, `head`, `feed-forward`, `attention bias`, `norm bias`... `unexplained` is what
            an intervention or a hook changed: in a layer, of its attention's output; else, of the logit.
        value: in logits.
        kind, layer, head: of what is in a block, counted from 0.
    """

    part: str
    value: float
    kind: AttentionKind | None = None
    layer: int | None = None
    head: int | None = None

    @property
    def name(self) -> str:
        """In words."""
        stack = "" if self.kind is None else STACKS[self.kind]
        layer = "" if self.layer is None else f"layer {self.layer} "
        return f"{stack}{layer}{self.part}" + ("" if self.head is None else f" {self.head}")


@dataclass(frozen=True, repr=False)
class Contributions(View):
    """What a logit, or the difference of two, is the sum of.

    Attributes:
        parts: in the order in which they write.
        position: whose logits they are, counted from 0.
        target, contrast: token ids.
        value: the logit, or the difference, as the model computes it: the sum of all parts, but for rounding.
    """

    parts: tuple[Contribution, ...]
    position: int
    target: int
    contrast: int | None
    value: float

    @property
    def title(self) -> str:
        contrast = "" if self.contrast is None else f" rather than {self.contrast}"
        return f"What writes token {self.target}{contrast} after position {self.position}"

    @property
    def verdict(self) -> str:
        ordered = sorted(self.parts, key=lambda part: -abs(part.value))
        strongest = ", ".join(f"{part.name} {part.value:+.3f}" for part in ordered[:3])
        return f"Together {self.value:.3f}. The most comes from {strongest}."

    def rows(self) -> Sequence[Row]:
        return [vars(part).copy() for part in self.parts]

    def as_dict(self) -> dict[str, object]:
        fields = ("position", "target", "contrast", "value")
        return {field: getattr(self, field) for field in fields} | {"contributions": list(self.rows())}

    def svg(self) -> str:
        written = [part for part in self.parts if part.layer is not None]
        layers = list(dict.fromkeys((part.kind, part.layer) for part in written))
        columns = list(dict.fromkeys((part.part, part.head) for part in written))
        columns.sort(key=lambda column: (column[1] is None, column[1] or 0))
        values = {(part.kind, part.layer, part.part, part.head): part.value for part in written}
        names = [part if head is None else f"{part} {head}" for part, head in columns]
        rows = [f"{STACKS[kind] if kind else ''}layer {layer}" for kind, layer in layers]
        cells = [[values.get((*layer, *column)) for column in columns] for layer in layers]
        return grid("contributions", "What each part adds to the logit", names, rows, cells)

    def main(self) -> str:
        ordered = sorted(self.parts, key=lambda part: -abs(part.value))
        rows = table(("", "logits"), [(part.name, part.value) for part in ordered])
        return f'<figure class="wide">{self.svg()}</figure>{rows}'

    @property
    def style(self) -> str:
        return ".wide { overflow-x: auto; margin: 1.5rem 0; }"


def direct_logit_attribution(
    model: LanguageModel,
    ids: Ids,
    position: int = -1,
    *,
    source: Ids | None = None,
    target: int | None = None,
    contrast: int | None = None,
) -> Contributions:
    """What embedding, positions, each head, each feed-forward and each bias add to a logit.

    Args:
        model: pre-norm, without a transform in its head; in any mode, dropout is off and it is left as it was.
        ids: the prompt, (T,) or (1, T); for a translator what the decoder reads, its start token included.
        position: whose logits to look at; below 0, counted from the end.
        source: for a translator, what the encoder reads.
        target: a token; the likeliest by default.
        contrast: a token whose logit is subtracted.

    Raises:
        UsageError: the model's logits are no such sum, or an argument is invalid.
    """
    stack, head = summing_parts(model)
    inputs = model_inputs(model, ids, source)
    position = checked_position(position, inputs[-1].shape[1])
    with evaluating(model), torch.no_grad(), record(model) as trace:
        logits = model(*inputs)[0, position]
    target = int(logits.argmax()) if target is None else target
    direction = plain(aim(model, target, contrast))  # (V,)
    matrix = head.weight if head.weight is not None else model.get_parameter("embedding.weight")  # (V, D)
    aimed = head.scale * (direction @ plain(matrix))  # (D,): what the head makes of its input
    at = partial(activation_at, trace, position)
    into = through_norm(stack.module.norm, at(stack.blocks[-1].name), aimed)
    parts = [*from_embedding(model, at, into), *from_blocks(model, at, into, rounding(logits))]
    bias = getattr(stack.module.norm, "bias", None)
    if bias is not None:
        parts.append(Contribution("norm bias", float(plain(bias) @ aimed)))
    if getattr(model, "logit_ngrams", None) is not None:
        parts.append(Contribution("logit_ngrams", float(at("logit_ngrams") @ aimed)))
    if head.bias is not None:
        parts.append(Contribution("head bias", float(plain(head.bias) @ direction)))
    value, size = float(plain(logits) @ direction), sum(abs(part.value) for part in parts)
    rest = value - sum(part.value for part in parts)
    if abs(rest) > rounding(logits) * max(size, abs(value)):
        parts.append(Contribution("unexplained", rest))
    return Contributions(tuple(parts), position, target, contrast, value)


def plain(parameter: Tensor) -> Tensor:
    """Its numbers, in float64 on the CPU."""
    return parameter.detach().cpu().double()


def activation_at(trace: Trace, position: int, name: str) -> Tensor:
    """An activation at the position, in float64: (D,), or (H, K) of heads."""
    return plain(trace.tensor(name)[0, ..., position, :])


def rounding(activation: Tensor) -> float:
    """What is lost at most to its numbers' precision, as a share: half of their digits."""
    return float(torch.finfo(activation.dtype).eps ** 0.5)


def summing_parts(model: LanguageModel) -> tuple[StackSite, LMHead]:
    """The stack whose parts add up to the head's input, and the head.

    Raises:
        UsageError: they do not add up.
    """
    stack, head = main_stack(model), getattr(model, "lm_head", None)
    if stack is None or not stack.blocks or not isinstance(head, LMHead):
        raise UsageError("the model has no residual stream, so its logits are no sum of what parts write to it")
    if model.config.norm_position != "pre":
        raise UsageError(
            "a post-norm model changes with every norm what was written before, so its logits are no sum of what parts "
            "write; this needs `norm_position` pre"
        )
    if not isinstance(head.transform, nn.Identity):
        raise UsageError("with `head_transform` the logits are no sum of what parts write: an activation is in between")
    return stack, head


def through_norm(norm: nn.Module, x: Tensor, aimed: Tensor) -> Tensor:
    """What a sum of the norm's output times `aimed` is as a sum of its input, with the scale that x has; all (D,).

    Raises:
        UsageError: the norm is none of this library.
    """
    if isinstance(norm, LayerNorm):
        factors = plain(norm.weight) * aimed / (x.var(correction=0) + norm.eps).sqrt()
        return factors - factors.mean()  # the mean of what is written is taken away
    if isinstance(norm, RMSNorm):
        return plain(norm.scale) * aimed / (x.square().mean() + norm.eps).sqrt()
    raise UsageError(f"the final norm is a {type(norm).__name__}; this needs a LayerNorm or an RMSNorm")


def from_embedding(model: LanguageModel, at: At, into: Tensor) -> Iterator[Contribution]:
    """What the residual stream begins with; what a norm made of the whole is no longer told apart."""
    stack = main_stack(model)
    assert stack is not None
    rest = at(f"{stack.name}.input")
    names = [name for name in OUTSIDE if getattr(model, name, None) is not None]
    if not isinstance(model.embedding_norm, nn.Identity):
        yield Contribution("embedding", float(rest @ into))
        return
    for name in names:
        yield Contribution(name, float(at(name) @ into))
        rest = rest - at(name)
    positions = model.get_submodule("positions")
    if isinstance(positions, PositionEncoding) and type(positions).add is not PositionEncoding.add:
        yield Contribution("positions", float(rest @ into))


def from_blocks(model: LanguageModel, at: At, into: Tensor, tolerance: float) -> Iterator[Contribution]:
    """What the parts of every block write, layer by layer, their biases apart."""
    attentions = [site for site in attention_sites(model) if site.kind != "encoder"]
    for feedforward in (site for site in feedforward_sites(model) if not site.is_encoder):
        layer = feedforward.layer
        for site in (site for site in attentions if site.layer == layer):
            yield from from_attention(site, at, into, tolerance)
        down = feedforward.module.down
        written = at(feedforward.name) - (0 if down.bias is None else plain(down.bias))
        yield Contribution("feed-forward", float(written @ into), "self", layer)
        yield from bias_of(down, into, "feed-forward bias", "self", layer)


def from_attention(site: AttentionSite, at: At, into: Tensor, tolerance: float) -> Iterator[Contribution]:
    """What its heads and its bias write, and what it returned besides, if something else changed its output."""
    output, K = site.module.output, site.module.head_dim
    heads, weight = at(path(site.name, "mixed")), plain(output.weight)  # (H, K), (D, H * K)
    reads = into @ weight  # (H * K,)
    for head, mixed in enumerate(heads):  # (K,)
        yield Contribution("head", float(mixed @ reads[head * K : (head + 1) * K]), site.kind, site.layer, head)
    yield from bias_of(output, into, "attention bias", site.kind, site.layer)
    computed = weight @ heads.flatten() + (0 if output.bias is None else plain(output.bias))  # (H, K) -> (D,)
    returned = at(site.name)
    if (returned - computed).norm() > tolerance * max(returned.norm(), computed.norm()):
        yield Contribution("unexplained", float((returned - computed) @ into), site.kind, site.layer)


def bias_of(linear: nn.Linear, into: Tensor, part: str, kind: AttentionKind, layer: int) -> Iterator[Contribution]:
    """What its bias adds, if it has one."""
    if linear.bias is not None:
        yield Contribution(part, float(plain(linear.bias) @ into), kind, layer)
