"""A training that diverges: whatever is kept of it is finite and good, and goes on at a lower rate."""

import itertools
import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from training_helpers import evaluator, start, tiny_batch, tiny_config

from clearhead.errors import ClearheadError
from clearhead.models import Evaluation, LanguageModel
from clearhead.training import Event, Notice, SaveDue, Stepped, TrainingState, checkpoints, fit
from clearhead.training.checkpoints import named_tensors

RATES = [0.01, 3.0, 1e3, 1e10, 1e38]
GOOD = 1e-3
UNREADABLE = 0  # a token: a batch that begins with it has no finite loss


def run(folder: Path, steps: int, *, rate: float, evaluates: bool = False, **options: Any) -> list[float]:
    """Train from the newest checkpoint in the folder, saving what is due; the losses. A failure passes on."""
    config = tiny_config(steps=steps, learning_rate=rate, **options)
    model, optimizer, state = start(config)
    newest = checkpoints.newest(folder)
    if newest:
        state = checkpoints.load(newest.path, model, optimizer)
    evaluate = evaluator(model) if evaluates else None
    losses = []
    for event in fit(model, config, tiny_batch, seed=7, optimizer=optimizer, state=state, evaluate=evaluate):
        if isinstance(event, Stepped):
            losses.append(event.loss)
        elif isinstance(event, SaveDue):
            checkpoints.save(folder, model, optimizer, event.state, keep=2, every=config.save_every)
    return losses


def assert_finite(folder: Path) -> None:
    """Every number of every checkpoint that was kept."""
    for path in folder.iterdir():
        model, optimizer, _ = start(tiny_config(optimizer="muon" if "muon" in folder.name else "adamw"))
        checkpoints.load(path, model, optimizer)
        for name, tensor in {**named_tensors(model), **optimizer.state}.items():
            assert tensor.isfinite().all(), f"{name} in {path.name}"


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("optimizer", "rate", "save_every", "warmup", "clip"),
    [
        pytest.param(*case, marks=[] if number % 6 == 0 or case == ("adamw", 1e3, 4, 0, 1.0) else pytest.mark.campaign)
        for number, case in enumerate(itertools.product(["adamw", "muon"], RATES, [1, 4, 10], [0, 25], [1.0, math.inf]))
    ],
)
def test_what_is_kept_of_a_diverging_training_is_good(
    optimizer: str, rate: float, save_every: int, warmup: int, clip: float, tmp_path: Path
) -> None:
    """The case of the report: AdamW at 1000, no warm-up, a save every 4 steps. The rate of 1e38 overflows weights."""
    folder = tmp_path / optimizer
    options: dict[str, Any] = {
        "optimizer": optimizer,
        "save_every": save_every,
        "warmup_steps": warmup,
        "max_grad_norm": clip,
    }
    with suppress(ClearheadError):
        run(folder, 24, rate=rate, evaluates=save_every == 4, **options)
    folder.mkdir(exist_ok=True)
    assert_finite(folder)
    newest = checkpoints.newest(folder)
    before = checkpoints.read_state(newest.path) if newest else TrainingState()
    losses = run(folder, before.step + 15, rate=GOOD, **options)
    assert len(losses) == 15, "every step was done"
    assert all(map(math.isfinite, losses))
    assert_finite(folder)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("optimizer", "rate"), [("adamw", 10.0), ("adamw", 30.0), ("adamw", 1e3), ("adamw", 1e5), ("muon", 10.0)]
)
def test_a_good_checkpoint_outlives_what_diverges_behind_it(optimizer: str, rate: float, tmp_path: Path) -> None:
    """A finite loss is not yet a good one: weights that give twenty nats are of no use to anybody."""
    options: dict[str, Any] = {"optimizer": optimizer, "save_every": 4, "warmup_steps": 0}
    losses = run(tmp_path, 8, rate=GOOD, **options)
    with suppress(ClearheadError):
        run(tmp_path, 32, rate=rate, **options)
    newest = checkpoints.newest(tmp_path)
    assert newest is not None
    step = checkpoints.read_state(newest.path).step
    resumed = run(tmp_path, step + 30, rate=GOOD, **options)
    assert resumed[0] < losses[0] + 1
    assert sum(resumed[-5:]) / 5 < losses[0], "it learns from there"


