"""A decoder whose stack and head's matrix are compiled code's: all else of its call is the model's own."""

import copy
import ctypes
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.config import Weights
from clearhead.inference.compiled.layout import Call, Layer, Matrix, Packer, Stack, UnknownPartError
from clearhead.inference.rounding import LinearMaps
from clearhead.models import DecoderLM
from clearhead.parts import ACTIVATIONS, Attention, Block, FeedForward, ParallelBlock, SelfAttentionCache
from clearhead.parts import Stack as ModelStack
from clearhead.parts.masks import Mask
from clearhead.parts.positions import Turn

ACTIVATION_NUMBERS = [ACTIVATIONS[name] for name in ("relu", "relu2", "silu", "gelu_tanh", "gelu")]  # as in numbers.h
ENOUGH = 4_000_000  # products of a step, from which on threads share them


class CompiledStack(nn.Module):
    """In the place of a stack: one token of each row, (B, 1, D) -> (B, 1, D)."""

    def __init__(self, stack: ModelStack, weights: Weights, library: ctypes.CDLL) -> None:
        """
        Raises:
            UnknownPartError: it has a part that compiled code does not know.
        """
        super().__init__()
        dtype = next(stack.parameters()).dtype
        self._packer, self._library = Packer(weights, dtype), library
        self._stack = described(stack, self._packer)
        self._products = sum(parameter.numel() for parameter in stack.parameters())

    @torch.no_grad()
    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask,
        rotate: Turn | None,
        bias: Tensor | None,
        caches: Sequence[SelfAttentionCache],
    ) -> Tensor:
        B, out = len(x), torch.empty_like(x)
        length, capacity = caches[0].length, caches[0].keys.shape[2]
        assert x.shape[1] == 1, f"compiled code reads one token of each row, not {x.shape[1]}"
        assert length < capacity, f"the cache holds {capacity} columns, and all are in use"
        room = [tensor for cache in caches for tensor in (cache.keys, cache.values)]
        assert all(tensor.is_contiguous() for tensor in room), "of a cache's room no part is left out"
        call = Call(out=out.data_ptr(), rows=B, length=length, capacity=capacity)
        call.threads = torch.get_num_threads() if B * self._products >= ENOUGH else 1
        call.caches = (ctypes.c_void_p * len(room))(*(part.data_ptr() for part in room))
        x = x.contiguous()
        call.x = x.data_ptr()
        if isinstance(mask, Tensor):
            mask = mask.reshape(-1, length + 1).contiguous()  # (1, T) or (B, 1, 1, T) -> (1, T) or (B, T)
            call.mask, call.mask_row = mask.data_ptr(), _row(mask)
        if bias is not None:
            bias = bias.to(x.dtype).reshape(-1, *bias.shape[-3::2]).contiguous()  # (B, H, 1, T) -> (B, H, T)
            call.bias, call.bias_row = bias.data_ptr(), _row(bias)
        if rotate is not None:
            width = rotate.cos.shape[-1]
            cos = rotate.cos.to(x.dtype).reshape(-1, width)  # (1, R) or (B, 1, 1, R) -> (1, R) or (B, R)
            sin = rotate.sin.to(x.dtype).reshape(-1, width)  # the same
            call.cosines, call.sines, call.half, call.turn_row = cos.data_ptr(), sin.data_ptr(), width // 2, _row(cos)
        self._library.clearhead_step(ctypes.byref(self._stack), ctypes.byref(call))
        for cache in caches:
            cache.length += 1
        return out


class CompiledHead(nn.Module):
    """In the place of a head: the products with its matrix are compiled code's."""

    def __init__(self, head: nn.Module, matrix: Tensor, weights: Weights, library: ctypes.CDLL) -> None:
        super().__init__()
        self.head, self._packer = head, Packer(weights, matrix.dtype)
        self._products = _Products(matrix, self._packer.matrix(matrix), library)

    def forward(self, hidden: Tensor, embedding: Tensor) -> Tensor:
        """(B, D) -> (B, V)."""
        with self._products:
            return self.head(hidden, embedding)  # type: ignore[no-any-return]


