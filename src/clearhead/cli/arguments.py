"""Flags derived from the options' own types, defaults and lines of help; nothing is listed a second time.

Parsing yields only what the person said, so that a preset or a plan can fill in the rest; the options' models judge it.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn, get_args

from clearhead.errors import UsageError, did_you_mean

if TYPE_CHECKING:  # what makes options is loaded where a verb has some
    from pydantic.fields import FieldInfo

    from clearhead.options import Options, Settings

PLAIN = "\0"  # before a word that argparse must not take for an option; no argument of a process holds it
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class Parser(argparse.ArgumentParser):
    """argparse whose mistakes are sentences, and whose help begins with examples."""

    def __init__(self, verb: str, about: str, examples: Sequence[tuple[str, str]]) -> None:
        super().__init__(
            prog=f"clearhead {verb}",
            description=about,
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
            formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=110),
        )
        self.examples = examples
        self.switches: set[str] = set()
        self.add_argument(
            "--json",
            action="store_true",
            default=False,
            help="print one JSON object to standard output; progress goes to standard error",
        )

    def format_help(self) -> str:
        width = max(len(command) for command, _ in self.examples)
        lines = "\n".join(f"  {command:<{width}}   # {why}" for command, why in self.examples)
        places = "".join(f" [{action.dest}]" for action in self._get_positional_actions())
        self.usage = f"{self.prog}{places} [options]"
        return f"Examples:\n{lines}\n\n{super().format_help()}"

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message[0].lower()}{message[1:]}; see '{self.prog} --help'")

    def add_options(self, options: "type[Options]", title: str, prefix: str = "") -> None:
        """A flag for each field; those of nested options go by themselves."""
        from clearhead.options import Options

        group = self.add_argument_group(title)
        for name, field in options.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, Options):
                self.add_options(field.annotation, f"{name} options", f"{prefix}{name}.")
                continue
            flag = f"--{prefix}{name}" if prefix else f"--{name.replace('_', '-')}"
            if field.annotation is bool:
                self.switches.add(flag)
            action = "append" if _is_tuple(field) else "store"
            group.add_argument(flag, dest=f"{prefix}{name}", metavar=_metavar(field), help=_help(field), action=action)

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
                raise UsageError(
                    f"unknown option '{flag}'{did_you_mean(flag, known.values())}; see '{self.prog} --help'"
                )
            raise UsageError(f"'{word.removeprefix(PLAIN)}' is one argument too many; see '{self.prog} --help'")
        return args

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


def _plain_flag(flag: str) -> str:
    return flag[:2] + flag[2:].replace("-", "_")


def settings_of(args: argparse.Namespace, options: "type[Options]") -> "Settings":
    """The flags that belong to `options` as nested tables; the word 'none' is no value."""
    layer: Settings = {}
    for dotted, value in vars(args).items():
        head, *tail = dotted.split(".")
        if head in options.model_fields:
            table = layer
            for part in (head, *tail)[:-1]:
                table = table.setdefault(part, {})
            table[(head, *tail)[-1]] = None if value == "none" else value
    return layer


def one_of(args: argparse.Namespace, *names: str) -> str | None:
    """The value of the only one of these arguments that is there; None if none is.

    Raises:
        UsageError: two of them are there.
    """
    values = [getattr(args, name) for name in names if name in args]
    if len(values) > 1:
        raise UsageError(f"'{values[0]}' and '{values[1]}' both name the source; leave one out")
    return values[0] if values else None


def _is_tuple(field: "FieldInfo") -> bool:
    return getattr(field.annotation, "__origin__", None) is tuple


def _metavar(field: "FieldInfo") -> str:
    choices = [choice for choice in get_args(field.annotation) if isinstance(choice, str)]
    if choices:
        return "{" + ",".join(choices) + "}"
    if field.annotation is bool:
        return ""
    types = [t for t in (field.annotation, *get_args(field.annotation)) if t in (int, float, str)]
    return {int: "N", float: "X", str: "TEXT"}[types[0]] if types else "VALUE"


def _help(field: "FieldInfo") -> str:
    default: object = field.default
    shown = "" if field.default_factory or default is None or default == () else f" (default: {_plain(default)})"
    return f"{field.description}{shown}".replace("%", "%%")


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
