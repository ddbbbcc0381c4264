"""The vectors that a model begins with: of its tokens, and of their positions where these are added."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from clearhead.inspection.capture.trace import Array
from clearhead.models import EncoderDecoder, LanguageModel
from clearhead.models.eval_mode import evaluating
from clearhead.models.stack_lm import StackLM
from clearhead.parts import positions_of
from clearhead.parts.masks import Positions
from clearhead.parts.positions import PositionEncoding

Side = Literal["text", "source", "target"]


@dataclass(frozen=True, eq=False)
class TokenVectors:
    """What the residual stream of one row begins with.

    Attributes:
        side: source or target of a translator, or the text of any other model.
        embedding: (T, D), as scaled by the model.
        positions: (T, D) that is added to it; None where positions rotate, bias, or do nothing.
    """

    side: Side
    embedding: Array
    positions: Array | None


@torch.no_grad()
def token_vectors(model: LanguageModel, *inputs: Tensor) -> list[TokenVectors]:
    """The vectors of each side's tokens; of the first row alone.

    Args:
        model: in any mode.
        inputs: what the model takes: ids (B, T), or source (B, T_src) and target (B, T).
    """
    with evaluating(model):
        if isinstance(model, EncoderDecoder):
            (source, target), pad, start = inputs, model.config.pad_id, model.config.decoder_start_id
            places = positions_of(source, pad), positions_of(target, pad, causal=True, start_id=start)
            embedding = model.source_embedding or model.embedding
            return [
                _vectors("source", embedding, model.source_positions, source, places[0]),
                _vectors("target", model.embedding, model.positions, target, places[1]),
            ]
        (ids,) = inputs
        if isinstance(model, StackLM):
            where: Positions = range(ids.shape[1]) if model.causal else positions_of(ids, model.config.pad_id)
            return [_vectors("text", model.embedding, model.positions, ids, where)]
        embedded: Tensor = model.embedding(ids)  # type: ignore[operator]
        return [TokenVectors("text", _numbers(embedded), None)]


def _vectors(
    side: Side, embedding: nn.Module, positions: PositionEncoding, ids: Tensor, where: Positions
) -> TokenVectors:
    embedded = embedding(ids)  # (B, T, D)
    nothing = torch.zeros_like(embedded)
    added = positions.add(nothing, where)  # (B, T, D)
    return TokenVectors(side, _numbers(embedded), None if added is nothing else _numbers(added))


def _numbers(x: Tensor) -> Array:
    """(B, T, D) -> (T, D) of the first row; NumPy has no bfloat16."""
    array: Array = (x[0].float() if x.dtype == torch.bfloat16 else x[0]).cpu().numpy()
    return array
