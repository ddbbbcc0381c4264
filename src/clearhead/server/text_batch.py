"""The texts that a model writes at once, as its thread has them: an error hurts its own text alone."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from clearhead.config import SamplingConfig
from clearhead.errors import ClearheadError
from clearhead.inference import GenerationBatch, TextOptions, TokenLogprobs
from clearhead.inference.requests import FinishReason
from clearhead.inference.text_options import PLAIN

LOG = logging.getLogger(__name__)

MAX_CRASHES = 3  # of steps that a text took part in, if nothing is wrong with it alone

MakeBatch = Callable[[int], GenerationBatch]  # with so many slots


@dataclass(frozen=True)
class TextRequest:
    """Texts that are written for one request.

    Args:
        prompts: ids, one list for each text; where several texts continue one prompt, it stands there several times.
        sampling: of all of them; `num_samples` is not looked at. Its seed gives each text the numbers that it has in
            `inference.generate`.
        options: what else is asked of each.
        param: where the prompts stood in the request.
    """

    prompts: Sequence[Sequence[int]]
    sampling: SamplingConfig
    options: TextOptions = PLAIN
    param: str = "prompt"


class TextStep(NamedTuple):
    """What a text has gained in a step, or in several; `error` is why it cannot go on."""

    key: int
    tokens: Sequence[int] = ()
    logprobs: Sequence[TokenLogprobs] = ()
    prompt_logprobs: Sequence[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    is_first: bool = False  # nothing of the text came before

    @property
    def is_urgent(self) -> bool:
        """Whether somebody waits for it more than for any other: how the text begins, or that it ends."""
        return self.is_first or self.finish_reason is not None or self.error is not None

    def then(self, later: "TextStep") -> "TextStep":
        """Both as one step."""
        return TextStep(
            later.key,
            [*self.tokens, *later.tokens],
            [*self.logprobs, *later.logprobs] if later.logprobs else self.logprobs,
            self.prompt_logprobs if later.prompt_logprobs is None else later.prompt_logprobs,
            later.finish_reason,
            later.error,
            self.is_first,
        )


@dataclass
class _Text:
    request: TextRequest
    prompt: Sequence[int]
    copy: int  # how many texts of the request before it have the same prompt
    written: list[int] = field(default_factory=list)  # what has been passed on
    n_again: int = 0  # how many of them the present batch has written
    has_prompt: bool = False  # whether the log-probabilities of the prompt have been passed on
    crashes: int = 0


class TextBatch:
    """A `GenerationBatch` whose texts outlive it.

    The batch itself survives what goes wrong with a text. If a step fails as a whole (out of memory, a fault of the
    library), each of its texts is tried by itself as far as it had come. Those that fail alone have failed; the others
    begin anew in a new batch. As a text depends on its prompt, its options and its seed alone, it comes out the same,
    and what was passed on is not passed on twice.
    """

    def __init__(self, make: MakeBatch, slots: int, end: int | None) -> None:
        """
        Args:
            make: a new batch; called on the model's thread.
            slots: texts at once.
            end: eos.
        """
        self._make, self._slots, self._end = make, slots, end
        self._stack = ExitStack()
        self._batch: GenerationBatch | None = None
        self._texts = dict[int, _Text]()  # by key, in the order in which they came
        self._keys = dict[int, int]()  # by the batch's name of the text
        self._paused = set[int]()

    @property
    def has_work(self) -> bool:
        """Whether a step would bring any text further: one of the first, which have the slots."""
        return any(key not in self._paused for key in islice(self._texts, self._slots))

    def prepare(self) -> None:
        """Reserve the memory, if that is still to be done."""
        if self._batch is None:
            self._batch = self._stack.enter_context(self._make(self._slots))

    def close(self) -> None:
        """End all texts, and free the memory."""
        self._texts.clear()
        self._let_go()

    def add(self, keys: Sequence[int], request: TextRequest) -> None:
        """Add the texts of a request, whose sampling has a seed, by these keys.

        Raises:
            ClearheadError: the batch refuses them, or there is no memory.
        """
        self.prepare()
        assert self._batch is not None
        names = self._batch.add(request.prompts, request.sampling, self._end, request.options)
        copies = Counter[tuple[int, ...]]()
        for key, name, prompt in zip(keys, names, request.prompts, strict=True):
            self._texts[key] = _Text(request, prompt, copies[tuple(prompt)])
            copies[tuple(prompt)] += 1
            self._keys[name] = key

    def cancel(self, keys: Iterable[int]) -> None:
        """Stop writing these texts."""
        unwanted = self._texts.keys() & {*keys}
        if self._batch is not None:
            self._batch.cancel(self._names(unwanted))
        for key in unwanted:
            self._forget(key)

    def pause(self, keys: Iterable[int]) -> None:
        """These texts keep their slots and gain no tokens until they are resumed."""
        self._paused |= self._texts.keys() & {*keys}
        if self._batch is not None:
            self._batch.pause(self._names(self._paused))

    def resume(self, keys: Iterable[int]) -> None:
        """These texts go on."""
        self._paused -= {*keys}
        if self._batch is not None:
            self._batch.resume(self._names({*keys}))

    def fail(self, error: Exception) -> list[TextStep]:
        """End all texts for this error, and free the memory."""
        steps = [TextStep(key, error=error) for key in self._texts]
        self._paused.clear()
        self.close()
        return steps

    def step(self) -> list[TextStep]:
        """What each text has gained; nothing of those that gained nothing."""
        if self._batch is None:
            return []
        try:
            written = self._batch.step()
        except Exception as error:
            return self._recover(error)
        batch, steps = self._batch, list[TextStep]()
        special = batch.finish_reasons.keys() | batch.logprobs.keys() | batch.prompt_logprobs.keys()
        for name, tokens in written.items():
            key = self._keys.get(name)
            if key is None or name in special:
                continue
            text = self._texts[key]
            if text.n_again < len(text.written):
                steps += self._progress(key, TextStep(key, tokens))
            elif tokens:  # nearly all, so this is short
                steps.append(TextStep(key, tokens, is_first=not text.written))
                text.written += tokens
                text.n_again += len(tokens)
        for name in special:
            reason, failure = batch.finish_reasons.pop(name, None), batch.failed.pop(name, None)
            logprobs, of_prompt = batch.logprobs.pop(name, []), batch.prompt_logprobs.pop(name, None)
            key = self._keys.get(name)
            if key is None:
                continue  # it was cancelled
            steps += self._progress(key, TextStep(key, written.get(name, []), logprobs, of_prompt, reason, failure))
            if reason is not None or failure is not None:
                self._forget(key)
        return steps

    def _progress(self, key: int, step: TextStep) -> list[TextStep]:
        """A step of a text without what was passed on before the batch was made anew."""
        text = self._texts[key]
        again = min(len(step.tokens), len(text.written) - text.n_again)
        if [*step.tokens[:again]] != text.written[text.n_again : text.n_again + again]:
            # The eager engine rounds by the batch's shape, so this can be. Half of another text is worse than none.
            if self._batch is not None:
                self._batch.cancel(self._names([key]))
            self._forget(key)
            return [TextStep(key, error=ClearheadError("the text could not be continued after a failure; ask again"))]
        text.n_again += again
        is_first, tokens, logprobs = not text.written, step.tokens[again:], step.logprobs[again:]
        text.written += tokens
        text.n_again += len(tokens)
        of_prompt = None if text.has_prompt else step.prompt_logprobs
        text.has_prompt |= of_prompt is not None
        if tokens or logprobs or of_prompt or step.finish_reason or step.error:
            return [step._replace(tokens=tokens, logprobs=logprobs, prompt_logprobs=of_prompt, is_first=is_first)]
        return []

    def _names(self, keys: Iterable[int]) -> list[int]:
        some = {*keys}
        return [name for name, key in self._keys.items() if key in some]

    def _forget(self, key: int) -> None:
        for name in self._names([key]):
            del self._keys[name]
        self._texts.pop(key, None)
        self._paused.discard(key)

    def _let_go(self) -> None:
        self._keys.clear()
        stack, self._stack, self._batch = self._stack, ExitStack(), None
        stack.close()

    def _recover(self, error: Exception) -> list[TextStep]:
        """Try each text of the failed step by itself; begin anew with the others."""
        LOG.error("a step of %d texts failed; each is tried by itself", len(self._texts), exc_info=error)
        self._let_go()
        steps = list[TextStep]()
        for key in [*islice(self._texts, self._slots)]:  # the others had not begun
            text = self._texts[key]
            text.crashes += 1
            failure = error if text.crashes > MAX_CRASHES else self._failure_alone(text)
            if failure is not None:
                steps.append(TextStep(key, error=failure))
                self._forget(key)
        try:
            self.prepare()
            for key, text in self._texts.items():
                text.n_again = 0
                self._keys[self._add_again(self._batch, text)] = key
            self.pause(self._paused)
        except Exception as second:
            return [*steps, *self.fail(second)]
        return steps

    def _failure_alone(self, text: _Text) -> Exception | None:
        """What goes wrong with a text by itself up to its next token, if anything does."""
        try:
            with self._make(1) as batch:
                name, count = self._add_again(batch, text), 0
                while batch.live and count <= len(text.written):
                    count += len(batch.step().get(name, []))
                return batch.failed.get(name)
        except Exception as error:
            return error

    def _add_again(self, batch: GenerationBatch | None, text: _Text) -> int:
        """Add a text with the seed that it had: as the last of several with its prompt."""
        assert batch is not None
        request = text.request
        prompts = [text.prompt] * (text.copy + 1)
        *others, name = batch.add(prompts, request.sampling, self._end, request.options)
        batch.cancel(others)
        return name
