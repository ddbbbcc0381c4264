import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training_helpers import assert_same_weights, evaluator, start, tiny_batch, tiny_config, tiny_model, train

from clearhead.config import TrainConfig
from clearhead.errors import ClearheadError
from clearhead.models import Evaluation, LanguageModel
from clearhead.reference.loss import IGNORED
from clearhead.training import (
    Evaluated,
    Event,
    Notice,
    Optimizer,
    SaveDue,
    Stepped,
    TrainingState,
    checkpoints,
    fit,
    learning_rate,
    resolve_precision,
)
from clearhead.training.checkpoints import named_tensors
from clearhead.training.loop import SKIPS_ALLOWED


def without_time(events: list[Event]) -> list[Event]:
    return [replace(event, seconds=0.0) if isinstance(event, Stepped) else event for event in events]


def losses(events: list[Event]) -> list[float]:
    return [event.loss for event in events if isinstance(event, Stepped)]


def test_training_lowers_the_loss() -> None:
    _, events = train(tiny_config(steps=80, optimizer="muon"), dropout=0.0)
    assert losses(events)[0] == pytest.approx(math.log(11), rel=0.02)
    assert sum(losses(events)[-10:]) / 10 < 1.5, "two equally likely next tokens: ln 2 is the floor"


def test_events_come_at_their_steps_and_at_the_end() -> None:
    model = tiny_model()
    scores = iter([3.0, 2.0, 2.5])
    events = list(fit(model, tiny_config(), tiny_batch, seed=0, evaluate=lambda: Evaluation(next(scores), 5)))
    stepped = [event for event in events if isinstance(event, Stepped)]
    assert [event.step for event in stepped] == list(range(1, 13))
    assert [event.learning_rate for event in stepped] == [learning_rate(tiny_config(), step) for step in range(12)]
    assert [event.tokens for event in stepped] == [4 * 8 - step % 8 for step in range(12)]
    assert not any(event.skipped for event in stepped)
    evaluated = [event for event in events if isinstance(event, Evaluated)]
    assert evaluated == [Evaluated(4, 3.0, 5, True), Evaluated(8, 2.0, 5, True), Evaluated(12, 2.5, 5, False)]
    saves = [(event.state.step, event.best) for event in events if isinstance(event, SaveDue)]
    assert saves == [(4, True), (5, False), (8, True), (10, False), (12, False)], "each new best is kept as well"
    assert isinstance(events[-1], SaveDue)
    first = losses(events)[0]
    assert events[-1].state == TrainingState(12, sum(4 * 8 - step % 8 for step in range(12)), 0, 2.0, 8, first)


def test_the_model_trains_in_training_mode_and_is_evaluated_in_evaluation_mode() -> None:
    model = tiny_model()
    modes: list[tuple[str, bool]] = []

    def batch(step: int) -> tuple[Tensor, Tensor]:
        modes.append(("train", model.training))
        return tiny_batch(step)

    def evaluate() -> Evaluation:
        modes.append(("evaluate", model.training))
        return Evaluation(1.0, 1)

    for _ in fit(model, tiny_config(), batch, seed=0, evaluate=evaluate):
        model.eval()  # a consumer draws a sample and forgets
    assert set(modes) == {("train", True), ("evaluate", False)}


def continue_training(
    model: LanguageModel, config: TrainConfig, optimizer: Optimizer, state: TrainingState, *, until: int
) -> list[Event]:
    """Train on from `state` until `until` steps are done, interrupted the way a person interrupts."""

    def batch(step: int) -> tuple[Tensor, Tensor]:
        if step == until:
            raise KeyboardInterrupt
        return tiny_batch(step)

    received: list[Event] = []  # but for the save of an interruption where none is due
    all_events = fit(model, config, batch, seed=7, optimizer=optimizer, state=state, evaluate=evaluator(model))
    with suppress(KeyboardInterrupt):
        for event in all_events:
            if not (isinstance(event, SaveDue) and event.state.step == until in (0, 1, 7)):
                received.append(event)
            torch.rand(3)  # a consumer that draws from the global generator changes nothing
    return received