class _Products(LinearMaps):
    """Inside the `with`, products with this matrix are computed by compiled code."""

    def __init__(self, matrix: Tensor, packed: Matrix, library: ctypes.CDLL) -> None:
        super().__init__()
        self.matrix, self.packed, self.library = matrix, packed, library

    def linear(self, x: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
        if matrix is not self.matrix:
            return F.linear(x, matrix, bias)
        x, out = x.contiguous(), x.new_empty(len(x), self.packed.outputs)
        threads = torch.get_num_threads() if x.shape[0] * matrix.numel() >= ENOUGH else 1
        self.library.clearhead_linear(
            ctypes.byref(self.packed), *map(ctypes.c_void_p, (x.data_ptr(), out.data_ptr())), len(x), threads
        )
        return out if bias is None else out + bias


def with_compiled_code(model: DecoderLM, weights: Weights, library: ctypes.CDLL) -> DecoderLM:
    """The model, its parameters shared, with compiled code in the places of its stack and its head.

    Raises:
        UnknownPartError: it has a part that compiled code does not know.
    """
    twin = copy.copy(model)
    twin._modules = dict(model._modules)  # its own, so that the model stays as it is
    head, embedding = model.unembedding, model.embedding.weight
    matrix = embedding if head.weight is None else head.weight
    twin._modules["stack"] = CompiledStack(model.stack, weights, library)
    twin._modules["unembedding"] = CompiledHead(head, matrix, weights, library)
    return twin


def described(stack: ModelStack, packer: Packer) -> Stack:
    """The structure of a stack, whose layers differ in their weights alone.

    Raises:
        UnknownPartError: it has a part that compiled code does not know.
    """
    layers = [_layer(block, packer) for block in stack.blocks]
    block = stack.blocks[0]
    attention, feedforward = _parts(block)
    assert isinstance(block, Block)
    if feedforward.activation not in ACTIVATION_NUMBERS:
        raise UnknownPartError(f"the activation {feedforward.activation} is not known to compiled code")
    return Stack(
        layers=packer.array(layers),
        n_layers=len(layers),
        d_model=attention.query.in_features,
        n_heads=attention.n_heads,
        n_kv_heads=attention.n_kv_heads,
        head_width=attention.head_width,
        d_ff=feedforward.down.in_features,
        scale=attention.scale,
        activation=ACTIVATION_NUMBERS.index(feedforward.activation),
        post=block.self_attention.place == "post",
        parallel=isinstance(block, ParallelBlock),
        norm=packer.norm(stack.norm),
    )


def _layer(block: nn.Module, packer: Packer) -> Layer:
    attention, feedforward = _parts(block)
    assert isinstance(block, Block)
    return Layer(
        **{name: packer.linear(getattr(attention, name)) for name in ("query", "key", "value", "output")},
        **{name: packer.linear(getattr(feedforward, name, None)) for name in ("up", "gate", "down")},
        attention_norm=packer.norm(block.self_attention.norm),
        query_norm=packer.norm(attention.query_norm),
        key_norm=packer.norm(attention.key_norm),
        feedforward_norm=packer.norm(block.feedforward.norm),
    )


def _parts(block: nn.Module) -> tuple[Attention, FeedForward]:
    if isinstance(block, Block) and block.cross_attention is None:
        attention, feedforward = block.self_attention.part, block.feedforward.part
        if isinstance(attention, Attention) and isinstance(feedforward, FeedForward):
            return attention, feedforward
    raise UnknownPartError(f"a {type(block).__name__} of other parts is not known to compiled code")


def _row(tensor: Tensor) -> int:
    """From one row of the batch to the next; 0 where there is one for all."""
    return tensor.stride(0) if len(tensor) > 1 else 0
