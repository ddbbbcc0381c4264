"""Compare an export, run by another program, with its run: logits, greedy text, token ids."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead import __version__
from clearhead.config import ModelConfig
from clearhead.data import Tokenizer, UnseenCharacterError, stories
from clearhead.interop import Peer
from clearhead.parts import positions_from_lengths

GREEDY = 100  # tokens
SHORT, MAX_TOKENS, ROWS = 48, 2048, 4  # tokens of most inputs, of the full window at most, and rows of a batch
PROMPT = 8  # tokens that the greedy text begins with
RELATIVE, ABSOLUTE = 1e-5, 1e-4  # of the largest logit, and for small ones: several roundings of float32
SENTENCE_ENDS = r"(?<=[.!?\n])"  # a sentence with a character that a small alphabet lacks is left out, not a story
CORPUS, PIECES, PIECE = 20_000, 100, 20  # characters of the corpus; texts of the own vocabulary, tokens in each


@dataclass(frozen=True)
class Certificate:
    """The comparison of an export with its run.

    Attributes:
        format: of the export.
        clearhead: version of this library.
        peer: the program that computed the export, and its version.
        differences: kind of input -> largest difference of a logit, padding left out.
        tolerance: the greatest difference allowed.
        greedy_tokens: number of greedy tokens compared, with the peer's own cache; 0 for an encoder.
        greedy_equal: whether they are equal; None of an encoder. Where two tokens are likeliest within the tolerance,
            the comparison ends before them.
        tokenizer_characters: how much text was cut into tokens: a corpus, and words of the tokenizer's own.
        tokenizer_equal: whether the ids are equal; None where the format holds no tokenizer.
        passed: whether the peer, as its makers ship it, opened the export, and every comparison succeeded.
        reason: why the peer could not open the export; None where it could.
        unread: settings in the export that the peer skips. With them, every comparison succeeded.
    """

    format: str
    clearhead: str
    peer: str
    differences: dict[str, float]
    tolerance: float
    greedy_tokens: int
    greedy_equal: bool | None
    tokenizer_characters: int
    tokenizer_equal: bool | None
    passed: bool
    reason: str | None = None
    unread: Mapping[str, int] = field(default_factory=dict)


def not_opened(format: str, peer: str, reason: str) -> Certificate:
    """The certificate of an export that the peer cannot open: nothing was compared."""
    return Certificate(
        format=format,
        clearhead=__version__,
        peer=peer,
        differences={},
        tolerance=0.0,
        greedy_tokens=0,
        greedy_equal=None,
        tokenizer_characters=0,
        tokenizer_equal=None,
        passed=False,
        reason=reason,
    )


class PeerInputs(NamedTuple):
    """What a model is asked: ids (B, T), how many of each row are real, and a translation's target (B, T_tgt)."""

    ids: Tensor
    lengths: Tensor
    target: Tensor | None