@pytest.mark.sampled(4)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("stop", [0, 1, 4, 7, 12])
def test_a_resumed_training_is_the_uninterrupted_one(optimizer: str, stop: int, tmp_path: Path) -> None:
    config = tiny_config(optimizer=optimizer, micro_batches=3)
    whole, events = train(config)
    model, mover, state = start(config)
    resumed = continue_training(model, config, mover, state, until=stop)
    path = checkpoints.save(tmp_path, model, mover, state, keep=1)

    model, mover, _ = start(config, seed=99)
    state = checkpoints.load(path, model, mover)
    resumed += continue_training(model, config, mover, state, until=config.steps)
    assert without_time(resumed) == without_time(events)
    assert_same_weights(model, whole)


def test_a_finished_training_can_be_extended() -> None:
    model, mover, state = start(tiny_config())
    continue_training(model, tiny_config(), mover, state, until=12)
    events = continue_training(model, tiny_config(steps=15), mover, state, until=15)
    assert [event.step for event in events if isinstance(event, Stepped)] == [13, 14, 15]


def test_the_global_generator_is_left_as_it_was() -> None:
    before = torch.get_rng_state()
    train(tiny_config())
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_depends_on_the_seed_and_the_step_alone() -> None:
    def first_loss(seed: int, step: int) -> float:
        state = TrainingState(step=step)
        events = fit(tiny_model(), tiny_config(), lambda _: tiny_batch(0), seed=seed, state=state)
        return losses([next(events)])[0]

    assert first_loss(0, 0) == first_loss(0, 0)
    assert len({first_loss(seed, step) for seed in range(3) for step in range(3)}) == 9


