"""A decoder layer with the signature of `nn.TransformerDecoderLayer`, built of our block."""

import operator
from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.interop.torch_layers.weights import from_torch, to_torch
from clearhead.parts import Attention, Block, FeedForward, ProjectionConfig, Sublayer, allowed_from_forbidden
from clearhead.parts.masks import Mask

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}  # those that torch has names for


class Attended(TypedDict):
    """What a query may attend to, and what is added to its scores, as `Attention` takes them."""

    mask: Mask
    bias: Tensor | None


class TransformerDecoderLayer(nn.Module):
    """`nn.TransformerDecoderLayer` of our parts: its arguments, state dict and initial weights, and its numbers.

    It stands wherever torch's layer may, as in `nn.TransformerDecoder(layer, 6)`, and reads and writes the same
    checkpoints. A query that may attend to nothing gets zeros from attention.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        function = ACTIVATIONS[activation] if isinstance(activation, str) else activation

        def around(part: nn.Module) -> Sublayer:
            norm = nn.LayerNorm(d_model, layer_norm_eps, bias=bias)
            return Sublayer(part, norm, norm_position="pre" if norm_first else "post", dropout=dropout)

        attention = partial(Attention, d_model, nhead, projections=ProjectionConfig(bias), dropout=dropout)
        torch_layer = nn.TransformerDecoderLayer(d_model, nhead, dim_feedforward, bias=bias, device=device, dtype=dtype)
        with torch.random.fork_rng(devices=[]):  # the weights are torch's, and so is what is drawn after them
            feedforward = FeedForward(function, d_model, dim_feedforward, bias=bias, dropout=dropout)
            self.block = Block(around(attention()), around(feedforward), around(attention())).to(device, dtype)
        self.nhead, self.batch_first = nhead, batch_first
        setattr(self.self_attn, "batch_first", batch_first)  # noqa: B010  # no attribute of ours
        self.register_state_dict_post_hook(_write_names)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_read_names)  # type: ignore[no-untyped-call]
        if not torch_layer.linear1.weight.is_meta:
            self.load_state_dict(torch_layer.state_dict())

    @property
    def self_attn(self) -> nn.Module:
        """Where `nn.TransformerDecoder` looks up `batch_first`."""
        attention: nn.Module = self.block.self_attention.part
        return attention

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """As torch's: (T, B, D), (B, T, D) with `batch_first`, or (T, D), of the target.

        In masks, True means *must not attend*; numbers are added to the scores. The two hints are needed only where
        there is no mask.
        """
        is_batch = tgt.dim() == 3
        first = (1 if is_batch and not self.batch_first else 0, 0)
        x, memory = (t.transpose(*first) if is_batch else t.unsqueeze(0) for t in (tgt, memory))  # (B, T, D)
        x = self.block.self_attention(x, **self._attended(tgt_mask, tgt_key_padding_mask, tgt_is_causal))
        options = self._attended(memory_mask, memory_key_padding_mask, memory_is_causal)
        assert self.block.cross_attention is not None
        x = self.block.feedforward(self.block.cross_attention(x, memory, **options))  # (B, T, D)
        return x.transpose(*first) if is_batch else x.squeeze(0)  # type: ignore[no-any-return]

    def _attended(self, mask: Tensor | None, padding: Tensor | None, is_causal: bool) -> Attended:
        """From a mask (T_q, T_k) or (B * H, T_q, T_k) and padding (B, T_k) or (T_k,), both in torch's polarity."""
        if mask is None and is_causal:
            assert padding is None, "with padding, a causal layer needs its mask"
            return Attended(mask="causal", bias=None)
        if mask is not None and mask.dim() == 3:
            mask = mask.view(-1, self.nhead, *mask.shape[1:])  # (B, H, T_q, T_k)
        if padding is not None:
            padding = padding.reshape(-1, 1, 1, padding.shape[-1])  # (B, 1, 1, T_k)
        masks = [tensor for tensor in (mask, padding) if tensor is not None]
        allowed = [allowed_from_forbidden(tensor) for tensor in masks if tensor.dtype == torch.bool]
        added = [tensor for tensor in masks if tensor.dtype != torch.bool]
        return Attended(
            mask=reduce(operator.and_, allowed) if allowed else None,
            bias=reduce(operator.add, added) if added else None,
        )


def _write_names(layer: nn.Module, state: dict[str, Tensor], prefix: str, metadata: Mapping[str, Any]) -> None:
    """After `state_dict`: the layer's tensors under torch's names."""
    own = f"{prefix}block."
    block = {name.removeprefix(own): state.pop(name) for name in list(state) if name.startswith(own)}
    for name in [name for name in block if name.endswith("norm.weight")]:  # `to_torch` knows norms with a bias only
        block.setdefault(f"{name.removesuffix('weight')}bias", torch.zeros_like(block[name]))
    state.update({f"{prefix}{name}": tensor for name, tensor in to_torch(block).items()})


def _read_names(layer: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Before `load_state_dict`: torch's tensors under the block's names."""
    foreign = {name.removeprefix(prefix): state.pop(name) for name in list(state) if name.startswith(prefix)}
    own = {f"block.{name}": tensor for name, tensor in from_torch(foreign).items()}
    known = dict(layer.named_parameters())  # without biases, none of the norms
    state.update({f"{prefix}{name}": tensor for name, tensor in own.items() if name in known})