@dataclass(frozen=True)
class PeerComparison:
    """Two that should be the same.

    Attributes:
        own: the run's model.
        peer: the export, as the other program computes it.
        config: of the model.
        tokenizer: of what it reads.
        start: the token that a translation begins with.
    """

    own: Peer
    peer: Peer
    config: ModelConfig
    tokenizer: Tokenizer
    start: int

    def certificate(self, format: str) -> Certificate:
        """Compare everything that both have."""
        differences, largest = {}, 0.0
        for kind, inputs in self.inputs().items():
            own_logits, peer_logits = self.own.logits(*inputs), self.peer.logits(*inputs)
            counted = self._counted_positions(inputs)
            differences[kind] = (own_logits - peer_logits)[counted].abs().max().item()
            largest = max(largest, own_logits[counted].abs().max().item())
        tolerance = max(ABSOLUTE, RELATIVE * largest)
        n_equal, greedy_equal = self._greedy(tolerance)
        texts = list(self.texts())
        pairs = [(self.tokenizer.encode(text).tolist(), self.peer.tokenize(text)) for text in texts]
        compared = all(peer_ids is not None for _, peer_ids in pairs)
        tokenizer_equal = all(own_ids == peer_ids for own_ids, peer_ids in pairs) if compared else None
        close = all(difference <= tolerance for difference in differences.values())  # a NaN is not
        return Certificate(
            format=format,
            clearhead=__version__,
            peer=self.peer.name,
            differences=differences,
            tolerance=tolerance,
            greedy_tokens=n_equal,
            greedy_equal=greedy_equal,
            tokenizer_characters=sum(map(len, texts)) if compared else 0,
            tokenizer_equal=tokenizer_equal,
            passed=close and greedy_equal is not False and tokenizer_equal is not False,
        )

    def inputs(self) -> dict[str, PeerInputs]:
        """Random ones and edges, by what they are."""
        full = min(self.config.block_size, MAX_TOKENS)
        short = min(full, SHORT)
        generator = torch.Generator().manual_seed(0)
        kinds = {
            "random batch": [short] * ROWS,
            "one token": [1],
            "full window" if full == self.config.block_size else f"{full} tokens": [full],
            f"batch padded on the {self._side}": [short, -(-short // 2), 1],
        }
        return {kind: self._make(lengths, generator) for kind, lengths in kinds.items()}

    def texts(self) -> Iterator[str]:
        """What both tokenizers are to cut: as much of a corpus as ours can read, and words of its own."""
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(self.tokenizer.vocab_size, (PIECES, PIECE), generator=generator)
        for text in (*re.split(SENTENCE_ENDS, stories.text(CORPUS, 1)), *map(self.tokenizer.decode, ids.tolist())):
            try:
                self.tokenizer.encode(text)
            except UnseenCharacterError:
                continue
            yield text

    @property
    def _translates(self) -> bool:
        return self.config.architecture == "encoder_decoder"

    @property
    def _reads_both_ways(self) -> bool:
        return self.config.architecture == "encoder"

    @property
    def _side(self) -> str:
        return "right" if self._translates or self._reads_both_ways else "left"

    def _make(self, lengths: Sequence[int], generator: torch.Generator) -> PeerInputs:
        ids = self._draw(len(lengths), max(lengths), generator)
        target = None
        if self._translates:
            target = self._draw(len(lengths), max(lengths), generator)
            target[:, 0] = self.start
        return PeerInputs(ids, torch.tensor(lengths), target)

    def _draw(self, rows: int, columns: int, generator: torch.Generator) -> Tensor:
        """Any tokens (rows, columns) but padding."""
        pad = self.config.pad_id
        ids = torch.randint(self.config.vocab_size - (pad is not None), (rows, columns), generator=generator)
        size = self.config.source_vocab_size
        ids = ids if pad is None else ids + (ids >= pad).long()
        return ids if size is None else ids % size

    def _counted_positions(self, inputs: PeerInputs) -> Tensor:
        """(B, T): True where logits mean something."""
        if inputs.target is not None:
            return torch.ones_like(inputs.target, dtype=torch.bool)
        side = "left" if self._side == "left" else "right"
        return positions_from_lengths(inputs.lengths, inputs.ids.shape[1], side) >= 0  # type: ignore[arg-type]

    def _greedy(self, tolerance: float) -> tuple[int, bool | None]:
        """How many tokens of greedy text were equal, and whether it was all of them that can be compared."""
        if self._reads_both_ways:
            return 0, None
        block = self.config.block_size
        longest = min(PROMPT, max(1, block // 4))
        rows = [self.tokenizer.encode(text).tolist()[:longest] for text in self.texts()]
        prompt = torch.tensor([max(rows, key=len)])  # (1, T); the first of the longest
        n = min(GREEDY, block - (1 if self._translates else prompt.shape[1]))
        if n < 1:
            return 0, None
        own_ids, peer_ids = self.own.greedy(prompt, n)[0], self.peer.greedy(prompt, n)[0]
        before = len(own_ids) - n
        if len(own_ids) != len(peer_ids):
            return 0, False
        different = (own_ids != peer_ids).nonzero().flatten().tolist()
        if not different:
            return n, True
        position = different[0]
        written = own_ids[None, :position]  # (1, position): equal in both
        source = (prompt, torch.tensor([prompt.shape[1]]), written)
        inputs = source if self._translates else (written, torch.tensor([position]), None)
        logits = self.own.logits(*inputs)[0, -1]  # (V,)
        gap = (logits[own_ids[position]] - logits[peer_ids[position]]).abs().item()
        return max(0, position - before), position >= before and gap <= 2 * tolerance
