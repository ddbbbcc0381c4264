"""The loss: sum of token losses over the number of counted tokens, in nats per token, with optional label smoothing.

The division is by the tokens of the whole batch, so splitting it into micro-batches, which may count unequal numbers of
tokens, leaves loss and gradient what they are.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from clearhead.data import IGNORED
from clearhead.models import rows_at_once

Forward = Callable[..., Tensor]  # the inputs of a batch -> hidden states (B, T, D) or logits (B, T, V)
Head = Callable[[Tensor], Tensor]  # hidden states (N, D) -> logits (N, V)
LossFunction = Callable[..., tuple[Tensor, Tensor]]  # a batch, its targets last -> as `token_loss_sum`


def _over_all(share: float, V: int) -> float:
    return share


def _over_others(share: float, V: int) -> float:
    """Equal to torch's smoothing with share * V / (V - 1), at most 1."""
    return min(1.0, share * V / (V - 1))


# Spread -> the equivalent torch `label_smoothing`, from (share, V).
# `all` is torch's definition (Szegedy et al. 2016, section 7); `others` is that of the first Transformer's own code.
SMOOTHINGS: dict[str, Callable[[float, int], float]] = {"all": _over_all, "others": _over_others}


@dataclass(frozen=True)
class Smoothing:
    """Label smoothing: `share` of each target's mass goes elsewhere, `over` says where; 0 is plain cross entropy."""

    share: float = 0.0
    over: str = "all"


NO_SMOOTHING = Smoothing()


def token_loss_sum(
    hidden: Tensor,
    targets: Tensor,
    smoothing: Smoothing = NO_SMOOTHING,
    *,
    head: Head | None = None,
    parameters: Sequence[Tensor] = (),
) -> tuple[Tensor, Tensor]:
    """Cross entropy in float32, summed over the counted targets: with label smoothing, to train on, and without.

    Args:
        hidden: (..., D), or with no head the logits, (..., V).
        targets: (...), -100 where not counted.
        smoothing: of the targets.
        head: (N, D) -> logits (N, V). It sees a few rows at a time, so that their logits stay in the cache and no
            gradient of all logits is ever in memory.
        parameters: what `head` may depend on, besides its argument, that learns.

    Returns:
        Two scalars (); the second one has no graph.
    """
    flat_hidden, flat_targets = hidden.flatten(0, -2), targets.flatten()  # (N, D), (N,)
    if torch.compiler.is_compiling():  # torch.compile fuses this
        logits = flat_hidden if head is None else head(flat_hidden)  # (N, V)
        share = SMOOTHINGS[smoothing.over](smoothing.share, logits.shape[-1])
        precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
        smoothed = F.cross_entropy(precise, flat_targets, ignore_index=IGNORED, reduction="sum", label_smoothing=share)
        plain = F.cross_entropy(precise.detach(), flat_targets, ignore_index=IGNORED, reduction="sum")
        return smoothed, plain
    counted = flat_targets != IGNORED
    # Elsewhere than on a CPU one would wait for the count; and where nothing counts, the gradient of the head is 0.
    if head is not None and hidden.device.type == "cpu" and counted.any() and not counted.all():
        flat_hidden, flat_targets = flat_hidden[counted], flat_targets[counted]
    smoothed, plain = _LossSum.apply(smoothing, head, flat_targets, flat_hidden, *parameters)  # type: ignore[no-untyped-call]
    return smoothed, plain


