"""One text on its way to its reader: characters whole, nothing of a stop string, and its tokens with their text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from clearhead.inference import TokenLogprobs
from clearhead.inference.text_stream import TextStream
from clearhead.server.text_batch import TextStep

Decode = Callable[[Sequence[int]], str]
MOST_CACHED = 65_536  # texts of one or two tokens


class CachedDecode:
    """A tokenizer's `decode` that remembers the texts of one or two tokens, which is what streams ask for."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._texts = dict[tuple[int, ...], str]()

    def __call__(self, ids: Sequence[int]) -> str:
        if len(ids) > 2:
            return self._decode(ids)
        key = tuple(ids)
        text = self._texts.get(key)
        if text is None:
            if len(self._texts) >= MOST_CACHED:
                self._texts.clear()
            text = self._texts[key] = self._decode(ids)
        return text


@dataclass(frozen=True)
class TextEvent:
    """What a text has gained.

    Args:
        index: which text of the request.
        text: characters; some may be held back that belong to tokens of earlier events.
        tokens: ids. The end token is among them where log-probabilities are asked for.
        logprobs: of these tokens, where asked for.
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
        """Tokens and alternatives."""
        return len(self.tokens) + sum(len(token.top) for token in (*self.logprobs, *(self.prompt_logprobs or ())))


class TextProgress:
    """The text of what a batch writes, step by step.

    Tokens are passed on with their text: those of a stop string, or of half a character, wait as it does.

    Attributes:
        n_tokens: how many tokens were sampled for it, those of its end included.
    """

    def __init__(self, decode: Decode, prompt: Sequence[int], stop: Sequence[str]) -> None:
        self._stream = TextStream(decode, prompt, stop)
        self._waiting = list[tuple[int, int, TokenLogprobs | None]]()  # token, where it begins, its log-probability
        self._length = 0  # characters that were passed on
        self.n_tokens = 0

    def take(self, index: int, step: TextStep) -> TextEvent:
        """What a step brings the reader."""
        text = ""
        logprobs: Sequence[TokenLogprobs | None] = step.logprobs or [None] * len(step.tokens)
        for token, logprob in zip(step.tokens, logprobs, strict=False):
            self.n_tokens += 1
            self._waiting.append((token, self._length + len(text) + self._stream.held, logprob))
            text += self._stream.add(token)
            if self._stream.stopped:
                return self._event(index, text, "stop", step.prompt_logprobs)
        if step.finish_reason == "stop":
            self.n_tokens += 1
            if len(step.logprobs) > len(step.tokens):  # of the end token, which is no text
                text += self._stream.close()
                self._waiting.append((step.logprobs[-1].token, self._length + len(text), step.logprobs[-1]))
        match step.finish_reason:
            case "stop" | "length":
                return self._event(index, text + self._stream.close(), step.finish_reason, step.prompt_logprobs)
        return self._event(index, text, None, step.prompt_logprobs)

    def _event(
        self,
        index: int,
        text: str,
        reason: Literal["stop", "length"] | None,
        of_prompt: Sequence[TokenLogprobs] | None,
    ) -> TextEvent:
        self._length += len(text)
        passed, waiting = self._waiting, []
        if reason is None or self._stream.stopped:
            passed = [part for part in self._waiting if part[1] < self._length]
            waiting = [part for part in self._waiting if part[1] >= self._length]
        self._waiting = waiting
        return TextEvent(
            index,
            text,
            [token for token, _, _ in passed],
            [logprob for _, _, logprob in passed if logprob is not None],
            [offset for _, offset, _ in passed],
            reason,
            of_prompt,
        )
