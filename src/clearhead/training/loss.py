"""The loss: sum of token losses over the number of counted tokens, in nats per token.

The division is by the tokens of the whole batch, so splitting it into micro-batches, which may count unequal numbers of
tokens, leaves loss and gradient what they are.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.data import IGNORED

Forward = Callable[..., Tensor]  # the inputs of a batch -> logits (B, T, V)


def token_loss_sum(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy in float32, summed over the counted targets; logits (..., V), targets (...) -> ()."""
    flat = logits.flatten(0, -2).float()  # (N, V)
    return F.cross_entropy(flat, targets.flatten(), ignore_index=IGNORED, reduction="sum")


def counted_tokens(targets: Tensor) -> int:
    """How many targets the loss counts."""
    return int((targets != IGNORED).sum())


def backward(forward: Forward, batch: Sequence[Tensor], *, tokens: int, parts: int = 1) -> Tensor:
    """Add the gradient of the batch's loss to the parameters, `parts` micro-batches one after the other.

    Args:
        forward: called with all of the batch's tensors but the last, gives logits (B, T, V).
        batch: inputs and, last, targets (B, T); each split along its first axis.
        tokens: what to divide by: the counted targets of the whole batch.

    Returns:
        The loss of the batch, (), without a graph.
    """
    loss = torch.zeros((), device=batch[-1].device)
    for *inputs, targets in zip(*(tensor.tensor_split(parts) for tensor in batch), strict=True):
        if len(targets):
            part = token_loss_sum(forward(*inputs), targets) / max(1, tokens)
            part.backward()  # type: ignore[no-untyped-call]
            loss += part.detach()
    return loss
