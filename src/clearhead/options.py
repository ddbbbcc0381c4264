"""How options are read, refused and written, whatever they are: frozen models. Imports no torch."""

import inspect
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeGuard, TypeVar, get_args, is_typeddict

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator, model_validator

from clearhead.errors import ArgumentError, UsageError
from clearhead.suggestions import closest, did_you_mean

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # pydantic exports no name for it

# One source of options: a preset, a file, the flags; later layers win. `Any`, because a value may
# be a nested table.
Settings = dict[str, Any]

P = ParamSpec("P")
R = TypeVar("R")

LARGEST = 2**63 - 1  # whole number; what counts tensors and files holds none that is larger
MAX_SHOWN = 100  # characters of a value in a sentence
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.I)
RULES = {  # what pydantic found broken -> what a value must be
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "finite",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "a text",
    "model_type": "a table of options",
    "dict_type": "a table",
    "tuple_type": "a list",
    "literal_error": "{expected}",
}


@contextmanager
def _in_one_sentence() -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        raise UsageError(sentence(error)) from None


class _OneSentence(ModelMetaclass):
    """Constructing options raises one sentence, not pydantic's page.

    An `__init__` could do that as well, but pydantic would call it for nested options too, and they do not know where
    they stand: `stpes` instead of `train: stpes`.
    """

    def __call__(self, /, *args: Any, **values: Any) -> Any:
        with _in_one_sentence():
            return super().__call__(*args, **values)


def refuse_huge_number(value: object) -> object:
    """The value of a field, which nothing that counts tensors or files could hold if it were any larger."""
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ValueError("must be a number below 2**63")
    return value


