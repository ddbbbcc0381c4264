"""The choices that a model's config offers, read from the config: a new one is among them by itself."""

from typing import Any, Literal, get_args, get_origin

from clearhead.config import ModelConfig


def listed_choices(*but: str) -> dict[str, tuple[Any, ...]]:
    """Every option that is a choice between names or a switch, with all of its values, its default first."""
    choices: dict[str, tuple[Any, ...]] = {}
    for name, field in ModelConfig.model_fields.items():
        values = get_args(field.annotation) if get_origin(field.annotation) is Literal else (False, True)
        if name not in but and (field.annotation is bool or get_origin(field.annotation) is Literal):
            choices[name] = tuple(sorted(values, key=lambda value: value != field.default))
    return choices
