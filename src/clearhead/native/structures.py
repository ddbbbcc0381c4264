"""The structures of `structures.h` for ctypes, and matrices packed in the order in which native code multiplies."""

import ctypes
import hashlib
import mmap
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.config import Dtype
from clearhead.models.quantization import quantize
from clearhead.parts import LayerNorm, NgramTables, PlusOneRMSNorm, RMSNorm

PAGES = 2**26  # bytes that are allocated for matrices at a time

HEADER = Path(__file__).with_name("structures.h").read_text(encoding="utf-8")
LAYOUT = int.from_bytes(hashlib.blake2b(HEADER.encode(), digest_size=7).digest())  # compiled in, and compared at load

Pointer, Integer, Double = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
Field = tuple[str, Any]  # a name, and a type of ctypes, whose common base is private


def parse_structures(header: str) -> dict[str, list[tuple[str, str]]]:
    """The fields of each structure of a header, in their order: (name, type), without what is const."""
    header = re.sub(r"//[^\n]*|\bconst\b", "", header)
    method = re.compile(r"[^;{}]*\([^)]*\)[^;{}]*\{[^}]*\}")
    structures = re.findall(r"struct (\w+) \{(.*?)\n\};", header, re.DOTALL)
    return {
        name: [field for line in method.sub("", body).split(";") for field in _fields_in(line)]
        for name, body in structures
    }


def _fields_in(line: str) -> list[tuple[str, str]]:
    """The fields of one declaration, such as `int64_t outputs, inputs`."""
    kind, _, names = line.replace("*", "").strip().partition(" ")
    return [(name.strip(), kind + "*" * line.count("*")) for name in names.split(",") if kind]


DECLARED = parse_structures(HEADER)


def fields(structure: str) -> list[Field]:
    """The fields of a structure, as ctypes has them.

    Raises:
        KeyError: a field has a type that is not known here.
    """
    types = {"int64_t": Integer, "double": Double, **globals()}
    pointers = {1: Pointer, 2: ctypes.POINTER(Pointer)}
    return [(name, pointers.get(kind.count("*")) or types[kind]) for name, kind in DECLARED[structure]]


class Matrix(ctypes.Structure):
    _fields_ = fields("Matrix")


class Norm(ctypes.Structure):
    _fields_ = fields("Norm")


class Layer(ctypes.Structure):
    _fields_ = fields("Layer")


class StackWeights(ctypes.Structure):
    _fields_ = fields("StackWeights")


class Tables(ctypes.Structure):
    _fields_ = fields("Tables")


class Decoder(ctypes.Structure):
    _fields_ = fields("Decoder")


class SamplingParams(ctypes.Structure):
    _fields_ = fields("SamplingParams")


class Call(ctypes.Structure):
    _fields_ = fields("Call")


class BeamCall(ctypes.Structure):
    _fields_ = fields("BeamCall")


STRUCTURES = (Matrix, Norm, Layer, StackWeights, Tables, Decoder, SamplingParams, Call, BeamCall)


def refuse_other_structures(library: ctypes.CDLL) -> None:
    """Compare the library's structures with ours, by version and sizes: `clearhead_layout` in decoder.cpp.

    Raises:
        RuntimeError: they differ, so that native code would read and write foreign memory.
    """
    expected = [LAYOUT, len(STRUCTURES), *map(ctypes.sizeof, STRUCTURES)]
    try:
        actual = list((Integer * len(expected)).in_dll(library, "clearhead_layout"))
    except ValueError:
        actual = []
    if actual != expected:
        raise RuntimeError(f"the compiled struct layout is {actual}, not {expected}; please report this")


def register_bytes(library: ctypes.CDLL) -> int:
    """The width of the registers for which the library was compiled: matrices are packed for them."""
    return Integer.in_dll(library, "clearhead_register").value


class UnknownPartError(Exception):
    """Native code does not implement a part of the model."""


def large_pages(size: int) -> mmap.mmap:
    """Memory in pages of 2 MB, where the system has them: sequential reads are then faster."""
    pages = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


