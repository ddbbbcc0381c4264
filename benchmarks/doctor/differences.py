"""The proof that a mutant is not its healthy twin written otherwise: something that differs for equal weights."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from calls import Call, Host
from faults import built
from torch import Tensor, nn

SEED = 7
LOUD = 1000.0  # factor of all matrices where masks of finite strength are put to the test
NEAR = 1e-5  # relative to the largest number; equal models agree to the last bit


@dataclass(frozen=True)
class Answer:
    """What a model gives for one call: its output, and the gradient of each parameter."""

    output: Tensor
    gradients: Mapping[str, Tensor | None]


def answer(model: nn.Module, call: Call) -> Answer:
    """Forward, and backward from a random mixture of the outputs, unless they have no gradients."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(SEED)
    output = call(model)
    if not output.requires_grad:
        return Answer(output, {})
    mixture = torch.randn(output.shape, generator=torch.Generator().manual_seed(SEED))
    (output * mixture).sum().backward()  # type: ignore[no-untyped-call]
    gradients = {
        name: None if parameter.grad is None else parameter.grad.detach().clone()
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }
    return Answer(output.detach(), gradients)


def differ(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether two tensors are further apart than rounding."""
    if a is None or b is None:
        return a is not b
    if a.shape != b.shape or not torch.equal(a.isnan(), b.isnan()):
        return True
    a, b = a.double().nan_to_num(), b.double().nan_to_num()
    return bool((a - b).abs().max() > NEAR * max(a.abs().max().item(), b.abs().max().item()))


def twins(healthy: Path, mutant: Path) -> tuple[nn.Module, nn.Module]:
    """Both with the same weights, wherever both have one: not fresh ones, whose zeros and ones could hide something."""
    torch.manual_seed(SEED)
    good = built(healthy)
    torch.manual_seed(SEED)
    bad = built(mutant)
    with torch.no_grad():
        for parameter in good.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    parameters = dict(good.named_parameters(remove_duplicate=False))
    bad.load_state_dict({name: value for name, value in parameters.items() if name in bad.state_dict()}, strict=False)
    return good, bad


def witness(host: Host, healthy: Path, mutant: Path) -> str | None:
    """What tells the mutant from its healthy twin, in words; None if nothing does."""
    good, bad = twins(healthy, mutant)
    names = [{name for name, _ in model.named_parameters(remove_duplicate=False)} for model in (good, bad)]
    in_answers = list(_in_answers(host, good, bad))  # all calls are made, so that each is known to run
    if names[1] < names[0]:
        return f"{len(names[0] - names[1])} parameters are not registered"
    if in_answers:
        return in_answers[0]
    _amplify(good)
    _amplify(bad)
    for name, call in host.calls.items():
        if differ(call(good.eval()).detach(), call(bad.eval()).detach()):
            return f"{name}, weights times {LOUD:g}"
    return _in_fresh_weights(healthy, mutant)


def _in_answers(host: Host, good: nn.Module, bad: nn.Module) -> Iterator[str]:
    """Differences for equal weights."""
    for training in (False, True):
        mode = ", training" if training else ""
        for name, call in host.calls.items():
            expected, actual = answer(good.train(training), call), answer(bad.train(training), call)
            assert expected.output.isfinite().all(), f"the healthy host is not: {name}{mode}"
            if differ(expected.output, actual.output):
                yield f"{name}{mode}"
            for parameter, gradient in expected.gradients.items():
                if parameter in actual.gradients and differ(gradient, actual.gradients[parameter]):
                    yield f"gradient of {parameter} from {name}{mode}"


def _amplify(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(LOUD)


def _in_fresh_weights(healthy: Path, mutant: Path) -> str | None:
    states = []
    for path in (healthy, mutant):
        torch.manual_seed(SEED)
        states.append(built(path).state_dict())
    for name, value in states[0].items():
        if name in states[1] and differ(value, states[1][name]):
            return f"fresh weights of {name}"
    return None
