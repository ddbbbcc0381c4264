"""Whether a value is valid by a JSON schema: the part of the language that the tests use, read anew."""

import re
from collections.abc import Mapping
from typing import Any

Json = Any
TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "integer": (int,), "number": (int, float),
    "boolean": (bool,), "null": (type(None),),
}  # fmt: skip


def is_valid(value: Json, schema: Mapping[str, Json], root: Mapping[str, Json] | None = None) -> bool:
    """Whether the value is what the schema describes."""
    root = schema if root is None else root
    if "$ref" in schema and not is_valid(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root):
        return False
    if "anyOf" in schema and not any(is_valid(value, some, root) for some in schema["anyOf"]):
        return False
    if "enum" in schema and not any(value == other and type(value) is type(other) for other in schema["enum"]):
        return False
    kind = schema.get("type")
    if kind is not None and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return False
    match value:
        case dict():
            return _is_object(value, schema, root)
        case list():
            fits = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
            return fits and all(is_valid(item, schema.get("items", {}), root) for item in value)
        case str():
            fits = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
            return fits and re.search(schema.get("pattern", ""), value) is not None
        case int() | float() if not isinstance(value, bool):
            return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
    return True


def _is_object(value: Mapping[str, Json], schema: Mapping[str, Json], root: Mapping[str, Json]) -> bool:
    properties, more = schema.get("properties", {}), schema.get("additionalProperties", True)
    if any(name not in value for name in schema.get("required", ())):
        return False
    if any(name in value and not is_valid(value[name], some, root) for name, some in properties.items()):
        return False
    others = [value[name] for name in value if name not in properties]
    return not others if more is False else all(is_valid(other, {} if more is True else more, root) for other in others)
