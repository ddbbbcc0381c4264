"""The optimizer that a model makes for itself: which parameters it holds, and which of them it lets decay."""

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from clearhead.doctor.calling.names import is_of_a_library
from clearhead.doctor.checks.base import Finding, Skipped, Subject, Where, attempt, finding, model_check
from clearhead.doctor.probes.norms import is_norm
from clearhead.doctor.state_guard import twin

METHODS = "configure_optimizers", "configure_optimizer"
SETTINGS: dict[str, Any] = {
    "weight_decay": 0.1, "learning_rate": 1e-3, "lr": 1e-3, "betas": (0.9, 0.95), "device_type": "cpu", "device": "cpu",
}  # fmt: skip
OF_NORMS = re.compile(r"""["']([\w.]*(?:norm|\bln|layer_?norm|gamma|beta)[\w.]*)["']""", re.I)


@model_check("O03", "optimizers", order=345, covers=("O01",))
def optimizers(subject: Subject) -> list[Finding]:
    """The optimizer that the model makes holds all parameters, and spares those from decay that its code names."""
    cls = type(subject.original)
    method = next((getattr(cls, name) for name in METHODS if callable(getattr(cls, name, None))), None)
    if method is None or is_of_a_library(method):
        raise Skipped("it makes no optimizer")
    model = twin(subject.fresh)
    groups = _groups(method, model)
    code = inspect.unwrap(method).__code__
    where = Where("", cls.__name__, code.co_filename, code.co_firstlineno)
    spared = {id(p) for group in groups if not group.get("weight_decay") for p in group["params"]}
    decayed = {id(p) for group in groups if group.get("weight_decay") for p in group["params"]}
    left_out = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in spared | decayed]
    if left_out and len(left_out) <= len(spared | decayed) / 10:  # else it may be meant to learn a part alone
        return [finding("O01", f"{method.__name__}() makes an optimizer without {left_out[0]}", where=where)]
    spared_names = set(OF_NORMS.findall(inspect.getsource(method)))
    idle = sorted(word for word in spared_names if not any(word in name for name, _ in model.named_parameters()))
    norms = [(n, p) for n, m in model.named_modules() if is_norm(m) for p in m.parameters(recurse=False)]
    guilty = [name for name, p in norms if id(p) in decayed]
    if not spared or not idle or idle != sorted(spared_names) or not guilty:
        return []
    witness = (
        f"{method.__name__}() spares '{idle[0]}' from decay, but no parameter is called so, and {guilty[0]} decays"
    )
    return [finding("O03", witness, where=where)]


def _groups(method: Any, model: nn.Module) -> list[dict[str, Any]]:
    """The groups of all optimizers that it returns.

    Raises:
        Skipped: it cannot be called with settings alone.
    """
    parameters = list(inspect.signature(method).parameters.values())[1:]
    needed = [p.name for p in parameters if p.default is p.empty or p.name in SETTINGS]
    with attempt() as attempted, _without_compiler():
        returned = method(model, *(SETTINGS.get(name, SimpleNamespace(**SETTINGS)) for name in needed))
    if attempted.failed:
        raise Skipped(f"its optimizer cannot be made here ({attempted.kind})")
    groups = [group for optimizer in _optimizers(returned) for group in optimizer.param_groups]
    if not groups:
        raise Skipped(f"{method.__name__}() returns no optimizer of torch")
    return groups


@contextmanager
def _without_compiler() -> Iterator[None]:
    """An optimizer of torch is made without the decorator that loads torch's compiler, for seconds."""
    add_param_group = torch.optim.Optimizer.add_param_group
    try:
        torch.optim.Optimizer.add_param_group = inspect.unwrap(add_param_group)  # type: ignore[method-assign]
        yield
    finally:
        torch.optim.Optimizer.add_param_group = add_param_group  # type: ignore[method-assign]


def _optimizers(value: object) -> Iterator[torch.optim.Optimizer]:
    if isinstance(value, torch.optim.Optimizer):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _optimizers(part)
