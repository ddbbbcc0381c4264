"""The training's figures for TensorBoard, an extra: pip install 'clearhead[tensorboard]'."""

from pathlib import Path
from types import TracebackType
from typing import Self

from clearhead.errors import UsageError
from clearhead.training import Evaluated, Event, Stepped


class TensorBoard:
    """Consumes the loop's events and writes them where `tensorboard --logdir` finds them."""

    def __init__(self, folder: Path, first_step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UsageError(
                "`train.tensorboard` needs TensorBoard, which is not installed: pip install 'clearhead[tensorboard]'"
            ) from None
        self.writer = SummaryWriter(str(folder), purge_step=first_step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.writer.close()

    def take(self, event: Event) -> None:
        """Handle one event of the loop."""
        match event:
            case Stepped():
                self._scalars(event.step, loss=event.loss, rate=event.learning_rate, gradient=event.gradient_norm)
            case Evaluated():
                self._scalars(event.step, validation_loss=event.loss)

    def _scalars(self, step: int, **figures: float) -> None:
        for name, value in figures.items():
            self.writer.add_scalar(name, value, step)
