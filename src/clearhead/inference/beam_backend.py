"""The backends of beam search, eager and native: logits after each hypothesis, and its likeliest continuations."""

import math
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.config import TranslationConfig
from clearhead.errors import ClearheadError
from clearhead.models import EncoderDecoder, Memory
from clearhead.models.eval_mode import OnNotice, evaluating, refuse_not_finite
from clearhead.native import NativeTranslator, UnknownPartError
from clearhead.native.facade import CALL_SECONDS, library_for, refuse_difference
from clearhead.parts import DecoderCache
from clearhead.parts.masks import Positions

CHUNK = 32  # numbers per chunk
STEPS = 20  # per batch, at least


class Continuations(NamedTuple):
    """The likeliest continuations of each sentence, the best first: (S, n) each."""

    scores: Tensor  # log-probability of the whole hypothesis
    parents: Tensor  # index of the hypothesis that continues
    tokens: Tensor  # the next token


class BeamBackend(Protocol):
    """A backend for S sentences with b hypotheses each, which share a row of the cache."""

    def begin(self, source: Tensor, positions: Positions, capacity: int) -> tuple[Memory, DecoderCache]:
        """Read the sources (S, T_src): their memory, and an empty cache for it with this many columns.

        Args:
            positions: of the source's tokens, -1 for padding.
        """

    def forward(self, tokens: Tensor, position: int, memory: Memory, cache: DecoderCache, tree_mask: Tensor) -> Tensor:
        """The logits (S, b, V) after one more token (S, b) of each hypothesis.

        Args:
            position: where the tokens stand, behind those of earlier calls.
            memory, cache: from `begin`, of the same sentences; the cache has room for b columns.
            tree_mask: (S, b, columns + b) the ancestry of each hypothesis: its columns, the newest included.
        """

    def top_continuations(self, logits: Tensor, before: Tensor, n: int) -> Continuations:
        """The n likeliest continuations of each sentence, from logits (S, b, V) and the hypotheses' scores (S, b).

        Raises:
            ClearheadError: a logit is not finite.
        """


class EagerBeamBackend:
    """The eager backend: the model's own call."""

    def __init__(self, model: EncoderDecoder) -> None:
        self.model = model

    def begin(self, source: Tensor, positions: Positions, capacity: int) -> tuple[Memory, DecoderCache]:
        return self.model.encode(source, positions=positions), self.model.new_cache(len(source), capacity)

    def forward(self, tokens: Tensor, position: int, memory: Memory, cache: DecoderCache, tree_mask: Tensor) -> Tensor:
        if tokens.shape[1] == 1:  # at the first step, or with a beam of 1: all columns are its own
            return self.model.head(self.model.decode(tokens, memory, cache=cache))
        positions = torch.full_like(tokens, position)
        return self.model.head(self.model.decode(tokens, memory, positions=positions, cache=cache, tree_mask=tree_mask))

    def top_continuations(self, logits: Tensor, before: Tensor, n: int) -> Continuations:
        log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        refuse_not_finite(log_probs.sum(-1))  # the sums, because they are few
        if self.model.config.pad_id is not None:
            log_probs[..., self.model.config.pad_id] = -torch.inf  # padding is never generated
        log_probs += before[:, :, None]
        V = log_probs.shape[-1]
        scores, indices = chunked_topk(log_probs.flatten(1), n)  # (S, b, V) -> (S, b * V) -> (S, n)
        return Continuations(scores, indices // V, indices % V)


class NativeBeamBackend(NativeTranslator):
    """The native backend."""

    def top_continuations(self, logits: Tensor, before: Tensor, n: int) -> Continuations:
        return Continuations(*super().top_continuations(logits, before, n))


def chunked_topk(numbers: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The n largest of each row (S, N), in order, and their indices, as `topk`, which is slow for large N.

    The top n lie in the n chunks with the largest maxima.
    """
    S, N = numbers.shape
    if n * CHUNK > N:
        values, indices = numbers.topk(n)
        return values, indices
    if rest := -N % CHUNK:
        numbers = F.pad(numbers, (0, rest), value=-torch.inf)
    chunks = numbers.view(S, -1, CHUNK)  # (S, N) -> (S, N / C, C)
    best = chunks.amax(-1).topk(n).indices  # (S, n)
    kept = chunks.gather(1, best[:, :, None].expand(-1, -1, CHUNK)).flatten(1)  # (S, n, C) -> (S, n * C)
    values, indices = kept.topk(n)
    return values, best.gather(1, indices // CHUNK) * CHUNK + indices % CHUNK


def choose_beam_backend(
    model: EncoderDecoder, config: TranslationConfig, sentences: int, on_notice: OnNotice
) -> BeamBackend:
    """The backend for this many sentences; valid while the model's weights stay as they are.

    Native results are compared with eager ones before use.

    Args:
        on_notice: called with a sentence when something takes long or is not possible.
    """
    eager = EagerBeamBackend(model)
    if config.engine == "eager" or not sentences:
        return eager
    try:
        return _native_backend(model, config, sentences, on_notice) or eager
    except (UnknownPartError, ClearheadError, OSError, RuntimeError) as error:
        if config.engine == "native" or not isinstance(error, UnknownPartError):
            on_notice(f"native engine not used: {error}")
        return eager


def _native_backend(
    model: EncoderDecoder, config: TranslationConfig, sentences: int, on_notice: OnNotice
) -> NativeBeamBackend | None:
    """The native backend, or None where it would not save time.

    Raises:
        UnknownPartError: native code does not implement a part of the model.
        OSError, RuntimeError, ClearheadError: it cannot be compiled or loaded, or computes something else.
    """
    steps = STEPS * math.ceil(sentences / config.batch_size)
    step = 2 * CALL_SECONDS * (2 + model.config.n_layers)  # seconds; a block with cross-attention takes twice as long
    library = library_for(model, steps * step, required=config.engine == "native", on_notice=on_notice)
    if library is None:
        return None
    native = NativeBeamBackend(model, library)
    _verify_native(model, native)
    return native


@torch.inference_mode()
def _verify_native(model: EncoderDecoder, native: BeamBackend) -> None:
    """Compare native with eager results on two sentences: one token, then two hypotheses.

    Raises:
        RuntimeError: they differ.
    """
    config, device = model.config, model.device
    if config.block_size == 1:
        return  # a translation's only token, at most
    tokens = torch.arange(6, device=device).view(2, 3) % config.vocab_size
    source = tokens[:, :2] % (config.source_vocab_size or config.vocab_size)
    tree_mask = torch.tensor([[True, True, False], [True, False, True]], device=device).expand(2, -1, -1)
    read = list[tuple[Tensor, Tensor]]()
    with evaluating(model):
        for backend in (EagerBeamBackend(model), native):
            memory, cache = backend.begin(source, range(2), 3)
            before = torch.zeros(2, 2, device=device)
            backend.forward(tokens[:, :1], 0, memory, cache, tree_mask[:, :1, :1])
            logits = backend.forward(tokens[:, 1:], 1, memory, cache, tree_mask)
            read.append((logits, backend.top_continuations(logits, before, 2).scores))
    for expected, actual in zip(*read, strict=True):
        refuse_difference(actual, expected)