class Options(BaseModel, metaclass=_OneSentence):
    """A frozen set of options that refuses what it does not know and says what was probably meant.

    Raises:
        UsageError: one sentence naming the option, what is wrong with it and its value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, values: object) -> object:
        for key in values if isinstance(values, Mapping) else ():
            if key not in cls.model_fields:
                meant = cls.closest_name(str(key))
                raise ValueError(f"unknown option '{key}'" + (f"; did you mean '{meant}'?" if meant else ""))
        return values

    @field_validator("*", mode="before")
    @classmethod
    def _read_none(cls, value: object, info: ValidationInfo) -> object:
        """The word 'none', as flags and TOML write it, where an option may have no value."""
        may_be_none = type(None) in get_args(cls.model_fields[str(info.field_name)].annotation)
        return None if value == "none" and may_be_none else value

    _refuse_huge_numbers = field_validator("*")(refuse_huge_number)

    @classmethod
    def closest_name(cls, name: str) -> str | None:
        """The option, of this table or of one in it, that somebody probably meant: `lr` is `train.learning_rate`."""
        meant = closest(f"--{name}", [f"--{known}" for known in cls._names()])  # as a flag, whose table does not count
        return meant and meant.removeprefix("--")

    @classmethod
    def _names(cls) -> Iterator[str]:
        for name, field in cls.model_fields.items():
            yield name
            if isinstance(field.annotation, type) and issubclass(field.annotation, Options):
                yield from (f"{name}.{inner}" for inner in field.annotation._names())

    @classmethod
    def read(cls, *layers: Mapping[str, object]) -> Self:
        """The options that the layers give together, later ones winning.

        Raises:
            UsageError: as the constructor does.
        """
        with _in_one_sentence():
            return cls.model_validate(merge(*layers))


def has_arguments(options: type[Options] | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function answer an unknown keyword with one sentence, and with what was probably meant.

    Keywords that are unpacked into a TypedDict are arguments like others, also for `help`.

    Args:
        options: what the function's argument `options` holds, one of which may have been meant.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = _with_unpacked(inspect.signature(function))
        names = list(signature.parameters)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name, value in kwargs.items():
                if name not in names:
                    raise ArgumentError(_no_such_argument(function.__name__, names, options, name, value))
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise ArgumentError(f"{function.__name__}: {error}") from None
            return function(*args, **kwargs)

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return decorate


def _with_unpacked(signature: inspect.Signature) -> inspect.Signature:
    """The signature with an argument for each key of `**name: Unpack[SomeTypedDict]`, none of which is required."""
    arguments = list(signature.parameters.values())
    unpacked: Any = next(iter(get_args(arguments[-1].annotation)), None) if arguments else None
    if not is_typeddict(unpacked):
        return signature
    keys = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=None)
        for name, hint in unpacked.__annotations__.items()
    ]
    return signature.replace(parameters=[*arguments[:-1], *keys])


def _no_such_argument(function: str, names: list[str], options: type[Options] | None, name: str, value: object) -> str:
    sentence = f"{function} has no argument '{name}'"
    if meant := closest(name, names):
        return f"{sentence}; did you mean `{meant}`?"
    if options is not None and (meant := options.closest_name(name)):
        return f"{sentence}; did you mean {option(meant, value)}?"
    return f"{sentence}; it has {', '.join(names)}"


def option(name: str, value: object) -> str:
    """An option with its value, as a sentence has it: as Python takes it, which the command turns into a flag."""
    return f"`options={{{name!r}: {value if value is None else shown(value)}}}`"


def merge(*layers: Mapping[str, object]) -> Settings:
    """Deep merge: tables are merged key by key, anything else is replaced by the later layer.

    The key 'train.steps' is the key 'steps' of the table 'train'.
    """
    merged: Settings = {}
    for layer in layers:
        for name, nested in layer.items():
            key, dot, rest = str(name).partition(".")
            value = {rest: nested} if dot else nested
            old = merged.get(key)
            merged[key] = merge(old if isinstance(old, Mapping) else {}, value) if isinstance(value, Mapping) else value
    return merged


def sentence(error: ValidationError) -> str:
    """A validation error as one sentence: which option, what it must be, and the value that it is not."""
    first = error.errors()[0]
    where, value = ".".join(str(part) for part in first["loc"]), first["input"]
    rule = RULES.get(first["type"])
    if rule is None:
        message = first["msg"].removeprefix("Value error, ")
        message = message[0].lower() + message[1:]
    else:
        context = first.get("ctx", {})
        bounds = {key: bound if isinstance(bound, str) else _bound(bound) for key, bound in context.items()}
        message = "must be " + rule.format_map(bounds)
    if not isinstance(value, Mapping | BaseModel):
        message += f", not {shown(value)}"
    if first["type"] == "literal_error":
        message += did_you_mean(str(value), re.findall("'([^']*)'", first["ctx"]["expected"]))
    return f"{where}{' ' if message.startswith('must') else ': '}{message}" if where else message


def _bound(bound: float) -> str:
    return f"{bound:g}" if isinstance(bound, float) else f"{bound:,}"


def shown(value: object) -> str:
    """The value as a sentence has it: numbers as they are, texts in quotes."""
    try:
        text = "none" if value is None else value if is_number(value) else repr(value)
    except ValueError:  # Python writes no integer of more than some thousand digits
        return "a number of thousands of digits"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text):,} characters)"


def is_number(value: object) -> TypeGuard[str]:
    """Whether a text is a number, as a flag has it."""
    return isinstance(value, str) and bool(NUMBER.fullmatch(value))


def read_toml(path: Path) -> Settings:
    """The options in a TOML file.

    Raises:
        UsageError: the file is missing or is not TOML.
    """
    try:
        return parse_toml(path.read_bytes(), path)
    except FileNotFoundError:
        raise UsageError(f"there is no config file {path}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read as TOML: {error}") from None


def parse_toml(content: bytes, path: Path) -> Settings:
    """The options in what a TOML file holds; `path` is the name for the sentence.

    Raises:
        UsageError: it is not TOML.
    """
    try:
        return tomllib.loads(content.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read as TOML: {error}") from None
    except ValueError:  # Python's limit on the digits of an integer
        raise UsageError(f"{path} cannot be read as TOML: it holds an integer of too many digits") from None


def to_toml(options: Options, *, leave_out: dict[str, set[str]] | None = None) -> str:
    """Every option as TOML, for `read_toml`; TOML has no null, so an option that is none is left out as well."""
    return tomli_w.dumps(options.model_dump(exclude_none=True, exclude=leave_out))
