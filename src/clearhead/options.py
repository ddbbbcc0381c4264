"""How options are read, refused and written, whatever they are: frozen models. Imports no torch."""

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from clearhead.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # pydantic exports no name for it

# One source of options: a preset, a file, the flags; later layers win. `Any`, as `object` has no keys: a value may be a
# table, and whoever looks into one knows from the name which are.
Settings = dict[str, Any]

LARGEST = 2**63 - 1  # whole number; what counts tensors and files holds none that is larger
LONGEST_SHOWN = 100  # characters of a value in a sentence


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
                raise ValueError(f"unknown option '{key}'{did_you_mean(str(key), cls.model_fields)}")
        return values

    @field_validator("*")
    @classmethod
    def _refuse_huge_numbers(cls, value: object) -> object:
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ValueError("must be a number below 2**63")
        return value

    @classmethod
    def read(cls, *layers: Mapping[str, object]) -> Self:
        """The options that the layers give together, later ones winning.

        Raises:
            UsageError: as the constructor does.
        """
        with _in_one_sentence():
            return cls.model_validate(merge(*layers))


def merge(*layers: Mapping[str, object]) -> Settings:
    """Deep merge: tables are merged key by key, anything else is replaced by the later layer."""
    merged: Settings = {}
    for layer in layers:
        for key, value in layer.items():
            old = merged.get(key)
            merged[key] = merge(old if isinstance(old, Mapping) else {}, value) if isinstance(value, Mapping) else value
    return merged


def sentence(error: ValidationError) -> str:
    """A validation error as one sentence: where, what, and the value that was given."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    rejected = "" if isinstance(first["input"], Mapping | BaseModel) else f", not {_quote(first['input'])}"
    return f"{where}: {message}{rejected}" if where else message


def _quote(value: object) -> str:
    """The value as a sentence has it."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than some thousand digits
        return "a number of thousands of digits"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}... ({len(text):,} characters)"


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
