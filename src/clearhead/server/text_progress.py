"""One text on its way to its reader: characters whole, nothing of a stop string, and its tokens with their text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from clearhead.inference import TokenLogprobs
from clearhead.inference.text_stream import PieceCache, TextStream
from clearhead.server.text_batch import TextStep

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class TextEvent:
    """What a text has gained.

    Args:
        index: which text of the request.
        text: characters; some may be held back that belong to tokens of earlier events.
        tokens: ids, the end token among them; where log-probabilities are asked for, as the next two.
        logprobs: of these tokens.
        offsets: where in the text each of the tokens begins, in characters.
        prompt_logprobs: of the tokens of the prompt but the first, once, where asked for.
        finish_reason: `stop`: an end token or a stop string ended it; `length`: `max_new_tokens`; None: it goes on.
    """

    index: int
    text: str
    tokens: list[int]
    logprobs: list[TokenLogprobs]
    offsets: list[int]
    finish_reason: Literal["stop", "length"] | None = None
    prompt_logprobs: Sequence[TokenLogprobs] | None = None

    def __add__(self, later: "TextEvent") -> "TextEvent":
        return TextEvent(
            self.index,
            self.text + later.text,
            self.tokens + later.tokens,
            self.logprobs + later.logprobs,
            self.offsets + later.offsets,
            later.finish_reason,
            self.prompt_logprobs if later.prompt_logprobs is None else later.prompt_logprobs,
        )

    @property
    def size(self) -> int:
        """Characters, tokens and alternatives."""
        alternatives = sum(len(token.top) for token in (*self.logprobs, *(self.prompt_logprobs or ())))
        return len(self.text) + len(self.tokens) + alternatives


def joined(events: Sequence[TextEvent]) -> TextEvent:
    """All events of a text as one, in time that grows with their number alone."""
    return TextEvent(
        events[0].index,
        "".join(event.text for event in events),
        list(chain.from_iterable(event.tokens for event in events)),
        list(chain.from_iterable(event.logprobs for event in events)),
        list(chain.from_iterable(event.offsets for event in events)),
        events[-1].finish_reason,
        next((event.prompt_logprobs for event in events if event.prompt_logprobs is not None), None),
    )


class TextProgress:
    """The text of what a batch writes, step by step.

    Tokens are passed on with their text: those of a stop string, or of half a character, wait as it does.

    Attributes:
        n_tokens: how many tokens were sampled for it, those of its end included.
    """

    def __init__(
        self, decode: Decode, prompt: Sequence[int], stop: Sequence[str], pieces: PieceCache, *, with_tokens: bool
    ) -> None:
        self._stream, self._with_tokens = TextStream(decode, prompt, stop, pieces), with_tokens
        self._waiting = list[tuple[int, int, TokenLogprobs]]()  # token, where it begins, its log-probability
        self._length = 0  # characters that were passed on
        self.n_tokens = 0

    def take(self, index: int, step: TextStep) -> TextEvent:
        """What a step brings the reader."""
        text = self._text_with_tokens(step) if self._with_tokens else self._text(step.tokens)
        if self._stream.stopped:
            return self._event(index, text, "stop", step.prompt_logprobs)
        if step.finish_reason == "stop":
            self.n_tokens += 1
            if self._with_tokens and len(step.logprobs) > len(step.tokens):  # of the end token, which is no text
                text += self._stream.close()
                self._waiting.append((step.logprobs[-1].token, self._length + len(text), step.logprobs[-1]))
        match step.finish_reason:
            case "stop" | "length":
                return self._event(index, text + self._stream.close(), step.finish_reason, step.prompt_logprobs)
        return self._event(index, text, None, step.prompt_logprobs)

    def _text(self, tokens: Sequence[int]) -> str:
        """The text of these tokens, before a stop string."""
        text = ""
        for token in tokens:
            self.n_tokens += 1
            text += self._stream.add(token)
            if self._stream.stopped:
                break
        return text

    def _text_with_tokens(self, step: TextStep) -> str:
        """The same; the tokens wait for their text."""
        text = ""
        for token, logprob in zip(step.tokens, step.logprobs, strict=False):
            self._waiting.append((token, self._length + len(text) + self._stream.held, logprob))
            text += self._text([token])
            if self._stream.stopped:
                break
        return text

    def _event(
        self,
        index: int,
        text: str,
        reason: Literal["stop", "length"] | None,
        of_prompt: Sequence[TokenLogprobs] | None,
    ) -> TextEvent:
        self._length += len(text)
        if not self._with_tokens:
            return TextEvent(index, text, [], [], [], reason, of_prompt)
        passed, waiting = self._waiting, list[tuple[int, int, TokenLogprobs]]()
        if reason is None or self._stream.stopped:
            passed = [part for part in self._waiting if part[1] < self._length]
            waiting = [part for part in self._waiting if part[1] >= self._length]
        self._waiting = waiting
        return TextEvent(
            index,
            text,
            [token for token, _, _ in passed],
            [logprob for _, _, logprob in passed],
            [offset for _, offset, _ in passed],
            reason,
            of_prompt,
        )
