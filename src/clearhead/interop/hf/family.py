"""How a family of foreign models is described, so that its configs are read and written by one table."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from clearhead.config import ModelConfig
from clearhead.config.model import OUTSIDE_THE_LOGITS
from clearhead.errors import DataError, UsageError
from clearhead.interop.hf.buffers import Buffer
from clearhead.interop.hf.constants import Constant
from clearhead.interop.hf.rotary import RotaryKeys, rounded_rotary_width

Json = dict[str, object]


# Options that `Family.obstacles` judges by rules of their own.
JUDGED = {"n_kv_heads", "head_dim", "qkv_bias", "rope_theta", "partial_rotary_factor"}
# Plain feed-forwards and what transformers calls them, the same in every family that leaves the choice open.
UNGATED: Mapping[str, str | tuple[str, ...]] = {
    "gelu": ("gelu", "gelu_python"),
    "gelu_tanh": ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"),  # three ways to write one formula
    "silu": ("silu", "swish"),
    "relu": "relu",
    "relu2": "relu2",
}
BIASED = {"bias": True, "qkv_bias": True}


class Entry(NamedTuple):
    """One module, of which weight and bias are meant, or one tensor, under two names; N is the number of a block.

    Args:
        own: our name; or several modules, whose rows the family keeps below each other in one tensor.
        foreign: the family's name.
        transposed: the family keeps matrices as (in, out), where torch's linear map has (out, in).
        by_head: the rows of several alternate: those of the first head of each, then those of the second head...
        unread_rows: so many rows at the head of the family's tensor belong to nothing; they are written as zeros.
        row: the family keeps the vector as a table of one row.
        optional: a file may lack it, which means zeros.
        only: the kinds of feed-forward that have it; all of them without any.
        joint: what stands between the family's name and the word weight or bias.
    """

    own: str | tuple[str, ...]
    foreign: str
    transposed: bool = False
    by_head: bool = False
    unread_rows: int = 0
    row: bool = False
    optional: bool = False
    only: tuple[str, ...] = ()
    joint: str = "."


class OptionChoice(NamedTuple):
    """An option whose values the family calls otherwise: its key, and own value -> foreign value.

    Several foreign values, in a tuple, mean the same; the first is written.
    """

    key: str
    values: Mapping[str, object]


@dataclass(frozen=True)
class Family:
    """A family of foreign models: what fits in, and what everything is called there.

    An option that the table does not name must be at its default.

    Args:
        name: its `model_type`.
        architecture: the class that `transformers` loads it with.
        needs: own options that must have these values.
        activations: own kind of feed-forward -> foreign name, or names of the same.
        activation_key: the foreign key that holds it.
        choices: other own options whose values have other names there.
        options: own option -> the foreign key, or keys, with the same value.
        absent: what a foreign key means when the file leaves it out.
        entries: the weights.
        required_settings: foreign keys and the only values that mean what our parts compute; of a tuple, the first
            is written.
        extra_settings: foreign keys and values that are written, and not read, as they change no logit.
        grouped: whether there may be fewer key heads than query heads.
        always: options that every model of the family has, such as biases; where ours have none, they are zero.
            Elsewhere `qkv_bias` follows `bias`, unless `needs` sets it.
        least: own options that must be at least so large.
        translates: whether there is a target, which begins with `decoder_start_token_id`.
        halves: whether a position's sines all come before its cosines, where ours alternate. The residual stream then
            has that order, and so has every axis of a weight that lies along it.
        copies: foreign tensors that are another one's copy, where they have no entry of their own -> the own name of
            that one; a file may lack them, or have them in its place.
        constants: foreign tensors that hold no weights; a file may lack them.
        buffers: the same in older files only; they are not written.
        ignored: foreign tensors that a file may have, and that compute no logit.
        rotary: what the config of such a model has for rotary positions.
        prefix: what published files may leave out at the beginning of a foreign name.
        old_names: parts of foreign names in older files -> what they are called now.
        upgrade: puts what config.json says in other versions into the keys of this table.
    """

    name: str
    architecture: str
    needs: Mapping[str, object]
    activations: Mapping[str, str | tuple[str, ...]]
    activation_key: str
    options: Mapping[str, str | tuple[str, ...]]
    absent: Mapping[str, object]
    entries: tuple[Entry, ...]
    choices: Mapping[str, OptionChoice] = field(default_factory=dict)
    required_settings: Mapping[str, object] = field(default_factory=dict)
    extra_settings: Mapping[str, object] = field(default_factory=dict)
    grouped: bool = True
    always: Mapping[str, object] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)
    translates: bool = False
    halves: bool = False
    copies: Mapping[str, str] = field(default_factory=lambda: {"lm_head.weight": "embedding.weight"})
    constants: Mapping[str, Constant] = field(default_factory=dict)
    buffers: Mapping[str, Buffer] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    rotary: RotaryKeys = field(default_factory=RotaryKeys)
    prefix: str = ""
    old_names: Mapping[str, str] = field(default_factory=dict)
    upgrade: Callable[[Json], Json] = dict

    @property
    def named_choices(self) -> dict[str, OptionChoice]:
        """Every option whose values have other names there."""
        return {"feedforward": OptionChoice(self.activation_key, self.activations), **self.choices}

    @property
    def supported_options(self) -> set[str]:
        """The options that the family has a key for, or that `obstacles` judges by a rule of their own."""
        named = {*self.needs, *self.options, *self.named_choices, *self.always, *self.least}
        return named | JUDGED | ({"decoder_start_id"} if self.translates else set())

    def obstacles(self, config: ModelConfig) -> list[str]:
        """The options that stand in the way, in words; none if the config fits."""
        reasons = [
            f"{option} = {_format_value(getattr(config, option))} ({self.name} has {_format_value(needed)})"
            for option, needed in {**self.needs, **config.unusual_options(self.supported_options)}.items()
            if getattr(config, option) != needed
        ]
        for option, choice in self.named_choices.items():
            value = getattr(config, option)
            if value not in choice.values:
                reasons.append(f"{option} = {_format_value(value)} ({self.name} has {_format_choice(choice.values)})")
        reasons += [
            f"{option} = {getattr(config, option)} ({self.name} has at least {least})"
            for option, least in self.least.items()
            if getattr(config, option) < least
        ]
        reasons += [
            f"{option} = {_format_value(getattr(config, option))} ({self.name} has the same as {first})"
            for option, first in self._sharing().items()
            if getattr(config, option) != getattr(config, first)
        ]
        if not {"bias", "qkv_bias"} & {*self.always, *self.needs} and config.qkv_bias != config.bias:
            reasons.append(f"qkv_bias = {_format_value(config.qkv_bias)} ({self.name} has the same as bias)")
        if "head_dim" not in self.options and config.head_dim * config.n_heads != config.d_model:
            reasons.append(f"head_dim = {config.head_dim} ({self.name} has d_model / n_heads)")
        if not self.grouped and config.n_kv_heads != config.n_heads:
            reasons.append(f"n_kv_heads = {config.n_kv_heads} ({self.name} has as many as n_heads, {config.n_heads})")
        rotary = self.needs["positions"] == config.positions == "rope"
        if rotary and "partial_rotary_factor" not in self.needs and rounded_rotary_width(config) != config.rotary_width:
            turned = f"{rounded_rotary_width(config)} of a head's {config.head_dim} numbers, not {config.rotary_width}"
            reasons.append(f"partial_rotary_factor = {config.partial_rotary_factor} ({self.name} turns {turned})")
        return reasons

    def complete(self, config: ModelConfig) -> ModelConfig:
        """The config with what every model of the family has."""
        return config.model_copy(update=dict(self.always))

    def _sharing(self) -> dict[str, str]:
        """The options that the family tells by the first key of another one, so that they must be equal to it."""
        firsts: dict[str, str] = {}
        shared = {}
        for option, keys in self.options.items():
            first = firsts.setdefault(_keys(keys)[0], option)
            if first != option and option not in OUTSIDE_THE_LOGITS:
                shared[option] = first
        return shared

    def foreign_config(self, config: ModelConfig) -> Json:
        """What the family's config.json says of the architecture."""
        assert not self.obstacles(config)
        settings: Json = {"architectures": [self.architecture], "model_type": self.name, **self.extra_settings}
        settings |= {key: _several(value)[0] for key, value in self.required_settings.items()}
        for option, keys in self.options.items():
            for key in _keys(keys):
                settings.setdefault(key, getattr(config, option))
        for option, choice in self.named_choices.items():
            settings[choice.key] = _several(choice.values[getattr(config, option)])[0]
        if config.positions == "rope":
            settings |= self.rotary.write(config.rope_theta, config.partial_rotary_factor)
        return settings

    def own_config(self, settings: Json) -> ModelConfig:
        """The reverse of `foreign_config`.

        Raises:
            DataError: a key is missing, or has a value that our parts do not compute.
        """
        settings = {**self.absent, **self.upgrade(settings)}
        for key, value in self.required_settings.items():
            if key in settings and settings[key] not in _several(value):
                raise DataError(
                    f"{key} = {_format_value(settings[key])} is not supported; {_format_choice(_several(value))} is"
                )
        own: Json = {
            **self.needs,
            **{option: _chosen(choice, settings) for option, choice in self.named_choices.items()},
        }
        if self.translates:
            own["decoder_start_id"] = _start_id(settings)
        for option, keys in self.options.items():
            value = _shared_value(settings, _keys(keys))
            if value is not None:  # null: the option's own default, as in the family
                own[option] = value
        own |= self.always
        if self.needs["positions"] == "rope":
            own["rope_theta"], own["partial_rotary_factor"] = self.rotary.read(settings)
        try:
            config = ModelConfig.read(own)
        except UsageError as error:
            raise DataError(str(error)) from None
        if self.obstacles(config):
            raise DataError(f"{' and '.join(self.obstacles(config))} is not supported")
        return config


