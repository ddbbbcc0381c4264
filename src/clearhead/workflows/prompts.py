"""A run and a text, as what its model reads: the verbs that look inside a model begin here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from clearhead import inference
from clearhead.config import TranslationConfig
from clearhead.data import Tokenizer
from clearhead.errors import DataError, UsageError
from clearhead.inference.filling import MASKED, encode_masked
from clearhead.inference.translation import source_rows
from clearhead.inspection.attention.alignment import token_texts
from clearhead.models import EncoderDecoder, LanguageModel
from clearhead.workflows.hardware import choose_device
from clearhead.workflows.runs.find import open_folder
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.tasks import Tokenizers

START, END, PAD, PART = "⟨start⟩", "⟨end⟩", "⟨pad⟩", "⋯"  # labels of tokens that add no text; PART: of a character

OnNotice = Callable[[str], None]


@dataclass(frozen=True)
class Prompt:
    """What a model reads of a text.

    Attributes:
        run: where the model is from.
        model: in evaluation mode, on its device.
        tokenizer: of what the model writes.
        inputs: arguments of `model(...)`: ids (1, T); for a translator source (1, T_src) and target (1, T).
        labels: a text for each of the T tokens; together with nothing left out, for people.
        source_labels: likewise for the source of a translator.
        following: the token that follows each of the T, None where the text ends; for a masked model the token itself,
            None where it is masked.
    """

    run: RunFolder
    model: LanguageModel
    tokenizer: Tokenizer
    inputs: tuple[Tensor, ...]
    labels: list[str]
    following: list[int | None]
    source_labels: list[str] | None = None


def read_prompt(
    run: str | Path | RunFolder | None,
    text: str,
    target: str | None = None,
    *,
    device: str = "auto",
    on_notice: OnNotice | None = None,
) -> Prompt:
    """What the run's model reads of a text.

    Args:
        run: a folder, a name, or None for the newest.
        text: for a translator, the sentence in the source language; for a masked model, with or without [MASK]s.
        target: for a translator, the translation to look at; its own without it.
        device: where to compute.
        on_notice: called with a sentence where the text is too long and only a part of it is read.

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    opened = open_folder(run)
    _refuse_text(opened, text, target)
    return prompt_of(opened, opened.model().to(choose_device(device)), opened.tokenizers, text, target, on_notice)


def prompt_of(
    run: RunFolder,
    model: LanguageModel,
    tokenizers: Tokenizers,
    text: str,
    target: str | None = None,
    on_notice: OnNotice | None = None,
) -> Prompt:
    """The same of a run whose model and tokenizers are in memory already.

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    _refuse_text(run, text, target)
    if isinstance(model, EncoderDecoder):
        return _read_pair(run, model, tokenizers, text, target, on_notice)
    tokenizer, limit = tokenizers[1], model.config.block_size
    is_masked = run.config.objective == "masked"
    ids = _masked_ids(tokenizer, text) if is_masked else list(map(int, tokenizer.encode(text)))
    if len(ids) > limit:
        ids = ids[-limit:]
        if on_notice:
            on_notice(f"the text has more tokens than the model's block_size of {limit}: only the last ones are read")
    following = [None if token == tokenizer.mask else token for token in ids] if is_masked else [*ids[1:], None]
    inputs = (torch.tensor([ids], device=model.device),)
    return Prompt(run, model, tokenizer, inputs, token_labels(tokenizer, ids), following)


def _refuse_text(run: RunFolder, text: str, target: str | None) -> None:
    objective = run.config.objective
    if target is not None and objective != "seq2seq":
        raise UsageError(f"{run.name} is no translator, so it takes no `target`")
    if not text.strip() if objective == "seq2seq" else not text:
        raise UsageError("there is no text to read; give one, such as 'Once upon a time'")


def _masked_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    pieces = text.split(MASKED)
    if len(pieces) == 1 or tokenizer.mask is None:
        return list(map(int, tokenizer.encode(text)))
    return encode_masked(tokenizer, pieces, tokenizer.mask)[0]


def _read_pair(
    run: RunFolder,
    model: EncoderDecoder,
    tokenizers: Tokenizers,
    text: str,
    target: str | None,
    on_notice: OnNotice | None,
) -> Prompt:
    source_tokenizer, tokenizer = tokenizers
    limit, end = model.config.block_size, tokenizer.end_of_document
    if target is None:
        config = TranslationConfig(engine="eager")
        [[translation]] = inference.translate(model, source_tokenizer, tokenizer, [text], config, on_notice=on_notice)
        source_ids, target_ids = translation.source_ids, translation.target_ids
    else:
        source_ids = source_rows(source_tokenizer, [text], limit, on_notice)[0]
        target_ids = list(map(int, tokenizer.encode(target)))
    if end is None:
        raise DataError("the tokenizer has no token that ends a text, which a translation begins with")
    if len(target_ids) >= limit:
        target_ids = target_ids[: limit - 1]
        if on_notice:
            on_notice(f"the target has more tokens than the model reads at once: only the first {limit - 1} are read")
    row = [model.config.first_token(end), *target_ids]
    inputs = (torch.tensor([ids], device=model.device) for ids in (source_ids, row))
    labels, source_labels = [START, *token_labels(tokenizer, target_ids)], token_labels(source_tokenizer, source_ids)
    return Prompt(run, model, tokenizer, tuple(inputs), labels, [*target_ids, end], source_labels)


def token_labels(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """A text for each token: what it adds to the text, or a name for what adds nothing."""
    names = {tokenizer.end_of_document: END, tokenizer.pad: PAD, tokenizer.mask: MASKED}
    texts = zip(ids, token_texts(tokenizer.decode, ids), strict=True)
    return [text or names.get(token, PART) for token, text in texts]
