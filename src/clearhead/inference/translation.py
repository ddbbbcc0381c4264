"""Sentences from one language into another."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from clearhead.config import TranslationConfig
from clearhead.data import UnseenCharacterError
from clearhead.errors import DataError
from clearhead.inference.generation import TextCodec
from clearhead.inference.translation_backend import choose_search
from clearhead.models import EncoderDecoder
from clearhead.models.eval_mode import OnNotice

Progress = Callable[[int, int], None]  # sentences done, of how many


class Translation(NamedTuple):
    """A text, how likely the model holds it, and the tokens of both sides.

    Attributes:
        score: log-probability in nats over the length penalty; comparable among translations of one sentence only.
        source_ids: what the model read, its end token included.
        target_ids: what it wrote, without the ends.
    """

    text: str
    score: float
    source_ids: list[int]
    target_ids: list[int]


def translate(
    model: EncoderDecoder,
    source_tokenizer: TextCodec,
    target_tokenizer: TextCodec,
    sentences: Sequence[str],
    config: TranslationConfig,
    *,
    on_progress: Progress | None = None,
    on_notice: OnNotice | None = None,
) -> list[list[Translation]]:
    """The `n_best` translations of each sentence, the best first; a blank sentence has an empty one.

    A translation depends on the model, its sentence and the config alone; with engine `auto`, the number of sentences
    also decides the engine.

    Args:
        model: in any mode; it translates without dropout and is left as it was.
        source_tokenizer, target_tokenizer: those that the model was trained with, often the same one.
        sentences: one to a line; spaces around them mean nothing; messages count lines from 1.
        config: how to search, with which engine, and the batch size.
        on_progress: called after each batch with the number of finished sentences and of all.
        on_notice: called with a sentence, once each, when sentences were too long and were cut, and with what the
            engine reports.

    Raises:
        DataError: a tokenizer has no token that ends a text, or cannot encode a sentence.
        ClearheadError: the model's output is not finite.
    """
    end = _end(target_tokenizer)
    translations = [[Translation("", 0.0, [], [])] for _ in sentences]
    rows = source_rows(source_tokenizer, sentences, model.config.block_size, on_notice)
    order = sorted(rows, key=lambda index: len(rows[index]), reverse=True)  # alike in length, little is padded
    search = choose_search(model, config, end=end, sentences=len(order), on_notice=on_notice)
    for start in range(0, len(order), config.batch_size):
        batch = order[start : start + config.batch_size]
        results = search([rows[index] for index in batch])
        for index, hypotheses in zip(batch, results, strict=True):
            translations[index] = [
                Translation(target_tokenizer.decode(h.ids), h.score, rows[index], h.ids) for h in hypotheses
            ]
        if on_progress:
            on_progress(len(sentences) - len(order) + start + len(batch), len(sentences))
    return translations


def source_rows(
    tokenizer: TextCodec, sentences: Sequence[str], block_size: int, on_notice: OnNotice | None = None
) -> dict[int, list[int]]:
    """What a translator reads of each sentence, its end token included: number of the sentence -> ids.

    Blank sentences are left out, long ones cut to block_size tokens, which `on_notice` is told.

    Raises:
        DataError: the tokenizer has no token that ends a text, or cannot encode a sentence.
    """
    end = _end(tokenizer)
    rows = {
        index: [*_encode(tokenizer, sentence.strip(), index + 1), end]
        for index, sentence in enumerate(sentences)
        if sentence.strip()
    }
    _cut_long_ones(rows, block_size, on_notice)
    return rows


def _end(tokenizer: TextCodec) -> int:
    if tokenizer.end_of_document is None:
        raise DataError(
            "the tokenizer has no token that ends a text, so a translation could not end; "
            "use the tokenizer that the model was trained with"
        )
    return tokenizer.end_of_document


def _encode(tokenizer: TextCodec, sentence: str, line: int) -> list[int]:
    try:
        return [int(token) for token in tokenizer.encode(sentence)]
    except UnseenCharacterError as error:
        where = f"at line {line}, column {error.offset + 1}"  # of all the sentences: the tokenizer saw one
        raise UnseenCharacterError(error.character, error.offset, where) from None


def _cut_long_ones(rows: dict[int, list[int]], block_size: int, on_notice: OnNotice | None) -> None:
    """Leave the first block_size tokens of each row, the last of them an end."""
    long = [index for index, row in rows.items() if len(row) > block_size]
    if long and on_notice:
        lines = f"line {long[0] + 1} has" if len(long) == 1 else f"{len(long)} lines, the first is {long[0] + 1}, have"
        on_notice(
            f"{lines} more tokens than the model's block_size of {block_size}: only the first ones are translated"
        )
    for index in long:
        rows[index] = [*rows[index][: block_size - 1], rows[index][-1]]