def _chosen(choice: OptionChoice, settings: Json) -> str:
    """The own value of what a config says."""
    foreign = settings.get(choice.key)
    for own, names in choice.values.items():
        if foreign in _several(names):
            return own
    known = [name for names in choice.values.values() for name in _several(names)]
    raise DataError(f"{choice.key} = {_format_value(foreign)} is not supported; {_format_choice(known)} is")


def _several(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def _keys(keys: str | tuple[str, ...]) -> tuple[str, ...]:
    return (keys,) if isinstance(keys, str) else keys


def _shared_value(settings: Json, keys: tuple[str, ...]) -> object:
    for key in keys:
        if key not in settings:
            raise DataError(f"{key} is missing")
        if settings[key] not in (settings[keys[0]], None):  # null: as the first one
            first, other = _format_value(settings[keys[0]]), _format_value(settings[key])
            raise DataError(f"{keys[0]} = {first} and {key} = {other} are not supported")
    return settings[keys[0]]


def _start_id(settings: Json) -> object:
    """The token that a target begins with; none where that is the one that ends it.

    Raises:
        DataError: padding ends it, to which nobody attends here.
    """
    end, pad, start = (settings.get(key) for key in ("eos_token_id", "pad_token_id", "decoder_start_token_id"))
    if end is not None and pad == end:
        raise DataError(
            f"pad_token_id = {_format_value(pad)} with eos_token_id = {_format_value(end)} is not supported"
        )
    start = settings.get("bos_token_id") if start is None else start  # as theirs begin then
    return None if start == end else start


def _format_choice(values: Iterable[object]) -> str:
    return " or ".join(map(_format_value, values))


def _format_value(value: object) -> str:
    """A value as config files write it: none, true, 'text', 8."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
