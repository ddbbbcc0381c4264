"""What reads and writes texts: here, the model's own call."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from clearhead.inference.texts import Text, draw_ahead
from clearhead.models import CausalLM
from clearhead.parts import DecoderCache


class Writer(Protocol):
    """Reads tokens of each row into a cache, and draws those that follow."""

    @property
    def at_once(self) -> int:
        """How many tokens of each row one call of `write` should ask for."""

    def read(self, ids: Tensor, cache: DecoderCache, positions: Tensor | None = None, *, wanted: int = 1) -> Tensor:
        """The logits (B, wanted, V) after the last of these tokens (B, T) of each row.

        Args:
            positions: (B, T) where the tokens stand, -1 for padding; without it, they go on where the cache ends.
            wanted: after how many of them; there may be none.
        """

    def of_prompt(self, length: int) -> "Writer":
        """Who reads a prompt of so many tokens: this writer, beside others, or another one, each by itself.

        The length of the others has no say, or what is computed for a prompt would depend on them.
        """

    def write(self, ids: Tensor, cache: DecoderCache, texts: Sequence[Text], steps: int) -> list[list[int]]:
        """Read a token (B,) of each row, and all but the last of those that follow: these, of each row.

        Args:
            texts: how each row's tokens are drawn.
            steps: how many follow.
        """


class PlainWriter:
    """Each token by a call of the model."""

    at_once = 1

    def __init__(self, model: CausalLM) -> None:
        self.model = model

    def read(self, ids: Tensor, cache: DecoderCache, positions: Tensor | None = None, *, wanted: int = 1) -> Tensor:
        hidden = self.model.hidden(ids, positions=positions, cache=cache)  # (B, T, D)
        return self.model.head(hidden[:, ids.shape[1] - wanted :])

    def of_prompt(self, length: int) -> Writer:
        return self

    def write(self, ids: Tensor, cache: DecoderCache, texts: Sequence[Text], steps: int) -> list[list[int]]:
        assert steps == self.at_once, "each token is drawn by the text, which is then told of it"
        return draw_ahead(texts, self.read(ids[:, None], cache), ids.new_empty(len(ids), 0)).tolist()
