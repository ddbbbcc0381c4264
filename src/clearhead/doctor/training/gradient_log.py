"""Every parameter's gradient, from the backward that makes it to the step that uses it and the zero that ends it.

Nothing is patched for this: whether a gradient was cleared is seen in it, however it was done.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from clearhead.doctor.probes.tensors import is_same

SAMPLE = 2**16  # numbers that stand for a tensor


def sample(tensor: Tensor) -> Tensor:
    """A copy of what it holds at this moment, (N,): all of a small tensor, evenly spread numbers of a large one."""
    flat = _numbers(tensor).reshape(-1)
    return flat[:: max(1, -(-flat.numel() // SAMPLE))].clone()


def _numbers(tensor: Tensor) -> Tensor:
    """Those that it holds; of a sparse one, those that are not left out."""
    tensor = tensor.detach()
    return tensor.coalesce().values() if tensor.is_sparse else tensor


def norm(numbers: Tensor) -> float:
    """Their Euclidean length."""
    return float(torch.linalg.vector_norm(numbers.double()))


def _gradient(parameter: nn.Parameter) -> Tensor | None:
    """A sample of its gradient; None if it has none, or nothing but zeros."""
    return None if parameter.grad is None or not bool(_numbers(parameter.grad).any()) else sample(parameter.grad)


@dataclass(eq=False)
class GradientAccount:
    """What is known of one parameter and its gradient."""

    parameter: nn.Parameter
    first: Tensor = field(init=False)  # the weights when they were first seen
    value: Tensor = field(init=False)  # the weights after the last step
    before: Tensor | None = None  # the gradient as the backward under way found it
    latest: Tensor | None = None  # the gradient as the last backward left it
    used: Tensor | None = None  # the gradient as the last step left it
    used_at: int = -1  # how many backwards there were then
    touched: bool = False  # a backward changed it since then
    mixture: tuple[float, float, float] | None = None  # norms of a used gradient, of what was added, and of both
    reached: bool = False  # it was anything but zero once
    present: bool = False  # it was there once
    thrown_away: int = 0  # times that it was cleared and no step had used it

    def __post_init__(self) -> None:
        self.first = self.value = sample(self.parameter)


@dataclass(eq=False)
class Use:
    """The gradients at the moment when a step takes them."""

    with_gradient: list[nn.Parameter] = field(default_factory=list)
    wiped: list[nn.Parameter] = field(default_factory=list)  # a backward filled it, and now it is empty
    again: list[nn.Parameter] = field(default_factory=list)  # a step used this very gradient, and no backward followed
    mixed: dict[nn.Parameter, tuple[float, float, float]] = field(default_factory=dict)  # see `GradientAccount.mixture`
    not_finite: list[nn.Parameter] = field(default_factory=list)
    length: float = 0.0  # of the whole gradient
    scaled: float = 1.0  # how long it is, of what the last backward left: it may have been divided, or clipped
    backwards: int = 0  # since the optimizer's use before


class GradientLog:
    """The accounts of all parameters that were seen."""

    def __init__(self) -> None:
        self.accounts: dict[nn.Parameter, GradientAccount] = {}
        self.backwards = 0

    def open(self, parameters: Iterable[nn.Parameter]) -> None:
        """Begin to watch those that are new."""
        for parameter in parameters:
            if parameter not in self.accounts:
                self.accounts[parameter] = GradientAccount(parameter)

    def begin_backward(self) -> int:
        """Look at all gradients, before a backward adds to them; returns how many were cleared and never used."""
        cleared = 0
        for account in self.accounts.values():
            account.before = _gradient(account.parameter)
            if account.before is None:
                account.thrown_away += account.touched
                cleared += account.touched
                account.touched, account.mixture = False, None
        return cleared

    def end_backward(self) -> int:
        """See what it added, and to what; returns how many parameters it reached."""
        self.backwards += 1
        reached = 0
        for account in self.accounts.values():
            before, account.before = account.before, None
            now = account.latest = _gradient(account.parameter)
            account.present |= account.parameter.grad is not None
            if now is None or is_same(now, before):
                continue
            if before is not None and is_same(before, account.used):
                own = norm(now - before) if now.shape == before.shape else 0.0
                account.mixture = (norm(before), own, norm(now))
            account.touched = account.reached = True
            reached += 1
        return reached

    def use(self, parameters: Iterable[nn.Parameter]) -> Use:
        """What a step is about to take."""
        use = Use()
        lengths, before, after = [], [0.0], [0.0]
        for parameter in parameters:
            account, gradient = self.accounts[parameter], _gradient(parameter)
            if gradient is None or parameter.grad is None:
                if account.touched:
                    use.wiped.append(parameter)
                continue
            use.with_gradient.append(parameter)
            lengths.append(norm(_numbers(parameter.grad)))
            if not math.isfinite(lengths[-1]):
                use.not_finite.append(parameter)
            if account.latest is not None:
                before.append(norm(account.latest))
                after.append(norm(gradient))
            if account.mixture is not None:
                use.mixed[parameter] = account.mixture
            elif account.used_at == self.backwards and not account.touched and is_same(gradient, account.used):
                use.again.append(parameter)
        use.length = math.hypot(*lengths)
        use.scaled = math.hypot(*after) / math.hypot(*before) if any(before) else 1.0
        return use

    def settle(self, parameters: Iterable[nn.Parameter]) -> None:
        """A step has used them."""
        for parameter in parameters:
            account = self.accounts[parameter]
            account.used = _gradient(parameter)
            account.used_at = self.backwards
            account.touched, account.mixture = False, None
            account.value = sample(parameter)
