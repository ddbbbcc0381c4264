"""The one boundary around calls of the `tokenizers` library, whose Rust code panics on files that it should refuse."""

import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType

import tokenizers

from clearhead.data.tokenizers.characters import state_of
from clearhead.data.tokenizers.sandboxed import INTO_CHARACTERS, in_short
from clearhead.errors import DataError

# Components that cannot panic, whatever their options; others are listened to, so that nobody reads what Rust prints.
PANIC_FREE = {"Sequence", "ByteLevel", "Fuse", "Strip", "Metaspace", "WhitespaceSplit", "Digits"}

_ERROR_OUTPUT = 2
_redirect_lock = threading.Lock()


class catch_tokenizer_errors:  # noqa: N801  (named as what it does; a class, as a generator would take longer than some calls)
    """Whatever the library raises inside becomes a sentence.

    Args:
        action: what the tokenizer is to do, for the sentence.
        quiet: keep off standard error what Rust prints about a panic.

    Raises:
        DataError: the library refused, or panicked.
    """

    __slots__ = ("_action", "_suppression")

    def __init__(self, action: str, *, quiet: bool = False) -> None:
        self._action, self._suppression = action, _suppress_panic_report() if quiet else None

    def __enter__(self) -> None:
        if self._suppression is not None:
            self._suppression.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._suppression is not None:
            self._suppression.__exit__(kind, error, traceback)
        if error is not None and is_tokenizers_error(error):
            raise DataError(
                f"the tokenizer cannot {self._action}: {in_short(error)}; use another tokenizer.json"
            ) from None


def is_tokenizers_error(error: BaseException) -> bool:
    """Whether it is what the library raises: a bare `Exception`, or pyo3's PanicException, which is no `Exception`."""
    return type(error) is Exception or type(error).__name__ == "PanicException"


def cannot_panic(library: tokenizers.Tokenizer) -> bool:
    """Whether no component of it can panic."""
    states = [state_of(part) for part in (library.normalizer, library.pre_tokenizer, library.decoder)]
    return all(state in (None, INTO_CHARACTERS) or _types(state) <= PANIC_FREE for state in states)


def _types(state: Mapping[str, object]) -> set[object]:
    parts = [part for value in state.values() if isinstance(value, list) for part in value if isinstance(part, dict)]
    return {state["type"]}.union(*map(_types, parts))


@contextmanager
def _suppress_panic_report() -> Iterator[None]:
    """What is printed on standard error while the block runs follows after it, but for a report of a panic."""
    with _redirect_lock:
        try:
            original = os.dup(_ERROR_OUTPUT)
        except OSError:  # it is closed, so nobody reads it
            original = None
        if original is None or os.name == "nt":  # where Rust does not print to the C library's standard error
            yield
            return
        panicked = False
        with (
            tempfile.TemporaryFile() as printed
        ):  # no pipe: each text of a batch may report, and a full one blocks Rust
            os.dup2(printed.fileno(), _ERROR_OUTPUT)
            try:
                yield
            except BaseException as error:
                panicked = is_tokenizers_error(error)
                raise
            finally:
                os.dup2(original, _ERROR_OUTPUT)
                with suppress(OSError):
                    printed.seek(0)
                    while not panicked and (text := printed.read(1 << 16)):
                        os.write(_ERROR_OUTPUT, text)
                os.close(original)
