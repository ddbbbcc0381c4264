"""Large answers as JSON, encoded beside the event loop and in pieces, so that others have their turn between two.

Python's encoder does not let go of the interpreter before it is done: ten megabytes at once would hold up every stream
for a tenth of a second, from whatever thread.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence

from starlette.responses import Response

ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
PIECE = 64  # items of a list


def json_pieces(value: object) -> Iterator[str]:
    """A value as JSON, in ASCII; a long list in pieces, also within other lists and objects.

    Args:
        value: mappings with texts as their keys, sequences, numbers that are finite, texts.
    """
    if isinstance(value, Mapping):
        separator = "{"
        for key, item in value.items():
            yield f"{separator}{ENCODER.encode(key)}:"
            yield from json_pieces(item)
            separator = ","
        yield "{}" if separator == "{" else "}"
    elif isinstance(value, Sequence) and not isinstance(value, str) and value and _has_lists(value[0]):
        separator = "["
        for item in value:
            yield separator
            yield from json_pieces(item)
            separator = ","
        yield "]"
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for start in range(0, len(value), PIECE):
            yield "[" if start == 0 else ","
            yield ENCODER.encode(value[start : start + PIECE])[1:-1]
        yield "]" if value else "[]"
    else:
        yield ENCODER.encode(value)


async def encoded_aside(build: Callable[[], object]) -> bytes:
    """What `build` makes, as JSON; both on another thread."""
    return await asyncio.to_thread(lambda: "".join(json_pieces(build())).encode("ascii"))


async def large_response(build: Callable[[], object]) -> Response:
    """A response of what `build` makes, on another thread."""
    return Response(await encoded_aside(build), media_type="application/json")


def _has_lists(item: object) -> bool:
    values = item.values() if isinstance(item, Mapping) else [item]
    return any(isinstance(value, Mapping | Sequence) and not isinstance(value, str) for value in values)
