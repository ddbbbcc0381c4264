"""Checkpoints: folders `step-00002000/` with weights, the optimizer's moments, the state, and a manifest. No pickle."""

import dataclasses
import os
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from clearhead.config import ModelConfig
from clearhead.errors import ClearheadError, DataError
from clearhead.files import damage, finish_folder, read_json, remove_folder, remove_litter, start_folder, write_json
from clearhead.interop.tensor_files import Writable, write_tensors
from clearhead.models import LanguageModel, build_model
from clearhead.training.events import TrainingState
from clearhead.training.lost_processes import naming_the_lost
from clearhead.training.optimizers import Optimizer
from clearhead.training.processes import Processes
from clearhead.training.sharding import Unfilled, fill, is_sharded, shard_of, whole

WEIGHTS, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"


class CheckpointMatch(NamedTuple):
    """An undamaged checkpoint, and a sentence for each damaged one that was skipped."""

    path: Path
    notices: tuple[str, ...]


def save(
    folder: Path, model: nn.Module, optimizer: Optimizer, state: TrainingState, *, keep: int, every: int = 1
) -> Path:
    """Write the checkpoint of `state.step` into `folder`, then remove all but the last `keep` and the best one.

    `keep` counts only checkpoints at multiples of `every`. Others, such as one saved at an interruption, stay only
    while they are the newest or the best, so interruptions do not change what is kept.

    A crash at any moment leaves the earlier checkpoints whole; they are removed only once the new one is.

    Of several processes the first one writes. Where they share the weights out all call this, and it gathers one tensor
    at a time.

    Raises:
        ClearheadError: it could not be written (no space on disk, no right to); the one before it is as it was.
    """
    final, files = path_of(folder, state.step), _files(model, optimizer)
    if not Processes.joined().is_first:
        for content, metadata in files.values() if is_sharded(model) else ():
            with naming_the_lost():
                write_tensors(Path(os.devnull), content, metadata)
        return final
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_litter(folder)
        temporary = start_folder(final)
        for name, (content, metadata) in files.items():
            with naming_the_lost():
                write_tensors(temporary / name, content, metadata)
        write_json(temporary / STATE, dataclasses.asdict(state))
        finish_folder(temporary, final)
        _prune(folder, state, keep, every)
    except (OSError, SafetensorError) as error:
        remove_litter(folder)
        raise ClearheadError(
            f"the checkpoint of step {state.step} could not be written to {folder} ({_reason(error)}); "
            "make room there, then resume from the checkpoint before it, which is whole"
        ) from error
    return final


def path_of(folder: Path, step: int) -> Path:
    """The folder of the checkpoint of a step."""
    return folder / f"step-{step:08d}"


def newest(folder: Path) -> CheckpointMatch | None:
    """The newest whole checkpoint in `folder`; None when there is none at all. Reads every byte, writes none.

    Raises:
        DataError: there are checkpoints, and every one is damaged.
    """
    notices: list[str] = []
    paths = _checkpoints(folder)
    for path in reversed(paths):
        fault = _fault(path)
        if fault is None:
            return CheckpointMatch(path, tuple(notices))
        notices.append(f"the checkpoint {path} is damaged ({fault}); the one before it is used")
    if not paths:
        return None
    raise DataError(f"every checkpoint in {folder} is damaged; the newest: {_fault(paths[-1])}; train again")


def last_step(folder: Path) -> int | None:
    """The step of the newest checkpoint, without reading its tensors: files of the right size count as whole."""
    sized = (WEIGHTS, OPTIMIZER)
    return next((_step(path) for path in reversed(_checkpoints(folder)) if _fault(path, sized) is None), None)


def best(folder: Path) -> CheckpointMatch | None:
    """The checkpoint with the lowest held-out loss, or, where that one is missing or damaged, the newest whole one."""
    latest = newest(folder)
    step = read_state(latest.path).best_step if latest else None
    if latest is None or step is None:
        return latest
    path = path_of(folder, step)
    fault = _fault(path)
    if fault is None:
        return CheckpointMatch(path, latest.notices)
    return CheckpointMatch(
        latest.path, (*latest.notices, f"the best checkpoint, {path}, is damaged ({fault}); the last is used")
    )


def load(path: Path, model: nn.Module, optimizer: Optimizer | None = None) -> TrainingState:
    """Fill the model, and the optimizer when one is given, from the checkpoint at `path`, bit for bit.

    Raises:
        DataError: it cannot be read, or is of another architecture or optimizer. The model is then unchanged.
    """
    state = read_state(path)
    kind, moments = _optimizer_kind(path / OPTIMIZER) if optimizer else (None, [])
    if optimizer and kind != optimizer.kind:
        raise DataError(f"{path} was trained with {kind}, the options ask for {optimizer.kind}; choose the same")
    if optimizer:
        optimizer.init_state(moments)
        load_tensors(path / OPTIMIZER, optimizer.state)
    load_tensors(path / WEIGHTS, named_tensors(model))  # last, so that the model is unchanged where anything fails
    return state


def read_model(path: Path, config: ModelConfig) -> LanguageModel:
    """The model of the checkpoint at `path`, on the CPU. Its numbers stay in the file until they are used.

    Raises:
        DataError: it cannot be read.
    """
    with Unfilled():
        model = build_model(config)
    model.load_state_dict(_read_tensors(path / WEIGHTS), assign=True)
    return model