def test_one_batch_that_cannot_be_learned_from_at_the_end_spoils_nothing(tmp_path: Path) -> None:
    config = tiny_config(steps=7, save_every=3)
    model, optimizer, state = start(config)

    def body(*inputs: torch.Tensor) -> torch.Tensor:
        hidden = model.body(*inputs)
        return hidden * math.nan if inputs[0][0, 0] == UNREADABLE else hidden

    def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = tiny_batch(step)
        if step in (3, 6):  # just behind a save, and the last one
            inputs = inputs.clone()
            inputs[0, 0] = UNREADABLE
        else:
            inputs = torch.where(inputs == UNREADABLE, 1, inputs)
        return inputs, targets

    events = list(fit(model, config, batch, seed=7, optimizer=optimizer, state=state, body=body))
    assert state.skipped == 2
    assert [event.state.step for event in events if isinstance(event, SaveDue)] == [3, 6, 7]


def spoil_row(model: LanguageModel, events: Iterator[Event]) -> None:
    for event in events:
        assert not isinstance(event, SaveDue)
        with torch.no_grad():
            model.get_parameter("embedding.weight")[19, 0] = math.inf


def test_a_weight_that_no_batch_shows_is_noticed_before_it_is_saved(tmp_path: Path) -> None:
    """The row of a token that does not occur may overflow while every loss is finite."""
    config = tiny_config(save_every=2)
    model, optimizer, state = start(config, vocab_size=20, tie_embeddings=False)
    with pytest.raises(
        ClearheadError, match=r"embedding\.weight was not finite, up to step 2; nothing was saved before"
    ):
        spoil_row(model, fit(model, config, tiny_batch, seed=7, optimizer=optimizer, state=state))


def test_a_training_that_ends_while_it_diverges_fails(tmp_path: Path) -> None:
    """Its last steps are as good as any other, or it says so."""
    with pytest.raises(ClearheadError, match="the training diverged, up to step 5"):
        run(tmp_path, 5, rate=1e10, warmup_steps=0)


def test_an_interruption_keeps_nothing_that_is_not_good(tmp_path: Path) -> None:
    config = tiny_config(steps=40, learning_rate=1e3, warmup_steps=0, save_every=100)
    model, optimizer, state = start(config)

    def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        if step == 1:
            raise KeyboardInterrupt
        return tiny_batch(step)

    events: list[Event] = []
    with pytest.raises(KeyboardInterrupt):
        events.extend(fit(model, config, batch, seed=7, optimizer=optimizer, state=state))
    assert not any(isinstance(event, SaveDue) for event in events)


def test_the_best_weights_are_those_that_were_saved(tmp_path: Path) -> None:
    """An evaluation may still be finite where the next gradient is not; then an earlier one is the best."""
    config = tiny_config(steps=12, eval_every=1, save_every=100)
    model, optimizer, state = start(config)
    losses = iter([3.0, 2.0, 1.0, *[5.0] * 9])

    def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = tiny_batch(step)
        if step == 3:  # after the evaluation of 1.0
            model.get_parameter("embedding.weight").register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: gradient * math.nan
            )
        return inputs, targets

    def evaluate() -> Evaluation:
        return Evaluation(next(losses), 1)

    events: list[Event] = []
    with pytest.raises(ClearheadError):
        events.extend(fit(model, config, batch, seed=7, optimizer=optimizer, state=state, evaluate=evaluate))
    assert [event.state.step for event in events if isinstance(event, SaveDue)] == [1, 2]
    assert sum(isinstance(event, Notice) for event in events) == 1
    assert (state.best_step, state.best_loss) == (2, 2.0)
