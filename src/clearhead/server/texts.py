"""Texts for many requests at once: continuous batching on the model's thread, read by the event loop."""

import asyncio
import itertools
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Literal, Self

from clearhead.inference.ids import known_ids
from clearhead.inference.text_stream import PieceCache
from clearhead.server.http.errors import HttpError
from clearhead.server.http.model_thread import ModelThread, closed
from clearhead.server.outbox import Outbox
from clearhead.server.text_batch import TextBatch, TextRequest, TextStep
from clearhead.server.text_progress import Decode, TextEvent, TextProgress, joined

BUFFER = 16_384  # unread characters, tokens and alternatives of a request, from which on its texts pause
PATIENCE = 60.0  # seconds that they may

Command = Callable[[TextBatch], None]


class BusyError(HttpError):
    """The queue is full: status 429."""

    def __init__(self, waiting: int) -> None:
        super().__init__(
            429, f"the server is busy: {waiting} texts are being written or wait; try again", retry_after=1
        )


class SlowReaderError(HttpError):
    """The texts have waited too long for their reader: status 408."""

    def __init__(self, seconds: float) -> None:
        super().__init__(408, f"the text waited for {seconds:g} seconds because it was read too slowly, and has ended")


class TextQueue:
    """The texts of one model: some are written, others wait in the order in which they came; beyond that, `BusyError`.

    - Whoever leaves his `TextReader` cancels his texts; their slots are free at the next step.
    - Whoever reads too slowly fills a buffer of a bounded size, and then his own texts pause. They keep their slots,
      and not a bit of them differs, so this is kinder than to cancel them. But whoever has let them wait for too long
      altogether, however little he reads now and then, loses them, so no slot is kept for ever.
    - Nothing runs where there is nothing to write.
    """

    def __init__(
        self,
        thread: ModelThread,
        batch: TextBatch,
        decode: Decode,
        *,
        vocab_size: int,
        context: int | None,
        capacity: int,
        buffer: int = BUFFER,
        patience: float = PATIENCE,
        seconds: float = 0.0,
    ) -> None:
        """
        Args:
            thread: the model's.
            batch: is touched on that thread alone.
            decode: ids to text.
            vocab_size: the model's; ids beyond are refused.
            context: tokens of prompt and text together; None: no limit.
            capacity: texts that are written or wait.
            buffer: unread characters, tokens and alternatives of a request, from which on its texts pause.
            patience: seconds that a request's texts may be paused, all pauses together.
            seconds: what texts gain within this time is handed out together, but for how they begin and end.
        """
        self._thread, self._batch, self._decode, self._pieces = thread, batch, decode, PieceCache()
        self._vocab_size, self._context, self.capacity, self._buffer = vocab_size, context, capacity, buffer
        self._patience = patience
        self._numbers = itertools.count()
        self._readers = dict[int, tuple[TextReader, int]]()  # by the text's key: who reads it, as which of his texts
        self._is_closed = False
        self.prompt_tokens = self.new_tokens = 0  # of all texts so far
        self._outbox = Outbox(self._deliver, seconds)
        self._lock = threading.Lock()  # of what follows, which both threads touch
        self._commands = list[Command]()
        self._is_posted = False

    @property
    def n_texts(self) -> int:
        """Texts that are written or wait."""
        return len(self._readers)

    def submit(self, request: TextRequest) -> "TextReader":
        """Begin to write texts; `with` it, iterate over their events. On the event loop's thread.

        Raises:
            HttpError: the queue is full (`BusyError`), or will never have room for so many; a text does not fit into
                the model's context.
            InputError: an id is not in the model's vocabulary.
        """
        if self._is_closed:
            raise closed()
        self._refuse_long_ones(request)
        known_ids(request.prompts, self._vocab_size)
        count = len(request.prompts)
        if count > self.capacity:
            raise HttpError(400, f"the request is for {count} texts, and this server takes at most {self.capacity}")
        if self.n_texts + count > self.capacity:
            raise BusyError(self.n_texts)
        if request.sampling.seed is None:  # drawn here, so that a text can be written twice
            sampling = request.sampling.model_copy(update={"seed": secrets.randbits(63)})
            request = replace(request, sampling=sampling)
        self._outbox.open()
        keys = list(itertools.islice(self._numbers, count))
        with_tokens = request.options.logprobs is not None
        texts = [
            TextProgress(self._decode, prompt, request.sampling.stop, self._pieces, with_tokens=with_tokens)
            for prompt in request.prompts
        ]
        reader = TextReader(self, keys, texts, self._buffer, self._patience)
        self._readers |= {key: (reader, index) for index, key in enumerate(keys)}
        self.prompt_tokens += sum(map(len, request.prompts))
        self.send(lambda batch: batch.add(keys, request), keys)
        return reader

    def _refuse_long_ones(self, request: TextRequest) -> None:
        longest = max(map(len, request.prompts), default=0)
        new_tokens = 0 if request.options.prompt_only else request.sampling.max_new_tokens
        if self._context is not None and longest + new_tokens > self._context:
            raise HttpError(
                400,
                f"the model's context has {self._context} tokens; the prompt has {longest} and max_tokens is "
                f"{new_tokens}, {longest + new_tokens} together; shorten the prompt or lower max_tokens",
                request.param,
                "context_length_exceeded",
            )

    def close(self) -> None:
        """End all texts with an error. On the event loop's thread; the model's is the caller's to close."""
        self._is_closed = True
        for reader, index in [*self._readers.values()]:
            reader.deliver(index, TextStep(0, error=closed()))
        self._readers.clear()
        self.send(TextBatch.close)

    def release(self, key: int) -> None:
        """A text has ended, or nobody reads it any more."""
        self._readers.pop(key, None)

    def send(self, command: Command, keys: Sequence[int] = ()) -> None:
        """Have the model's thread do this before its next step; what it raises is the error of these texts."""

        def guarded(batch: TextBatch) -> None:
            try:
                command(batch)
            except Exception as error:
                self._publish([TextStep(key, error=error) for key in keys])

        with self._lock:
            self._commands.append(guarded)
            is_posted, self._is_posted = self._is_posted, True
        if not is_posted:
            self._thread.post(self._turn)

    def _turn(self) -> None:
        """Steps, on the model's thread, until something else waits there. Then it comes again at the end of that."""
        is_posted = True
        while is_posted and not self._thread.is_wanted:
            is_posted = self._step()
        if is_posted:
            self._thread.post(self._turn)

    def _step(self) -> bool:
        """One step; whether there is more to do."""
        with self._lock:
            commands, self._commands = self._commands, []
        for command in commands:
            command(self._batch)
        try:
            steps = self._batch.step() if self._batch.has_work else []
        except Exception as error:
            steps = self._batch.fail(error)
        if steps:
            self._publish(steps)
        with self._lock:
            self._is_posted = bool(self._commands) or self._batch.has_work
            return self._is_posted

    def _publish(self, steps: Sequence[TextStep]) -> None:
        try:
            self._outbox.publish(steps)
        except RuntimeError:  # the loop has ended, and so has everybody who could read it
            self._batch.close()

    def _deliver(self, step: TextStep) -> None:
        self.new_tokens += len(step.tokens)
        if step.key in self._readers:
            reader, index = self._readers[step.key]
            try:
                reader.deliver(index, step)
            except Exception as error:  # such as tokens that cannot be decoded: the others' steps go on
                reader.deliver(index, TextStep(step.key, error=error))