def faults(folder: Path) -> tuple[str, ...]:
    """A sentence for each damaged checkpoint. Reads every byte of them all."""
    known = ((path, _fault(path)) for path in _checkpoints(folder))
    return tuple(f"the checkpoint {path} is damaged ({fault}) and left out" for path, fault in known if fault)


def load_mean(folder: Path, model: nn.Module, count: int, *, every: int = 1) -> int:
    """Fill the model with the mean of the weights of the last `count` whole checkpoints; returns how many there were.

    Only steps that `every` divides, and the newest, are counted.

    Raises:
        DataError: there is none, or they are of another architecture.
    """
    whole = _regular([path for path in _checkpoints(folder) if _fault(path) is None], every)[-count:]
    if not whole:
        raise DataError(f"there is no whole checkpoint in {folder} to take a mean of; train again")
    weights = named_tensors(model)
    shards = {name: shard_of(tensor) for name, tensor in weights.items()}
    sums = {name: torch.zeros_like(tensor, dtype=torch.float64, device="cpu") for name, tensor in shards.items()}
    for path in whole:
        load_tensors(path / WEIGHTS, weights)
        for name, tensor in shards.items():
            sums[name] += tensor.cpu()
    with torch.no_grad():
        for name, tensor in shards.items():
            tensor.copy_(sums[name] / len(whole))
    return len(whole)


def read_state(path: Path) -> TrainingState:
    """The state of the checkpoint at `path`.

    Raises:
        DataError: its file is missing or is not one.
    """
    try:
        return TrainingState(**read_json(path / STATE))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path / STATE} cannot be read ({_reason(error)}); use another checkpoint") from error


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and persistent buffer by name; tied ones once, under the first name."""
    tensors: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        tensors.setdefault(id(tensor), (name, tensor.detach()))
    return dict(tensors.values())


def not_finite(model: nn.Module, optimizer: Optimizer) -> str | None:
    """The first tensor of weights and moments with a number that is not finite; waits for the device once."""
    tensors = {**named_tensors(model), **optimizer.state}
    device = next(iter(named_tensors(model).values())).device
    finite = [shard_of(tensor).isfinite().all().to(device, non_blocking=True) for tensor in tensors.values()]
    faults = tuple(torch.stack(finite).logical_not().tolist())
    if is_sharded(model):
        faults = Processes.joined().agree(*faults)
    return next((name for name, fault in zip(tensors, faults, strict=True) if fault), None)


def load_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill every one of the `tensors` from the one of its name in a safetensors file.

    Raises:
        DataError: the file cannot be read, or its tensors are others; the first that differs is named. None is changed.
    """
    stored = _read_tensors(path)
    for name, tensor in tensors.items():
        if name not in stored:
            raise DataError(f"{path} has no tensor {name}: it is of another architecture than the model")
        if stored[name].shape != tensor.shape or stored[name].dtype != tensor.dtype:
            raise DataError(
                f"{name} in {path} is {_shape(stored[name])}, in the model {_shape(tensor)}: "
                "it is of another architecture than the model"
            )
    extra = sorted(stored.keys() - tensors.keys())
    if extra:
        raise DataError(f"{path} has a tensor {extra[0]} that the model has not: it is of another architecture")
    with torch.no_grad():
        for name, tensor in tensors.items():
            fill(tensor, stored[name])


def _files(model: nn.Module, optimizer: Optimizer) -> dict[str, tuple[dict[str, Writable], dict[str, str]]]:
    """The tensors of each file, and its metadata."""

    def writable(tensors: Mapping[str, Tensor]) -> dict[str, Writable]:
        return {name: Writable(tuple(t.shape), t.dtype, partial(whole, t)) for name, t in tensors.items()}

    kind = {"optimizer": optimizer.kind}
    return {WEIGHTS: (writable(named_tensors(model)), {}), OPTIMIZER: (writable(optimizer.state), kind)}


def _prune(folder: Path, state: TrainingState, keep: int, every: int) -> None:
    """Remove all but the checkpoints to keep. Later steps than this one are damaged or abandoned, so they go too."""
    paths = _checkpoints(folder)
    past = [path for path in paths if _step(path) <= state.step]
    kept = _regular(past, every)[-keep:]
    for path in paths:
        if path not in kept and _step(path) != state.best_step:
            remove_folder(path)


def _regular(paths: list[Path], every: int) -> list[Path]:
    """The checkpoints whose step `every` divides, and the newest."""
    return [path for path in paths if _step(path) % every == 0 or path == paths[-1]]


def _fault(path: Path, only_sized: Collection[str] = ()) -> str | None:
    """What is wrong with a checkpoint, or None; `only_sized` as in `damage`."""
    fault = damage(path, only_sized=only_sized)
    if fault is not None:
        return fault
    try:
        step = read_state(path).step
    except DataError:
        return f"its {STATE} is not of this version"
    return None if step == _step(path) else f"its {STATE} says step {step}"


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if path.is_dir() and path.name[5:].isdigit())


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read ({_reason(error)}); use another checkpoint") from error


def _optimizer_kind(path: Path) -> tuple[str, list[str]]:
    """The optimizer's kind, and the names of its moments."""
    try:
        with safe_open(path, framework="pt") as file:
            return str((file.metadata() or {}).get("optimizer", "another optimizer")), list(file.keys())
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read ({_reason(error)}); use another checkpoint") from error


def _shape(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
