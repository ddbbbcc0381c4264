"""The lines of this library that compute a node, as Python reads them: never a copy that could drift."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from torch import nn

import clearhead
from clearhead.inspection.architecture.graph import ArchitectureGraph, Node
from clearhead.models import LanguageModel
from clearhead.parts import ACTIVATIONS, RMSNorm, attend
from clearhead.parts.dropout import drop
from clearhead.parts.positions import RotaryEmbedding, sinusoids

ROOT = Path(clearhead.__file__).parent.parent


@dataclass(frozen=True)
class SourceLines:
    """Some lines of a file: what they define, where they are."""

    name: str
    file: str
    line: int
    code: str


def sources_of(graph: ArchitectureGraph, model: LanguageModel, node: Node) -> list[SourceLines]:
    """The source of what computes this node, of the model's real parts.

    Args:
        model: of the graph, with at least one block in each stack.
    """
    objects = _objects(graph, model, node)
    return [source for item in objects if (source := read_source(item)) is not None]


def read_source(item: object) -> SourceLines | None:
    """The source of a class or function; None where Python has none, as for torch's compiled functions."""
    try:
        lines, line = inspect.getsourcelines(item)  # type: ignore[arg-type]
        file = Path(inspect.getsourcefile(item) or "")  # type: ignore[arg-type]
    except (OSError, TypeError):
        return None
    where = file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else file.name
    return SourceLines(getattr(item, "__qualname__", "source"), where, line, dedent("".join(lines)).rstrip())


def _objects(graph: ArchitectureGraph, model: LanguageModel, node: Node) -> Sequence[object]:
    """The functions and classes behind a node."""
    part = model.get_submodule(node.card) if node.card else nn.Identity()
    kinds: dict[str, Callable[[], Sequence[object]]] = {
        "attention": lambda: [type(part).forward, *_own(part, "project")],
        "linear": lambda: _own(part, "project") or [type(part).forward],
        "output": lambda: [type(part).forward],
        "feedforward": lambda: [type(part).forward],
        "activation": lambda: [type(part).forward, ACTIVATIONS[graph.config.feedforward]],
        "scores": lambda: [attend],
        "softmax": lambda: [attend],
        "mix": lambda: [attend],
        "rotate": lambda: [RotaryEmbedding],
        "dropout": lambda: [drop],
        "add": lambda: _around(model, node),
        "plus": lambda: _around(model, node),
        "norm": lambda: [type(model.get_submodule(node.module))] if node.module else [RMSNorm],
        "sinusoidal": lambda: [sinusoids],
        "input": lambda: _around(model, node),
        "logits": lambda: [type(model).head],
    }
    return kinds[node.kind]() if node.kind in kinds else _of_module(model, node.module or node.name)


def _own(part: nn.Module, method: str) -> list[object]:
    return [getattr(type(part), method)] if hasattr(type(part), method) else []


def _of_module(model: LanguageModel, path: str) -> list[object]:
    """A module's forward; the whole class of positions, which have none."""
    try:
        kind = type(model.get_submodule(path))
    except AttributeError:  # a source's embedding that is the target's
        return _of_module(model, path.removeprefix("source_")) if path.startswith("source_") else []
    return [kind.forward] if "forward" in vars(kind) else [kind]


def _around(model: LanguageModel, node: Node) -> list[object]:
    """The code that sums: of the sublayer, of the parallel block, or of the model itself."""
    path = node.name.rpartition(".")[0]
    if node.kind == "add":
        owner = type(model.get_submodule(path))
        return [owner.forward, *_own(model.get_submodule(path), "branch")]
    names = ("encode", "_decode", "_read", "body", "run_stack")
    bodies = [getattr(type(model), name) for name in names if hasattr(type(model), name)]
    is_source = node.name.startswith("source_")
    is_pair = hasattr(type(model), "encode")
    if is_pair:
        return bodies[:1] if is_source else bodies[1:2]
    return bodies[:1]
