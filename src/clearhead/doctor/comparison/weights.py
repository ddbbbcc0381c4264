"""Which weight of one model is which of the other, and the values of A in both."""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import torch
from torch import Tensor, nn

from clearhead.doctor.probes.tracing import ModuleCall
from clearhead.doctor.report.comparison import Differing, Weights
from clearhead.errors import DataError

Named = Mapping[str, Tensor]
Key = Callable[[str, Tensor], Hashable | None]

ROLES = {  # common names of maps that have one shape and may be created in any order
    "query": r"(^|_|w)q($|_)|query",
    "key": r"(^|_|w)k($|_)|key",
    "value": r"(^|_|w)v($|_)|value",
    "gate": r"gate|^w1$",
    "up": r"(^|_)up|^w3$",
}
SIDES = {"cross": r"cross|encoder_attn|enc_attn|src_attn|memory|multihead_attn", "encoder": r"enc|src|source"}


@dataclass(frozen=True)
class WeightPair:
    """Names of two tensors that are one weight. `turned`: one is the other's transpose."""

    a: str
    b: str
    how: str
    turned: bool = False


def named(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter under every name that it has."""
    return dict(model.named_parameters(remove_duplicate=False))


def corresponding(
    pairs: Sequence[WeightPair], a: Mapping[str, Tensor], b: Mapping[str, Tensor]
) -> Iterator[tuple[WeightPair, Tensor, Tensor]]:
    """The tensors of each pair, that of B with its axes as in A."""
    for pair in pairs:
        yield pair, a[pair.a], b[pair.b].mT if pair.turned else b[pair.b]


def in_order(model: nn.Module, calls: Sequence[ModuleCall]) -> dict[str, nn.Parameter]:
    """The same, in the order in which the modules that hold them are done for the first time."""
    done = {call.name: number for number, call in reversed([*enumerate(calls)])}

    def place(name: str) -> int:
        path, _, _ = name.rpartition(".")
        return done.get(path, len(calls)) if path in done or not path else place(path)

    return dict(sorted(named(model).items(), key=lambda item: place(item[0])))


def match(a: nn.Module, b: nn.Module, calls_a: Sequence[ModuleCall], calls_b: Sequence[ModuleCall]) -> list[WeightPair]:
    """Pair every weight of A with one of B: by name, equal values, end of the name, layer and role, shape and order.

    Args:
        calls_a, calls_b: a pass through each, for the order.

    Raises:
        DataError: some weight has no counterpart.
    """
    left: Named = in_order(a, calls_a)
    right: Named = in_order(b, calls_b)
    pairs: list[WeightPair] = []
    for how, key in KEYS:
        matched = _by_key(left, right, key, how)
        pairs += matched
        left, right = _without(left, [pair.a for pair in matched]), _without(right, [pair.b for pair in matched])
    if left or right:
        raise DataError(_left_over(left, right, len(pairs)))
    order = list(named(a))
    return _turned(sorted(pairs, key=lambda pair: order.index(pair.a)), a, b)


def _by_key(a: Named, b: Named, key: Key, how: str) -> list[WeightPair]:
    """Names of one key, in order, where both sides have equally many; perhaps if a tied weight has one name only."""
    groups_a, groups_b = _grouped(a, key), _grouped(b, key)
    pairs = []
    for value, names in groups_a.items():
        others = groups_b.get(value, [])
        if len(names) != len(others):
            names, others = _distinct(names, a), _distinct(others, b)
        if len(names) == len(others):
            pairs += [WeightPair(x, y, how) for x, y in zip(names, others, strict=True)]
    return pairs


def _grouped(tensors: Named, key: Key) -> dict[Hashable, list[str]]:
    groups: dict[Hashable, list[str]] = {}
    for name, tensor in tensors.items():
        value = key(name, tensor)
        if value is not None:
            groups.setdefault((value, *sorted(tensor.shape)), []).append(name)
    return groups


def _distinct(names: Sequence[str], tensors: Named) -> list[str]:
    first: dict[Tensor, str] = {}
    return [name for name in names if first.setdefault(tensors[name], name) == name]


def _without(tensors: Named, matched: Sequence[str]) -> Named:
    """The rest; a tensor that is matched under one name needs no partner under another."""
    known = {tensors[name] for name in matched}
    return {name: tensor for name, tensor in tensors.items() if tensor not in known}


def _ending(length: int, name: str, tensor: Tensor) -> Hashable | None:
    parts = name.split(".")
    return tuple(parts[-length:]) if len(parts) >= length else None


def _value(name: str, tensor: Tensor) -> Hashable | None:
    """Numbers that a transpose does not change; a constant tensor cannot be recognized by them."""
    flat = tensor.detach().flatten()
    if not len(flat) or bool((flat == flat[0]).all()):
        return None
    return float(flat[0]), float(flat[-1]), float(flat.min()), float(flat.max())


def _role(name: str, tensor: Tensor) -> Hashable | None:
    """Side, layer and role, where the name tells its role."""
    *path, last = name.lower().split(".")
    role = next((role for role, form in ROLES.items() if path and re.search(form, path[-1])), None)
    if role is None:
        return None
    layer = next((part for part in path if part.isdigit()), "")
    side = next((side for side, form in SIDES.items() if re.search(form, ".".join(path))), "")
    return role, side, layer, last


KEYS: tuple[tuple[str, Key], ...] = (
    ("name", lambda name, tensor: name),
    ("value", _value),
    *(("suffix", partial(_ending, length)) for length in (6, 5, 4, 3, 2)),
    ("role", _role),
    ("order", lambda name, tensor: "bias" in name.rpartition(".")[2]),
)


def _left_over(left: Named, right: Named, matched: int) -> str:
    notes = [
        f"{next(iter(rest))} {tuple(next(iter(rest.values())).shape)} of {side}"
        + (f" and {len(rest) - 1} more" * (len(rest) > 1))
        for side, rest in (("A", left), ("B", right))
        if rest
    ]
    return (
        f"{' and '.join(notes)} {'have' if left and right else 'has'} no counterpart ({matched} weights have one); the "
        "models must hold the same weights, in whatever names and order: build both with equal sizes, ties and biases"
    )


def _turned(pairs: Sequence[WeightPair], a: nn.Module, b: nn.Module) -> list[WeightPair]:
    """Which pairs are transposes. Unequal shapes show it; square weights of the same classes follow."""
    left, right = named(a), named(b)

    def classes(pair: WeightPair) -> tuple[type, type]:
        return type(a.get_submodule(pair.a.rpartition(".")[0])), type(b.get_submodule(pair.b.rpartition(".")[0]))

    wide = [pair for pair in pairs if left[pair.a].dim() > 1 and not _square(left[pair.a])]
    surely = {classes(pair) for pair in wide if left[pair.a].shape != right[pair.b].shape}
    straight = {classes(pair) for pair in wide if left[pair.a].shape == right[pair.b].shape}

    def is_turned(pair: WeightPair) -> bool:
        x, y = left[pair.a], right[pair.b]
        if not _square(x):
            return x.shape != y.shape
        return not torch.equal(x, y) if pair.how == "value" else classes(pair) in surely - straight

    return [replace(pair, turned=is_turned(pair)) for pair in pairs]


def _square(tensor: Tensor) -> bool:
    return tensor.dim() == 2 and tensor.shape[0] == tensor.shape[1] and tensor.shape[0] > 1


def labels(pairs: Sequence[WeightPair], a: nn.Module, b: nn.Module) -> tuple[dict[Tensor, int], dict[Tensor, int]]:
    """A number for each tensor of A and of B; the same for all that are one weight in either model."""
    left, right = named(a), named(b)
    of_a: dict[Tensor, int] = {}
    of_b: dict[Tensor, int] = {}
    for number, pair in enumerate(pairs):
        x, y = left[pair.a], right[pair.b]
        of_a[x] = of_b[y] = of_b.get(y, of_a.get(x, number))
    return of_a, of_b


def parted_ties(pairs: Sequence[WeightPair], a: nn.Module, b: nn.Module) -> tuple[str, WeightPair, WeightPair] | None:
    """The first two weights that are one tensor in one model and two in the other: 'A' or 'B', where they are one."""
    left, right = named(a), named(b)
    for first, second in combinations(pairs, 2):
        in_a, in_b = left[first.a] is left[second.a], right[first.b] is right[second.b]
        if in_a != in_b:
            return "A" if in_a else "B", first, second
    return None


@torch.no_grad()
def transfer(pairs: Sequence[WeightPair], a: nn.Module, b: nn.Module) -> Weights:
    """Give B the values of A, in place; tells how they were matched, and what differed before.

    What either model holds in one tensor gets one value in both.
    """
    of_a, _ = labels(pairs, a, b)
    values: dict[int, Tensor] = {}
    first, changed = None, []
    for pair, x, y in corresponding(pairs, named(a), named(b)):
        if first is None and not torch.equal(x, y):
            first = Differing(pair.a, pair.b, float((x - y).abs().max()) / (float(x.abs().max()) or 1.0))
        value = values.setdefault(of_a[x], x)
        if not torch.equal(x, value):
            changed.append(pair.a)
            x.copy_(value)
        y.copy_(value)
    buffers, differing = dict(a.named_buffers()), []
    for name, buffer in b.named_buffers():
        other = buffers.get(name)
        if other is not None and buffer.shape == other.shape and not torch.equal(buffer, other):
            if "running_" in name:
                buffer.copy_(other)
            elif "num_batches" not in name:
                differing.append(name)
    notes = [f"B ties what A holds twice: {', '.join(changed[:3])} of A took B's value"] if changed else []
    notes += [f"buffer {name} differs, and stays as it is" for name in differing[:1]]
    renamed = tuple((pair.a, pair.b) for pair in pairs if pair.a != pair.b)
    return Weights(Counter(pair.how for pair in pairs), renamed, first, tuple(notes))
