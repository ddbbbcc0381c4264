"""How well a model predicts a text."""

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.data import IGNORED
from clearhead.errors import DataError
from clearhead.models import Evaluation, LanguageModel, rows_at_once
from clearhead.models.eval_mode import evaluating


class NothingToEvaluateError(DataError):
    """There is no token to predict."""

    def __init__(self) -> None:
        super().__init__("there is nothing to evaluate: the text has no token to predict; give a longer one")


def evaluate(
    model: LanguageModel,
    batches: Iterable[Sequence[Tensor]],
    *,
    body: Callable[..., Tensor] | None = None,
) -> Evaluation:
    """The mean over all counted tokens, so the same however they are batched.

    Args:
        model: in any mode; it is evaluated without dropout and left as it was.
        batches: the model's inputs and, last, targets (B, T); a target of -100 is not counted.
        body: replaces `model.body`, e.g. to apply a document mask.

    Raises:
        NothingToEvaluateError: there is no token to predict.
    """
    device, sums, counts = model.device, [], []
    with evaluating(model), torch.inference_mode():
        for batch in batches:
            *inputs, targets = (tensor.to(device) for tensor in batch)
            losses = token_losses(model, (body or model.body)(*inputs), targets)  # (B, T)
            sums.append(losses.sum(-1))  # (B,): short sums, so float32 loses nothing that counts
            counts.append((targets != IGNORED).sum())
    tokens = int(torch.stack(counts).sum()) if counts else 0
    if not tokens:
        raise NothingToEvaluateError
    return Evaluation(torch.cat(sums).cpu().double().sum().item() / tokens, tokens)


def token_losses(model: LanguageModel, hidden: Tensor, targets: Tensor) -> Tensor:
    """-log p of every target in nats, 0 where it is not counted; hidden (B, T, D), targets and result (B, T)."""
    rows = rows_at_once(model.config.vocab_size, hidden.device)
    flat_hidden, flat_targets = hidden.flatten(0, 1), targets.flatten()
    losses = []
    for start in range(0, len(flat_hidden), rows):
        logits = model.head(flat_hidden[start : start + rows]).float()  # (rows, V)
        some = flat_targets[start : start + rows]
        losses.append(F.cross_entropy(logits, some, ignore_index=IGNORED, reduction="none"))
    return torch.cat(losses).view_as(targets)  # (B * T,) -> (B, T)
