"""A program of its own: compiles the grammar on standard input, in bounded time and memory, and says what is wrong.

Its arguments are the seconds of processor time and the bytes of memory that it may take, and the folder of llguidance.
It prints one JSON object: what llguidance objects to, or null. When it prints nothing, it was ended by its limits or by
the library. It runs without the rest of Clearhead, so that it starts within a few hundredths of a second.
"""

import json
import re
import signal
import sys
from typing import Any

NO_TEXT = "no text follows it"
MAX_REASON = 200  # characters of what the library says
LIMITS: dict[str, Any] = {  # of one grammar: beyond, llguidance refuses it, or ends its text with an error
    "initial_lexer_fuel": 1_000_000,  # about 20 ms
    "step_lexer_fuel": 200_000,  # for each token, about 15 ms
    "step_max_items": 50_000,
    "max_lexer_states": 20_000,  # of up to 2 kB
    "max_grammar_size": 100_000,
    "precompute_large_lexemes": False,
    "verbose_errors": False,
}


class ByteVocabulary:
    """What llguidance asks of a tokenizer; this one's tokens are the bytes, and an end."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    eos_token_id = 256
    special_token_ids = (256,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"\xff[end]")

    def __call__(self, text: object) -> list[int]:
        raise AssertionError("nothing is forced, so nothing is encoded")


def main() -> None:
    """Limit, read, compile, answer."""
    seconds, memory, library = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    limit(seconds, memory)
    sys.path.append(library)
    print(json.dumps({"fault": fault_of(sys.stdin.buffer.read().decode("utf-8"))}))


def limit(seconds: float, memory: int) -> None:
    """The system ends the process when it takes more. Where it knows no such limits, the caller's clock remains."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    except (ImportError, AttributeError, ValueError, OSError):
        pass  # Windows has none of these, macOS not the last


def fault_of(grammar: str) -> str | None:
    """What llguidance objects to, in one line; None: nothing, up to the first token."""
    import llguidance

    vocabulary: Any = ByteVocabulary()
    matcher = compiled(llguidance.LLTokenizer(vocabulary, slices=[]), grammar)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return error_of(matcher)


def compiled(vocabulary: Any, grammar: str) -> Any:
    """The matcher of a grammar, which may be in error."""
    import llguidance

    return llguidance.LLMatcher(vocabulary, grammar, log_level=0, limits=llguidance.LLParserLimits(**LIMITS))


def error_of(matcher: Any) -> str | None:
    """What is wrong with a matcher, in one line that is not too long."""
    if not matcher.is_error():
        return None
    text = matcher.get_error().partition("<non-verbose/>")[0]
    if text.startswith("NoExtension"):
        return NO_TEXT
    text = re.split(r"\n *1 \| ", text)[0]  # what follows is the grammar, with its line numbers
    for before in ("failed to compile JSON schema: ", "error: "):
        text = text.rpartition(before)[2]
    line = " ".join(text[: 4 * MAX_REASON].split()) or "it is too complex"
    return line if len(line) <= MAX_REASON else line[: MAX_REASON - 3] + "..."


if __name__ == "__main__":
    main()
