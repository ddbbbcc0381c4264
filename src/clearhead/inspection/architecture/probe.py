"""How large the gradients of a fresh model are, layer by layer, with the norm before or after each sum."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.models import EncoderDecoder, LanguageModel, build_model

ROWS = 4  # texts
LARGEST = {"n_layers": 24, "n_encoder_layers": 24, "block_size": 64, "vocab_size": 512}
WIDEST = 128  # d_model


@dataclass(frozen=True)
class GradientProbe:
    """The root mean square of the gradient of each block's matrices, at initialization.

    Attributes:
        by_position: norm position -> a number per block, of the stack whose output goes to the head.
        config: of the model that was measured, which may be smaller than the one described.
        changed: each field of the config that differs, with its value in the model that was measured; empty if it is
            the one described.
    """

    by_position: dict[str, tuple[float, ...]]
    config: ModelConfig
    changed: str


def probe_gradients(config: ModelConfig) -> GradientProbe:
    """Build the model with either norm position and take one step's gradient on random tokens: about a second.

    A large model is measured on a smaller one of its kind: up to 24 blocks, a context of up to 64 tokens and a
    vocabulary of up to 512; if it is wide, up to 4 heads of width 32 and a d_model of up to 128, with a feed-forward,
    KV heads and a rotary share to match. Every model is measured without dropout, padding and a start token.

    Args:
        config: of a model with blocks.
    """
    small, changed = shrink(config)
    can_be_post = not config.parallel_residual
    positions = ("pre", "post") if can_be_post else ("pre",)
    measured = {position: _gradients(small.model_copy(update={"norm_position": position})) for position in positions}
    return GradientProbe(measured, small, changed)


def shrink(config: ModelConfig) -> tuple[ModelConfig, str]:
    """The config with sizes that take a second, and each field that changed, with its new value."""
    update: dict[str, object] = {name: largest for name, largest in LARGEST.items() if getattr(config, name) > largest}
    if config.source_vocab_size is not None:
        update["source_vocab_size"] = min(config.source_vocab_size, LARGEST["vocab_size"])
    if config.d_model > WIDEST or config.n_heads * config.head_dim > 2 * WIDEST or config.d_ff > 8 * WIDEST:
        n_heads = min(config.n_heads, 4)
        ratio = max(1, round(config.d_ff / config.d_model))
        update |= {
            "d_model": min(config.d_model - config.d_model % 2 or 1, WIDEST),
            "n_heads": n_heads,
            "n_kv_heads": n_heads if config.n_kv_heads == config.n_heads else 1,
            "head_dim": WIDEST // 4,
            "d_ff": min(ratio, 8) * WIDEST,
            "partial_rotary_factor": 0.5 if config.partial_rotary_factor <= 0.5 else 1.0,
        }
    update |= {"dropout": 0.0, "attention_dropout": 0.0, "feedforward_dropout": 0.0, "pad_id": None}
    update |= {"decoder_start_id": None, "ngram_rows": min(config.ngram_rows, 1024)}
    if config.architecture != "encoder_decoder":
        update.pop("n_encoder_layers", None)  # which no other model has
    small = config.model_copy(update=update)
    values = {name: value for name, value in update.items() if value != getattr(config, name)}
    return small, ", ".join(f"{name} {_shown(value)}" for name, value in values.items())


def _shown(value: object) -> str:
    return "none" if value is None else f"{value:,g}" if isinstance(value, int | float) else str(value)


def _gradients(config: ModelConfig) -> tuple[float, ...]:
    model = build_model(config)
    generator = torch.Generator().manual_seed(0)

    def ids(vocab_size: int) -> Tensor:
        return torch.randint(vocab_size, (ROWS, config.block_size), generator=generator)

    targets, inputs = ids(config.vocab_size), [ids(config.vocab_size)]
    if isinstance(model, EncoderDecoder):
        inputs.insert(0, ids(config.source_vocab_size or config.vocab_size))
    with torch.enable_grad():
        logits: Tensor = model(*inputs)  # (B, T, V)
        F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()  # type: ignore[no-untyped-call]
    return tuple(_root_mean_square(gradients) for gradients in _by_block(model))


def _by_block(model: LanguageModel) -> list[list[Tensor]]:
    stack = model.get_submodule("decoder" if isinstance(model, EncoderDecoder) else "stack")
    return [
        [parameter.grad for parameter in block.parameters() if parameter.dim() > 1 and parameter.grad is not None]
        for block in stack.get_submodule("blocks").children()
    ]


def _root_mean_square(gradients: Sequence[Tensor]) -> float:
    count = sum(gradient.numel() for gradient in gradients)
    return math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients) / count)
