"""Sentences of many requests in one search: whoever comes within a few milliseconds is translated together."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from clearhead.config import TranslationConfig
from clearhead.errors import ClearheadError
from clearhead.inference.beam import BeamStep, Hypothesis, beam_search
from clearhead.inference.beam_backend import BeamBackend, choose_beam_backend
from clearhead.models import EncoderDecoder
from clearhead.models.eval_mode import OnNotice
from clearhead.server.http.model_thread import ModelThread, closed
from clearhead.server.texts import BusyError

MANY = 10**6  # sentences: what a server translates, so that an engine that takes long to begin is worth it
BATCH = 64  # sentences of one search
MAX_HYPOTHESES = 256  # of one search, since memory grows with them: each of a sentence's beams has a cache


class _UnwantedError(Exception):
    """All clients of a search have gone."""


@dataclass
class _Sentence:
    ids: Sequence[int]
    is_searched: bool = False  # the model's thread has it, or will
    is_counted: bool = True
    result: asyncio.Future[list[Hypothesis]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class TranslationQueue:
    """The sentences that wait for a translator, by how they are to be searched for.

    A translation depends on its sentence and its options alone: on the native engine to the last bit, on the eager
    one but for rounding. An error of a search of several is found out by searching for each alone.
    """

    def __init__(
        self,
        thread: ModelThread,
        model: EncoderDecoder,
        *,
        end: int,
        seconds: float,
        capacity: int,
        on_notice: OnNotice,
    ) -> None:
        """
        Args:
            thread: the model's.
            model: the translator.
            end: eos.
            seconds: how long the first sentence waits for others.
            capacity: sentences that wait or are translated, also those of clients that have gone.
            on_notice: called with sentences to log.
        """
        self._thread, self._model, self._end, self._on_notice = thread, model, end, on_notice
        self._seconds, self._capacity = seconds, capacity
        self._backend: BeamBackend | None = None  # chosen with the first sentences, and kept
        self._waiting = dict[TranslationConfig, list[_Sentence]]()
        self._tasks = set[asyncio.Task[None]]()
        self.n_sentences = 0

    async def search(self, sources: Sequence[Sequence[int]], config: TranslationConfig) -> list[list[Hypothesis]]:
        """What `beam_search` finds for each source, ids with their end.

        Raises:
            HttpError: 429, too many wait; 503, it was closed.
            ClearheadError: the model's output for one of them is not finite.
        """
        if self.n_sentences + len(sources) > self._capacity:
            raise BusyError(self.n_sentences)
        sentences = [_Sentence(ids) for ids in sources]
        waiting = self._waiting.setdefault(config, [])
        waiting += sentences
        self.n_sentences += len(sentences)
        if len(waiting) == len(sentences):  # the first ones: they wait for the others
            task = asyncio.ensure_future(self._gather(config))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            return [await sentence.result for sentence in sentences]
        finally:
            for sentence in sentences:
                if sentence.result.done() and not sentence.result.cancelled():
                    sentence.result.exception()  # somebody has heard of it
                sentence.result.cancel()  # who left is not translated, if the search has not begun
                if not sentence.is_searched:
                    self._discount(sentence)

    def close(self) -> None:
        """End what waits with an error. On the event loop's thread."""
        for task in self._tasks:
            task.cancel()
        for sentence in [sentence for waiting in self._waiting.values() for sentence in waiting]:
            if not sentence.result.done():
                sentence.result.set_exception(closed())
        self._waiting.clear()

    async def _gather(self, config: TranslationConfig) -> None:
        await asyncio.sleep(self._seconds)
        sentences = self._waiting.pop(config, [])
        size = max(1, min(BATCH, MAX_HYPOTHESES // config.beam_size))
        try:
            for start in range(0, len(sentences), size):
                await self._search(sentences[start : start + size], config)
        except asyncio.CancelledError:  # closed: also for those whose search had not begun
            _fail(sentences, closed())
            raise

    async def _search(self, sentences: Sequence[_Sentence], config: TranslationConfig) -> None:
        sentences = [sentence for sentence in sentences if not sentence.result.done()]
        if not sentences:
            return
        for sentence in sentences:
            sentence.is_searched = True
        try:
            for sentence, hypotheses in await self._thread.call(partial(self._run, sentences, config)):
                if not sentence.result.done():
                    sentence.result.set_result(hypotheses)
        except ClearheadError as error:
            if len(sentences) > 1:
                for sentence in sentences:
                    await self._search([sentence], config)
            else:
                _fail(sentences, error)
        except Exception as error:
            _fail(sentences, error)
        finally:
            for sentence in sentences:
                self._discount(sentence)

    def _run(
        self, sentences: Sequence[_Sentence], config: TranslationConfig
    ) -> list[tuple[_Sentence, list[Hypothesis]]]:
        """The hypotheses of each sentence, unless nobody waits for any of them any more. On the model's thread."""
        sentences = [sentence for sentence in sentences if not sentence.result.done()]
        if not sentences:
            return []
        if self._backend is None:
            self._backend = choose_beam_backend(self._model, config, MANY, self._on_notice)
        sources = [sentence.ids for sentence in sentences]

        def go_on(step: BeamStep) -> None:
            if all(sentence.result.done() for sentence in sentences):
                raise _UnwantedError

        try:
            results = beam_search(self._model, sources, config, end=self._end, backend=self._backend, on_step=go_on)
        except _UnwantedError:
            return []
        return [*zip(sentences, results, strict=True)]

    def _discount(self, sentence: _Sentence) -> None:
        self.n_sentences -= sentence.is_counted
        sentence.is_counted = False


def _fail(sentences: Sequence[_Sentence], error: Exception) -> None:
    for sentence in sentences:
        if not sentence.result.done():
            sentence.result.set_exception(error)