@pytest.mark.parametrize("max_grad_norm", [math.inf, 0.05])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_the_loop_is_the_loop_that_one_would_write(max_grad_norm: float, micro_batches: int) -> None:
    config = tiny_config(max_grad_norm=max_grad_norm, micro_batches=micro_batches, weight_decay=0.3)
    model, events = train(config, dropout=0.0)

    plain = tiny_model(dropout=0.0)
    groups = [
        {"params": [p for p in plain.parameters() if p.ndim >= 2], "weight_decay": 0.3},
        {"params": [p for p in plain.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=False, foreach=False)
    for step, stepped in enumerate(event for event in events if isinstance(event, Stepped)):
        for group in adamw.param_groups:
            group["lr"] = learning_rate(config, step)
        inputs, targets = tiny_batch(step)
        adamw.zero_grad()
        loss = nn.functional.cross_entropy(plain(inputs).flatten(0, 1), targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(plain.parameters(), max_grad_norm)
        adamw.step()
        assert stepped.loss == pytest.approx(loss.item(), rel=1e-4)
        assert stepped.gradient_norm == pytest.approx(norm.item(), rel=1e-3)
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)


def spoil_loss(model: LanguageModel, spoilt: Callable[[int], bool]) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Make the logits NaN in the steps that are `spoilt`; gives the batch function that knows the step."""
    steps: list[int] = []
    model.get_submodule("lm_head").register_forward_hook(
        lambda *args: args[2] * math.nan if spoilt(steps[-1]) else None
    )

    def batch(step: int) -> tuple[Tensor, Tensor]:
        steps.append(step)
        return tiny_batch(step)

    return batch


def spoil_gradient(model: LanguageModel, spoilt: Callable[[int], bool]) -> Callable[[int], tuple[Tensor, Tensor]]:
    """The same, but the loss stays finite and one element of one gradient becomes infinite."""
    steps: list[int] = []

    def hook(gradient: Tensor) -> Tensor:
        one_infinity = torch.zeros_like(gradient)
        one_infinity.view(-1)[0] = math.inf
        return gradient + one_infinity if spoilt(steps[-1]) else gradient

    next(model.parameters()).register_hook(hook)  # type: ignore[no-untyped-call]

    def batch(step: int) -> tuple[Tensor, Tensor]:
        steps.append(step)
        return tiny_batch(step)

    return batch


def test_a_save_changes_nothing_of_a_step_that_has_nothing_to_learn() -> None:
    """A batch without targets has no gradient; whether the weights may be saved is then asked of an earlier batch."""

    def batch(step: int) -> tuple[Tensor, Tensor]:
        inputs, targets = tiny_batch(step)
        return inputs, torch.full_like(targets, IGNORED) if step % 4 == 3 else targets

    models = []
    for save_every in (100, 3):  # a save is due before step 3, 6, ...
        model, events = tiny_model(), list[Event]()
        events = list(fit(model, tiny_config(steps=12, save_every=save_every, eval_every=100), batch, seed=0))
        assert sum(isinstance(event, SaveDue) for event in events) == 12 // min(save_every, 12)
        models.append(model)
    assert_same_weights(*models)


@pytest.mark.parametrize("spoil", [spoil_loss, spoil_gradient])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_what_is_not_finite_never_reaches_the_weights(spoil: Any, optimizer: str) -> None:
    config = tiny_config(optimizer=optimizer)
    model, mover, state = start(config)
    batch = spoil(model, lambda step: step in (0, 3, 4))
    weights = {name: tensor.clone() for name, tensor in named_tensors(model).items()}
    for event in fit(model, config, batch, seed=0, optimizer=mover, state=state):
        if not isinstance(event, Stepped):
            continue
        same = [torch.equal(tensor, weights[name]) for name, tensor in named_tensors(model).items()]
        assert event.skipped == (event.step in (1, 4, 5))
        assert all(same) if event.skipped else not any(same), f"step {event.step}"
        weights = {name: tensor.clone() for name, tensor in named_tensors(model).items()}
    assert state.skipped == 3
    assert all(tensor.isfinite().all() for tensor in mover.state.values())


def test_ten_skips_in_a_row_end_the_training_with_a_sentence() -> None:
    config = tiny_config(steps=40)
    model, mover, state = start(config)
    events = fit(model, config, spoil_loss(model, lambda step: step > 5), seed=0, optimizer=mover, state=state)
    with pytest.raises(
        ClearheadError, match=r"10 steps in a row, up to step 16; .* with `train\.learning_rate` below 0\.01"
    ):
        list(events)
    assert state.step == 6 + SKIPS_ALLOWED
    assert all(tensor.isfinite().all() for tensor in named_tensors(model).values())


def test_nine_skips_in_a_row_do_not() -> None:
    config = tiny_config(steps=41)  # the spoilt steps are those of the calls, so the last one is to be good
    model, mover, state = start(config)
    list(fit(model, config, spoil_loss(model, lambda step: step % 10 > 0), seed=0, optimizer=mover, state=state))
    assert state.skipped == 36


def test_a_loss_that_is_not_a_number_is_never_the_best() -> None:
    model, state = tiny_model(), TrainingState()
    events = fit(model, tiny_config(), tiny_batch, seed=0, evaluate=lambda: Evaluation(math.nan, 1), state=state)
    assert not any(event.best for event in events if isinstance(event, Evaluated))
    assert state.best_loss is None


@pytest.mark.parametrize("fails_at", [1, 2])
def test_where_compiling_fails_the_eager_model_trains(fails_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def broken_compile(model: nn.Module) -> Callable[..., Tensor]:
        def forward(*inputs: Tensor) -> Tensor:
            calls.append(1)
            if len(calls) == fails_at:
                raise RuntimeError("no C++ compiler\na long trace")
            return model(*inputs)  # type: ignore[no-any-return]

        return forward

    monkeypatch.setattr(torch, "compile", broken_compile)
    compiled, events = train(tiny_config(compile="on", micro_batches=2))
    notices = [event for event in events if isinstance(event, Notice)]
    assert [(event.step, "(no C++ compiler)" in event.text) for event in notices] == [(1, True)]
    monkeypatch.undo()
    eager, _ = train(tiny_config(micro_batches=2))
    assert_same_weights(compiled, eager)


def test_a_models_own_fault_is_not_blamed_on_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(_: Tensor) -> Tensor:
        raise ValueError("a shape does not fit")

    monkeypatch.setattr(torch, "compile", lambda function: function)
    for choice in ("on", "off"):
        with pytest.raises(ValueError, match="a shape does not fit"):
            next(fit(tiny_model(), tiny_config(compile=choice), tiny_batch, seed=0, body=body))


def test_a_processor_compiles_nothing_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda *_: pytest.fail("compiled"))
    train(tiny_config(compile="auto", steps=1))


def out_of_device_memory(*_: Tensor) -> Tensor:
    raise torch.OutOfMemoryError("tried to allocate 3 GiB")


def out_of_memory(ids: Tensor) -> Tensor:
    return torch.empty(*ids.shape, 2**44)


@pytest.mark.parametrize("body", [out_of_device_memory, out_of_memory])
def test_too_little_memory_says_which_option_to_lower(body: Any) -> None:
    with pytest.raises(
        ClearheadError, match=r"4 sequences in 2 parts; `options=\{'train\.micro_batches': 4\}` needs about half"
    ):
        next(fit(tiny_model(), tiny_config(micro_batches=2), tiny_batch, seed=0, body=body))


def test_too_little_memory_is_not_taken_for_a_fault_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda _: out_of_device_memory)
    with pytest.raises(ClearheadError, match="the memory is too small"):
        next(fit(tiny_model(), tiny_config(compile="on"), tiny_batch, seed=0))


def test_stale_gradients_do_not_count() -> None:
    config = tiny_config(steps=2)
    model, stale = tiny_model(), tiny_model()
    for parameter in stale.parameters():
        parameter.grad = torch.ones_like(parameter)
    for network in (model, stale):
        list(fit(network, config, tiny_batch, seed=0))
    assert_same_weights(model, stale)


def test_body_replaces_the_models_own() -> None:
    model = tiny_model(dropout=0.0)
    zero = fit(model, tiny_config(), tiny_batch, seed=0, body=lambda ids: 0 * model.body(ids))
    assert losses([next(zero)]) == [pytest.approx(math.log(11))]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_products_in_bfloat16_train_as_in_float32(optimizer: str) -> None:
    """But for rounding, whatever way its attention and norms take there."""
    shape = {"norm": "rmsnorm", "qk_norm": True, "positions": "rope", "feedforward": "swiglu"}
    exact, near = (
        losses(train(tiny_config(steps=25, optimizer=optimizer, precision=precision), **shape)[1])
        for precision in ("float32", "bfloat16")
    )
    assert exact[-1] < 0.9 * exact[0]
    assert near != exact
    assert near == pytest.approx(exact, abs=0.01)


def test_bfloat16_is_for_the_products_and_the_weights_stay_float32() -> None:
    model = tiny_model()
    dtypes: set[torch.dtype] = set()
    model.get_submodule("lm_head").register_forward_hook(lambda *args: dtypes.add(args[2].dtype))
    events = list(fit(model, tiny_config(precision="bfloat16"), tiny_batch, seed=0))
    assert dtypes == {torch.bfloat16}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(math.isfinite(loss) for loss in losses(events))


@pytest.mark.parametrize("able", [True, False])
def test_auto_precision_takes_what_the_processor_has(able: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clearhead.training.precision.has_bfloat16", lambda _: able)
    cpu = torch.device("cpu")
    assert resolve_precision(tiny_config(precision="auto"), cpu) == (torch.bfloat16 if able else torch.float32)
    assert resolve_precision(tiny_config(precision="float32"), cpu) == torch.float32
    assert resolve_precision(tiny_config(precision="bfloat16"), cpu) == torch.bfloat16
