"""What an evaluation measures: the loss on a text, and the figures that follow from it."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Evaluation:
    """The mean loss in nats per token, and over how many tokens."""

    loss: float
    tokens: int

    @property
    def perplexity(self) -> float:
        """exp(loss), as if the model chose among that many equally likely tokens."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    def bits_per_byte(self, n_bytes: int) -> float:
        """Bits per byte of the text; comparable between tokenizers.

        Args:
            n_bytes: of the evaluated text in UTF-8.
        """
        return self.loss * self.tokens / (n_bytes * math.log(2))
