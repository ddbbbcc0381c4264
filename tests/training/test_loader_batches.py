"""A DataLoader of torch is as good as a function of the step."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import clearhead as ch
from clearhead.errors import UsageError
from clearhead.training import Stepped

IDS = torch.randint(11, (6, 9), generator=torch.Generator().manual_seed(0))
INPUTS, TARGETS = IDS[:, :-1], IDS[:, 1:]


def losses(batch: object, steps: int = 5) -> list[float]:
    config = ch.ModelConfig(vocab_size=11, block_size=8, n_layers=1, n_heads=2, d_model=8)
    options = ch.TrainConfig(steps=steps, precision="float32")
    events = ch.fit(ch.DecoderLM(config), options, batch)  # type: ignore[arg-type]
    return [event.loss for event in events if isinstance(event, Stepped)]


def test_a_loader_is_read_again_and_again() -> None:
    loader = DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=2)  # three batches

    def batch(step: int) -> tuple[Tensor, Tensor]:
        rows = slice(2 * (step % 3), 2 * (step % 3) + 2)
        return INPUTS[rows], TARGETS[rows]

    assert losses(loader) == losses(batch)
    assert losses([(INPUTS, TARGETS)]) == losses(lambda step: (INPUTS, TARGETS))


def test_batches_that_end_are_a_sentence() -> None:
    def once() -> Iterator[tuple[Tensor, Tensor]]:
        yield INPUTS, TARGETS

    with pytest.raises(UsageError, match="ended after 1 and cannot be read again; give a DataLoader"):
        losses(once())
    with pytest.raises(UsageError, match="ended after 0"):
        losses([])


@pytest.mark.parametrize("batch", [{"input_ids": INPUTS}, INPUTS, (INPUTS,)])
def test_what_is_no_batch_is_a_sentence(batch: object) -> None:
    for batches in ([batch], lambda step: batch):
        with pytest.raises(UsageError, match="a batch is a tuple of tensors, the model's inputs and then the targets"):
            losses(batches)


def test_targets_that_are_no_ids_are_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"^targets are token ids, whole numbers, not torch\.float32$"):
        losses([(INPUTS, TARGETS.float())])


def test_batches_in_the_place_of_the_config_are_a_sentence() -> None:
    fit: Any = ch.fit
    with pytest.raises(TypeError, match=r"^fit takes a model, a TrainConfig and batches, in this order, not list$"):
        next(fit(ch.DecoderLM(ch.ModelConfig(vocab_size=9)), [(INPUTS, TARGETS)], ch.TrainConfig(steps=1)))
