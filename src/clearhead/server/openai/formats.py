"""The form that a text is held to: `response_format` as OpenAI has it, `structured_outputs` as vLLM has it."""

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field

from clearhead.errors import DataError, UsageError
from clearhead.inference.constraints import Constraint, ConstraintCompiler
from clearhead.inference.grammars import ANY_OBJECT, MAX_CHARACTERS, ConstraintError, UntriedError
from clearhead.server.http.bodies import RequestBody
from clearhead.server.http.errors import HttpError

MAX_CHOICES = 256

JsonObject = dict[str, object]
Form = Callable[[ConstraintCompiler], Constraint]
Compile = Callable[[Callable[[], ConstraintCompiler]], Constraint]  # given what makes the compiler, or has made it


class JsonSchema(RequestBody):
    """A JSON schema with a name. It is always kept to, so that `strict` and `description` are not looked at."""

    name: str = Field(min_length=1, max_length=64)
    schema_: JsonObject = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(RequestBody):
    """What an answer is written in: anything, a JSON object, or JSON by a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(RequestBody):
    """The form of a text; one of these."""

    json_: JsonObject | str | None = Field(None, alias="json")
    regex: str | None = Field(None, max_length=MAX_CHARACTERS)
    choice: Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=MAX_CHOICES)] | None = None
    json_object: bool | None = None


def compiling(response_format: ResponseFormat | None, structured: StructuredOutputs | None) -> Compile | None:
    """What makes the constraint that two fields of a request ask for; None where they ask for none.

    Raises:
        HttpError: 400, they ask for two, or one of them for none or for two.
    """
    compiles = list[tuple[str, Form]]()
    if response_format is not None and response_format.type != "json_schema" and response_format.json_schema:
        where = "response_format.json_schema"
        sentence = f'`{where}` needs "type": "json_schema", not "{response_format.type}", which would not keep to it'
        raise HttpError(400, sentence, where, "invalid_value")
    if response_format is not None and response_format.type != "text":
        compiles.append(("response_format", _of_format(response_format)))
    if structured is not None:
        forms = [*filter(None, _of_structured(structured))]
        if len(forms) != 1:
            sentence = "`structured_outputs` must have one of `json`, `regex`, `choice` and `json_object`"
            raise HttpError(400, sentence, "structured_outputs", "invalid_value")
        compiles.append(("structured_outputs", forms[0]))
    if len(compiles) > 1:
        sentence = "a text has one form: leave out `structured_outputs` or `response_format`"
        raise HttpError(400, sentence, "structured_outputs", "invalid_value")
    return _naming(*compiles[0]) if compiles else None


def _of_format(response_format: ResponseFormat) -> Form:
    if response_format.type == "json_object":
        return lambda compiler: compiler.json_schema(ANY_OBJECT)
    form = response_format.json_schema
    if form is None:
        where = "response_format.json_schema"
        raise HttpError(400, f"`{where}` is missing", where, "missing_required_parameter")
    return lambda compiler: compiler.json_schema(form.schema_)


def _of_structured(structured: StructuredOutputs) -> tuple[Form | None, ...]:
    schema, regex, choice = structured.json_, structured.regex, structured.choice
    return (
        None if schema is None else lambda compiler: compiler.json_schema(schema),
        None if regex is None else lambda compiler: compiler.regex(regex),
        None if choice is None else lambda compiler: compiler.choice(choice),
        (lambda compiler: compiler.json_schema(ANY_OBJECT)) if structured.json_object else None,
    )


def _naming(field: str, form: Form) -> Compile:
    """The same, and what is wrong is the field's fault."""

    def compile_named(compiler_of_run: Callable[[], ConstraintCompiler]) -> Constraint:
        try:
            compiler = compiler_of_run()
        except (UsageError, DataError) as error:  # no text of the run can be held to a form, whichever
            sentence = f"texts cannot be held to a form here: {error}"
            raise HttpError(400, sentence, field, "unsupported") from None
        try:
            return form(compiler)
        except ConstraintError as error:
            raise HttpError(400, f"`{field}`: {error}", field, "invalid_value") from None
        except UntriedError as error:
            raise HttpError(503, str(error), field, retry_after=1) from None

    return compile_named
