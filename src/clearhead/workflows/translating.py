"""Translations from a run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clearhead import inference
from clearhead.config import TranslationConfig
from clearhead.data import Tokenizer
from clearhead.errors import UsageError
from clearhead.inference import Translation
from clearhead.inspection.attention.alignment import alignment, token_texts, word_alignment
from clearhead.models import EncoderDecoder
from clearhead.options import has_arguments
from clearhead.wording import call
from clearhead.workflows.hardware import choose_device, enough_memory
from clearhead.workflows.runs.find import open_folder
from clearhead.workflows.runs.folder import RunFolder


@dataclass(frozen=True)
class Translated:
    """A translation of a sentence.

    `score` is its log-probability over the length penalty, `alignment` pairs of places of words, source and target,
    counted from 0, where it was asked for.
    """

    text: str
    score: float
    alignment: tuple[tuple[int, int], ...] | None = None


@has_arguments(TranslationConfig)
def translate(
    run: str | Path | RunFolder | None = None,
    sentences: str | Sequence[str] = (),
    options: Mapping[str, object] | None = None,
    *,
    align: bool = False,
    device: str = "auto",
    on_progress: Callable[[int, int], None] | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> list[list[Translated]]:
    """Translate each sentence with the run's model, the best translation first.

    Args:
        run: a folder, a name, or None for the newest.
        sentences: one or several; an empty one has an empty translation.
        options: as in `TranslationConfig`.
        align: also align the words of translation and source, by attention.
        device: where to compute.
        on_progress: called with the number of finished sentences and of all.
        on_notice: called with sentences to show the user, one of them about translations that came out empty.

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    sentences = [sentences] if isinstance(sentences, str) else sentences
    config = TranslationConfig.read(options or {})
    opened = open_folder(run)
    if opened.config.objective != "seq2seq":
        raise UsageError(f"{opened.folder} is no translator; train one on sentence pairs, or use generate")
    source_tokenizer, tokenizer = opened.tokenizers
    with enough_memory("lower `batch_size` or `beam_size`"):
        model = opened.model().to(choose_device(device))
        assert isinstance(model, EncoderDecoder)
        translations = inference.translate(
            model, source_tokenizer, tokenizer, sentences, config, on_progress=on_progress, on_notice=on_notice
        )
        empty = sum(
            bool(s.strip()) and not best[0].text.strip() for s, best in zip(sentences, translations, strict=True)
        )
        if empty and on_notice:
            on_notice(_empty(empty, len(sentences), opened))
        return [
            [
                Translated(t.text, t.score, aligned_words(model, source_tokenizer, tokenizer, t) if align else None)
                for t in best
            ]
            for best in translations
        ]


def _empty(count: int, total: int, run: RunFolder) -> str:
    """Why translations are empty, and what may help."""
    share = (
        "the translation is" if total == 1 else f"{count:,} of {total:,} translations {'is' if count == 1 else 'are'}"
    )
    is_own = run.imported_from is None
    longer = run.call_to_train_longer if is_own else call("train", "pairs.tsv", start_from=run.folder)
    return f"{share} empty: the model has learned too little to begin with a word; to train it longer: {longer}"


def aligned_words(
    model: EncoderDecoder, source_tokenizer: Tokenizer, tokenizer: Tokenizer, translation: Translation
) -> tuple[tuple[int, int], ...]:
    """The words of a translation with those of its source."""
    assert tokenizer.end_of_document is not None
    weights = alignment(model, translation.source_ids, translation.target_ids, end=tokenizer.end_of_document)
    source = token_texts(source_tokenizer.decode, translation.source_ids)
    target = token_texts(tokenizer.decode, translation.target_ids)
    return tuple(word_alignment(weights, source, target))
