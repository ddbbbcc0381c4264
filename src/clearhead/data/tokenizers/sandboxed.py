"""A program of its own: tries the tokenizer.json on standard input, in bounded time and memory, and says what is wrong.

Its arguments are the seconds of processor time and the bytes of memory that it may take, and the folder of the library.
It prints one JSON object: the fault, as the end of a sentence, or null, and the regular expressions, which the caller
judges. When it prints nothing, it was ended by its limits or by the library. It runs without the rest of Clearhead, so
that it starts within a few hundredths of a second.
"""

import json
import re
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers

MAX_COMPONENT = 4 << 20  # bytes of one component as JSON; compiled rules of normalization take 0.4 MB
LARGEST_ID = 1 << 22  # of a token; published vocabularies end before 2**20
MAX_PARTS = 64  # of one component; published ones have up to ten
MAX_FRAME = 64  # tokens around a text
MAX_TEXT = 1_000  # characters that one part puts in the place of others
MAX_GROWTH = 1_000  # times that a text may become longer
# How a text becomes characters: any code point is one, newlines too.
ONE_CHARACTER = r"[\s\S]"
INTO_CHARACTERS: dict[str, object] = {
    "type": "Split",
    "pattern": {"Regex": ONE_CHARACTER},
    "behavior": "Isolated",
    "invert": False,
}
MAX_REASON = 200  # characters of what the library says

REPEATS = 2_048
SEVERAL_IDS = 2_048
MAX_UNITS = 48
UNITS = ("a", "A", "1", " ", "\n", "!", "_", "é", "猫", "▁", "\u0301", "ab")  # of the texts that only repeat
ENDINGS = ("", "!", "\n")
PROSE = (
    "Hello, world! It's 42 degrees; naïve café\u2026\n\n\t\u0434\u043e\u043c 你好 العربية हिन्दी 🦜👩\u200d👩\u200d👧 "
    "\ufdfa \ufb01 \uff21\u00a0\ufeff\u200b\x00\x01\x7f <s></s>[MASK]<|endoftext|> http://a.b/c?d=e&f=%20 \U0010ffff "
    "a\u0301\u0301 \r\n  x = [1, 2]; // y\r"
)


class FaultyTokenizerError(Exception):
    """What is wrong with the tokenizer, as the end of a sentence."""


def main() -> None:
    """Read, limit, judge, answer."""
    seconds, memory, library = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    limit(seconds, memory)
    sys.path.append(library)
    fault, patterns = None, list[str]()
    try:
        patterns = judge(sys.stdin.buffer.read())
    except FaultyTokenizerError as error:
        fault = str(error)
    except MemoryError:
        fault = "takes too much memory"
    except BaseException as error:  # the library's panics are no Exceptions
        fault = f"breaks the tokenizers library ({in_short(error)})"
    print(json.dumps({"fault": fault, "patterns": patterns}))


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


def judge(content: bytes) -> list[str]:
    """Raise a FaultyTokenizerError, or whatever the library raises, unless the tokenizer is fit for use.

    Returns:
        Its regular expressions.
    """
    import tokenizers

    try:
        library = tokenizers.Tokenizer.from_buffer(content)
    except Exception as error:
        raise FaultyTokenizerError(f"is not a tokenizer.json: {in_short(error)}") from None
    if not library.get_vocab_size(with_added_tokens=False):
        raise FaultyTokenizerError("has no tokens; give auto, char, bpe or another tokenizer.json")
    refuse_scattered_ids(library)
    states = {name: state_of(library, name) for name in ("normalizer", "pre_tokenizer", "decoder", "post_processor")}
    for name, state in states.items():
        refuse_excess(name, state)
    refuse_growth("normalizer", states["normalizer"])
    refuse_growth("decoder", states["decoder"])
    refuse_without_unknown(library, states)
    refuse_vanishing_tokens(library)
    if library.post_processor is not None:
        frame(library.post_processor)
    library.encode_special_tokens = True
    library.no_truncation()
    library.no_padding()
    library.post_processor = None
    try_on_samples(library, states)
    vocabulary, saved = library.get_vocab(with_added_tokens=True), library.to_str()
    del library  # a large one does not fit beside a second
    if tokenizers.Tokenizer.from_str(saved).get_vocab(with_added_tokens=True) != vocabulary:
        raise FaultyTokenizerError("has tokens that share a number, so it cannot be saved as it is")
    patterns = [part.get("pattern") for part in parts_of(list(states.values()))]
    return [pattern["Regex"] for pattern in patterns if isinstance(pattern, dict) and "Regex" in pattern]


