"""The numbers of safetensors files, read and written one tensor at a time.

The format's own library holds a whole file: what it maps counts as memory in use, and what it writes it copies first.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from clearhead.interop.headers import SIZES, Stored

if TYPE_CHECKING:
    from typing_extensions import Buffer

TYPES = {  # in the order in which the library writes them
    "I64": torch.int64,
    "F64": torch.float64,
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {type_: name for name, type_ in TYPES.items()}
ALIGNMENT = 8  # bytes


class Writable(NamedTuple):
    """A tensor of a file to be: what the header says, and how to get the numbers when their turn comes."""

    shape: tuple[int, ...]
    type: torch.dtype
    make: Callable[[], Tensor]


def read_tensor(stored: Stored) -> Tensor:
    """The tensor, in memory of its own.

    Raises:
        OSError: it cannot be read, or is cut off.
    """
    tensor = torch.empty(stored.shape, dtype=TYPES[stored.type])
    with stored.file.open("rb", buffering=0) as file:
        file.seek(stored.start)
        room = _bytes_of(tensor)
        while room:
            count = file.readinto(room)
            if not count:
                raise OSError(f"it is cut off in {stored.name}")
            room = room[count:]
    if stored.type == "BOOL":  # a byte that is neither 0 nor 1 is no value of torch's
        return tensor.view(torch.uint8) != 0
    return tensor


def write_tensors(path: Path, tensors: Mapping[str, Writable], metadata: Mapping[str, str]) -> None:
    """Write a file, byte for byte as the format's own library does.

    Raises:
        OSError: it cannot be written.
    """
    rank = {type_: n for n, type_ in enumerate(TYPES.values())}
    order = sorted(tensors, key=lambda name: (rank[tensors[name].type], name))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in order:
        tensor = tensors[name]
        start, end = end, end + math.prod(tensor.shape) * SIZES[NAMES[tensor.type]]
        header[name] = {"dtype": NAMES[tensor.type], "shape": list(tensor.shape), "data_offsets": [start, end]}
    content = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    content += b" " * (-len(content) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(content).to_bytes(8, "little") + content)
        for name in order:
            numbers = tensors[name].make().detach().cpu().contiguous()
            assert (tuple(numbers.shape), numbers.dtype) == tensors[name][:2], f"{name} is not what the header says"
            file.write(_bytes_of(numbers))


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    return memoryview(cast("Buffer", tensor.reshape(-1).view(torch.uint8).numpy()))
