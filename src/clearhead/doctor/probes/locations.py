"""Where something is: a module, a call, a weight, in the words in which a finding tells it."""

import re
from itertools import takewhile

from torch import nn

from clearhead.doctor.calling.names import is_of_a_library
from clearhead.doctor.probes.tracing import ModuleCall, home_of
from clearhead.doctor.report.findings import Where


def place_of_module(path: str, module: nn.Module) -> Where:
    """A module and its code; no file and no line for torch's own."""
    return Where(path, type(module).__name__, *home_of(module))


def place_of_call(call: ModuleCall | None, inner: ModuleCall | None = None) -> Where:
    """The module that was called and its code; for torch's own, the line that called it.

    Args:
        inner: a call within it that is to blame, whose line is told if it is in the same file.
    """
    if call is None or call.module is None:
        return Where()
    file, line = home_of(call.module)
    if file is None:
        file, line = call.file, call.line
    elif inner is not None and inner.file == file:
        line = inner.line
    return Where(call.name, type(call.module).__name__, file, line)


def owner_of(model: nn.Module, name: str, *, own_code: bool = False) -> Where:
    """The module of a parameter or buffer; with `own_code`, the first around it that is not torch's."""
    path = name.rpartition(".")[0]
    around = next((outer for outer, module in owners_of(model, path) if outer and home_of(module)[0]), "")
    shown = around if own_code else path
    return Where(shown, type(model.get_submodule(shown)).__name__, *home_of(model.get_submodule(around)))


def owners_of(model: nn.Module, path: str | None) -> list[tuple[str, nn.Module]]:
    """A module and all around it by their paths, the innermost first and the model last."""
    parts = path.split(".") if path else []
    paths = (".".join(parts[:length]) for length in range(len(parts), -1, -1))
    return [(outer, model.get_submodule(outer)) for outer in paths]


def is_own(model: nn.Module, path: str | None) -> bool:
    """Whether the code around a module is a person's own: that of the first module around it that is not torch's."""
    owners = (type(module) for _, module in owners_of(model, path))
    classes = [cls for cls in owners if not cls.__module__.startswith("torch.")]
    return bool(classes) and not is_of_a_library(classes[0])


def layer_of(path: str | None) -> str | None:
    """The layer of a stack that a module's path lies in: everything up to the first number, as in blocks.block_0."""
    match = re.match(r"(?:.*?\.)?(?:\d+|(?<=s\.)\w+_\d+)(?=\.|$)", path or "")
    return match[0] if match else None


def around(first: str | None, second: str | None) -> str:
    """The innermost module that two paths lead into."""
    pairs = zip((first or "").split("."), (second or "").split("."), strict=False)
    return ".".join(name for name, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
