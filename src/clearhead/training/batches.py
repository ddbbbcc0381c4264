"""The batches of a training: a function of the step, or a DataLoader that is read again and again."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from torch import Tensor

from clearhead.errors import UsageError

BatchOf = Callable[[int], Sequence[Tensor]]  # step, counted from 0 -> the model's inputs and, last, the targets
Batches = BatchOf | Iterable[Sequence[Tensor]]


def batch_function(batches: Batches) -> BatchOf:
    """The batch of a step, called for one step after the other.

    An iterable, such as a DataLoader, is restarted when exhausted. Its order is its own, so resume is not exact.
    """
    if callable(batches):
        return lambda step: _checked(batches(step))
    endless = _again_and_again(batches)
    return lambda step: _checked(next(endless))


def _again_and_again(batches: Iterable[Sequence[Tensor]]) -> Iterator[Sequence[Tensor]]:
    count = 0
    while True:
        before = count
        for batch in batches:
            count += 1
            yield batch
        if count == before:
            ended = f"the batches ended after {count:,} and cannot be read again"
            raise UsageError(f"{ended}; give a DataLoader or a function of the step")


def _checked(batch: Sequence[Tensor]) -> Sequence[Tensor]:
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        held = f"{len(batch)} of them" if isinstance(batch, tuple | list) else type(batch).__name__
        raise UsageError(f"a batch is a tuple of tensors, the model's inputs and then the targets, not {held}")
    if isinstance(batch[-1], Tensor) and batch[-1].is_floating_point():
        raise UsageError(f"targets are token ids, whole numbers, not {batch[-1].dtype}")
    return batch
