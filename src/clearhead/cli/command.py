"""One command, from its arguments to its exit code; and the process that runs one and ends."""

import sys
from importlib import import_module
from keyword import iskeyword

from clearhead.cli import interrupts
from clearhead.cli.environment import (
    collector_at_rest,
    is_first_process,
    keep_standard_handles,
    leave,
    leave_output_to_the_first,
    prepare_process,
)
from clearhead.cli.help_text import aligned
from clearhead.cli.output import Output, in_flags, json_line, notice, printable_streams, standard_error, standard_output
from clearhead.errors import ClearheadError, DataError, InterruptedRunError, OutputError, SilentExit, UsageError
from clearhead.suggestions import did_you_mean

VERBS = {
    "train": "train a model on your text or sentence pairs",
    "resume": "continue an interrupted run, or make a finished one longer",
    "generate": "generate text",
    "chat": "chat with a model that was trained for it",
    "fill": "fill in masked words with an encoder",
    "translate": "translate sentences, lines or files",
    "studio": "open the runs in a browser: train, look inside, write",
    "serve": "serve runs over HTTP, as OpenAI's clients expect it",
    "evaluate": "measure a model on a text, or a translator on references",
    "import": "turn a Hugging Face model into a run",
    "export": "write a run for other programs, and check it with them",
    "doctor": "find bugs in any PyTorch Transformer, and name the module",
    "attend": "show where each head of a model looks",
    "predict": "show what a model expects at each position of a text",
    "compare": "compare trainings: figures, options that differ, curves",
    "ablate": "measure the loss without each head and block",
    "trace": "list every step of a forward pass, with shapes and lines of code",
    "describe": "count a model's parameters, FLOPs and memory",
    "list": "list runs, presets and corpora",
    "worked-example": "compute one decoder layer step by step, with every number",
    "completion": "print a script that completes commands in your shell",
}

HELP_FLAGS = ("help", "-h", "--help")
EXAMPLES = (
    ("clearhead train my.txt --minutes 3", "train on your text; Clearhead picks the settings"),
    ('clearhead generate "Once upon a time"', "continue this prompt with the newest run"),
)
HELP = """Clearhead: Transformers you can see through.

Examples:
{examples}

Verbs:
{verbs}

'clearhead help VERB' lists the options of a verb.
Every verb takes --json.
"""


def run_process() -> None:
    """Run the command that the process was started with, and end the process with its code."""
    keep_standard_handles()
    leave_output_to_the_first()
    with printable_streams():  # also for what is printed of a programming error
        code = run(sys.argv[1:])
        interrupts.ignore()
        leave(code)


def run(argv: list[str]) -> int:
    """Run one command; a person's mistake becomes one sentence and its exit code."""
    as_json = "--json" in argv and is_first_process()  # whose standard output the object has
    with printable_streams() as out:
        try:
            code = _dispatch(argv)
        except OutputError as error:
            code = 0 if error.nobody_reads or out.error else _fail(error, as_json=False)
        except ClearheadError as error:
            code = _fail(error, as_json=as_json)
        except SilentExit as end:
            code = _fail(end, as_json=True) if as_json else end.exit_code
        except KeyboardInterrupt as interrupt:
            code = _fail(_cause(interrupt), as_json=as_json)
        except Exception as error:
            if not interrupts.were_heard():  # else it is what a library made of the interruption
                raise
            code = _fail(_cause(error), as_json=as_json)
        except SystemExit as request:  # of argparse after its help, or of a third Ctrl-C
            code = request.code if isinstance(request.code, int) else 0
            if code == InterruptedRunError.exit_code:
                code = _fail(_cause(request), as_json=as_json)
        return _settle(out, code)


def _cause(error: BaseException) -> InterruptedRunError:
    """What an interruption is told as: a training that was saved says so, also where a second signal came behind."""
    context = error.__context__
    while context is not None and not isinstance(context, InterruptedRunError):
        context = context.__context__
    return context or InterruptedRunError(interrupts.SENTENCE)


def _settle(out: Output, code: int) -> int:
    """The exit code, given what became of the output: whoever closes a pipe has seen enough; otherwise it is said."""
    out.flush()
    if out.error is None or isinstance(out.error, BrokenPipeError) or code == InterruptedRunError.exit_code:
        return code  # an interruption has said why it came
    notice(out.sentence)
    return code or OutputError.exit_code


def _dispatch(argv: list[str]) -> int:
    _refuse_what_is_no_text(argv)
    if not argv or (argv[0] in HELP_FLAGS and len(argv) == 1):
        verbs = aligned(VERBS.items(), mark="")
        standard_output().text(HELP.format(examples=aligned(EXAMPLES), verbs=verbs))
        return 0
    if argv[0] in HELP_FLAGS:
        argv = [argv[1], "--help"]
    if argv[0] in ("--version", "-V"):
        from clearhead import __version__

        standard_output().text(f"clearhead {__version__}\n")
        return 0
    if argv[0] not in VERBS:
        meant = did_you_mean(argv[0], VERBS) or "; see 'clearhead --help'"
        raise UsageError(f"there is no verb '{argv[0]}'{meant}")
    with collector_at_rest():
        verb = import_module(module_of(argv[0]))
        args = verb.parser().parse(argv[1:])
    prepare_process()
    interrupts.something_to_lose()
    code: int | None = verb.run(args)
    return code or 0


def module_of(verb: str) -> str:
    """A module cannot have a keyword's name, nor a hyphen."""
    return "clearhead.cli." + verb.replace("-", "_") + "_" * iskeyword(verb)


def _refuse_what_is_no_text(argv: list[str]) -> None:
    for word in argv:
        if any("\ud800" <= sign <= "\udfff" for sign in word):
            raise UsageError(f"the argument '{word}' is not UTF-8; rename the file, or write the text in UTF-8")
    if "-" in argv and sys.stdin is None:
        raise DataError("standard input is closed; pipe something into it, or name a file instead of -")


def _fail(error: ClearheadError | SilentExit, *, as_json: bool) -> int:
    """Say it once: in one line, with what is to be pasted below it, or in the object."""
    interrupts.ignore()
    below = "" if isinstance(error, SilentExit) else error.below
    sentence = error.sentence if isinstance(error, SilentExit) else str(error)
    if as_json:
        standard_output().write(json_line({"error": in_flags(sentence), "exit_code": error.exit_code}))
    else:
        notice(sentence.removesuffix(below))
        for line in below.splitlines()[1:]:
            standard_error().line(line)
    return error.exit_code
