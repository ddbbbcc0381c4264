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
        """Over how many equally likely tokens the model hesitates: exp(loss)."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    def bits_per_byte(self, n_bytes: int) -> float:
        """Bits to write down one byte of the text; comparable over tokenizers.

        Args:
            n_bytes: of the evaluated text in UTF-8.
        """
        return self.loss * self.tokens / (n_bytes * math.log(2))
