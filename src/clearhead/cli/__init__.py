"""The command `clearhead`: parse, call the workflow, print. Verbs load when they are called, and torch with them."""

import signal
import sys
from importlib import import_module
from keyword import iskeyword

from clearhead.cli.environment import collector_at_rest, leave, prepare_process
from clearhead.cli.lines import nobody_reads
from clearhead.errors import ClearheadError, UsageError, did_you_mean

VERBS = {
    "train": "train a model on your text or sentence pairs",
    "resume": "go on with a training that was interrupted, or make it longer",
    "generate": "let a model write",
    "fill": "let an encoder fill in what is masked",
    "translate": "translate sentences, lines or files",
    "evaluate": "measure how well a model predicts a text, or translates",
    "import": "make a run of a Hugging Face folder, or of a model of the hub",
    "export": "write a run for other programs, checked against them",
    "doctor": "prove or refute that any Transformer is right, and name the guilty module",
    "describe": "what a model costs: parameters, FLOPs, memory",
    "list": "runs, presets and corpora",
    "worked-example": "a decoder layer with every number that it computes",
}

HELP = """Clearhead: Transformers you can see through.

Examples:
  clearhead train my.txt --minutes 3     # a model of your text, everything chosen for you
  clearhead generate "Once upon a time"  # let the newest model write

Verbs:
{verbs}

'clearhead VERB --help' shows what a verb can do. Every verb takes --json.
"""


def main() -> None:
    """The entry point: runs the verb and exits with its code. SIGTERM asks to stop as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    leave(run(sys.argv[1:]))


def run(words: list[str]) -> int:
    """Run one command; a person's mistake becomes one sentence and its exit code."""
    use_utf8()
    try:
        return _dispatch(words)
    except ClearheadError as error:
        return _fail(str(error), error.exit_code, as_json="--json" in words)
    except KeyboardInterrupt:
        return _fail("interrupted before there was anything to save", 130, as_json="--json" in words)
    except BrokenPipeError:  # whoever read the output has seen enough
        nobody_reads(sys.stdout)
        return 0


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        width = max(map(len, VERBS))
        print(HELP.format(verbs="\n".join(f"  {verb:<{width}}  {about}" for verb, about in VERBS.items())), end="")
        return 0
    if words[0] in ("--version", "-V"):
        from clearhead import __version__

        print(f"clearhead {__version__}")
        return 0
    if words[0] not in VERBS:
        raise UsageError(f"there is no verb '{words[0]}'{did_you_mean(words[0], VERBS)}; see 'clearhead --help'")
    with collector_at_rest():
        verb = import_module(module_of(words[0]))
        given = verb.parser().parse(words[1:])
    prepare_process()
    code: int | None = verb.run(given)
    return code or 0


def module_of(verb: str) -> str:
    """A module cannot have a keyword's name, nor a hyphen."""
    return "clearhead.cli." + verb.replace("-", "_") + "_" * iskeyword(verb)


def _fail(sentence: str, code: int, *, as_json: bool) -> int:
    """Say it; control characters of a stranger's names are told, not sent to the terminal."""
    visible = "".join(sign if sign.isprintable() or sign == "\n" else ascii(sign)[1:-1] for sign in sentence)
    print(f"clearhead: {visible}", file=sys.stderr)
    if as_json:
        import json

        print(json.dumps({"error": sentence, "exit_code": code}))
    return code


def use_utf8() -> None:
    """Whatever the locale, text is UTF-8; a character that a terminal cannot show is replaced, never an error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="replace")