class _LossSum(torch.autograd.Function):
    """Head and `F.cross_entropy(reduction="sum")`, chunked by rows; the forward pass computes the gradient as well."""

    # `Any`, because torch's type for `ctx` lacks the attributes that a function saves on it.
    @staticmethod
    def forward(
        ctx: Any, smoothing: Smoothing, head: Head | None, targets: Tensor, hidden: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        V = (hidden if head is None else head(hidden[:1])).shape[-1]
        share = SMOOTHINGS[smoothing.over](smoothing.share, V)
        rows = rows_at_once(V, hidden.device)
        gradient = torch.empty_like(hidden)
        of_parameters: list[Tensor | None] = [None] * len(parameters)
        sums = [hidden.new_zeros(2, dtype=torch.promote_types(hidden.dtype, torch.float32))]
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            if head is None:
                chunk_sums, gradient[part] = _sums_and_gradient(hidden[part], targets[part], share)
            else:
                with torch.enable_grad():
                    some = hidden[part].detach().requires_grad_()  # (rows, D)
                    chunk_sums = _ChunkSums.apply(head(some), targets[part], share)  # type: ignore[no-untyped-call]
                gradient[part], *added = torch.autograd.grad(chunk_sums[0], (some, *parameters), allow_unused=True)
                of_parameters = [_sum(*pair) for pair in zip(of_parameters, added, strict=True)]
            sums.append(torch.stack(chunk_sums).detach())
        smoothed, plain = torch.stack(sums).sum(0)
        ctx.save_for_backward(gradient, *of_parameters)
        ctx.mark_non_differentiable(plain)
        return smoothed, plain

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scaled = (saved if saved is None else saved * gradients[0] for saved in ctx.saved_tensors)
        return None, None, None, *scaled  # times a scalar, which leaves the type as it is


class _ChunkSums(torch.autograd.Function):
    """The loss of a few rows of logits, smoothed and plain. Nothing comes after it, so its own gradient is 1."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, share: float) -> tuple[Tensor, Tensor]:
        sums, gradient = _sums_and_gradient(logits, targets, share)
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(sums[1])
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, None, None]:
        return ctx.saved_tensors[0], None, None


def _sums_and_gradient(logits: Tensor, targets: Tensor, share: float) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """The loss, smoothed and plain, and the gradient of the smoothed one, like the logits (rows, V).

    With q = 1 - share on the right token and share / V on every one, the loss is -q log p_right - share mean(log p),
    and its gradient p - share / V, minus q where the right token is.
    """
    precise = torch.promote_types(logits.dtype, torch.float32)
    log_p = logits.log_softmax(-1, dtype=precise)  # (rows, V)
    counted = (targets != IGNORED)[:, None]
    right = targets[:, None].where(counted, 0)  # (rows, 1)
    plain = -log_p.gather(1, right).where(counted, 0).sum()
    smoothed = (1 - share) * plain
    if share:
        smoothed -= share * log_p.mean(-1, keepdim=True).where(counted, 0).sum()
    p = log_p.exp_().sub_(share / logits.shape[-1])
    p.scatter_add_(1, right, torch.full_like(right, share - 1, dtype=p.dtype))
    return (smoothed, plain), p.mul_(counted).to(logits.dtype)


def _sum(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    return part if total is None or part is None else total.add_(part)


def counted_tokens(targets: Tensor) -> int:
    """The number of targets that the loss counts."""
    return int((targets != IGNORED).sum())


def make_loss_fn(
    body: Forward,
    smoothing: Smoothing = NO_SMOOTHING,
    *,
    head: Head | None = None,
    parameters: Callable[[], Sequence[Tensor]] = tuple,
) -> LossFunction:
    """Compose body, head and loss into one function, so that torch.compile sees them all.

    Args:
        body: called with all of a batch's tensors but the last, gives hidden states (B, T, D), or with no head logits.
        smoothing, head, parameters: see `token_loss_sum`; the parameters as they are once the body has run.
    """

    def loss_fn(*batch: Tensor) -> tuple[Tensor, Tensor]:
        *inputs, targets = batch
        hidden = body(*inputs)
        return token_loss_sum(hidden, targets, smoothing, head=head, parameters=parameters())

    return loss_fn


def backward(
    loss_fn: LossFunction,
    batch: Sequence[Tensor],
    *,
    tokens: int,
    parts: int = 1,
    world_size: int = 1,
    no_sync: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Tensor:
    """Add the gradient of the batch's loss to the parameters, `parts` micro-batches one after the other.

    Args:
        loss_fn: see `make_loss_fn`.
        batch: inputs and, last, targets (B, T); each split along its first axis.
        tokens: what to divide by: the counted targets of the whole batch.
        world_size: the processes that share the batch. Their gradients are averaged, so each is taken as many times.
        no_sync: entered for every micro-batch but the last, after which the processes' gradients are reduced.

    Returns:
        The loss without smoothing, (), without a graph: comparable with the held-out loss. Of these rows alone.
    """
    loss = torch.zeros((), device=batch[-1].device)
    micro_batches = list(zip(*(tensor.tensor_split(parts) for tensor in batch), strict=True))
    filled = [micro_batch for micro_batch in micro_batches if len(micro_batch[-1])]
    for index, micro_batch in enumerate(filled):
        with nullcontext() if index == len(filled) - 1 else no_sync():
            smoothed, plain = loss_fn(*micro_batch)
            (smoothed * world_size / max(1, tokens)).backward()  # type: ignore[no-untyped-call]
            loss += plain / max(1, tokens)
    return loss
