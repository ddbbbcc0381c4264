"""Caches that the caller makes: objects of a class that stands beside the model."""

import inspect
import re
from collections.abc import Callable, Iterator

from torch import Tensor, nn

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.subject import Subject

STORE = re.compile(r"cache|kv|past", re.I)
SIZES = (  # what a parameter of such a class counts
    (re.compile(r"layer|depth|block", re.I), "layers"),
    (re.compile(r"batch|rows|bsz", re.I), "rows"),
    (re.compile(r"len|seq|max|size|columns|tokens", re.I), "columns"),
)
Make = Callable[[Inputs], object]


def stores(subject: Subject) -> Iterator[Make]:
    """Ways to make an empty cache: an object of each class that is called so, or a list with one for every layer."""
    n_layers = max((len(m) for m in subject.model.modules() if isinstance(m, nn.ModuleList)), default=1)
    for store in _classes(subject.original):

        def make(inputs: Inputs, store: type = store) -> object:
            return store(**_sizes(store, inputs, n_layers))

        def many(inputs: Inputs, make: Make = make) -> object:
            return [make(inputs) for _ in range(n_layers)]

        yield make
        yield many


def _classes(model: nn.Module) -> list[type]:
    """Classes that the code of `forward` can see, but for modules and tensors."""
    values = getattr(type(model).forward, "__globals__", {}).values()
    classes = [value for value in values if isinstance(value, type) and STORE.search(value.__name__)]
    return [cls for cls in classes if not issubclass(cls, (nn.Module, Tensor))]


def _sizes(store: type, inputs: Inputs, n_layers: int) -> dict[str, int]:
    """The numbers that the class asks for, by their names.

    Raises:
        TypeError: it asks for something else.
    """
    counts = {"layers": n_layers, "rows": len(inputs.ids), "columns": inputs.ids.shape[1]}
    arguments = {}
    for name, parameter in inspect.signature(store).parameters.items():
        if parameter.default is not parameter.empty or parameter.kind is parameter.VAR_KEYWORD:
            continue
        size = next((counted for pattern, counted in SIZES if pattern.search(name)), None)
        if size is None:
            raise TypeError(f"{store.__name__} asks for {name}")
        arguments[name] = counts[size]
    return arguments
