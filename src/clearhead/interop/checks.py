"""Whether the tensors of a file are those of a config, as far as headers tell. No torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from clearhead.config import ModelConfig
from clearhead.errors import DataError
from clearhead.interop.headers import Stored
from clearhead.interop.hf.buffers import Buffer, find_buffers
from clearhead.interop.hf.constants import Constant
from clearhead.interop.hf.family import Family
from clearhead.interop.hf.key_map import Link, copies, links, names_in_file
from clearhead.interop.shapes import refuse_differences, refuse_oversized

FLOATS = {"F64", "F32", "F16", "BF16"}


class CheckedTensors(NamedTuple):
    """What belongs to what, once names, shapes and types are known to fit.

    Attributes:
        table: every weight under both names.
        stored: where each tensor is, under the table's names.
        constants, buffers: tensors that hold no weights, by name.
        originals: tensors that are another one under a second name.
    """

    table: list[Link]
    stored: dict[str, Stored]
    constants: dict[str, Constant]
    buffers: dict[str, Buffer]
    originals: dict[str, str]


def check_tensors(
    path: Path, stored: Mapping[str, Stored], family: Family | None, config: ModelConfig
) -> CheckedTensors:
    """All that headers tell of whether the tensors are the config's; arguments and errors as in `filled_model`."""
    refuse_oversized(path, config, {name: tensor.shape for name, tensor in stored.items()})
    table = links(family, config)
    tensors = {name: stored[there] for name, there in names_in_file(family, table, stored).items()}
    buffers = find_buffers(family.buffers, tensors) if family else {}
    constants = {} if family is None else {name: kind for name, kind in family.constants.items() if name in tensors}
    originals = copies(family, table)
    expected = {link.foreign: link.foreign_shape for link in table}
    optional = {copy: expected[original] for copy, original in originals.items()}
    optional |= {name: kind.shape(config) for name, kind in constants.items()}
    optional |= {name: buffer.shape(config) for name, buffer in buffers.items()}
    optional |= {link.foreign: expected.pop(link.foreign) for link in table if link.optional}
    refuse_differences(path, expected, {name: tensor.shape for name, tensor in tensors.items()}, optional)
    types = {tensor.type for name, tensor in tensors.items() if name not in buffers}
    if types - FLOATS:
        raise DataError(f"{path} holds numbers of type {', '.join(sorted(types - FLOATS))}, which no weights are")
    return CheckedTensors(table, tensors, constants, buffers, originals)
