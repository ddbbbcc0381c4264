"""A model with a cache, decoded step by step."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.convention import here
from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.calling.names import CACHE, START, parameters_of
from clearhead.doctor.calling.outputs import arrange, find_logits, follow, tensors
from clearhead.doctor.checks.base import Skipped
from clearhead.doctor.probes.tracing import quiet
from clearhead.doctor.subject import Subject

INSIDE = "inside"  # stands for a cache in the model's own buffers
MAKERS = ("new_cache", "init_cache", "make_cache", "empty_cache", "create_cache")
STORE = re.compile(r"cache|kv|past", re.I)
RESETS = re.compile(r"^(reset|clear|empty)_.*(cache|kv|state)")
SIZES = (  # what a parameter of such a method or class counts; else tokens
    (re.compile(r"layer|depth|block", re.I), "layers"),
    (re.compile(r"batch|rows|bsz|^b$|^n$", re.I), "rows"),
)
Make = Callable[[Inputs], object]


@dataclass
class CachedDecoder:
    """A model with a cache that goes in by a parameter and comes out with the logits, or is updated in place."""

    subject: Subject
    parameter: str | None  # takes the cache; None if it is inside: the model is told where tokens begin or to use it
    make: Make | None = None  # makes an empty cache; without it the model makes its own
    counts: str | None = None  # takes the positions of the tokens, where the caller gives them
    hands_on: bool = False  # the position that a call returns is where the next one begins
    whole: bool = False  # it is given the rows from their first token on, and returns the last token's logits alone
    following: int = 0  # the position that the last call returned

    @property
    def more(self) -> dict[str, object]:
        """What the model is told besides, to use its cache."""
        parameters = [p for p in parameters_of(self.subject.model) if CACHE.search(p.name)]
        return {p.name: True for p in parameters if p.name == "use_cache" or isinstance(p.default, bool)}

    @property
    def begins(self) -> str | None:
        """The parameter that takes the first token's position."""
        return next((p.name for p in parameters_of(self.subject.model) if START.search(p.name)), None)

    @property
    def told_by(self) -> str | None:
        """The parameter by which the model learns of its cache; None if it has none."""
        return self.parameter or self.begins or next(iter(self.more), None)

    def start(self, inputs: Inputs) -> object:
        """What the first call is given. A cache inside the model is emptied, where there is a method for that."""
        if self.parameter is None:
            for name in filter(RESETS.search, dir(type(self.subject.model))):
                getattr(self.subject.model, name)()
            return INSIDE
        return self.make(inputs) if self.make is not None else None

    def step(self, ids: Tensor, inputs: Inputs, cache: object, begin: int) -> tuple[Tensor, object]:
        """Logits of these tokens, the first of which is at position `begin`, and the cache for the next step.

        Raises:
            Skipped: it returns no logits of them.
        """
        convention, more = self.subject.convention, self.more
        read = inputs.ids[:, : begin + ids.shape[1]] if self.whole else ids
        batch = Inputs(read, inputs.source, source_keep=inputs.source_keep)
        if self.begins is not None:
            more[self.begins] = self.following if self.hands_on and begin else begin
        if self.counts is not None:
            more[self.counts] = torch.arange(begin, begin + ids.shape[1]).expand(ids.shape).clone()
        if self.parameter is not None:
            more[self.parameter] = cache
        with quiet():
            value = convention.raw(self.subject.model, batch, **more)
        rows, columns = ids.shape
        path = find_logits(value, rows, columns, self.subject.calling.vocab_size)
        logits = None if path is None else arrange(here(follow(value, path), convention.device), rows, columns)
        if path is None or logits is None:
            raise Skipped("with a cache it returns something else")
        self.following = next(_numbers(value), begin + columns)
        is_filled = self.whole and self.make is not None  # in place
        return logits, cache if is_filled else next(_beside(value, path), cache)

    def decode(self, inputs: Inputs, at_once: int, until: int | None = None) -> tuple[Tensor | None, object]:
        """Read half a row at once and the rest step by step: logits (B, T, V), None without a cache, and the cache.

        Args:
            at_once: tokens in a step.
            until: stop before the step that begins at this position.
        """
        T = inputs.ids.shape[1]
        prefill = 1 if self.whole else T // 2
        logits, cache = self.step(inputs.ids[:, :prefill], inputs, self.start(inputs), 0)
        has_state = not isinstance(cache, (tuple, list)) or any(hasattr(part, "__dict__") for part in cache)
        if cache is None or not (has_state or tensors(cache)):
            return None, cache
        outputs = [logits]
        for begin in range(prefill, T if until is None else until, at_once):
            logits, cache = self.step(inputs.ids[:, begin : begin + at_once], inputs, cache, begin)
            outputs.append(logits)
        return torch.cat(outputs, dim=1), cache


def _numbers(value: object) -> Iterator[int]:
    """The whole numbers in what was returned."""
    for part in value if isinstance(value, (tuple, list)) else ():
        if isinstance(part, Tensor) and part.dim() == 0 and not part.is_floating_point():
            part = int(part)
        if isinstance(part, int) and not isinstance(part, bool):
            yield part


def _beside(value: object, logits: tuple[str | int, ...]) -> Iterator[object]:
    """What stands beside the logits and could be a cache."""
    parts: Iterable[tuple[str | int, object]] = ()
    if isinstance(value, (tuple, list)):
        parts = enumerate(value)
    elif not isinstance(value, Tensor):
        named = value if isinstance(value, dict) else vars(value)
        parts = ((key, part) for key, part in named.items() if CACHE.search(str(key)))
    for key, part in parts:
        is_small = isinstance(part, Tensor) and part.dim() < 3
        if key not in logits[:1] and part is not None and not is_small:
            yield part


def makers(subject: Subject) -> Iterator[Make]:
    """Ways to make an empty cache: methods of the model, and classes beside it, of which each layer may want one."""
    n_layers = max((len(m) for m in subject.model.modules() if isinstance(m, nn.ModuleList)), default=1)
    for method in filter(callable, (getattr(subject.model, name, None) for name in MAKERS)):
        yield partial(_made, method, n_layers)
    values = getattr(type(subject.original).forward, "__globals__", {}).values()
    classes = [value for value in values if isinstance(value, type) and STORE.search(value.__name__)]
    for store in (cls for cls in classes if not issubclass(cls, (nn.Module, Tensor))):
        make = partial(_made, store, n_layers)
        yield make
        yield lambda inputs, make=make: [make(inputs) for _ in range(n_layers)]  # type: ignore[misc]


def _made(make: Callable[..., object], n_layers: int, inputs: Inputs) -> object:
    """What it returns for the numbers that it asks for, by their names."""
    counts, T = {"layers": n_layers, "rows": len(inputs.ids)}, inputs.ids.shape[1]
    parameters = inspect.signature(make).parameters.values()
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    return make(**{name: next((counts[n] for pattern, n in SIZES if pattern.search(name)), T) for name in needed})
