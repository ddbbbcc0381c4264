"""Symbols of our models' axes, measured: the same model once more in small, with every size a different prime.

What the twin gives is read off: an axis of 2 x 19 numbers is K wide. The twin is where the model is, so that both
take the same path; on the meta device, torch would load its compilers for two seconds. Its weights are zeros.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from clearhead.config import ModelConfig
from clearhead.inspection.steps.axes import GROUP, Scale
from clearhead.models import LanguageModel, build_model

B, T, T_SRC = 11, 47, 43
HEADS, KEY_HEADS, SHARED = 13, 13, 3  # heads; or key heads, and query heads for each
D, D_FF, V, V_SRC = 2 * 23, 61, 59, 67  # sinusoidal positions need an even D
K, K_PARTLY_TURNED, R = 2 * 19, 2 * 29, 2 * 17  # rotary positions turn pairs
BLOCK_SIZE, NGRAM_ROWS = 97, 4096
PAD, START, ORDINARY = 0, 2, 1  # token ids


class without_drawing(TorchFunctionMode):  # noqa: N801 - used as a context manager
    """Models are built meanwhile without drawing a number: their weights are zeros, and ones in norms."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.randn, torch.rand):
            return torch.zeros(args[0])
        if getattr(func, "__module__", "") == "torch.nn.init" and func.__name__ != "zeros_":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def undrawn_model(config: ModelConfig) -> LanguageModel:
    """The model that a config describes, in evaluation mode, with zeros for weights."""
    with without_drawing():
        return build_model(config).eval()


def sizes_of(config: ModelConfig, B: int, T: int, T_src: int | None = None) -> dict[str, int]:
    """What the symbols of a model's axes are."""
    sizes = {"B": B, "T": T} | ({} if T_src is None else {"T_src": T_src})
    if config.architecture != "bigram":
        sizes |= {"D": config.d_model, "H": config.n_heads, "H_kv": config.n_kv_heads, "K": config.head_dim}
        sizes |= {"R": config.rotary_width} if _is_partly_turned(config) else {}
        sizes |= {"d_ff": config.d_ff}
    return sizes | {"V": config.vocab_size}


def _is_partly_turned(config: ModelConfig) -> bool:
    return config.positions == "rope" and config.rotary_width != config.head_dim


class Twin:
    """A config's model in primes, for texts of this length."""

    def __init__(self, config: ModelConfig, T_real: int, like: Tensor | None = None) -> None:
        """
        Args:
            config: of the model whose axes are to be named.
            T_real: tokens of a row there: a window that they do not fill must not be filled here.
            like: a weight of the model, whose type and device the twin has.
        """
        self.pad_id = config.pad_id
        self.config = _in_primes(config, T_real)
        self.model = undrawn_model(self.config)
        if like is not None:
            self.model.to(like.device, like.dtype)
        sizes = sizes_of(self.config, B, T, T_SRC if config.architecture == "encoder_decoder" else None)
        grouped = config.n_kv_heads != config.n_heads
        heads = {"H_kv": KEY_HEADS, GROUP: SHARED} if grouped else {"H": HEADS}
        primes = {"B": B, "T": T, "T_src": T_SRC, "D": D // 2, "R": R // 2, "d_ff": D_FF, "V": V}
        primes = {name: prime for name, prime in primes.items() if name in sizes}
        if "K" in sizes:
            primes |= heads | {"K": sizes["K"] // 2}
        self.scale = Scale(sizes, primes)

    def inputs(self, real: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Ids for it, (B, T_src) and (B, T) or the latter alone, padded where the real ones are."""
        widths = (T,) if len(real) == 1 else (T_SRC, T)
        return tuple(self._ids(width, ids) for width, ids in zip(widths, real, strict=True))

    def _ids(self, width: int, real: Tensor) -> Tensor:
        ids = torch.full((B, width), ORDINARY, device=self.model.device)
        if self.pad_id is None:
            return ids
        padding = real == self.pad_id  # (B, T) of the real ones
        if padding[:, 0].all():
            ids[:, 0] = PAD  # it may be what a text starts with
        if padding[:, 0].any():
            ids[0, 0] = PAD
        if padding[:, :2].all(1).any():
            ids[0, :2] = PAD
        if padding[:, -1].any():
            ids[0, -1] = PAD
        return ids


def _in_primes(config: ModelConfig, T_real: int) -> ModelConfig:
    """The same options with other sizes; what is compared with a length compares alike."""
    turned = _is_partly_turned(config)
    width = K_PARTLY_TURNED if turned else K
    grouped = config.n_kv_heads != config.n_heads
    window, pad, start = config.sliding_window, config.pad_id, config.decoder_start_id
    sizes = {
        "vocab_size": V,
        "source_vocab_size": None if config.source_vocab_size is None else V_SRC,
        "block_size": BLOCK_SIZE,
        "n_heads": KEY_HEADS * SHARED if grouped else HEADS,
        "n_kv_heads": KEY_HEADS if grouped else HEADS,
        "d_model": D,
        "head_dim": width,
        "d_ff": D_FF,
        "partial_rotary_factor": R / width if turned else 1.0,
        "ngram_rows": min(config.ngram_rows, NGRAM_ROWS),
        "sliding_window": None if window is None else T if T_real <= window else T - 1,
        "pad_id": None if pad is None else PAD,
        "decoder_start_id": None if start is None else PAD if start == pad else START,
    }
    return ModelConfig.read(config.model_dump(), sizes)
