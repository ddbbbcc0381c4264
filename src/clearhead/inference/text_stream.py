"""From token ids to text that may be shown: no character cut in two, nothing of a stop string."""

from collections.abc import Callable, Sequence

INCOMPLETE = "\ufffd"  # what a decoder writes for the first bytes of a character whose last are still to come
MOST_INCOMPLETE = 3  # of them for one character: some decoders write one for each byte
CONTEXT = 8  # ids decoded along with those behind them: more than a character has bytes, and spacing may depend on them
MOST_PIECES = 65_536
RENEW = 24  # ids decoded at once before the older ones are let go, so the cost of a token does not grow


class PieceCache(dict[tuple[int, int], tuple[str, int]]):
    """The text of a token behind another one, and how long it is by itself: streams repeat themselves, and each other.

    When it is full it begins anew.
    """

    def __setitem__(self, key: tuple[int, int], value: tuple[str, int]) -> None:
        if len(self) >= MOST_PIECES:
            self.clear()
        super().__setitem__(key, value)


class TextStream:
    """The text of one row, token by token; it ends before the first stop string to be completed.

    Tokens are decoded along with those before them, back to the last but one that ended a character. So a token costs
    no more than a few do.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        prompt: Sequence[int],
        stop: Sequence[str] = (),
        pieces: PieceCache | None = None,
    ) -> None:
        """
        Args:
            decode: ids to text.
            prompt: the ids before it, which may decide about a space.
            stop: strings that end it.
            pieces: what other streams with the same `decode` have learned.
        """
        self._decode, self._stop, self._pieces = decode, stop, PieceCache() if pieces is None else pieces
        self._ids = list(prompt[-CONTEXT:])
        self._start = len(self._ids)  # those from here on have not been shown
        self._shown = self._certain(self._decode(self._ids))  # characters of the decoded ids that were passed on
        self._held = ""  # the beginning of what may become a stop string
        self.stopped = False

    @property
    def held(self) -> int:
        """How many characters are held back as the beginning of what may become a stop string."""
        return len(self._held)

    def add(self, token: int) -> str:
        """The text that this token completes, often empty while something is held back."""
        last = self._ids[0] if len(self._ids) == self._start == 1 else None
        known = None if last is None else self._pieces.get((last, token))
        if known is not None:
            piece, self._shown = known
            self._ids[0] = token
            return self._before_stop(piece) if self._stop else piece
        piece = self._decoded(token)
        if last is not None and self._ids == [token]:
            self._pieces[last, token] = piece, self._shown
        return self._before_stop(piece) if piece else ""

    def _decoded(self, token: int) -> str:
        """The text that this token completes, before it is searched for a stop string."""
        self._ids.append(token)
        text = self._decode(self._ids)
        is_whole = not text.endswith(INCOMPLETE)
        certain = len(text) if is_whole else len(text.rstrip(INCOMPLETE))
        is_long = len(self._ids) > RENEW
        if is_long:
            certain = self._certain(text)
        piece = text[self._shown : certain]
        self._shown = max(self._shown, certain)
        if is_long or (is_whole and piece):
            del self._ids[: -CONTEXT if is_long else self._start]
            self._start, self._shown = len(self._ids), self._certain(self._decode(self._ids))
        return piece

    def close(self) -> str:
        """Flush text held back as a possible stop string; an incomplete last character is left out."""
        text = self._decode(self._ids)
        piece = "" if self.stopped else self._before_stop(text[self._shown : self._certain(text)])
        held, self._held, self._shown = self._held, "", len(text)
        return piece + held

    def _certain(self, text: str) -> int:
        """How many characters of a decoded text no later token can change."""
        return max(len(text.rstrip(INCOMPLETE)), len(text) - MOST_INCOMPLETE)

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
