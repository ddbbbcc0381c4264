"""Masked tokens of a text, filled in by an encoder."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.config import FillConfig
from clearhead.data import Tokenizer, UnseenCharacterError
from clearhead.errors import DataError, UsageError
from clearhead.inference.text_stream import CONTEXT
from clearhead.models import EncoderLM
from clearhead.models.eval_mode import OnNotice, evaluating, refuse_not_finite

MASKED = "[MASK]"  # what a person writes for a masked token, whatever the tokenizer calls it


class Candidate(NamedTuple):
    """A token that may stand in a masked one's place: its text, and how probable it is."""

    token: str
    probability: float


@dataclass(frozen=True)
class Filled:
    """The text with the likeliest token in every masked one's place, and for each the likeliest, the best first."""

    text: str
    masks: list[list[Candidate]]


def fill(
    model: EncoderLM, tokenizer: Tokenizer, text: str, config: FillConfig, *, on_notice: OnNotice | None = None
) -> Filled:
    """What the model would put in the place of every [MASK] of the text, one token each.

    All masks are predicted in one forward pass, so none depends on what another was filled with. Where a
    token carries the space before its word, as in byte-level BPE, a space before a [MASK] asks for a word with its
    space: "not to [MASK]" for " be", not for a line break or "'t". Special tokens are never proposed. The
    probabilities of all that may be proposed sum to 1.

    A model reads block_size tokens. Of a longer text it reads so many, with the [MASK]s in their middle.

    Args:
        model: in any mode; it reads without dropout and is left as it was.
        tokenizer: the one that the model was trained with.
        text: with at least one [MASK].
        config: the number of candidates per mask.
        on_notice: called with a sentence when the model does not see the whole text.

    Raises:
        UsageError: nothing is masked.
        DataError: the tokenizer has no mask token or cannot encode the text, or the [MASK]s stand too far apart.
        ClearheadError: the model's output is not finite.
    """
    pieces = text.split(MASKED)
    if len(pieces) == 1:
        raise UsageError(
            f"there is nothing to fill in; write {MASKED} where a word is missing, such as 'To be or not to {MASKED}'"
        )
    if tokenizer.mask is None:
        raise DataError("the tokenizer has no mask token, so there is nothing that a model could have learned to fill")
    wants_word = [piece.endswith(" ") and not tokenizer.is_character_level for piece in pieces[:-1]]
    pieces = [
        piece.removesuffix(" ") if is_word else piece
        for piece, is_word in zip(pieces, [*wants_word, False], strict=True)
    ]
    ids, positions = encode_masked(tokenizer, pieces, tokenizer.mask)
    logits = _logits(model, ids, positions, on_notice)  # (masks, V)
    probabilities = logits.masked_fill(_unfit(tokenizer, logits.shape[-1], wants_word), -torch.inf).softmax(-1)
    shares, tokens = (top.tolist() for top in probabilities.topk(min(config.top_k, probabilities.shape[-1])))
    for position, (best, *_) in zip(positions, tokens, strict=True):
        ids[position] = best
    masks = [
        [
            Candidate(_text_of(tokenizer, ids, position, [token]), share)
            for token, share in zip(likeliest, their_shares, strict=True)
            if share > 0
        ]
        for position, likeliest, their_shares in zip(positions, tokens, shares, strict=True)
    ]
    return Filled(_join(tokenizer, ids, positions, pieces), masks)


def encode_masked(tokenizer: Tokenizer, pieces: Sequence[str], mask: int) -> tuple[list[int], list[int]]:
    """The pieces as ids with the mask between every two, and where in them the masks stand."""
    ids: list[int] = []
    positions: list[int] = []
    read = 0  # characters
    for piece in pieces:
        try:
            ids += tokenizer.encode(piece).tolist()
        except UnseenCharacterError as unseen:
            offset = read + unseen.offset
            raise UnseenCharacterError(unseen.character, offset, f"at character {offset:,} of the text") from None
        positions.append(len(ids))
        ids.append(mask)
        read += len(piece) + len(MASKED)
    return ids[:-1], positions[:-1]


def _logits(model: EncoderLM, ids: list[int], positions: list[int], on_notice: OnNotice | None) -> Tensor:
    """Logits (masks, V) at each masked position, on the CPU."""
    start, length = _window(len(ids), positions, model.config.block_size)
    if length < len(ids) and on_notice:
        on_notice(
            f"the text has {len(ids)} tokens, more than the model's block_size: "
            f"only {length} around what is masked are read"
        )
    with evaluating(model), torch.inference_mode():
        hidden = model.body(torch.tensor([ids[start : start + length]], device=model.device))  # (1, T, D)
        logits = model.head(hidden[0, [position - start for position in positions]]).float().cpu()
    refuse_not_finite(logits)
    return logits


def _unfit(tokenizer: Tokenizer, vocab_size: int, wants_word: list[bool]) -> Tensor:
    """Which tokens must not be filled in, (masks, V): special ones, and non-words where a word is expected."""
    unfit = torch.zeros(len(wants_word), vocab_size, dtype=torch.bool)
    unfit[:, tokenizer.vocab_size :] = True  # a model may have room for more than there are
    if any(wants_word):
        texts = [tokenizer.decode([token]) for token in range(tokenizer.vocab_size)]
        word_tokens = [token for token, text in enumerate(texts) if text.startswith(" ") and not text.isspace()]
        if word_tokens:  # a tokenizer may keep its spaces elsewhere
            unfit[torch.tensor(wants_word)] = True
            unfit[:, word_tokens] = False
    special = (tokenizer.end_of_document, tokenizer.pad, tokenizer.mask)
    unfit[:, [token for token in special if token is not None]] = True
    return unfit


def _window(n_tokens: int, positions: list[int], block_size: int) -> tuple[int, int]:
    """Start and length of the part of the text that the model reads.

    Raises:
        DataError: it cannot hold every mask.
    """
    span = positions[-1] - positions[0] + 1
    if span > block_size:
        raise DataError(
            f"from the first {MASKED} to the last it is {span} tokens, but the model reads {block_size} at once; "
            "fill in those that stand near each other, and then the others"
        )
    centered = (positions[0] + positions[-1] + 1 - block_size) // 2
    return max(0, min(centered, n_tokens - block_size)), min(n_tokens, block_size)


def _join(tokenizer: Tokenizer, ids: list[int], positions: list[int], pieces: Sequence[str]) -> str:
    """The pieces with what was filled in between; neighbors are decoded together: two may be one character's bytes."""
    text, run = pieces[0], list[int]()
    for position, piece in zip(positions, pieces[1:], strict=True):
        run.append(ids[position])
        if piece or position == positions[-1]:
            text += _text_of(tokenizer, ids, position + 1 - len(run), run) + piece
            run.clear()
    return text


def _text_of(tokenizer: Tokenizer, ids: list[int], position: int, tokens: list[int]) -> str:
    """Decode tokens at this position, given the `ids` before it."""
    before = ids[max(0, position - CONTEXT) : position]
    start, whole = tokenizer.decode(before), tokenizer.decode([*before, *tokens])
    return whole[len(start) :] if whole.startswith(start) else tokenizer.decode(tokens)
