"""The body of a request: bounded in bytes, time and depth; parsed once, and what is wrong is named by its field."""

import asyncio
import json
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator
from pydantic_core import ErrorDetails
from starlette.requests import Request

from clearhead.config.serving import ServerConfig
from clearhead.options import MAX_SHOWN, RULES, refuse_huge_number
from clearhead.server.http.errors import HttpError
from clearhead.suggestions import did_you_mean

Body = TypeVar("Body", bound=BaseModel)

# What pydantic calls the branches of a union -> what a person calls them.
FORMS = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list[str]": "a list of texts",
    "list[int]": "a list of token ids",
    "list[list[int]]": "a list of lists of token ids",
    "dict[str,any]": "an object",
}


class RequestBody(BaseModel):
    """What the fields of a request's body derive from: exact types, finite numbers, no field that nobody knows.

    A list whose length a client chooses is `Annotated[list[...], Field(fail_fast=True)]`: otherwise a body of a million
    wrong items makes a million errors.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    _refuse_huge_numbers = field_validator("*")(refuse_huge_number)


async def read_body(request: Request, model: type[Body]) -> Body:
    """The request's JSON as a `model`.

    Raises:
        HttpError: 400 what is wrong with which field; 408 too slow; 413 too large; 415 no JSON.
    """
    config: ServerConfig = request.app.state.config
    _refuse_other_types(request)
    try:
        async with asyncio.timeout(config.receive_seconds):
            content = await _bounded_content(request, config.max_body_bytes)
    except TimeoutError:
        raise HttpError(408, f"the request's body did not arrive within {config.receive_seconds:g} seconds") from None
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise _http_error(error, model) from None


def _refuse_other_types(request: Request) -> None:
    kind, _, parameters = request.headers.get("content-type", "").lower().partition(";")
    if kind.strip() != "application/json":
        raise HttpError(415, "the body must be JSON, and the header must say so: 'Content-Type: application/json'")
    name, _, charset = parameters.partition("=")
    if name.strip() == "charset" and charset.strip(" \"'") not in ("utf-8", "utf8"):
        raise HttpError(415, "the body must be JSON in UTF-8")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpError(415, "the body must not be compressed")


async def _bounded_content(request: Request, limit: int) -> bytes:
    """The bytes of the body. Starlette's own limit answers in plain text, and is for all routes or none."""
    too_large = HttpError(413, f"the request's body is larger than {limit:,} bytes")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > limit:
        raise too_large
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > limit:
            raise too_large
    return bytes(content)


def _http_error(error: ValidationError, model: type[BaseModel]) -> HttpError:
    details = error.errors(include_url=False)
    first = details[0]
    if first["type"] == "json_invalid":
        reason = str(first.get("ctx", {}).get("error", "it cannot be parsed"))
        return HttpError(400, f"the body is not JSON: {reason}", code="invalid_json")
    where, tag = _field(first)
    if not where:
        return HttpError(400, "the body must be a JSON object", code="invalid_type")
    forms = dict.fromkeys(_field(other)[1] for other in details if _field(other)[0] == where)
    value = f", not {_shown(first['input'])}"
    match first["type"]:
        case "missing":
            return HttpError(400, f"`{where}` is missing", where, "missing_required_parameter")
        case "extra_forbidden":
            meant = did_you_mean(where, model.model_fields)
            return HttpError(400, f"there is no field `{where}`{meant}", where, "unknown_parameter")
        case _ if tag and len(forms) > 1:
            known = " or ".join(FORMS.get(form, form) for form in forms if form)
            return HttpError(400, f"`{where}` must be {known}", where, "invalid_type")
        case kind if kind in RULES:
            rule = RULES[kind].format_map(first.get("ctx", {}))
            return HttpError(400, f"`{where}` must be {rule}{value}", where, "invalid_value")
    reason = first["msg"].removeprefix("Value error, ")
    return HttpError(400, f"`{where}`: {reason[:1].lower()}{reason[1:]}", where, "invalid_value")


def _field(details: ErrorDetails) -> tuple[str, str | None]:
    """The field that an error is about, as `messages[0].role`, and the branch of a union that did not take it."""
    where = ""
    for part in details["loc"]:
        if isinstance(part, int):
            where += f"[{part}]"
        elif part in FORMS or not part.isidentifier():
            return where or _shown(part), part if where else None
        else:
            where += f".{part}" if where else part
    return where, None


def _shown(value: object) -> str:
    """A value as JSON has it, or its beginning."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except ValueError:  # Python writes no integer of more than some thousand digits
        return "a number of thousands of digits"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text):,} characters)"
