"""Who reads for a beam search: the model's own call, or compiled code, where that is asked for or pays."""

import math

import torch
from torch import Tensor

from clearhead.config import TranslationConfig
from clearhead.errors import ClearheadError
from clearhead.inference.beam_step import BeamStep, EagerBeamStep, NativeBeamStep
from clearhead.models import EncoderDecoder
from clearhead.models.eval_mode import Notice, evaluating
from clearhead.native import UnknownPartError
from clearhead.native.facade import CALL, code_for, refuse_difference

STEPS = 20  # of a batch, at least


def reader_for(model: EncoderDecoder, config: TranslationConfig, sentences: int, say: Notice) -> BeamStep:
    """What reads for the translations of so many sentences, while the model's weights stay as they are.

    Compiled code is held against the model's own call before it is used.

    Args:
        say: told in a sentence what takes time, or cannot be done.
    """
    plain = EagerBeamStep(model)
    if config.engine == "eager" or not sentences:
        return plain
    try:
        return _compiled(model, config, sentences, say) or plain
    except (UnknownPartError, ClearheadError, OSError, RuntimeError) as error:
        if config.engine == "native" or not isinstance(error, UnknownPartError):
            say(f"translations are searched for without compiled code: {error}")
        return plain


def _compiled(model: EncoderDecoder, config: TranslationConfig, sentences: int, say: Notice) -> NativeBeamStep | None:
    """None where it does not pay.

    Raises:
        UnknownPartError: the model has parts that compiled code does not know.
        OSError, RuntimeError, ClearheadError: it cannot be made or loaded, or came out wrong.
    """
    steps = STEPS * math.ceil(sentences / config.batch_size)
    saved = steps * 2 * CALL * (2 + model.config.n_layers)  # seconds; a block with cross-attention takes twice as long
    library = code_for(model, saved, required=config.engine == "native", say=say)
    if library is None:
        return None
    reader = NativeBeamStep(model, library)
    _refuse_wrong_code(model, reader)
    return reader


@torch.inference_mode()
def _refuse_wrong_code(model: EncoderDecoder, reader: BeamStep) -> None:
    """Let both read a token of two sentences, and then two more of each, side by side.

    Raises:
        RuntimeError: the two do not compute the same.
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