def refuse_scattered_ids(library: "tokenizers.Tokenizer") -> None:
    """The library goes through all numbers up to the largest when it writes a vocabulary."""
    largest = max(library.get_vocab(with_added_tokens=True).values())
    if largest > LARGEST_ID:
        raise FaultyTokenizerError(f"has a token with the id {largest:,}, beyond any vocabulary")


def state_of(library: "tokenizers.Tokenizer", name: str) -> object:
    """A component as tokenizer.json has it; None for none."""
    component = getattr(library, name)
    if component is None:
        return None
    content = component.__getstate__()
    if len(content) > MAX_COMPONENT:
        raise FaultyTokenizerError(f"has a {name} of {len(content):,} bytes, which no published one has")
    return json.loads(content)


def parts_of(state: object) -> Iterator[dict[str, Any]]:
    """Every object in it, of any kind; the library has accepted it, so it has the fields of its kind."""
    if isinstance(state, dict):
        yield state
    if isinstance(state, dict | list):
        for value in state.values() if isinstance(state, dict) else state:
            yield from parts_of(value)


def refuse_excess(name: str, state: object) -> None:
    """Refuse parts that only take time, and parts that the library cannot handle."""
    parts = list(parts_of(state))
    if sum("type" in part for part in parts) > MAX_PARTS:
        raise FaultyTokenizerError(f"has a {name} of more than {MAX_PARTS} parts, which no published one has")
    for part in parts:
        kind = part.get("type")
        if part.get("pattern") in ({"String": ""}, {"Regex": ""}):
            raise FaultyTokenizerError(f"has a {name} ({kind}) with an empty pattern")
        if kind == "Prepend" and not part.get("prepend"):
            raise FaultyTokenizerError(f"has a {name} (Prepend) that puts nothing before a text")
        if kind == "FixedLength" and part.get("length") == 0:
            raise FaultyTokenizerError(f"has a {name} (FixedLength) that cuts texts into pieces of no length")
        if any(len(part[key]) > MAX_TEXT for key in ("content", "prepend") if isinstance(part.get(key), str)):
            raise FaultyTokenizerError(f"has a {name} ({kind}) that puts more than {MAX_TEXT:,} characters into a text")
        if kind == "TemplateProcessing":
            refuse_template(part)


def refuse_template(part: dict[str, Any]) -> None:
    """One text goes through it, in the middle of a few tokens."""
    n_ids = sum(len(special["ids"]) for special in part["special_tokens"].values())
    if max(len(part["single"]), len(part["pair"]), n_ids) > MAX_FRAME:
        raise FaultyTokenizerError(f"puts more than {MAX_FRAME} tokens around a text")
    if [piece["Sequence"]["id"] for piece in part["single"] if "Sequence" in piece] != ["A"]:
        raise FaultyTokenizerError("has a template that does not hold its text exactly once")


def refuse_growth(name: str, state: object) -> None:
    """What is put in the place of something shorter, again and again, fills any memory."""
    growth = 1.0
    for part in parts_of(state):
        if part.get("type") == "Replace":
            shortest = len(part["pattern"].get("String", "x"))
            growth *= max(1.0, len(part["content"]) / shortest)
    if growth > MAX_GROWTH:
        raise FaultyTokenizerError(f"has a {name} that can make a text more than {MAX_GROWTH:,} times as long")


