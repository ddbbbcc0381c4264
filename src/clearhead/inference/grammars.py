"""Regular expressions and JSON schemas as llguidance reads them, and whether it compiles them within bounds."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from clearhead.errors import ClearheadError, UsageError
from clearhead.files import read_bytes
from clearhead.inference import constraint_trial as program

MAX_CHARACTERS = 1 << 16  # of a regular expression or a schema
SECONDS, PATIENCE = 2.0, 10  # of processor time for a trial; times that, on a clock: the machine may be busy
MEMORY = 1 << 30  # bytes of addresses
# Between two parts of a JSON text: a space, or a new line with its indentation. Endless blanks are valid JSON, too, and
# what a model without an idea writes.
BLANKS = r"[ ]|\n[ ]{0,32}"
ANY_OBJECT: Mapping[str, object] = {"type": "object"}
FROM_OUTSIDE = (-1, -2, -9, -15)  # hang-up, interrupt, kill, termination: what no limit of a trial ends it by


class ConstraintError(UsageError):
    """A regular expression or a schema that no text can be held to, or not this model's."""


class UntriedError(ClearheadError):
    """Whether texts can be held to a grammar is not known: the machine could not try it this time."""


def grammar_of_regex(pattern: str) -> str:
    """A regular expression as llguidance reads it."""
    import llguidance

    _refuse_long(pattern)
    try:
        return _grammar(f"start: /{llguidance.regex_to_lark(pattern, 'd')}/")
    except UnicodeEncodeError:
        raise ConstraintError("half of a surrogate pair is no character, and no text has it") from None


def grammar_of_schema(schema: str | Mapping[str, object]) -> str:
    """A JSON schema as llguidance reads it."""
    if isinstance(schema, str):
        _refuse_long(schema)
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise ConstraintError(f"a JSON schema is JSON, and this is none: {error}") from None
    if not isinstance(schema, Mapping):
        raise ConstraintError("a JSON schema is an object, such as {'type': 'object'}")
    if "x-guidance" in schema:  # which could switch off what makes texts valid
        raise ConstraintError("`x-guidance` is not supported; leave it out")
    try:
        content = json.dumps({"x-guidance": {"whitespace_pattern": BLANKS}, **schema}, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise ConstraintError(f"a JSON schema is JSON, and this is none: {error}") from None
    _refuse_long(content)
    return _grammar(f"start: %json {content}")


def read_schema(text: str) -> str:
    """A schema's text: what is given, or the content of the file that it names.

    Raises:
        ConstraintError: the file cannot be read.
    """
    if text.lstrip().startswith("{"):
        return text
    try:
        return read_bytes(Path(text), 4 * MAX_CHARACTERS).decode("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConstraintError(f"the file {text} with the JSON schema cannot be read: {reason}") from None


def grammar_of_choice(texts: Sequence[str]) -> str:
    """Some texts as llguidance reads them."""
    if not texts or "" in texts:
        raise ConstraintError("the choice must be between texts, at least one, and none of them empty")
    return grammar_of_regex("|".join(f"(?:{re.escape(text)})" for text in texts))


def trial_fault(grammar: str) -> str | None:
    """What is wrong with a grammar, by a process of its own whose time and memory are bounded; None: nothing.

    Raises:
        UntriedError: the process could not be started, was ended from outside or not in time; another time it may be.
    """
    library = find_spec("llguidance")
    assert library is not None
    assert library.origin is not None
    # -I -S: neither the current folder nor what is installed beside Python runs there
    command = [sys.executable, "-I", "-S", program.__file__, str(SECONDS), str(MEMORY)]
    try:
        done = subprocess.run(
            [*command, str(Path(library.origin).parents[1])],
            input=grammar.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS * PATIENCE,
            check=False,
        )
    except OSError as error:
        reason = error.strerror or error
        raise UntriedError(
            f"the form of a text cannot be tried in a process of its own ({reason}); try again"
        ) from None
    except subprocess.TimeoutExpired:
        raise UntriedError("the machine is too busy to try the form of a text; try again") from None
    if done.returncode in FROM_OUTSIDE:
        raise UntriedError("the process that tries the form of a text was ended from outside; try again")
    try:
        fault: str | None = json.loads(done.stdout)["fault"]
    except ValueError:
        return "it takes too much time or memory"
    return fault


def _grammar(rule: str) -> str:
    # The model, not llguidance, chooses how what must come is cut into tokens: else texts would depend on more than it.
    return json.dumps({"grammars": [{"lark_grammar": '%llguidance {"no_forcing": true}\n' + rule}]})


def _refuse_long(text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise ConstraintError(f"it has {len(text):,} characters, and at most {MAX_CHARACTERS:,} are read")
