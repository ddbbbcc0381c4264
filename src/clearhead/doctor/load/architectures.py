"""Architectures of transformers, by model type or by class, from a small config and without any download."""

import inspect
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from clearhead.doctor.load.small_configs import SHRINKINGS, small_config
from clearhead.doctor.problems import attempt
from clearhead.doctor.state_guard import modes_kept
from clearhead.errors import DataError, UsageError
from clearhead.suggestions import did_you_mean

LARGEST = 20_000_000  # parameters; a larger model was not shrunk as meant, and would take minutes
HEADS = (
    ("ForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING"),
    ("ForConditionalGeneration", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING"),
    ("ForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING"),
)
OF_THE_MODEL = "attn_implementation"  # a setting that is not part of a config


def build_architecture(name: str, settings: Mapping[str, str]) -> nn.Module:
    """A small model of the architecture: the first that can be called, or else the first that can be built.

    Args:
        name: a model type such as 'llama', or a class such as 'BertLMHeadModel'.
        settings: values of the config, as text; and 'attn_implementation'.

    Raises:
        UsageError: the config has no such setting.
        DataError: transformers has no such architecture.
    """
    cls, config_class, always = _classes(name)
    values = {key: _value(text) for key, text in settings.items()}
    how = {OF_THE_MODEL: values.pop(OF_THE_MODEL)} if OF_THE_MODEL in values else {}
    _refuse_unknown(config_class, values)
    random = torch.get_rng_state()
    problem: Exception | None = None
    largest: nn.Module | None = None
    for shrinking in SHRINKINGS:
        torch.set_rng_state(random)  # the same weights, however many attempts it takes
        with attempt() as attempted:
            config = small_config(config_class, shrinking, always | values)
            kind = cls or class_for(config)
            if not values:  # sizes that a person chose are not bounded
                _refuse_large(kind, config)
            model = kind._from_config(config, **how)
            largest = largest or model
            _call(model)
        if not attempted.failed:
            return model  # type: ignore[no-any-return]
        problem = problem or attempted.error
    if largest is None:
        assert problem is not None
        raise problem
    return largest


def _classes(name: str) -> tuple[Any, Any, dict[str, Any]]:
    """The model's class, None if its config decides; the config's class; and settings that the model's class needs."""
    import transformers

    if name in transformers.CONFIG_MAPPING:
        return None, transformers.CONFIG_MAPPING[name], {}
    cls: Any = getattr(transformers, name, None) if name.isidentifier() else None
    config_class = getattr(cls, "config_class", None)
    if config_class is None:
        known = [*transformers.CONFIG_MAPPING, *(word for word in dir(transformers) if "For" in word or "LM" in word)]
        raise DataError(
            f"transformers knows no '{name}'{did_you_mean(name, known)}; give a model_type, a class or a folder"
        )
    causal, *others = (_names(mapping) for _, mapping in HEADS)
    is_only_causal = cls.__name__ in causal.difference(*others)
    is_decoder = is_only_causal and "is_decoder" in inspect.signature(config_class).parameters
    return cls, config_class, {"is_decoder": True} if is_decoder else {}


def _mapping(name: str) -> Any:
    from transformers.models.auto import modeling_auto

    return getattr(modeling_auto, name)


def _names(mapping: str) -> set[str]:
    """The classes of a mapping; reading the mapping itself would import them all."""
    classes: Mapping[str, str | tuple[str, ...]] = _mapping(f"{mapping}_NAMES")
    return {names if isinstance(names, str) else names[0] for names in classes.values()}


def class_for(config: Any) -> Any:
    """The class with a head that the config names, or the first that fits."""
    import transformers

    named = (getattr(config, "architectures", None) or [""])[0]
    causal, seq2seq, masked = mappings = [_mapping(name) for _, name in HEADS]
    for (ending, _), mapping in zip(HEADS, mappings, strict=True):
        if named.endswith(ending) and type(config) in mapping:
            return mapping[type(config)]
    orders = {"is_encoder_decoder": (seq2seq, causal, masked), "is_decoder": (causal, masked, seq2seq)}
    declared = (order for flag, order in orders.items() if getattr(config, flag, False))
    order = next(declared, (masked, causal, seq2seq))
    model_class = next((mapping[type(config)] for mapping in order if type(config) in mapping), None)
    return model_class or transformers.MODEL_MAPPING[type(config)]


def _refuse_unknown(config_class: Any, values: Mapping[str, Any]) -> None:
    default = config_class() if values else None
    for key in values:
        if not hasattr(default, key):
            known = [*vars(default), OF_THE_MODEL]
            raise UsageError(f"{config_class.__name__} has no '{key}'{did_you_mean(key, known)}")


def _value(text: str) -> object:
    try:
        return json.loads({"True": "true", "False": "false", "None": "null", "none": "null"}.get(text, text))
    except json.JSONDecodeError:
        return text


def _refuse_large(cls: Any, config: Any) -> None:
    """Counts parameters on the meta device."""
    with attempt() as attempted, torch.device("meta"):
        size = sum(parameter.numel() for parameter in cls._from_config(config).parameters())
    if attempted.failed:  # it computes while it is built, which the meta device cannot
        return
    if size > LARGEST:
        raise DataError(f"even a small config has {size:,} parameters")


def _call(model: nn.Module) -> None:
    """One pass of a few tokens."""
    ids = torch.tensor([[3, 4, 5, 6, 7, 8, 9]])
    names = inspect.signature(model.forward).parameters
    arguments = {name: ids for name in ("input_ids", "decoder_input_ids") if name in names}
    with torch.no_grad(), modes_kept(model):
        model.eval()(**arguments or {str(getattr(model, "main_input_name", "")): ids})
