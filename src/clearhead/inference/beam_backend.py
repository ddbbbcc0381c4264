"""Choose the backend of a beam search: eager, or native where the config names it or it saves time."""

import math

import torch
from torch import Tensor

from clearhead.config import TranslationConfig
from clearhead.errors import ClearheadError
from clearhead.inference.beam_step import BeamStep, EagerBeamStep, NativeBeamStep
from clearhead.models import EncoderDecoder
from clearhead.models.eval_mode import OnNotice, evaluating
from clearhead.native import UnknownPartError
from clearhead.native.facade import CALL, code_for, refuse_difference

STEPS = 20  # per batch, at least


def reader_for(model: EncoderDecoder, config: TranslationConfig, sentences: int, on_notice: OnNotice) -> BeamStep:
    """The backend for this many sentences; valid while the model's weights stay as they are.

    Native results are compared with eager ones before use.

    Args:
        on_notice: called with a sentence when something takes long or is not possible.
    """
    plain = EagerBeamStep(model)
    if config.engine == "eager" or not sentences:
        return plain
    try:
        return _compiled(model, config, sentences, on_notice) or plain
    except (UnknownPartError, ClearheadError, OSError, RuntimeError) as error:
        if config.engine == "native" or not isinstance(error, UnknownPartError):
            on_notice(f"translations are searched for without native code: {error}")
        return plain


def _compiled(
    model: EncoderDecoder, config: TranslationConfig, sentences: int, on_notice: OnNotice
) -> NativeBeamStep | None:
    """The native backend, or None where it would not save time.

    Raises:
        UnknownPartError: native code does not implement a part of the model.
        OSError, RuntimeError, ClearheadError: it cannot be compiled or loaded, or computes something else.
    """
    steps = STEPS * math.ceil(sentences / config.batch_size)
    saved = steps * 2 * CALL * (2 + model.config.n_layers)  # seconds; a block with cross-attention takes twice as long
    library = code_for(model, saved, required=config.engine == "native", on_notice=on_notice)
    if library is None:
        return None
    reader = NativeBeamStep(model, library)
    _refuse_wrong_code(model, reader)
    return reader


@torch.inference_mode()
def _refuse_wrong_code(model: EncoderDecoder, reader: BeamStep) -> None:
    """Compare native with eager results on two sentences: one token, then two hypotheses.

    Raises:
        RuntimeError: they differ.
    """
    config, device = model.config, model.device
    if config.block_size == 1:
        return  # a translation's only token, at most
    tokens = torch.arange(6, device=device).view(2, 3) % config.vocab_size
    source = tokens[:, :2] % (config.source_vocab_size or config.vocab_size)
    among = torch.tensor([[True, True, False], [True, False, True]], device=device).expand(2, -1, -1)
    read = list[tuple[Tensor, Tensor]]()
    with evaluating(model):
        memory = model.encode(source, positions=range(2))
        for step in (EagerBeamStep(model), reader):
            cache, before = model.new_cache(2, 3), torch.zeros(2, 2, device=device)
            step.read(tokens[:, :1], 0, memory, cache, among[:, :1, :1])
            logits = step.read(tokens[:, 1:], 1, memory, cache, among)
            read.append((logits, step.likeliest(logits, before, 2).scores))
    for expected, actual in zip(*read, strict=True):
        refuse_difference(actual, expected)
