"""What writes tokens behind rows of ids: methods of a model and functions beside its class, and how each is called."""

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.inputs import Inputs, filler_of, role_of
from clearhead.doctor.calling.names import CACHE, FLAG, MASK, is_of_a_library
from clearhead.doctor.calling.outputs import tensors
from clearhead.doctor.checks.base import Skipped, Subject, Where
from clearhead.doctor.probes.tracing import ModuleCall, quiet, recorded_ops
from clearhead.doctor.state_guard import seed_all

NAMES = re.compile(  # what people call it
    r"^(generate|sample|inference|complete|translate|greedy)(_?(text|tokens|ids|simple|greedy|decode|decoding|search))*$"
)
MODEL = re.compile(r"^(model|net|network|transformer|gpt|lm|llm)$")
WINDOW = re.compile(r"context|block_size|window|ctx")
NEW = re.compile(r"new|gen|num|steps|sample_len|^n$|^k$")
TOTAL = re.compile(r"(max|target|total|seq|output|tgt|trg)_?(len|length|tokens|size)|^(max_)?len(gth)?$")
BEGIN = re.compile(r"(bos|sos|start|begin)(_?(token|id|idx|index|symbol))*$")
END = re.compile(r"(eos|end|stop)(_?(token|id|idx|index|symbol))*$")
ROW = re.compile(r"id|tok|x$|^seq|^inp|^src|^source|^prompt|^start|^tgt|^trg|^cond|^context$")
GREEDY = {"do_sample": False, "greedy": True, "top_k": 1, "temperature": 1e-4}  # the first that it takes


class TokenDraw(NamedTuple):
    """What a token is drawn from for each row."""

    p: Tensor  # (B, W)
    column: Tensor  # (B,), the token's


class Writing(NamedTuple):
    """One answer, and how it came about."""

    before: Tensor  # (B, n), the rows that it began with
    tokens: Tensor | None  # (B, m), behind them; None where they are not to be found in what was returned
    draws: list[TokenDraw]
    drew: bool  # random numbers were drawn


@dataclass(frozen=True)
class TextWriter:
    """A person's own code that writes tokens. `one_by_one`: it takes a single row."""

    subject: Subject
    name: str
    code: Any
    is_method: bool
    one_by_one: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """What may be left out of a call, by name, and what it is then."""
        parameters = inspect.signature(self.code).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not p.empty}

    @property
    def greedy(self) -> dict[str, Any]:
        """The argument by which it takes the likeliest token; empty if it has none."""
        return next(({name: value} for name, value in GREEDY.items() if name in self.options), {})

    @property
    def where(self) -> Where:
        """Where its code is: its 'def', and not a decorator above it."""
        code = getattr(inspect.unwrap(self.code), "__code__", None)
        line = (code.co_filename, code.co_firstlineno + _above_def(code)) if code else ()
        return Where("", type(self.subject.model).__name__, *line)

    def write(
        self, model: nn.Module, inputs: Inputs, new: int, options: Mapping[str, object], *, seed: int = 0
    ) -> Writing:
        """What a model writes behind these rows; options that it does not know are left out.

        Raises:
            Skipped: it needs something that is not known.
        """
        if not self.one_by_one or len(inputs.ids) == 1:
            return self._write(model, inputs, new, seed, options)
        rows = (inputs.rows(torch.tensor([row])) for row in range(len(inputs.ids)))
        parts = [self._write(model, row, new, seed, options) for row in rows]
        tokens = [part.tokens for part in parts if part.tokens is not None]
        shortest = min((row.shape[1] for row in tokens), default=0)
        whole = torch.cat([row[:, :shortest] for row in tokens]) if shortest and len(tokens) == len(parts) else None
        steps = zip(*(part.draws for part in parts), strict=False)  # some end sooner
        draws = [TokenDraw(*map(torch.cat, zip(*step, strict=True))) for step in steps]
        return Writing(torch.cat([part.before for part in parts]), whole, draws, parts[0].drew)

    def _write(self, model: nn.Module, inputs: Inputs, new: int, seed: int, options: Mapping[str, object]) -> Writing:
        arguments = dict(self._arguments(inputs, new))
        before = inputs.ids if any(value is inputs.ids for value in arguments.values()) else None
        arguments |= {name: value for name, value in options.items() if name in self.options}
        arguments = {name: v.to(self.subject.device) if isinstance(v, Tensor) else v for name, v in arguments.items()}
        call = getattr(model, self.name) if self.is_method else partial(self.code, model)
        seed_all(seed)
        begun = _state(self.subject.device)
        with quiet(), recorded_ops(lambda op: op in ("multinomial", "embedding")) as ops:
            returned = call(**arguments)
        drew = not torch.equal(begun, _state(self.subject.device))
        before = _first_read(ops.calls, inputs) if before is None else before
        draws = [_drawn(call, len(inputs.ids)) for call in ops.calls if call.name == "multinomial"]
        return Writing(before, _behind(returned, before), draws[: new + 1], drew)

    def _arguments(self, inputs: Inputs, new: int) -> Iterator[tuple[str, object]]:
        """What it is given, by its parameters' names: what forward is given under the same name, or what it means."""
        known = dict(self.subject.convention.call)
        tokens = {"ids": inputs.ids} if inputs.source is None else {"source": inputs.source, "ids": inputs.ids}
        total = inputs.ids.shape[1] + new
        for p in [*inspect.signature(self.code).parameters.values()][1:]:
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                continue
            if NEW.search(p.name) or TOTAL.search(p.name):
                yield p.name, new if NEW.search(p.name) else total
            elif p.default is not p.empty:
                continue
            elif p.name in known:
                tokens.pop(role_of(known[p.name]), None)
                yield p.name, filler_of(known[p.name])(inputs, False)
            elif WINDOW.search(p.name):
                yield p.name, max(total, self.subject.calling.T)
            elif FLAG.search(p.name):
                yield p.name, CACHE.search(p.name) is not None
            elif MASK.search(p.name):
                yield p.name, None
            elif BEGIN.search(p.name):
                yield p.name, int(inputs.ids[0, 0])
            elif END.search(p.name):
                yield p.name, -1
            elif p.name == "device":
                yield p.name, self.subject.device
            elif tokens and ROW.search(p.name):
                yield p.name, tokens.pop(next(iter(tokens)))
            else:
                raise Skipped(f"{self.name}() needs '{p.name}', and nothing says what that is")


