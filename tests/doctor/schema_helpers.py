"""As much of JSON Schema as the report's schema uses, so that it can be checked without a package for it."""

import re
from collections.abc import Iterator
from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "null": (type(None),),
}
UNDERSTOOD = {
    *("$schema", "$defs", "$ref", "title", "description", "type", "enum", "pattern", "minimum", "maximum"),
    *("required", "properties", "additionalProperties", "items", "minItems"),
}


def problems(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "$") -> Iterator[str]:
    """What is wrong with a value, and where. `root` holds the definitions."""
    assert not set(schema) - UNDERSTOOD, f"this check does not know {set(schema) - UNDERSTOOD}"
    if "$ref" in schema:
        place = schema["$ref"].split("/")[1:]
        target: Any = root
        for part in place:
            target = target[part]
        yield from problems(value, target, root, at)
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(_is(value, name) for name in types):
        yield f"{at} is {value!r}, and no {types}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at} is {value!r}, none of {schema['enum']}"
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{at} is {value!r}, which does not look like {schema['pattern']}"
    if _is(value, "number") and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{at} is {value}, out of bounds"
    yield from _of_parts(value, schema, root, at)


def _is(value: Any, name: str) -> bool:
    return isinstance(value, TYPES[name]) and not isinstance(value, bool)


def _of_parts(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str) -> Iterator[str]:
    if isinstance(value, dict):
        known, more = schema.get("properties", {}), schema.get("additionalProperties", True)
        yield from (f"{at} has no '{key}'" for key in schema.get("required", []) if key not in value)
        for key, part in value.items():
            if key in known:
                yield from problems(part, known[key], root, f"{at}.{key}")
            elif more is False:
                yield f"{at} has a '{key}' that the schema does not know"
            elif isinstance(more, dict):
                yield from problems(part, more, root, f"{at}.{key}")
    elif isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            yield f"{at} is too short"
        for number, part in enumerate(value):
            yield from problems(part, schema.get("items", {}), root, f"{at}[{number}]")