def refuse_without_unknown(library: "tokenizers.Tokenizer", states: dict[str, object]) -> None:
    """These models stop at the first word that they do not know, unless a token stands for it."""
    if type(library.model).__name__ in ("WordPiece", "WordLevel") and not is_character_level(library, states):
        unknown = library.model.unk_token
        if library.model.token_to_id(unknown) is None:
            raise FaultyTokenizerError(f"has no token for unknown words: {unknown[:50]!r} is not in its vocabulary")


def refuse_vanishing_tokens(library: "tokenizers.Tokenizer") -> None:
    """The library looks for the normalized form of an added token: an empty one is everywhere, in a character too."""
    for token in library.get_added_tokens_decoder().values():
        if token.normalized and library.normalizer is not None and not library.normalizer.normalize_str(token.content):
            raise FaultyTokenizerError(
                f"has an added token {token.content[:50]!r} that its normalizer removes entirely"
            )


def is_character_level(library: "tokenizers.Tokenizer", states: dict[str, object]) -> bool:
    """Whether Clearhead looks its ids up in a table of its own, and tells a person which character has none."""
    return (
        type(library.model).__name__ == "WordLevel"
        and states["normalizer"] is None
        and states["pre_tokenizer"] == INTO_CHARACTERS
        and all(added.special for added in library.get_added_tokens_decoder().values())
        and all(len(token) == 1 for token in json.loads(library.model.__getstate__())["vocab"])
    )


def frame(post_processor: "tokenizers.processors.PostProcessor") -> None:
    """Whether it can be asked what it puts around a text."""
    import tokenizers

    text = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a")).encode("a")
    if len(post_processor.process(text).ids) > MAX_FRAME:
        raise FaultyTokenizerError(f"puts more than {MAX_FRAME} tokens around a text")


def try_on_samples(library: "tokenizers.Tokenizer", states: dict[str, object]) -> None:
    """Encode and decode."""
    only_decodes = is_character_level(library, states)
    if any(part.get("type") == "Precompiled" for part in parts_of(states["normalizer"])):
        for start in range(0, 0x20000, 0x1000):
            signs = "".join(chr(code) for code in range(start, start + 0x1000) if not 0xD800 <= code < 0xE000)
            library.normalizer.normalize_str(signs)
    for text in [
        *samples(states),
        *(token.content for token in list(library.get_added_tokens_decoder().values())[:64]),
    ]:
        if not only_decodes:
            library.decode(library.encode(text, add_special_tokens=False).ids, skip_special_tokens=True)
    ids = sorted(library.get_vocab(with_added_tokens=True).values())
    for start in range(0, len(ids), SEVERAL_IDS):
        library.decode(ids[start : start + SEVERAL_IDS], skip_special_tokens=True)
    for number in ids[:: len(ids) // SEVERAL_IDS + 1]:
        text = library.decode([number], skip_special_tokens=True)
        if not only_decodes:
            library.encode(text, add_special_tokens=False)


def samples(states: dict[str, object]) -> Iterator[str]:
    """Prose of many kinds, and long repetitions of what the components look for."""
    yield from ("", " ", "\n", "a", PROSE, PROSE * 4)
    for unit in units(states):
        for ending in ENDINGS:
            yield unit * (REPEATS // len(unit) + 1) + ending


def units(states: dict[str, object]) -> list[str]:
    """What a repetition consists of: what any text may hold, and every character and word of a pattern."""
    named: list[str] = []
    for part in parts_of([states["normalizer"], states["pre_tokenizer"], states["decoder"]]):
        pattern = part.get("pattern")
        written = [*(pattern.values() if isinstance(pattern, dict) else ()), part.get("content"), part.get("prepend")]
        for text in filter(None, written):
            named += [*re.findall(r"\w+", text), *text] if len(text) <= MAX_TEXT else []
    return list(dict.fromkeys((*UNITS, *named)))[:MAX_UNITS]


def in_short(error: BaseException) -> str:
    """What the library says, in one line that is not too long."""
    line = " ".join(str(error).split()) or type(error).__name__
    return line if len(line) <= MAX_REASON else line[: MAX_REASON - 3] + "..."


if __name__ == "__main__":
    main()