class TextReader:
    """The texts of one request, as they come. Leaving the `with` cancels those that have not ended.

    Attributes:
        n_tokens: tokens that were sampled for texts that have ended or are being written, ends and stops included.
    """

    def __init__(
        self, queue: TextQueue, keys: Sequence[int], texts: Sequence[TextProgress], buffer: int, patience: float
    ) -> None:
        self._queue, self._keys, self._texts, self._buffer = queue, keys, texts, buffer
        self._patience = self._patience_left = patience
        self._live = {*range(len(keys))}
        self._events = dict[int, TextEvent]()  # unread, at most one for each text
        self._error: Exception | None = None
        self._pause: asyncio.TimerHandle | None = None  # while the texts are paused: until when they may be
        self._change = asyncio.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._cancel(self._live)
        self._end_pause()
        self._events.clear()
        return False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TextEvent:
        while not self._events:
            if self._error is not None:
                raise self._error
            if not self._live:
                raise StopAsyncIteration
            self._change.clear()
            await self._change.wait()
        event = self._events.pop(next(iter(self._events)))
        if self._pause is not None and self._unread <= self._buffer // 2:
            self._end_pause()
            keys = [self._keys[index] for index in self._live]
            self._queue.send(lambda batch: batch.resume(keys))
        return event

    async def whole(self) -> list[TextEvent]:
        """Each text as one event, when all have ended."""
        events: list[list[TextEvent]] = [[] for _ in self._texts]
        async for event in self:
            events[event.index].append(event)
        return [joined(own) for own in events]

    @property
    def n_tokens(self) -> int:
        return sum(text.n_tokens for text in self._texts)

    def deliver(self, index: int, step: TextStep) -> None:
        """Take in what a text has gained; for the queue."""
        self._change.set()
        if step.error is not None:
            self._error = step.error
            self._cancel(self._live)
            return
        event = self._texts[index].take(index, step)
        if event.finish_reason is not None:
            if step.finish_reason is None:  # a stop string ended it, of which the batch knows nothing
                self._cancel({index})
            else:
                self._live.discard(index)
                self._queue.release(self._keys[index])
        if event.text or event.tokens or event.finish_reason is not None or event.prompt_logprobs is not None:
            self._events[index] = self._events[index] + event if index in self._events else event
        if self._pause is None and self._live and self._unread > self._buffer:
            self._pause = asyncio.get_running_loop().call_later(self._patience_left, self._give_up)
            keys = [self._keys[live] for live in self._live]
            self._queue.send(lambda batch: batch.pause(keys))

    def _end_pause(self) -> None:
        if self._pause is not None:
            self._patience_left = max(0.0, self._pause.when() - asyncio.get_running_loop().time())
            self._pause.cancel()
            self._pause = None

    def _give_up(self) -> None:
        """End the texts, after what has been written: they have waited long enough."""
        self._pause = None
        self._error = SlowReaderError(self._patience)
        self._cancel(self._live)
        self._change.set()

    @property
    def _unread(self) -> int:
        return sum(event.size for event in self._events.values())

    def _cancel(self, indices: set[int]) -> None:
        keys = [self._keys[index] for index in indices & self._live]
        self._live -= indices
        for key in keys:
            self._queue.release(key)
        if keys:
            self._queue.send(lambda batch: batch.cancel(keys))
