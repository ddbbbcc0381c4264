"""A model, restored for an examination and given back bit for bit as it was."""

import copy
import random
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import CellType, FunctionType

import torch
from torch import Tensor, nn

from clearhead.doctor.load.methods import with_forward
from clearhead.doctor.problems import attempt

CPU = torch.device("cpu")
LARGE = 20_000_000  # parameters


@contextmanager
def guarded(seed: int, *models: nn.Module) -> Iterator[None]:
    """An examination: afterwards the models and the process are what they were. Layers run module by module."""
    with ExitStack() as stack:
        for model in models:
            stack.enter_context(restored(model))
        for guard in (undisturbed(), plain_layers(), torch.random.fork_rng(devices=[]), warnings.catch_warnings()):
            stack.enter_context(guard)
        warnings.simplefilter("ignore")  # the model's own; they were seen when it was built
        torch.manual_seed(seed)
        yield


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Gradients, buffers, modes and random generators of `model` are afterwards what they were before."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    held = [(module, name, buffer) for module in model.modules() for name, buffer in module._buffers.items()]
    buffers = [(module, name, buffer) for module, name, buffer in held if buffer is not None]
    device = next((parameter.device for parameter in model.parameters()), CPU)
    drawing = torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type)
    with drawing, modes_kept(model), kept(buffer for _, _, buffer in buffers), torch.enable_grad():
        try:
            for parameter, _ in gradients:
                parameter.grad = None
            yield
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient
            for module, name, buffer in buffers:
                module._buffers[name] = buffer


@contextmanager
def undisturbed() -> Iterator[None]:
    """What a model's code may change for the whole process is afterwards what it was before.

    Meanwhile nothing of it stands in the way: new tensors are on the CPU, and inference mode is off.
    """
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    deterministic = _determinism()
    numpy_random = sys.modules.get("numpy.random")
    drawn = random.getstate(), numpy_random.get_state() if numpy_random else None
    with ExitStack() as stack:
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled(torch.is_grad_enabled()))
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            if _determinism() != deterministic:  # setting it loads torch's compilers, for seconds
                torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            random.setstate(drawn[0])
            if numpy_random:
                numpy_random.set_state(drawn[1])


def _determinism() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


@contextmanager
def kept(tensors: Iterable[Tensor]) -> Iterator[None]:
    """These tensors may be overwritten meanwhile, without gradients; afterwards they hold their numbers again."""
    copies = [(tensor, tensor.detach().clone()) for tensor in tensors]
    with torch.no_grad():
        try:
            yield
        finally:
            for tensor, numbers in reversed(copies):
                tensor.copy_(numbers)


@contextmanager
def without_zeros(parameters: Iterable[nn.Parameter], generator: torch.Generator) -> Iterator[None]:
    """Parameters that are all zero hold small noise meanwhile: a zero hides whatever flows through it."""
    zeros = [parameter for parameter in parameters if not parameter.detach().any()]
    with kept(zeros):
        for parameter in zeros:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
        yield


def is_large(model: nn.Module) -> bool:
    """Whether another copy of it, or a backward pass over many rows, takes seconds."""
    return sum(parameter.numel() for parameter in model.parameters()) > LARGE


def twin(model: nn.Module, device: torch.device = CPU) -> nn.Module:
    """A copy on that device, in float32 or wider, evaluating, which shares nothing with the model."""
    model_copy = with_forward(copied(model).to(device).eval())
    nn.Module.zero_grad(model_copy)
    half = any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in model_copy.parameters())
    return model_copy.float() if half else model_copy


def copied(model: nn.Module) -> nn.Module:
    """A deep copy whose functions call the copy as well.

    `copy.deepcopy` keeps functions as they are: one that closes over a module, such as a lambda in an attribute or a
    hook, would go on calling the original. What refuses to be copied, such as settings that take every attribute for a
    key, is shared.
    """
    held = _held_by(model)
    memo: dict[int, object] = {id(value): value for value in held if not _can_be_copied(value)}
    memo |= {id(value): value.detach().clone() for value in held if isinstance(value, Tensor) and not value.is_leaf}
    rebound: list[tuple[FunctionType, FunctionType]] = []
    for function in (value for value in held if isinstance(value, FunctionType) and value.__closure__):
        cells = tuple(CellType() for _ in function.__closure__ or ())
        fresh = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
        fresh.__kwdefaults__ = function.__kwdefaults__
        fresh.__dict__.update(function.__dict__)
        memo[id(function)] = fresh
        rebound.append((function, fresh))
    model_copy = copy.deepcopy(model, memo)
    for function, fresh in rebound:
        for cell, fresh_cell in zip(function.__closure__ or (), fresh.__closure__ or (), strict=True):
            with suppress(ValueError):  # a cell that is still empty
                fresh_cell.cell_contents = copy.deepcopy(cell.cell_contents, memo)
    return model_copy


