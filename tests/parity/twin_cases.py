"""Random configurations, with weights and inputs, on which the twin and the torch models are compared."""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from model_options import listed_choices
from torch import nn

from clearhead import reference
from clearhead.config import ModelConfig
from clearhead.errors import UsageError
from clearhead.models import build_model
from clearhead.reference import Array, Ids, as_float64, positions_of

BLOCK_SIZE, B = 8, 2

# Options whose values are not listed by their types, and the values that are drawn.
NUMBERS: dict[str, tuple[Any, ...]] = {
    "vocab_size": (5, 9),
    "source_vocab_size": (None, None, 7),
    "pad_id": (None, 0, 3),
    "block_size": (BLOCK_SIZE, BLOCK_SIZE + 3),
    "n_layers": (1, 2),
    "n_encoder_layers": (1, 2),
    "n_heads": (1, 2, 3, 4, 12),
    "n_kv_heads": (1, 2, 3, 4, 12),
    "d_model": (8, 12, 16, 24),
    "head_dim": (2, 3, 4, 6),
    "norm_eps": (1e-5, 1e-2),
    "d_ff": (5, 20),
    "rope_theta": (10_000.0, 30.0),
    "partial_rotary_factor": (1.0, 0.5),
    "relative_buckets": (4, 8),
    "relative_max_distance": (5, 128),
    "attention_softcap": (None, None, 1.5),
    "sliding_window": (None, 1, 3),
    "n_token_types": (0, 3),
    "decoder_start_id": (None, 0, 3),
    "embedding_ngrams": (1, 1, 2, 4),
    "logit_ngrams": (1, 1, 3),
    "ngram_rows": (5, 90, 700),  # shared; shared but by bigrams; shared by none or by the longest
    "dropout": (0.0, 0.2),  # of no effect outside training, which is what is compared
    "attention_dropout": (0.0, 0.2),
    "feedforward_dropout": (0.0, 0.2),
}
ARCHITECTURES = ("decoder",) * 4 + ("encoder",) * 3 + ("encoder_decoder",) * 4 + ("bigram",)


def uncovered(configs: Iterable[ModelConfig]) -> set[tuple[str, Any]]:
    """The values of `listed_choices` that none of the configs has; a bigram's count for its architecture alone."""
    missing = {(name, value) for name, values in listed_choices().items() for value in values}
    for config in configs:
        names = ["architecture"] if config.architecture == "bigram" else listed_choices()
        missing -= {(name, getattr(config, name)) for name in names}
    return missing


def draw_config(draw: random.Random) -> ModelConfig:
    """A config of a tiny model; what the library refuses is drawn again."""
    values = NUMBERS | listed_choices()
    architecture = {"architecture": draw.choice(ARCHITECTURES)}
    while True:
        try:
            return ModelConfig.read({name: draw.choice(known) for name, known in values.items()}, architecture)
        except UsageError:
            continue


@dataclass(frozen=True)
class Case:
    """A model in float64 with its config, ids for its forward, and what else that is told."""

    config: ModelConfig
    model: nn.Module
    ids: tuple[Ids, ...]
    options: dict[str, Ids]
    real: Ids  # (B, T): positions of the tokens whose logits count, -1 elsewhere

    def twin(self) -> Array:
        """The twin's logits (B, T, V) for tokens, 0 for padding."""
        weights = as_float64(self.model.state_dict())
        logits = reference.FORWARDS[self.config.architecture](weights, self.config, *self.ids, **self.options)
        return np.where(self.real[..., np.newaxis] >= 0, logits, 0)

    def torch(self) -> Array:
        """Our model's logits, likewise."""
        with torch.no_grad():
            options = {name: torch.from_numpy(value) for name, value in self.options.items()}
            logits = self.model(*(torch.from_numpy(ids) for ids in self.ids), **options).numpy()
        return np.where(self.real[..., np.newaxis] >= 0, logits, 0)

    def difference(self) -> float:
        """The largest between the two."""
        twin, torchs = self.twin(), self.torch()
        assert twin.dtype == torchs.dtype == np.float64
        assert twin.shape == torchs.shape == (*self.ids[-1].shape, self.config.vocab_size)
        assert np.isfinite(twin).all()
        return float(np.abs(twin - torchs).max())


def draw_case(seed: int) -> Case:
    """The case of this number."""
    draw = random.Random(seed)
    config = draw_config(draw)
    model = randomized(build_model(config, seed=seed), seed)
    if config.architecture == "encoder_decoder":
        size = config.source_vocab_size or config.vocab_size
        source, source_positions = draw_rows(draw, size, config.pad_id)
        target, target_positions = draw_rows(draw, config.vocab_size, config.pad_id)
        if config.pad_id is None or draw.random() < 0.5:
            options = {"source_positions": source_positions, "target_positions": target_positions}
            return Case(config, model, (source, target), options, target_positions)
        return Case(config, model, (source, target), {}, positions_of(target, config.pad_id, config.decoder_start_id))
    ids, positions = draw_rows(draw, config.vocab_size, config.pad_id)
    options = {"positions": positions}
    if config.architecture != "encoder" and draw.random() < 0.5:
        options, positions = {}, positions_of(ids, None)
    if config.architecture == "encoder" and config.pad_id is not None and draw.random() < 0.5:
        options = {}
    if config.architecture == "encoder" and config.n_token_types and draw.random() < 0.7:
        options["token_type_ids"] = np.array([draw.choices(range(config.n_token_types), k=ids.shape[1]) for _ in ids])
    if config.architecture != "bigram" and draw.random() < 0.3:
        options["documents"] = np.sort(np.array([draw.choices(range(3), k=ids.shape[1]) for _ in ids]))
    return Case(config, model, (ids,), options, positions)


def draw_rows(draw: random.Random, V: int, pad_id: int | None) -> tuple[Ids, Ids]:
    """Ids (B, T) of rows that are filled up on either side, and the tokens' positions, -1 for padding."""
    T, filler = draw.randint(1, BLOCK_SIZE), 0 if pad_id is None else pad_id
    ids, positions = np.full((B, T), filler), np.full((B, T), -1)
    for b in range(B):
        length = draw.randint(0 if b else 1, T)
        start = draw.choice((0, T - length))
        ids[b, start : start + length] = [draw.choice([v for v in range(V) if v != pad_id]) for _ in range(length)]
        positions[b, start : start + length] = range(length)
    return ids, positions


def randomized(model: nn.Module, seed: int) -> nn.Module:
    """In float64 and evaluation, with weights large enough for every part to matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.double().eval().parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(noise * (0.3 if parameter.dim() > 1 else 0.2))
    return model
