"""How a family of foreign models is described, so that its configs are read and written by one table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from clearhead.config import ModelConfig
from clearhead.errors import DataError, UsageError
from clearhead.exchange.fixed import Fixed

Json = dict[str, Any]


# What most families do not have; each family's `needs` begin with it.
PLAIN: Mapping[str, object] = {
    "residual": "sequential",
    "embedding_norm": False,
    "qk_norm": False,
    "scale_scores": True,
    "window": None,
    "scale_embedding": False,
    "scale_head": False,
    "head_transform": False,
    "head_bias": False,
    "n_segments": 0,
    "start_id": None,
}
BIASED = {"bias": True, "qkv_bias": True}


class Entry(NamedTuple):
    """One module under two names; N is the number of a block, and both weight and bias are meant.

    `own` may be several modules, whose rows the family keeps below each other in one tensor. `transposed`: the family
    keeps matrices as (in, out), where torch's linear map has (out, in).
    """

    own: str | tuple[str, ...]
    foreign: str
    transposed: bool = False


@dataclass(frozen=True)
class Family:
    """A family of foreign models: what fits in, and what everything is called there.

    Args:
        name: its `model_type`.
        architecture: the class that `transformers` loads it with.
        needs: own options that must have these values.
        activations: own kind of feed-forward -> foreign name.
        activation_key: the foreign key that holds it.
        options: own option -> the foreign key, or keys, with the same value.
        absent: what a foreign key means when the file leaves it out.
        entries: the weights.
        constants: foreign keys and the only values that mean what our parts compute.
        written: foreign keys and values that are written, and not read, as they change no logit.
        grouped: whether there may be fewer key heads than query heads.
        always_biased: whether linear maps always have biases; where ours have none, they are zero. Elsewhere those of
            queries, keys and values go with the others, unless `needs` has a word for them.
        translates: whether there is a target, which begins with `decoder_start_token_id`; ours is the end token.
        halves: whether a position's sines all come before its cosines, where ours alternate. The residual stream then
            has that order, and so has every axis of a weight that lies along it.
        copies: foreign tensors that are the embedding under another name, where the head is tied; a file may lack them.
        fixed: foreign tensors that hold no weights; a file may lack them.
    """

    name: str
    architecture: str
    needs: Mapping[str, object]
    activations: Mapping[str, str]
    activation_key: str
    options: Mapping[str, str | tuple[str, ...]]
    absent: Mapping[str, object]
    entries: tuple[Entry, ...]
    constants: Mapping[str, object] = field(default_factory=dict)
    written: Mapping[str, object] = field(default_factory=dict)
    grouped: bool = True
    always_biased: bool = False
    translates: bool = False
    halves: bool = False
    copies: tuple[str, ...] = ("lm_head.weight",)
    fixed: Mapping[str, Fixed] = field(default_factory=dict)

    def obstacles(self, config: ModelConfig) -> list[str]:
        """The options that stand in the way, in words; none if the config fits."""
        found = [
            f"{option} = {_told(getattr(config, option))} ({self.name} has {_told(needed)})"
            for option, needed in self.needs.items()
            if getattr(config, option) != needed
        ]
        if config.feedforward not in self.activations:
            known = " or ".join(map(_told, self.activations))
            found.append(f"feedforward = {_told(config.feedforward)} ({self.name} has {known})")
        if not self.always_biased and "qkv_bias" not in self.needs and config.qkv_bias != config.bias:
            found.append(f"qkv_bias = {_told(config.qkv_bias)} ({self.name} has the same as bias)")
        if "head_width" not in self.options and config.head_width * config.n_heads != config.d_model:
            found.append(f"head_width = {config.head_width} ({self.name} has d_model / n_heads)")
        if not self.grouped and config.n_kv_heads != config.n_heads:
            found.append(f"n_kv_heads = {config.n_kv_heads} ({self.name} has as many as n_heads, {config.n_heads})")
        return found

    def foreign_config(self, config: ModelConfig) -> Json:
        """What the family's config.json says of the architecture."""
        assert not self.obstacles(config)
        told: Json = {"architectures": [self.architecture], "model_type": self.name, **self.constants, **self.written}
        for option, keys in self.options.items():
            told |= dict.fromkeys(_keys(keys), getattr(config, option))
        told[self.activation_key] = self.activations[config.feedforward]
        if config.positions == "rope":
            told["rope_parameters"] = {"rope_type": "default", "rope_theta": config.rope_base}
        return told

    def own_config(self, told: Json) -> ModelConfig:
        """The reverse of `foreign_config`.

        Raises:
            DataError: a key is missing, or has a value that our parts do not compute.
        """
        told = {**self.absent, **told}
        for key, value in self.constants.items():
            if told.get(key, value) != value:
                raise DataError(f"{key} = {_told(told[key])} has no equal here; {_told(value)} has")
        if self.translates:
            _refuse_another_beginning(told)
        own: Json = {**self.needs, "feedforward": self._feedforward(told)}
        for option, keys in self.options.items():
            value = _shared_value(told, _keys(keys))
            if value is not None:  # null: the option's own default, as in the family
                own[option] = value
        if self.always_biased:
            own |= BIASED
        if self.needs["positions"] == "rope":
            own["rope_base"] = _rope_base(told)
        try:
            config = ModelConfig.read(own)
        except UsageError as error:
            raise DataError(str(error)) from None
        return config

    def _feedforward(self, told: Json) -> str:
        foreign = told.get(self.activation_key)
        for own, name in self.activations.items():
            if name == foreign:
                return own
        known = " or ".join(map(_told, self.activations.values()))
        raise DataError(f"{self.activation_key} = {_told(foreign)} has no equal here; {known} has")


def _keys(keys: str | tuple[str, ...]) -> tuple[str, ...]:
    return (keys,) if isinstance(keys, str) else keys


def _shared_value(told: Json, keys: tuple[str, ...]) -> object:
    for key in keys:
        if key not in told:
            raise DataError(f"{key} is missing")
        if told[key] not in (told[keys[0]], None):  # null: as the first one
            raise DataError(f"{keys[0]} = {_told(told[keys[0]])} and {key} = {_told(told[key])} have no equal here")
    return told[keys[0]]


def _refuse_another_beginning(told: Json) -> None:
    """A target begins as it ends, with the end token, which is no padding: nobody attends to padding here."""
    end = told.get("eos_token_id")
    for key, fits in (
        ("decoder_start_token_id", told.get("decoder_start_token_id") == end),
        ("pad_token_id", told.get("pad_token_id") != end or end is None),
    ):
        if not fits:
            raise DataError(f"{key} = {_told(told.get(key))} with eos_token_id = {_told(end)} has no equal here")


def _rope_base(told: Json) -> object:
    """The base of rotary positions, as transformers 5 writes it or as earlier versions did."""
    rope = told.get("rope_parameters") or {"rope_theta": told.get("rope_theta", 10_000.0)}
    scaling = told.get("rope_scaling")
    if scaling or not isinstance(rope, dict) or set(rope) - {"rope_theta", "rope_type"}:
        raise DataError(f"rotary positions with {_told(scaling or rope)} have no equal here")
    if rope.get("rope_type", "default") != "default" or "rope_theta" not in rope:
        raise DataError(f"rotary positions with {_told(rope)} have no equal here")
    return rope["rope_theta"]


def _told(value: object) -> str:
    """A value as config files write it: none, true, 'text', 8."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return repr(value)
