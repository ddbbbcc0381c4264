"""From ids to vectors."""

import math

import torch
from torch import Tensor, nn

from clearhead.errors import InputError


class Embedding(nn.Embedding):
    """One learned vector for each token, times sqrt(D) if `scaled` (Vaswani et al. 2017, section 3.4).

    A table shared with the head wants small numbers, the residual stream wants numbers near 1: the factor serves both.
    """

    def __init__(self, vocab_size: int, d_model: int, *, scaled: bool = False) -> None:
        super().__init__(vocab_size, d_model)
        self.scale = math.sqrt(d_model) if scaled else 1.0

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, D).

        Raises:
            InputError: ids have the wrong type, shape or range. The range is checked on the CPU only, and nothing in a
                compiled graph: there torch raises its own error.
        """
        x = super().forward(ids) if torch.compiler.is_compiling() else self._looked_up(ids)
        return x if self.scale == 1 else x * self.scale

    def _looked_up(self, ids: Tensor) -> Tensor:
        try:
            x = super().forward(ids)
        except (IndexError, RuntimeError, TypeError):  # torch already validates ids; we only reword the error
            refuse_wrong_ids(ids, self.num_embeddings)
            raise
        if x.dim() != 3 or not x.numel():
            refuse_wrong_ids(ids, self.num_embeddings)
        return x


def refuse_wrong_ids(ids: object, vocab_size: int) -> None:
    """Refuse what is not a row of token ids per text.

    Raises:
        InputError: says what it is instead, or names the first id that is not in the vocabulary.
    """
    if not isinstance(ids, Tensor):
        raise InputError(
            f"token ids are a tensor (B, T), not a {type(ids).__name__}; for one text: torch.tensor([ids])"
        )
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise InputError(f"token ids are whole numbers, not {ids.dtype}; encode the text with the model's tokenizer")
    if ids.dtype not in (torch.int64, torch.int32):
        raise InputError(f"token ids are torch.int64 or torch.int32, not {ids.dtype}; convert them with ids.long()")
    shape = tuple(ids.shape)
    if len(shape) != 2:
        raise InputError(f"token ids are (B, T), a row per text, not of shape {shape}; for one text: ids.view(1, -1)")
    if not ids.numel():
        raise InputError(f"there are no token ids: their shape is {shape}; give each text at least one")
    refuse_unknown_ids(ids, vocab_size)


def refuse_unknown_ids(ids: Tensor, vocab_size: int) -> None:
    """Refuse ids that are not in the vocabulary.

    Raises:
        InputError: names the first.
    """
    unknown = ids[(ids < 0) | (ids >= vocab_size)]
    if unknown.numel():
        raise InputError(unknown_id(int(unknown.flatten()[0]), vocab_size))


def unknown_id(token: int, vocab_size: int) -> str:
    """The error message for an id that is not in the vocabulary."""
    return (
        f"token id {token} is not in the model's vocabulary of {vocab_size} tokens, 0 to {vocab_size - 1}; "
        "encode the text with the model's own tokenizer"
    )
