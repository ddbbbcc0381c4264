"""The one capture: what every module of a model computes, seen through torch's hooks.

No part of the model knows of it, and nothing is stored on its modules. Attention weights, which fused kernels never
hold, are computed again from the queries, keys and masks that were used.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.errors import UsageError
from clearhead.inspection.capture.sites import (
    AttentionSite,
    attention_sites,
    called_modules,
    feedforward_sites,
    path,
    stack_sites,
)
from clearhead.inspection.capture.trace import Trace
from clearhead.parts.cache import AttentionCache, KeysValues, Project
from clearhead.parts.eager_attention import eager_attention
from clearhead.parts.masks import Mask
from clearhead.suggestions import did_you_mean

OUTPUT = "output"  # the name of what the model itself returns; its path is empty
IN_ATTENTION = ("q", "k", "v", "scores", "attention", "mixed")  # names behind an attention's path
HIDDEN, INPUT = "hidden", "input"  # behind a feed-forward's and a stack's

Options = dict[str, Any]  # keyword arguments of a module's forward, which torch hands to a hook as they are


@contextmanager
def record(model: nn.Module, names: str | Iterable[str] | None = None) -> Iterator[Trace]:
    """Inside the `with`, each call of the model fills the trace; what an earlier call left is replaced.

    The model's output is the same to the last bit, and its hooks are removed whatever happens. With `intervene`, the
    trace holds what was put in place.

    Args:
        model: any module; what lies between modules is seen in this library's own parts alone.
        names: what to keep, which bounds the memory: names as in `activation_names`, or patterns with `*`
            ("*.attention"). Everything by default.

    Raises:
        UsageError: nothing of the model has such a name.
    """
    trace = Trace(model)
    kept = _chosen(names, activation_names(model))
    with ExitStack() as hooks:
        for name, module in called_modules(model):
            if (name or OUTPUT) in kept:
                hooks.enter_context(module.register_forward_hook(_keep_output(trace, name or OUTPUT)))
        for stack in stack_sites(model):
            if (name := path(stack.name, INPUT)) in kept:
                hooks.enter_context(stack.module.register_forward_pre_hook(_keep_input(trace, name)))
        for feedforward in feedforward_sites(model):
            if (name := path(feedforward.name, HIDDEN)) in kept:
                hooks.enter_context(feedforward.module.down.register_forward_pre_hook(_keep_input(trace, name)))
        for site in attention_sites(model):
            if kept & {path(site.name, step) for step in IN_ATTENTION}:
                hooks.enter_context(_AttentionRecorder(site, trace, kept))
        yield trace


def activation_names(model: nn.Module) -> list[str]:
    """Everything that `record` can keep: see `Trace`."""
    names = [name or OUTPUT for name, _ in called_modules(model)]
    names += [path(stack.name, INPUT) for stack in stack_sites(model)]
    names += [path(site.name, HIDDEN) for site in feedforward_sites(model)]
    return names + [path(site.name, step) for site in attention_sites(model) for step in IN_ATTENTION]


def _chosen(names: str | Iterable[str] | None, known: list[str]) -> set[str]:
    if names is None:
        return set(known)
    chosen = set[str]()
    for pattern in [names] if isinstance(names, str) else names:
        matches = {name for name in known if name == pattern or fnmatchcase(name, pattern)}
        if not matches:
            hint = did_you_mean(pattern, known) or "; `inspection.activation_names(model)` lists all names"
            raise UsageError(f"the model computes nothing named '{pattern}'{hint}")
        chosen |= matches
    return chosen


def _keep_output(trace: Trace, name: str) -> Callable[[nn.Module, object, object], None]:
    def hook(module: nn.Module, args: object, output: object) -> None:
        value = first_tensor(output)
        if value is not None:
            trace.keep(name, value)

    return hook


def _keep_input(trace: Trace, name: str) -> Callable[[nn.Module, tuple[object, ...]], None]:
    def hook(module: nn.Module, args: tuple[object, ...]) -> None:
        value = first_tensor(args)
        if value is not None:
            trace.keep(name, value)

    return hook


def first_tensor(value: object) -> Tensor | None:
    """The value itself, or the first tensor in a tuple, list or dict; None if there is none."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        value = list(value.values())
    parts = value if isinstance(value, (tuple, list)) else ()
    return next((tensor for tensor in map(first_tensor, parts) if tensor is not None), None)


