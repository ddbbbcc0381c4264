"""What a model looks like when another program computes it, so that both can be compared."""

from pathlib import Path
from typing import Protocol

from torch import Tensor

from clearhead.errors import ClearheadError


class CannotOpenError(ClearheadError):
    """The program `peer` cannot open what was written for it, or leaves some of it out; `reason` is what it says."""

    def __init__(self, peer: str, path: Path, reason: str) -> None:
        self.peer, self.reason = peer, reason
        super().__init__(f"{peer} cannot open {path}: {reason}")


class Peer(Protocol):
    """A model as another program computes it, from what an export wrote.

    Rows that are shorter than their batch are filled up with any id: on the left for a decoder, whose rows are to go on
    at the right, and on the right for an encoder or a source, as their families count positions from the first column.

    Attributes:
        name: the program and its version, such as "onnxruntime 1.31.0".
    """

    name: str

    def logits(self, ids: Tensor, lengths: Tensor, target: Tensor | None = None) -> Tensor:
        """Logits (B, T, V), in float32 on the CPU; those of padding mean nothing.

        Args:
            ids: (B, T); the source, where there is a target.
            lengths: (B,) how many of each row's ids are real.
            target: (B, T_tgt) for an encoder-decoder alone, without padding; the logits are then (B, T_tgt, V).
        """

    def greedy(self, ids: Tensor, n: int) -> Tensor:
        """The likeliest token, n times, with the program's own cache where it has one; no token ends the text early.

        A decoder goes on with ids (1, T) -> (1, T + n). An encoder-decoder translates a source (1, T) -> (1, 1 + n),
        which begins with the token that its targets begin with. Never asked of an encoder.
        """

    def tokenize(self, text: str) -> list[int] | None:
        """The text's ids, no special ones added; None where the format has no tokenizer of its own."""
