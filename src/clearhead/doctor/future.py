"""Whether a model sees the future, exactly: by a gradient that must be zero, by logits that must not change.

Both are asked of several copies of a batch's rows at once, each with its own last position `t`: the logits up to t may
depend on the tokens up to t, and on nothing else in the batch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clearhead.doctor.preflight_report import Fault

Forward = Callable[[Tensor], Tensor]  # ids (B, T) -> logits (B, T, V)


@dataclass(frozen=True)
class Question:
    """Rows of ids (R, T), and for each the last position `t` (R,) whose logits are asked about."""

    ids: Tensor
    last: Tensor
    generator: torch.Generator

    @property
    def is_future(self) -> Tensor:
        """(R, T), True after each row's `t`."""
        return torch.arange(self.ids.shape[1], device=self.ids.device) > self.last[:, None]


def affordable(inputs: Tensor, tokens: int) -> tuple[int, int]:
    """How many rows and columns of `inputs` (B, T) make about `tokens` tokens, at least four rows of eight."""
    columns = min(inputs.shape[1], max(8, tokens // 4))
    return max(1, tokens // columns), columns


def make_question(inputs: Tensor, *, tokens: int, generator: torch.Generator) -> Question | None:
    """About `tokens` tokens of `inputs` (B, T), asked at positions spread over the whole row; None for rows of one."""
    rows, T = affordable(inputs, tokens)
    if T < 2:
        return None
    rows = min(T - 1, max(4, rows))
    ids = inputs[torch.arange(rows, device=inputs.device) % len(inputs), :T]  # (R, T)
    last = torch.linspace(0, T - 2, rows).round().long().to(inputs.device)  # (R,)
    return Question(ids, last, generator)


def gradient_into_the_future(model: nn.Module, forward: Forward, question: Question) -> list[Fault] | None:
    """The gradient of the logits up to t with respect to the embedded tokens must be zero after t.

    Returns:
        The faults; None when no `nn.Embedding` consumes the ids, so that there is nothing to differentiate by.
    """
    with _embedded(model, question.ids) as outputs:
        logits = forward(question.ids)  # (R, T, V)
    if not outputs:
        return None
    if not logits.isfinite().all():
        return [_not_finite()]
    weights = torch.randn(logits.shape, generator=question.generator).to(logits)
    asked = (weights * logits).sum(-1).masked_fill(question.is_future, 0)  # (R, T)
    gradients = torch.autograd.grad(asked.sum(), outputs, allow_unused=True)
    depends = torch.zeros_like(question.is_future)  # (R, T)
    for gradient in gradients:
        if gradient is not None:
            depends |= (gradient != 0).any(-1)
    return _judge(depends, question)


def change_of_the_future(forward: Forward, question: Question) -> list[Fault] | None:
    """Other tokens after t must leave the logits up to t as they are, to the last bit.

    Returns:
        The faults; None when the batch holds one token only, so that there is no other to change it to.
    """
    known = torch.unique(question.ids)
    if len(known) < 2:
        return None
    place = torch.searchsorted(known, question.ids)
    shift = torch.randint(1, len(known), place.shape, generator=question.generator).to(place)
    other = torch.where(question.is_future, known[(place + shift) % len(known)], question.ids)
    with torch.no_grad():
        before, after = forward(question.ids), forward(other)  # (R, T, V)
    if not (before.isfinite().all() and after.isfinite().all()):
        return [_not_finite()]
    changed = (before != after).any(-1)  # (R, T)
    leaks = (changed & ~question.is_future).nonzero().tolist()
    if leaks:
        row, position = leaks[0]
        return [_leak(position, f"one of the tokens after {int(question.last[row])}")]
    return [] if changed.any() else [_deaf()]


@contextmanager
def _embedded(model: nn.Module, ids: Tensor) -> Iterator[list[Tensor]]:
    """Collects what embeddings make of exactly these ids, (R, T, D) each, cut off from what lies before."""
    outputs: list[Tensor] = []

    def cut(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        if not inputs or inputs[0].shape != ids.shape or not torch.equal(inputs[0], ids):
            return None
        outputs.append(output.detach().requires_grad_())
        return outputs[-1]

    handles = [module.register_forward_hook(cut) for module in model.modules() if isinstance(module, nn.Embedding)]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def _judge(depends: Tensor, question: Question) -> list[Fault]:
    leaks = (depends & question.is_future).nonzero().tolist()
    if leaks:
        row, position = leaks[0]
        return [_leak(int(question.last[row]), f"the token at {position}", up_to=True)]
    return [] if depends.any() else [_deaf()]


def _leak(position: int, future: str, *, up_to: bool = False) -> Fault:
    reader = f"the logits up to position {position}" if up_to else f"the logits at position {position}"
    return Fault(
        "future-leak",
        "the model sees the future",
        f"{reader} depend on {future}",
        "mend the attention mask (causal, its diagonal, its polarity), or a norm or pooling that runs over time",
    )


def _deaf() -> Fault:
    return Fault(
        "deaf",
        "the model does not hear its input",
        "no token changes any of the logits",
        "look for a detached tensor, a mask that forbids everything, or a residual connection that is missing",
    )


def _not_finite() -> Fault:
    return Fault(
        "not-finite",
        "the logits are not finite",
        "infinity or NaN on the first batch",
        "look at the initialisation and for rows of the mask that forbid everything",
    )
