"""Which operation made a tensor, and which ones read it: the graph of a call, told by the tensors themselves."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from numbers import Number
from typing import Any

from torch import Tensor

from clearhead.doctor.calling.outputs import tensors
from clearhead.doctor.probes.tracing import ModuleCall

MULTIPLY = {"mul", "mul_", "multiply", "__mul__", "__rmul__", "__imul__"}
DIVIDE = {"div", "div_", "divide", "true_divide", "__truediv__", "__itruediv__"}
ADD = {"add", "add_", "__add__", "__radd__", "__iadd__", "sub", "__sub__", "sub_", "subtract"}
OF_A_SHAPE = {  # operations, and how many of their arguments are read as numbers
    **dict.fromkeys(("expand_as", "view_as", "reshape_as", "type_as"), 1),
    **dict.fromkeys(("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"), 0),
    **dict.fromkeys(("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor", "size"), 0),
}
DEEP = 48  # operations that a search goes back at most


class Flow:
    """The operations of one pass, joined by their tensors; a view counts as made by the operation that took it."""

    def __init__(self, calls: Sequence[ModuleCall]) -> None:
        self.calls = calls
        self._made: dict[int, list[int]] = {}
        self._stored: dict[int, list[int]] = {}
        self._read: dict[int, list[int]] = {}
        for index, call in enumerate(calls):
            read = read_by(call)
            for tensor in made_by(call):
                if any(tensor is other for other in read) and _hands_on(call):
                    continue
                self._made.setdefault(id(tensor), []).append(index)
                self._stored.setdefault(_storage(tensor), []).append(index)
            for tensor in read:
                self._read.setdefault(id(tensor), []).append(index)

    def maker(self, tensor: Tensor, before: int) -> int | None:
        """The last operation before a place that made a tensor; failing that, that wrote where its numbers stand."""
        for table, key in ((self._made, id(tensor)), (self._stored, _storage(tensor))):
            places = table.get(key, []) if key else []
            at = bisect_left(places, before)
            if at:
                return places[at - 1]
        return None

    def readers(self, index: int) -> list[int]:
        """The operations that read what one made, in order."""
        indices = {reader for tensor in made_by(self.calls[index]) for reader in self._read.get(id(tensor), [])}
        return sorted(reader for reader in indices if reader > index)

    def way_back(self, tensor: Tensor, before: int, goal: Callable[[ModuleCall], bool], limit: int = DEEP) -> list[int]:
        """The operations on a way back to one that is a goal, the goal last; empty if none is met."""
        visited: set[int] = set()

        def search(tensor: Tensor, before: int, left: int) -> list[int]:
            index = self.maker(tensor, before)
            if index is None or index in visited or not left:
                return []
            visited.add(index)
            if goal(self.calls[index]):
                return [index]
            for source in read_by(self.calls[index]):
                if source.is_floating_point() or source.is_complex():
                    rest = search(source, index, left - 1)
                    if rest:
                        return [index, *rest]
            return []

        return search(tensor, before, limit)

    def comes_from(self, tensor: Tensor, before: int, ancestor: Tensor, around: Tensor | None = None) -> bool:
        """Whether a tensor was made, over whatever operations, from another; not over one that it is to go around."""
        visited: set[int] = set()
        open_ = [(tensor, before)]
        while open_:
            tensor, before = open_.pop()
            if tensor is ancestor:
                return True
            index = None if tensor is around else self.maker(tensor, before)
            if index is None or index in visited:
                continue
            visited.add(index)
            open_ += [(source, index) for source in read_by(self.calls[index])]
        return False


def _hands_on(call: ModuleCall) -> bool:
    """Whether an operation that gives back what it was given did nothing to it, as `float()` with what is float32.

    A dropout does so in an examination only, where it is taken out.
    """
    if "dropout" in call.name:
        return False
    is_named_so = call.name.endswith("_") and (not call.name.endswith("__") or call.name.startswith("__i"))
    in_place = is_named_so or call.options["kwargs"].get("inplace")  # ReLU(inplace=True) calls relu
    return not in_place


def _storage(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # inside a vectorized map a tensor has none
        return 0


def made_by(call: ModuleCall) -> list[Tensor]:
    """The very tensors that an operation returned."""
    return tensors(call.options.get("result"))


def read_by(call: ModuleCall) -> list[Tensor]:
    """The very tensors whose numbers an operation was given; of some it only takes the shape."""
    args = call.options.get("args") or ()
    if call.name in OF_A_SHAPE:
        args = args[: OF_A_SHAPE[call.name]]
    return tensors((args, call.options.get("kwargs")))


def factor(call: ModuleCall) -> float:
    """What an operation multiplies a tensor by, where that is one number; else 1."""
    args: Sequence[Any] = call.options["args"]
    if call.name not in MULTIPLY | DIVIDE or len(args) < 2:
        return 1.0
    numbers = [float(part) for part in args if isinstance(part, Number) or _is_number(part)]
    if len(numbers) != 1 or not numbers[0]:
        return 1.0
    return 1 / numbers[0] if call.name in DIVIDE and not isinstance(args[0], Number) else numbers[0]


def _is_number(value: object) -> bool:
    return isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()
