"""Inference helpers: temporary eval mode, hook detection, finite checks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from clearhead.errors import ClearheadError

OnNotice = Callable[[str], None]  # a callback for sentences to show the user


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into eval mode inside the `with`; restore every module's own mode after it."""
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def first_hooked_module(model: nn.Module) -> str | None:
    """Class name of the first module with a forward hook, or None. Native code would not call hooks."""
    parts = (module for module in model.modules() if module._forward_hooks or module._forward_pre_hooks)
    return next((type(part).__name__ for part in parts), None)


def refuse_not_finite(numbers: Tensor) -> None:
    """Refuse logits, or numbers computed from them, that are infinite or NaN.

    Raises:
        ClearheadError: at least one is not finite.
    """
    if not numbers.isfinite().all():
        raise ClearheadError(
            "the model's output is not finite: its weights are damaged or its training diverged; "
            "use an earlier checkpoint"
        )
