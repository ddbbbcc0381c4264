"""Choose the search for translations: our own beam search, or CTranslate2 where it is installed and faster."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from clearhead.config import TranslationConfig
from clearhead.errors import ClearheadError
from clearhead.inference.beam import Hypothesis, beam_search, known_sources, length_penalty, max_length
from clearhead.inference.beam_backend import choose_beam_backend
from clearhead.interop.ctranslate2 import ctranslate2_obstacle, save_ctranslate2, to_ctranslate2
from clearhead.models import EncoderDecoder
from clearhead.models.eval_mode import OnNotice, first_hooked_module

if TYPE_CHECKING:
    from ctranslate2 import TranslationResult

Ids = Sequence[int]
Search = Callable[[Sequence[Ids]], list[list[Hypothesis]]]  # sources, one batch -> what `beam_search` returns

PRECISIONS = {"auto": "float32", "ctranslate2": "float32", "ctranslate2-int8": "int8"}  # of CTranslate2's matrices
MANY = 64  # sentences from which on it saves more than the tenth of a second that its setup takes
FAILURES = (ImportError, MemoryError, OSError, RuntimeError, ValueError)  # no room on the disk, another CPU
NONE = 1e-9  # an exponent: effectively no length penalty; exactly 0 changes CTranslate2's stopping rule


def choose_search(
    model: EncoderDecoder, config: TranslationConfig, *, end: int, sentences: int, on_notice: OnNotice | None = None
) -> Search:
    """A search with this model; valid while its weights stay as they are.

    Args:
        model: the translator.
        config: how to search, and with which engine.
        end: eos.
        sentences: how many there are.
        on_notice: called with a sentence when CTranslate2 is chosen, something takes long, or an engine is missing or
            fails.
    """
    on_notice = on_notice or (lambda sentence: None)
    eager = partial(beam_search, model, config=config, end=end)
    if config.engine in PRECISIONS and (config.engine != "auto" or sentences >= MANY):
        search = _ctranslate2_search(model, config, end, eager, on_notice)
        if search is not None:
            return search
    return partial(eager, backend=choose_beam_backend(model, config, sentences, on_notice))


def _ctranslate2_search(
    model: EncoderDecoder, config: TranslationConfig, end: int, eager: Search, on_notice: OnNotice
) -> "CTranslate2Search | None":
    """The search by CTranslate2, or None where it is missing, fails, or cannot find what ours would."""
    if reason := _obstacle(model, config):
        if config.engine != "auto":
            on_notice(f"CTranslate2 not used: {reason}")
        return None
    try:
        search = CTranslate2Search(model, config, end, eager, on_notice)
    except FAILURES as error:
        on_notice(f"CTranslate2 not used, because it fails here: {error}")
        return None
    if config.engine == "auto":
        on_notice("CTranslate2, which is installed, searches for these translations; engine eager does without")
    return search


def _obstacle(model: EncoderDecoder, config: TranslationConfig) -> str | None:
    """Why CTranslate2 could not find what our own search would, or None."""
    if find_spec("ctranslate2") is None:
        return "it is not installed; install it with: pip install 'clearhead[ctranslate2]'"
    if model.device.type != "cpu":
        return f"it is for a CPU here, and the model is on {model.device.type}"
    if any(parameter.dtype != torch.float32 for parameter in model.parameters()):
        return "the model's weights are not float32"
    if kind := first_hooked_module(model):
        return f"{kind} has a forward hook"
    if config.n_best > 1:
        return "with n_best > 1 its results may differ"
    if reason := ctranslate2_obstacle(model.config):
        return f"it knows no model with {reason}"
    return None


class CTranslate2Search:
    """The best translation that `beam_search` finds, by CTranslate2, whose search differs in three ways:

    - Where more than k hypotheses end, it keeps the k likeliest, and all that end in the same step count.
    - One maximum length holds for all sentences of a batch; hypotheses beyond a sentence's own are ignored here.
    - Padding is removed before the softmax, not after.

    If CTranslate2's best may not be ours, `beam_search` redoes that sentence; if CTranslate2 fails, all the rest.
    """

    def __init__(
        self, model: EncoderDecoder, config: TranslationConfig, end: int, eager: Search, on_notice: OnNotice
    ) -> None:
        self.model, self.config, self.end, self.eager, self._on_notice = model, config, end, eager, on_notice
        self._failed = False
        pad = model.config.pad_id
        self._never = [] if pad is None else [to_ctranslate2([pad])]
        engine: Any = import_module("ctranslate2")  # which has no types
        with TemporaryDirectory() as name:
            save_ctranslate2(Path(name), model, end=end)
            self._engine = engine.Translator(
                name,
                device="cpu",
                compute_type=PRECISIONS[config.engine],
                inter_threads=1,
                intra_threads=torch.get_num_threads(),
            )

    def __call__(self, sources: Sequence[Ids]) -> list[list[Hypothesis]]:
        """Search as `beam_search` does.

        Raises:
            ClearheadError: CTranslate2 fails, and the config names it.
        """
        if not sources or self._failed:
            return self.eager(sources)
        sources = known_sources(self.model, sources, self.end)
        limits = [max_length(self.model, self.config, len(source)) for source in sources]
        try:
            results = self._results(sources, max(limits))
        except FAILURES as error:
            if self.config.engine != "auto":
                raise ClearheadError(f"CTranslate2 failed: {error}; engine eager does without") from error
            self._failed = True
            self._on_notice(f"CTranslate2 failed and is not used from here on: {error}")
            return self.eager(sources)
        hypotheses = [self._best(result, limit) for result, limit in zip(results, limits, strict=True)]
        unsure = [index for index, best in enumerate(hypotheses) if best is None]
        for index, [best] in zip(unsure, self.eager([sources[index] for index in unsure]), strict=True):
            hypotheses[index] = best
        return [[best] for best in hypotheses if best is not None]

    def _results(self, sources: Sequence[Ids], limit: int) -> list["TranslationResult"]:
        """Each sentence's hypotheses and scores, as CTranslate2 returns them."""
        results: list[TranslationResult] = self._engine.translate_batch(
            [to_ctranslate2(source) for source in sources],
            beam_size=self.config.beam_size,
            num_hypotheses=self.config.beam_size,
            length_penalty=NONE,
            suppress_sequences=self._never,
            max_input_length=0,  # none
            min_decoding_length=0,  # a translation may be empty
            max_decoding_length=limit,
            return_scores=True,
            return_end_token=True,
        )
        return results

    def _best(self, result: "TranslationResult", limit: int) -> Hypothesis | None:
        """The best hypothesis of one sentence; None where one that was not kept could be better."""
        written = [[int(word) for word in hypothesis] for hypothesis in result.hypotheses]
        candidates = list(zip(written, result.scores, strict=True))  # with their log-probabilities
        finished = [
            Hypothesis(ids[:-1], log_prob / self._penalty(len(ids)))
            for ids, log_prob in candidates
            if ids and ids[-1] == self.end and len(ids) <= limit and math.isfinite(log_prob)
        ]
        if not finished:
            return None
        best = max(finished, key=lambda hypothesis: hypothesis.score)
        longest, least = max(map(len, written)), min(result.scores)  # nothing that was not kept is longer, or likelier
        missed = least / self._penalty(longest) if len(candidates) == self.config.beam_size else -math.inf
        return best if best.score >= missed else None

    def _penalty(self, length: int) -> float:
        return length_penalty(length, self.config.length_penalty)
