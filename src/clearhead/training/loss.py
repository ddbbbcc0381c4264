"""The loss: sum of token losses over the number of counted tokens, in nats per token, with optional label smoothing.

The division is by the tokens of the whole batch, so splitting it into micro-batches, which may count unequal numbers of
tokens, leaves loss and gradient what they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from clearhead.data import IGNORED

IN_CACHE, AT_ONCE = 2**20, 2**26  # logits (rows times V) per chunk, on a CPU and elsewhere
Forward = Callable[..., Tensor]  # the inputs of a batch -> logits (B, T, V)
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


def token_loss_sum(logits: Tensor, targets: Tensor, smoothing: Smoothing = NO_SMOOTHING) -> tuple[Tensor, Tensor]:
    """Cross entropy in float32, summed over the counted targets: with label smoothing, to train on, and without.

    Args:
        logits: (..., V). targets: (...), -100 where not counted.

    Returns:
        Two scalars (); the second one has no graph.
    """
    flat_logits, flat_targets = logits.flatten(0, -2), targets.flatten()  # (N, V), (N,)
    share = SMOOTHINGS[smoothing.over](smoothing.share, flat_logits.shape[-1])
    if torch.compiler.is_compiling():  # torch.compile fuses this
        precise = flat_logits.to(torch.promote_types(flat_logits.dtype, torch.float32))
        smoothed = F.cross_entropy(precise, flat_targets, ignore_index=IGNORED, reduction="sum", label_smoothing=share)
        plain = F.cross_entropy(precise.detach(), flat_targets, ignore_index=IGNORED, reduction="sum")
        return smoothed, plain
    smoothed, plain = _CrossEntropySum.apply(flat_logits, flat_targets, share)  # type: ignore[no-untyped-call]
    return smoothed, plain


class _CrossEntropySum(torch.autograd.Function):
    """`F.cross_entropy(reduction="sum")`, chunked by rows; the forward pass computes the gradient as well.

    With q = 1 - share on the right token and share / V on every one, the loss is -q log p_right - share mean(log p),
    and its gradient p - share / V, minus q where the right token is.
    """

    # `Any`, because torch's type for `ctx` lacks the attributes that a function saves on it.
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, share: float) -> tuple[Tensor, Tensor]:
        V = logits.shape[-1]
        rows = max(1, (IN_CACHE if logits.device.type == "cpu" else AT_ONCE) // V)
        precise = torch.promote_types(logits.dtype, torch.float32)
        gradient, sums = torch.empty_like(logits), [logits.new_zeros(2, dtype=precise)]
        for start in range(0, len(logits), rows):
            some_logits, some_targets, out = (part[start : start + rows] for part in (logits, targets, gradient))
            log_p = some_logits.log_softmax(-1, dtype=precise)  # (rows, V)
            counted = (some_targets != IGNORED)[:, None]
            right = some_targets[:, None].where(counted, 0)  # (rows, 1)
            plain = -log_p.gather(1, right).where(counted, 0).sum()
            smoothed = plain
            if share:
                smoothed = (1 - share) * plain - share * log_p.mean(-1, keepdim=True).where(counted, 0).sum()
            sums.append(torch.stack((smoothed, plain)))
            p = log_p.exp_().sub_(share / V)
            p.scatter_add_(1, right, torch.full_like(right, share - 1, dtype=p.dtype))
            out.copy_(p.mul_(counted))
        smoothed, plain = torch.stack(sums).sum(0)
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(plain)
        return smoothed, plain

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * gradients[0], None, None  # a scalar, which leaves the type as it is


def counted_tokens(targets: Tensor) -> int:
    """The number of targets that the loss counts."""
    return int((targets != IGNORED).sum())


def make_loss_fn(forward: Forward, smoothing: Smoothing = NO_SMOOTHING) -> LossFunction:
    """Compose forward and loss into one function, so that torch.compile sees both.

    Args:
        forward: called with all of a batch's tensors but the last, gives logits (B, T, V).
        smoothing: of the targets.
    """

    def loss_fn(*batch: Tensor) -> tuple[Tensor, Tensor]:
        *inputs, targets = batch
        return token_loss_sum(forward(*inputs), targets, smoothing)

    return loss_fn


def backward(loss_fn: LossFunction, batch: Sequence[Tensor], *, tokens: int, parts: int = 1) -> Tensor:
    """Add the gradient of the batch's loss to the parameters, `parts` micro-batches one after the other.

    Args:
        loss_fn: see `make_loss_fn`.
        batch: inputs and, last, targets (B, T); each split along its first axis.
        tokens: what to divide by: the counted targets of the whole batch.

    Returns:
        The loss without smoothing, (), without a graph: comparable with the held-out loss.
    """
    loss = torch.zeros((), device=batch[-1].device)
    for part in zip(*(tensor.tensor_split(parts) for tensor in batch), strict=True):
        if len(part[-1]):
            smoothed, plain = loss_fn(*part)
            (smoothed / max(1, tokens)).backward()  # type: ignore[no-untyped-call]
            loss += plain / max(1, tokens)
    return loss
