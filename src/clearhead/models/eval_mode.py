"""What every use of a finished model begins with: its mode, borrowed, and numbers that are numbers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from clearhead.errors import ClearheadError

Notice = Callable[[str], None]  # told in a sentence what a person should know


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """No dropout inside the `with`; afterwards every module is in the mode it was in."""
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def hooked(model: nn.Module) -> str | None:
    """The kind of a part that tells others what it computes, which code outside of torch would not."""
    parts = (module for module in model.modules() if module._forward_hooks or module._forward_pre_hooks)
    return next((type(part).__name__ for part in parts), None)


def refuse_not_finite(numbers: Tensor) -> None:
    """Of logits, or of what was made of them.

    Raises:
        ClearheadError: one of them is infinite or no number.
    """
    if not numbers.isfinite().all():
        raise ClearheadError(
            "the model's output is not finite: its weights are damaged or its training diverged; "
            "use an earlier checkpoint"
        )
