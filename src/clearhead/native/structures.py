"""What compiled code reads: `structures.h`, field by field, and matrices in the order in which it multiplies."""

import ctypes
import mmap
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.config import Dtype
from clearhead.models.quantization import narrowed
from clearhead.parts import LayerNorm, NgramTables, PlusOneRMSNorm, RMSNorm

REGISTER = 64  # bytes
LAYOUT = 1  # raised with that of structures.h when a field changes its meaning and not its size
PAGES = 2**26  # bytes of matrices that are taken from the system at once

Pointer, Integer, Double = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


def pointers(*names: str) -> list[tuple[str, type[ctypes.c_void_p]]]:
    """Fields of a structure."""
    return [(name, Pointer) for name in names]


def integers(*names: str) -> list[tuple[str, type[ctypes.c_int64]]]:
    """Fields of a structure."""
    return [(name, Integer) for name in names]


class Matrix(ctypes.Structure):
    _fields_ = [*pointers("blocks", "scales", "offsets", "bias"), *integers("outputs", "inputs", "bytes")]


class Norm(ctypes.Structure):
    _fields_ = [*pointers("weight", "bias"), ("epsilon", Double)]


class Layer(ctypes.Structure):
    _fields_ = [
        *((name, Matrix) for name in ("heads", "output", "up", "gate", "down")),
        *((name, Norm) for name in ("attention_norm", "query_norm", "key_norm", "feedforward_norm")),
        *((name, Matrix) for name in ("cross_query", "cross_output")),
        *((name, Norm) for name in ("cross_norm", "cross_query_norm")),
    ]


class Stack(ctypes.Structure):
    _fields_ = [
        *pointers("layers"),
        *integers("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff"),
        ("scale", Double),
        *integers("activation", "post", "parallel"),
        ("norm", Norm),
    ]


class Tables(ctypes.Structure):
    _fields_ = [*pointers("weight", "sizes", "factors"), *integers("longest")]


class Decoder(ctypes.Structure):
    _fields_ = [
        *pointers("embedding"),
        ("embedding_scale", Double),
        *((name, Tables) for name in ("embedding_ngrams", "logit_ngrams")),
        ("embedding_norm", Norm),
        ("stack", Stack),
        ("dense", Matrix),
        *integers("dense_activation"),
        ("dense_norm", Norm),
        ("head_scale", Double),
        ("head", Matrix),
    ]


class Drawing(ctypes.Structure):
    _fields_ = [
        *integers("greedy", "top_k"),
        *((name, Double) for name in ("penalty", "temperature", "top_p", "min_p")),
    ]


class Call(ctypes.Structure):
    _fields_ = [
        *integers("texts", "given", "steps", "wanted", "threads", "apart"),
        *pointers("line"),
        *integers("line_row", "history"),
        *pointers("ids", "logits", "drawings", "uniforms", "present"),
        ("caches", ctypes.POINTER(Pointer)),
        *integers("length", "capacity"),
        ("memories", ctypes.POINTER(Pointer)),
        *integers("memory_length"),
        *pointers("memory_mask"),
        *pointers("added"),
        *integers("added_row"),
        *pointers("positions", "starts"),
        *integers("window"),
        *pointers("mask"),
        *integers("mask_row"),
        *pointers("bias"),
        *integers("bias_row"),
        *pointers("cosines", "sines"),
        *integers("half", "turn_row"),
    ]


class Continuing(ctypes.Structure):
    _fields_ = [
        *integers("sentences", "hypotheses", "vocab_size", "wanted", "threads", "padding"),
        *pointers("logits", "before", "totals", "scores", "places"),
    ]


STRUCTURES = (Matrix, Norm, Layer, Stack, Tables, Decoder, Drawing, Call, Continuing)


def refuse_other_structures(library: ctypes.CDLL) -> None:
    """Compiled code tells the version and the sizes of the structures that it reads: `clearhead_layout` in decoder.cpp.

    Raises:
        RuntimeError: they are not those that are filled in here, so that it would read and write foreign memory.
    """
    expected = [LAYOUT, len(STRUCTURES), *map(ctypes.sizeof, STRUCTURES)]
    try:
        actual = list((Integer * len(expected)).in_dll(library, "clearhead_layout"))
    except ValueError:
        actual = []
    if actual != expected:
        raise RuntimeError(f"it reads other structures {actual} than are filled in {expected}; please report this")


class UnknownPartError(Exception):
    """A part that compiled code does not know."""


def large_pages(size: int) -> mmap.mmap:
    """Memory in pages of 2 MB, where the system has them: what is read from one end to the other then comes sooner."""
    pages = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


class Packer:
    """Makes the structures of a model's parts; lives as long as they do, because it holds what they point to."""

    def __init__(self, matrices: Dtype, dtype: torch.dtype) -> None:
        """
        Args:
            matrices: the type of the matrices.
            dtype: the type of all other numbers.
        """
        self.matrices, self.dtype = matrices, dtype
        self.lanes = REGISTER // dtype.itemsize
        self._held: list[Any] = []
        self._pages, self._used = large_pages(PAGES), 0

    def matrix(self, matrix: Tensor | None, bias: Tensor | None = None) -> Matrix:
        """A matrix (N, K) in blocks of two registers' outputs, (N', K, 2 * lanes); of int8 four inputs lie together."""
        if matrix is None:
            return Matrix()
        (N, K), lanes, group = matrix.shape, self.lanes, 4 if self.matrices == "int8" else 1
        missing = -N % (2 * lanes)
        numbers, scales = narrowed(F.pad(matrix.detach(), (0, -K % group, 0, missing)), self.matrices)
        blocks = numbers.view(-1, 2, lanes, (K + group - 1) // group, group)  # (N' * 2 * lanes, K' * group)
        blocks = blocks.permute(0, 3, 1, 2, 4)  # (N', K', 2, lanes, group)
        if self.matrices == "bfloat16":
            blocks = blocks.transpose(2, 3)  # (N', K, lanes, 2, 1): of each pair one goes into the first register
        offsets = -128 * numbers.sum(1, dtype=torch.int32) if self.matrices == "int8" else None
        padded = None if bias is None else F.pad(bias.detach(), (0, missing))
        return Matrix(*map(self.pointer, (self._moved(blocks), scales, offsets, padded)), N, K, numbers.itemsize)

    def _moved(self, blocks: Tensor) -> Tensor:
        """The same in large pages, one matrix behind the other."""
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
        """
        Raises:
            UnknownPartError: it is no norm of this library.
        """
        if type(norm) is nn.Identity:
            return Norm()
        if type(norm) is PlusOneRMSNorm:
            return Norm(self.pointer(1 + norm.weight.detach()), None, norm.epsilon)
        if type(norm) is RMSNorm:
            return Norm(self.pointer(norm.weight.detach()), None, norm.epsilon)
        if type(norm) is LayerNorm:
            return Norm(self.pointer(norm.weight.detach()), self.pointer(norm.bias.detach()), norm.epsilon)
        raise UnknownPartError(f"{type(norm).__name__} is not known to compiled code")

    def pointer(self, tensor: Tensor | None) -> int | None:
        """Where the tensor's numbers lie, one behind the other."""
        if tensor is None:
            return None
        self._held.append(tensor.contiguous())
        return self._held[-1].data_ptr()  # type: ignore[no-any-return]

    def array(self, structures: list[Layer]) -> int:
        """Where the structures lie, one behind the other."""
        self._held.append((Layer * len(structures))(*structures))
        return ctypes.addressof(self._held[-1])
