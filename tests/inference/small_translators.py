"""Translators that are small enough to know everything about."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.models import EncoderDecoder, Memory
from clearhead.parts import DecoderCache
from clearhead.parts.masks import Positions

PAD, END = 0, 1


def translator_config(vocab_size: int, **options: Any) -> ModelConfig:
    shape = {"vocab_size": vocab_size, "block_size": 24, "n_layers": 2, "n_heads": 2, "d_model": 8, "pad_id": PAD}
    return ModelConfig.read({"architecture": "encoder_decoder", "positions": "rope"}, shape, options)


def random_translator(vocab_size: int, seed: int = 0, **options: Any) -> EncoderDecoder:
    """In float64, with weights so large that its odds are far from even."""
    model = EncoderDecoder(translator_config(vocab_size, **options)).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(noise * 0.7 if parameter.dim() > 1 else parameter + noise * 0.1)
    return model


class TableTranslator(EncoderDecoder):
    """The odds of the next token follow from the last token alone: row i of a table of chances (V, V)."""

    def __init__(self, chances: Tensor, **options: Any) -> None:
        super().__init__(translator_config(len(chances), **options))
        self.double().eval()
        self.table = chances.double().log()
        self.rows_read: list[int] = []

    def decode(
        self,
        target: Tensor,
        memory: Memory,
        *,
        positions: Positions | None = None,
        cache: DecoderCache | None = None,
        tree_mask: Tensor | None = None,
    ) -> Tensor:
        self.rows_read.append(len(target))
        return F.one_hot(target, len(self.table)).double()

    def head(self, hidden: Tensor) -> Tensor:
        return hidden @ self.table


def table(vocab_size: int, chances: dict[int, dict[int, float]], elsewhere: float = 1e-12) -> Tensor:
    """{token: {next: chance}} as (V, V)."""
    full = torch.full((vocab_size, vocab_size), elsewhere, dtype=torch.float64)
    for token, follow in chances.items():
        for following, chance in follow.items():
            full[token, following] = chance
    return full / full.sum(-1, keepdim=True)


def sources(*lengths: int, vocab_size: int) -> list[list[int]]:
    """Sentences of these lengths, their ends included."""
    draw = torch.Generator().manual_seed(len(lengths))
    return [[*torch.randint(END + 1, vocab_size, (length - 1,), generator=draw).tolist(), END] for length in lengths]