class _KeysValuesReader:
    """Stands before an attention's cache, if it has one, and reads the keys and values that the attention uses."""

    def __init__(self, cache: AttentionCache | None) -> None:
        self.cache = cache
        self.key: Tensor | None = None
        self.value: Tensor | None = None

    def update(self, project: Project) -> KeysValues:
        self.key, self.value = keys_values = self.cache.update(project) if self.cache else project()
        return keys_values


class _AttentionRecorder(ExitStack):
    """Hooks on one attention and its parts, which together see its steps; none of its modules is called again."""

    def __init__(self, site: AttentionSite, trace: Trace, kept: set[str]) -> None:
        super().__init__()
        self.attention, self.trace = site.module, trace
        self.names = {step: path(site.name, step) for step in IN_ATTENTION if path(site.name, step) in kept}
        self.query: Tensor | None = None  # (B, H, T_q, K), not rotated yet

    def __enter__(self) -> "_AttentionRecorder":
        super().__enter__()
        attention = self.attention
        for handle in (
            attention.register_forward_pre_hook(self._before, with_kwargs=True),
            attention.query_norm.register_forward_hook(self._keep_query),
            attention.output.register_forward_pre_hook(self._keep_mixed),
            attention.register_forward_hook(self._after, with_kwargs=True),
        ):
            self.enter_context(handle)
        return self

    def _before(self, module: nn.Module, args: tuple[Any, ...], options: Options) -> tuple[Any, Options]:
        return args, {**options, "cache": _KeysValuesReader(options.get("cache"))}

    def _keep_query(self, module: nn.Module, args: object, output: Tensor) -> None:
        self.query = output.detach()

    def _keep_mixed(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if name := self.names.get("mixed"):
            self.trace.keep(name, split_heads(args[0], self.attention.head_dim))

    @torch.no_grad()
    def _after(self, module: nn.Module, args: object, options: Options, output: object) -> None:
        reader, rotate = options["cache"], options.get("rotate")
        assert self.query is not None, "an attention projects its queries"
        query, key, value = (rotate(self.query) if rotate else self.query), reader.key, reader.value
        self.query = None
        mask, bias, scoring = options.get("mask"), options.get("bias"), self.attention.scoring
        for step, tensor in (("q", query), ("k", key), ("v", value)):
            self._keep(step, tensor)
        if "scores" in self.names:
            groups = query.shape[1] // key.shape[1]
            scores = scoring.scores(query, key.repeat_interleave(groups, dim=1))  # (B, H, T_q, T_k)
            self._keep("scores", forbid(scores if bias is None else scores + bias, mask))
        if "attention" in self.names:
            mixed = eager_attention(query, key, value, mask=mask, bias=bias, scoring=scoring, return_weights=True)
            self._keep("attention", mixed[1])

    def _keep(self, step: str, value: Tensor) -> None:
        if name := self.names.get(step):
            self.trace.keep(name, value)


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """(B, T, H * K) -> (B, H, T, K)."""
    return x.view(*x.shape[:2], -1, head_dim).transpose(1, 2)  # (B, T, H, K) -> (B, H, T, K)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, T, K) -> (B, T, H * K)."""
    return x.transpose(1, 2).flatten(2)  # (B, T, H, K) -> (B, T, H * K)


def forbid(scores: Tensor, mask: Mask) -> Tensor:
    """Scores (B, H, T_q, T_k) with -inf where the mask forbids."""
    if mask is None:
        return scores
    allowed = torch.ones_like(scores[0, 0], dtype=torch.bool).tril() if isinstance(mask, str) else mask
    return scores.masked_fill(~allowed, -torch.inf)