def _held_by(model: nn.Module) -> list[object]:
    """What its modules hold in attributes, hooks and buffers, and what is inside of these and of functions."""
    held: dict[int, object] = {}
    open_: list[object] = [vars(module) for module in model.modules()]
    while open_:
        value = open_.pop()
        if id(value) in held:
            continue
        held[id(value)] = value
        if isinstance(value, FunctionType):
            open_ += [cell.cell_contents for cell in value.__closure__ or () if _is_full(cell)]
        elif isinstance(value, dict):
            open_ += value.values()
        elif isinstance(value, list | tuple | set):
            open_ += value
        elif isinstance(value, partial):
            open_ += (value.func, value.args, value.keywords)
    return list(held.values())


def _can_be_copied(value: object) -> bool:
    """Whether it answers when it is asked how it is copied."""
    with attempt() as attempted:
        getattr(value, "__deepcopy__", None)
    return not attempted.failed


def _is_full(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def perturbed(model: nn.Module, seed: int, device: torch.device = CPU) -> nn.Module:
    """A twin with noise on every weight: what a zero or a special start hides, almost any other weights show.

    Matrices (..., out, in) get noise of 1/sqrt(in), which keeps the size of what flows through them; embeddings 0.5;
    everything with one axis 0.1. Outputs are analytic in the weights, so the weights that hide an influence have
    measure zero. What is frozen beside weights that are not stays as it is: it may be a table of sines.
    """
    model_copy = twin(model, device)
    add_noise(model_copy, seed)
    return model_copy


def add_noise(model: nn.Module, seed: int) -> None:
    """Add the noise of `perturbed` to the weights of a model itself."""
    generator = torch.Generator().manual_seed(seed)
    tables = {id(m.weight): m.padding_idx for m in model.modules() if isinstance(m, nn.Embedding)}
    learns = any(parameter.requires_grad for parameter in model.parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.is_floating_point() or (learns and not parameter.requires_grad):
                continue
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32).to(parameter)
            if id(parameter) in tables:
                size, pad = 0.5, tables[id(parameter)]
                if pad is not None:
                    noise[pad] = 0
            else:
                size = 0.1 if parameter.dim() < 2 else max(parameter.shape[-2:]) ** -0.5
            parameter.add_(noise, alpha=size)


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Every module of it is afterwards in training or evaluation mode as it was before."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def in_training(model: nn.Module) -> Iterator[None]:
    """Every module of it is in training mode meanwhile."""
    with modes_kept(model):
        model.train()
        yield


@contextmanager
def plain_layers(plain: bool = True) -> Iterator[None]:
    """torch's own encoder layers run module by module, not as one fused operation that nothing can look into."""
    kept = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(not plain)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(kept)


SCALE = 256.0  # times every matrix: scores then grow past 1e4, and stay far from 1e9


@contextmanager
def scaled(model: nn.Module) -> Iterator[None]:
    """Every matrix but the embeddings is larger meanwhile, and with them the scores of attention."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    matrices = [p for p in model.parameters() if p.dim() > 1 and id(p) not in tables]
    with kept(matrices):
        for parameter in matrices:
            parameter.mul_(SCALE)
        yield


def random_states() -> dict[str, str]:
    """What the next random numbers of each library depend on."""
    states = {"torch": str(torch.get_rng_state().tolist()), "random": str(random.getstate())}
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random:
        _, keys, position, *_ = numpy_random.get_state()
        states["numpy"] = f"{position} {keys.tolist()}"
    return states


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Whatever draws random numbers draws the same ones every time; afterwards no generator has moved."""
    with undisturbed(), torch.random.fork_rng(devices=[]):
        seed_all(seed)
        yield


def seed_all(seed: int) -> None:
    """Seed every generator that a model's code may draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed(seed)
