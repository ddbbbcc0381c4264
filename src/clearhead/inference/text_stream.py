"""From token ids to text that may be shown: no character cut in two, nothing of a stop string."""

from collections.abc import Callable, Sequence

INCOMPLETE = "\ufffd"  # what a decoder writes for the first bytes of a character whose last are still to come
CONTEXT = 8  # ids decoded along with those behind them: more than a character has bytes, and spacing may depend on them
RENEW = 24  # ids decoded at once before the older ones are let go, so the cost of a token does not grow


class TextStream:
    """The text of one row, token by token; it ends before the first stop string to be completed."""

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int], stop: Sequence[str] = ()) -> None:
        self._decode, self._stop = decode, stop
        self._ids = list(prompt[-CONTEXT:])
        self._shown = len(self._complete())  # characters of the decoded ids that were passed on
        self._held = ""  # the beginning of what may become a stop string
        self.stopped = False

    def add(self, token: int) -> str:
        """The text that this token completes, often empty while something is held back."""
        self._ids.append(token)
        text = self._complete()
        piece, self._shown = text[self._shown :], len(text)
        if len(self._ids) > RENEW:
            del self._ids[:-CONTEXT]
            self._shown = len(self._complete())
        return self._before_stop(piece)

    def close(self) -> str:
        """Flush text held back as a possible stop string; an incomplete last character is left out."""
        held, self._held = self._held, ""
        return held

    def _complete(self) -> str:
        text = self._decode(self._ids)
        return text[:-1] if text.endswith(INCOMPLETE) else text

    def _before_stop(self, piece: str) -> str:
        if not self._stop:
            return piece
        text = self._held + piece
        ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in self._stop if stop in text]
        if ends:
            self.stopped, self._held = True, ""
            return text[: min(ends)[1]]
        held = max(_overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that is a beginning of the stop string."""
    return next(n for n in range(min(len(stop) - 1, len(text)), -1, -1) if text.endswith(stop[:n]))
