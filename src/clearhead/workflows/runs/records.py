"""Validate the lines of metrics.jsonl."""

from collections.abc import Callable, Mapping
from typing import Any

from clearhead.files import parse_json

_ABSENT = object()
LARGEST = 1e100  # of a number; sums of them stay finite


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST  # nor is it NaN


def _is_duration(value: object) -> bool:
    return _is_number(value) and value >= 0  # type: ignore[operator]


def _is_loss(value: object) -> bool:
    return value is None or _is_number(value)  # JSON has no NaN


def _is_optional(value: object) -> bool:
    return value is _ABSENT or _is_loss(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _are_scores(value: object) -> bool:
    return value is _ABSENT or (isinstance(value, dict) and all(map(_is_number, value.values())))


MEASURED = ("seconds", "peak_memory", "tokens_per_second_per_device", "mfu")  # of a step; never twice the same

# The kind of a record -> what its readers rely on, beside `kind` and `step`.
FIELDS: Mapping[str, Mapping[str, Callable[[object], bool]]] = {
    "start": {"steps": _is_count, "process": _is_count},
    "step": {
        "loss": _is_loss,
        "tokens": _is_count,
        "seconds": _is_duration,
        "learning_rate": _is_optional,
        "gradient_norm": _is_optional,
        "peak_memory": _is_optional,
        "tokens_per_second_per_device": _is_optional,
        "mfu": _is_optional,
    },
    "evaluation": {"loss": _is_loss, "bits_per_byte": _is_optional},
    "sample": {"text": _is_text, "scores": _are_scores},
    "mean": {"loss": _is_loss, "used": _is_flag, "bits_per_byte": _is_optional},
    "origin": {"from": _is_text},
    "grammar": {
        "sentences": _is_count,
        "accepted_sentences": _is_loss,
        "agreement": _is_loss,
        "stories": lambda value: value is None or _is_count(value),
        "accepted_stories": _is_loss,
        "kept_names": _is_loss,
    },
}


def record_of(line: str) -> dict[str, Any] | None:
    """Parse a line into a record; None if it is truncated, or a field that readers rely on is damaged."""
    try:
        record = parse_json(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or not _is_text(record.get("kind")) or not _is_count(record.get("step")):
        return None
    fields = FIELDS.get(record["kind"], {})
    return record if all(is_valid(record.get(name, _ABSENT)) for name, is_valid in fields.items()) else None
