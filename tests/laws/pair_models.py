"""Translators and encoders on which the laws are tried, and sentences for them."""

from typing import Any, Literal

import torch
from law_models import BLOCK_SIZE, N_LAYERS, OPTIONS, VOCAB_SIZE, known_to_native, pairwise, randomized
from torch import Tensor, nn

from clearhead.config import ModelConfig
from clearhead.models import EncoderDecoder, EncoderLM, LanguageModel

PAD, END = 0, 1
SOURCE_VOCAB_SIZE = 13
Side = Literal["left", "right"]

DECODERS_OWN = {"sliding_window", "embedding_ngrams", "logit_ngrams", "ngram_rows"}
BOTH_WAYS = {key: values for key, values in OPTIONS.items() if key not in DECODERS_OWN}
ENCODER_OPTIONS = BOTH_WAYS | {"n_token_types": (0, 2)}
PAIR_OPTIONS = {key: values for key, values in BOTH_WAYS.items() if key != "parallel_residual"} | {
    "source_vocab_size": (None, SOURCE_VOCAB_SIZE),
    "n_encoder_layers": (1, N_LAYERS),
}
PAIR_CHOICES = list(pairwise(PAIR_OPTIONS))
NATIVE_PAIR_CHOICES = list(pairwise(known_to_native(PAIR_OPTIONS)))
ENCODER_CHOICES = list(pairwise(ENCODER_OPTIONS))


def _config(architecture: str, choice: dict[str, Any]) -> ModelConfig:
    shape = {"vocab_size": VOCAB_SIZE, "block_size": BLOCK_SIZE, "n_layers": N_LAYERS, "n_heads": 4, "d_model": 16}
    shape |= {"relative_buckets": 8, "relative_max_distance": 12}
    return ModelConfig.read({"architecture": architecture, "pad_id": PAD}, shape, choice)


def make_translator(**choice: Any) -> EncoderDecoder:
    """An encoder-decoder of this choice; later options win."""
    return randomized(EncoderDecoder(_config("encoder_decoder", choice)))


def make_encoder(**choice: Any) -> EncoderLM:
    """An encoder of this choice; later options win."""
    return randomized(EncoderLM(_config("encoder", choice)))


def some_ids(*shape: int, seed: int = 0) -> Tensor:
    """Ids of this shape that are neither padding nor an end."""
    return torch.randint(END + 1, VOCAB_SIZE, shape, generator=torch.Generator().manual_seed(seed))


def sentence(length: int, seed: int = 0) -> list[int]:
    """Ids of a source of this length, its end included."""
    return [*some_ids(length - 1, seed=seed).tolist(), END]


def padded(rows: list[Tensor], width: int, side: Side) -> Tensor:
    """Rows (T,) of any lengths as one batch (B, width)."""
    ids = torch.full((len(rows), width), PAD)
    for index, row in enumerate(rows):
        where = slice(width - len(row), width) if side == "left" else slice(len(row))
        ids[index, where] = row
    return ids


def influence(model: LanguageModel, embedding: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    """(T, T_in): row t, column j is how much the logits at t move with the vector of token j.

    The vectors are those of the last call of `embedding`, for the one row that there is.
    """
    held: list[Tensor] = []

    def keep(module: nn.Module, args: object, output: Tensor) -> Tensor:
        held.append(output.detach().requires_grad_())
        return held[-1]

    handle = embedding.register_forward_hook(keep)
    logits = model(*inputs)[0]  # (T, V)
    handle.remove()
    rows = [torch.autograd.grad(step.square().sum(), held[-1], retain_graph=True)[0] for step in logits]
    return torch.stack(rows)[:, 0].square().sum(-1)  # (T, 1, T_in, D) -> (T, T_in)