def writers_of(subject: Subject) -> Iterator[TextWriter]:
    """Everything of the person's own that may write tokens: methods first, then functions that are given the model."""
    cls = type(subject.original)
    methods = ((name, getattr(cls, name)) for name in dir(cls) if NAMES.search(name))
    beside = vars(sys.modules.get(cls.__module__, cls)).items()
    functions = ((name, code) for name, code in beside if NAMES.search(name) and inspect.isfunction(code))
    for is_method, candidates in ((True, methods), (False, functions)):
        for name, code in candidates:
            if not callable(code) or is_of_a_library(code) or not (parameters := [*inspect.signature(code).parameters]):
                continue
            if is_method or (code.__module__ == cls.__module__ and MODEL.search(parameters[0])):
                yield TextWriter(subject, name, code, is_method)


def _above_def(code: CodeType) -> int:
    """How many lines of its source stand above its 'def'."""
    with suppress(OSError, TypeError):
        lines = inspect.getsourcelines(code)[0]
        return next((n for n, line in enumerate(lines) if re.match(r"\s*(async )?def ", line)), 0)
    return 0


def _state(device: torch.device) -> Tensor:
    """Of the generator that torch's samplers use there."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _first_read(calls: list[ModuleCall], inputs: Inputs) -> Tensor:
    """The tokens (B, 1) that a decoder begins with where it is given none; `Skipped` without one in each row."""
    for call in calls:
        ids = call.argument(0, "input") if call.name == "embedding" else None
        if isinstance(ids, Tensor) and ids.numel() == len(inputs.ids) and not ids.is_floating_point():
            return ids.detach().cpu().reshape(-1, 1).clone()
    raise Skipped("what it begins to write with is not to be seen")


def _drawn(call: ModuleCall, rows: int) -> TokenDraw:
    p, column = call.inputs[0].reshape(rows, -1).float(), call.options["result"].cpu().reshape(rows, -1)
    return TokenDraw(p / p.sum(1, keepdim=True), column[:, 0])


def _behind(returned: object, before: Tensor) -> Tensor | None:
    """The tokens (B, n) that were written behind rows of ids; None if they are not to be found in what was returned."""
    n, rows = before.shape[1], len(before)
    for output in tensors(returned):
        ids = output.cpu()[None] if output.dim() == 1 and rows == 1 else output.cpu()
        if ids.dim() != 2 or len(ids) != rows or not ids.numel() or ids.is_floating_point():
            continue
        return ids[:, n:] if ids.shape[1] > n and torch.equal(ids[:, :n], before) else ids
    return None
