"""A device that is none: numbers stay on the CPU, and tensors say that they are elsewhere and refuse to meet others.

With it a machine without an accelerator shows whether every tensor is moved there, and back.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

THERE = torch.device("meta")  # of all kinds of device the one that autograd knows and no driver is needed for


class Far(Tensor):
    """A tensor over there."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> "Far":
        return Tensor._make_wrapper_subclass(
            cls, numbers.size(), strides=numbers.stride(), storage_offset=numbers.storage_offset(), dtype=numbers.dtype,
            layout=numbers.layout, device=THERE, requires_grad=False,
        )  # fmt: skip

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["numbers"], None

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, Tensor], *_: Any) -> "Far":
        return Far(parts["numbers"])

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _carried_out(func, args, kwargs or {})


class far_device(TorchDispatchMode):  # type: ignore[no-untyped-call]  # noqa: N801 - used as a context manager
    """Within it tensors can be moved to that device and made there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _carried_out(func, args, kwargs or {})


def _carried_out(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given = [part for part in tree_flatten((args, kwargs))[0] if isinstance(part, Tensor)]
    far = any(isinstance(part, Far) for part in given)
    moves = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
    if far and not moves and any(not isinstance(part, Far) and part.dim() for part in given):
        raise RuntimeError(f"Expected all tensors to be on the same device, but found two of them ({func})")
    wanted = kwargs.get("device")
    is_far = far if wanted is None else torch.device(wanted).type == THERE.type
    plain = tree_map(lambda part: part.numbers if isinstance(part, Far) else part, (args, kwargs))
    if wanted is not None:
        plain[1]["device"] = torch.device("cpu")
    made = func(*plain[0], **plain[1])
    if not is_far:
        return made
    made = tree_map(lambda part: Far(part) if isinstance(part, Tensor) else part, made)
    return return_and_correct_aliasing(func, args, kwargs, made)  # type: ignore[no-untyped-call]