class Packer:
    """Builds the structures of a model's parts. Keep it as long as they are in use: it owns their memory."""

    def __init__(self, matrices: Dtype, dtype: torch.dtype, register: int) -> None:
        """
        Args:
            matrices: the type of the matrices.
            dtype: the type of all other numbers.
            register: `register_bytes` of the library.
        """
        self.matrices, self.dtype = matrices, dtype
        self.lanes = register // dtype.itemsize
        self._held: list[object] = []
        self._pages, self._used = large_pages(PAGES), 0

    def matrix(self, matrix: Tensor | None, bias: Tensor | None = None) -> Matrix:
        """A matrix (N, K) in blocks of two registers' outputs, (N', K, 2 * lanes); of int8 four inputs lie together."""
        if matrix is None:
            return Matrix()
        (N, K), lanes, group = matrix.shape, self.lanes, 4 if self.matrices == "int8" else 1
        missing = -N % (2 * lanes)
        numbers, scales = quantize(F.pad(matrix.detach(), (0, -K % group, 0, missing)), self.matrices)
        blocks = numbers.view(-1, 2, lanes, (K + group - 1) // group, group)  # (N' * 2 * lanes, K' * group)
        blocks = blocks.permute(0, 3, 1, 2, 4)  # (N', K', 2, lanes, group)
        if self.matrices == "bfloat16":
            blocks = blocks.transpose(2, 3)  # (N', K, lanes, 2, 1): of each pair one goes into the first register
        offsets = -128 * numbers.sum(1, dtype=torch.int32) if self.matrices == "int8" else None
        padded = None if bias is None else F.pad(bias.detach(), (0, missing))
        return Matrix(
            *map(self.pointer, (self._copy_to_pages(blocks), scales, offsets, padded)), N, K, numbers.itemsize
        )

    def _copy_to_pages(self, blocks: Tensor) -> Tensor:
        """Copy a matrix into large pages, after the one before it."""
        if self._used + blocks.nbytes > len(self._pages):
            self._pages, self._used = large_pages(max(blocks.nbytes, PAGES)), 0
        room = torch.frombuffer(self._pages, dtype=blocks.dtype, count=blocks.numel(), offset=self._used)
        self._used += blocks.nbytes  # whole registers
        return room.view(blocks.shape).copy_(blocks)

    def tables(self, tables: NgramTables | None) -> Tables:
        """Tables of n-grams, if there are any."""
        if tables is None:
            return Tables()
        sizes, factors = (torch.tensor(numbers, device="cpu") for numbers in (tables.sizes, tables.factors))
        return Tables(*map(self.pointer, (tables.weight.detach(), sizes, factors)), len(tables.sizes) + 1)

    def linear(self, *linears: nn.Linear) -> Matrix:
        """The matrix and bias of linear maps of one input, whose outputs follow each other."""
        weights: list[Tensor] = [linear.weight for linear in linears]
        biases: list[Tensor] = [linear.bias for linear in linears if linear.bias is not None]
        assert len(biases) in (0, len(linears)), "all of them have a bias, or none has"
        return self.matrix(torch.cat(weights), torch.cat(biases) if biases else None)

    def norm(self, norm: nn.Module) -> Norm:
        """The structure of a norm.

        Raises:
            UnknownPartError: it is no norm of this library.
        """
        if type(norm) is nn.Identity:
            return Norm()
        if type(norm) is PlusOneRMSNorm:
            return Norm(self.pointer(1 + norm.weight.detach()), None, norm.eps)
        if type(norm) is RMSNorm:
            return Norm(self.pointer(norm.weight.detach()), None, norm.eps)
        if type(norm) is LayerNorm:
            return Norm(self.pointer(norm.weight.detach()), self.pointer(norm.bias.detach()), norm.eps)
        raise UnknownPartError(f"{type(norm).__name__} is not known to native code")

    def pointer(self, tensor: Tensor | None) -> int | None:
        """The data pointer of the tensor, made contiguous and kept alive."""
        if tensor is None:
            return None
        held = tensor.contiguous()
        self._held.append(held)
        return held.data_ptr()

    def array(self, structures: list[Layer]) -> int:
        """The address of an array of the structures, kept alive."""
        held = (Layer * len(structures))(*structures)
        self._held.append(held)
        return ctypes.addressof(held)
