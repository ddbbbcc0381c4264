"""Flags derived from the options' own types, defaults and lines of help; nothing is listed a second time.

Parsing yields only what the person said, so that a preset or a plan can fill in the rest; the options' models judge it.
"""

import argparse
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast, get_args

from clearhead.cli.help_text import HelpFormatter, aligned
from clearhead.errors import UsageError
from clearhead.suggestions import did_you_mean
from clearhead.wording import call

if TYPE_CHECKING:  # what makes options is loaded where a verb has some
    from pydantic.fields import FieldInfo

    from clearhead.options import Options, Settings

PLAIN = "\0"  # before a word that argparse must not take for an option; no argument of a process holds it
MAX_METAVAR = 32  # characters; longer lists of values stand in the text
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
SHORT = {  # flags that are typed often; a letter means the same in every verb
    "--beam-size": "-b",
    "--config": "-c",
    "--minutes": "-m",
    "--max-new-tokens": "-n",
    "--out": "-o",
    "--preset": "-p",
    "--seed": "-s",
    "--temperature": "-t",
}


class Parser(argparse.ArgumentParser):
    """argparse whose mistakes are sentences, and whose help begins with examples."""

    def __init__(self, verb: str, about: str, examples: Sequence[tuple[str, str]]) -> None:
        super().__init__(
            prog=f"clearhead {verb}",
            description=about,
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
            formatter_class=HelpFormatter,
        )
        self.examples = examples
        self.switches: set[str] = set()
        self.text: str | None = None  # the positional argument behind the run that is a text of any number of words
        self.values: dict[str, tuple[str, ...]] = {}  # of an option, where only some can be
        self.add_argument(
            "--json",
            action="store_true",
            default=False,
            help="print one JSON object and nothing else; the progress of long work goes to standard error",
        )

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        """An argument; a flag that is typed often gets its letter."""
        return super().add_argument(*_with_letter(names), **settings)

    def format_help(self) -> str:
        places = "".join(
            f" {action.dest}" if action.required else f" [{action.dest}]" for action in self._get_positional_actions()
        )
        self.usage = f"{self.prog}{places} [options]"
        return f"Examples:\n{aligned(self.examples)}\n\n{super().format_help()}"

    def error(self, message: str) -> NoReturn:
        message = re.sub("the following arguments are required: (.+)", r"\1 is missing", message)
        about = re.fullmatch("argument (.+/)?(?P<flag>[^/]+): (?P<fault>.+)", message)
        if about:
            fault = about["fault"].replace("expected one argument", "needs a value")
            message = f"{about['flag']}{' ' if fault.startswith(('must', 'needs')) else ': '}{fault}"
        raise UsageError(f"{message[0].lower()}{message[1:]}; see '{self.prog} --help'")

    def add_options(
        self,
        options: "type[Options]",
        title: str,
        prefix: str = "",
        *,
        hidden: Collection[str] = (),
        show_defaults: bool = True,
    ) -> None:
        """A flag for each field; those of nested options go by themselves.

        Args:
            options: the options.
            title: of their group in the help.
            prefix: of their flags.
            hidden: names of options or of whole tables that are understood, but that the help leaves out.
            show_defaults: whether the help says what an option is that nobody sets.
        """
        from clearhead.options import Options

        group = self.add_argument_group(title)
        for name, field in options.model_fields.items():
            dest, is_hidden = prefix + name, prefix + name in hidden
            if isinstance(field.annotation, type) and issubclass(field.annotation, Options):
                inner = {f"{dest}.{option}" for option in field.annotation.model_fields} if is_hidden else hidden
                title = f"{name} options"
                self.add_options(field.annotation, title, f"{dest}.", hidden=inner, show_defaults=show_defaults)
                continue
            flag = f"--{dest}" if prefix else f"--{name.replace('_', '-')}"
            if field.annotation is bool:
                self.switches.add(flag)
            self.values[dest] = ("true", "false") if field.annotation is bool else _choices(field)
            group.add_argument(
                *_with_letter([flag]),
                dest=dest,
                metavar=_metavar(field),
                help=argparse.SUPPRESS if is_hidden else _help(flag, field, show_defaults),
                action="append" if _is_tuple(field) else "store",
            )

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The arguments of a verb, without the defaults.

        Raises:
            UsageError: an unknown option, with the one that was probably meant.
        """
        known = {_plain_flag(flag): flag for action in self._actions for flag in action.option_strings}
        last = argv.index("--") if "--" in argv else len(argv)
        plain = [PLAIN + word for word in argv[last + 1 :]]  # what follows "--" is no option, however it looks
        args, rest = self.parse_known_intermixed_args([*self._normalized(argv[:last], known), *plain])
        for name, value in vars(args).items():
            if isinstance(value, str):
                setattr(args, name, value.removeprefix(PLAIN))
            elif isinstance(value, list):
                setattr(args, name, [word.removeprefix(PLAIN) for word in value])
        for word in rest:
            if word.startswith("-"):
                flag = word.partition("=")[0]
                meant = did_you_mean(flag, known.values()) or f"; see '{self.prog} --help'"
                raise UsageError(f"unknown option '{flag}'{meant}")
            word = word.removeprefix(PLAIN)
            raise UsageError(f"'{word}' is one argument too many; {self._advice(args, rest)}")
        return args

    def _advice(self, args: argparse.Namespace, rest: Sequence[str]) -> str:
        """What a person meant who typed more arguments than there are."""
        from clearhead.workflows.runs.paths import RUNS, find_folder

        if "source" in vars(args) and os.path.isfile(rest[0]):  # a shell has put file names for a pattern
            return "for several files name their folder, or a pattern in quotes"
        if self.text is None or self.text not in args:
            return f"see '{self.prog} --help'"
        parts = [args.run, getattr(args, self.text), *(word.removeprefix(PLAIN) for word in rest)]
        named = os.path.dirname(parts[0]) == str(RUNS) or find_folder(parts[0]) is not None
        typed = [*parts[:named], " ".join(parts[named:])]
        return f"a text of several words goes in quotes: {call(self.prog.removeprefix('clearhead '), *typed)}"

    def _normalized(self, argv: Sequence[str], known: Mapping[str, str]) -> Iterator[str]:
        """Flags as they are listed, however hyphens were written, and a yes or no to every switch.

        A switch is written as --greedy, --no-greedy, --greedy false or --greedy=false.
        """
        following = iter([*argv[1:], ""])
        answered = False  # the word is the yes or no of the switch before it
        for word in argv:
            after = next(following).lower()
            if answered or not word.startswith("--"):
                if not answered:
                    yield word
                answered = False
                continue
            flag, equals, value = word.partition("=")
            positive = known.get(_plain_flag(flag).replace("--no_", "--", 1))
            flag = known.get(_plain_flag(flag), flag)
            if flag in self.switches and not equals:
                answered = after in TRUE + FALSE
                yield f"{flag}={after if answered else 'true'}"
            elif positive in self.switches and positive != flag:
                yield f"{positive}=false"
            else:
                yield flag + equals + value


def _with_letter(names: Sequence[str]) -> list[str]:
    return [*(SHORT[name] for name in names if name in SHORT), *names]


def _plain_flag(flag: str) -> str:
    return flag[:2] + flag[2:].replace("-", "_")


def settings_of(args: argparse.Namespace, options: "type[Options]") -> "Settings":
    """The flags that belong to `options` as nested tables."""
    layer: Settings = {}
    for dotted, value in vars(args).items():
        head, *tail = dotted.split(".")
        if head in options.model_fields:
            table = layer
            for part in (head, *tail)[:-1]:
                table = table.setdefault(part, {})
            table[(head, *tail)[-1]] = value
    return layer


def number(text: str) -> float:
    """A number of the command line, for argparse."""
    from clearhead.options import shown

    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {shown(text)}") from None


def whole_number(text: str) -> int:
    """A number of the command line that counts something, for argparse."""
    from clearhead.options import shown

    if not re.fullmatch("[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"must be a whole number, not {shown(text)}")
    return int(text)


def one_of(args: argparse.Namespace, *names: str, what: str = "source") -> str | None:
    """The value of the only one of these arguments that is there, which names `what`; None if none is.

    Raises:
        UsageError: two of them are there.
    """
    values = [getattr(args, name) for name in names if name in args]
    if len(values) > 1:
        raise UsageError(f"'{values[0]}' and '{values[1]}' both name the {what}; leave one out")
    return values[0] if values else None


def _is_tuple(field: "FieldInfo") -> bool:
    return getattr(field.annotation, "__origin__", None) is tuple


def _choices(field: "FieldInfo") -> tuple[str, ...]:
    return tuple(choice for choice in get_args(field.annotation) if isinstance(choice, str))


def _metavar(field: "FieldInfo") -> str:
    choices = "{" + ",".join(_choices(field)) + "}"
    if len(choices) > 2:
        return choices if len(choices) <= MAX_METAVAR else "NAME"
    if field.annotation is bool:
        return ""
    types = [t for t in (field.annotation, *get_args(field.annotation)) if t in (int, float, str)]
    return {int: "N", float: "X", str: "TEXT"}[types[0]] if types else "VALUE"


def _help(flag: str, field: "FieldInfo", show_default: bool) -> str:
    text, default = field.description or "", cast(object, field.default)
    if _metavar(field) == "NAME":
        text += f"; one of {', '.join(_choices(field))}"
    if show_default and not field.default_factory and default != ():
        off = f"; off: --no-{flag[2:]}" if default is True else ""
        text += f" (default: {_plain(default)}{off})"
    return text.replace("%", "%%")


def _plain(value: object) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
