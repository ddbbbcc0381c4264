"""Answers of a form, by the official client: `response_format`, `structured_outputs`; what cannot be, by its field."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import openai
import pytest
from chat_templates import CHATML, tokenizer_files
from form_checker import is_valid
from run_folders import write_run
from running_server import running

from clearhead.data import Tokenizer
from clearhead.server import loaded_run

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "blue"]}, "n.o": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["color", "n.o"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "paint", "schema": SCHEMA, "strict": True}}
MESSAGES: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    folder = tmp_path_factory.mktemp("runs")
    tokenizer_files("bytes", folder / "files", CHATML)
    chat = write_run(folder / "chat", tokenizer=Tokenizer.load(folder / "files", keep_frame=True), block_size=256)
    letters = write_run(folder / "letters")
    with (
        running([chat, letters]) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=120) as client,
    ):
        yield client


@pytest.mark.parametrize("stream", [False, True])
def test_a_chats_answer_is_valid_by_its_schema(client: openai.OpenAI, stream: bool) -> None:
    arguments: Any = {"model": "chat", "messages": MESSAGES, "response_format": FORMAT, "seed": 3, "n": 2}
    texts = ["", ""]
    if stream:
        for event in client.chat.completions.create(**arguments, stream=True):
            for choice in event.choices:
                texts[choice.index] += choice.delta.content or ""
    else:
        answer = client.chat.completions.create(**arguments)
        texts = [choice.message.content or "" for choice in answer.choices]
        assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    assert all(is_valid(json.loads(text), SCHEMA) for text in texts)


def test_a_completion_has_the_form_that_it_is_held_to(client: openai.OpenAI) -> None:
    forms: list[tuple[dict[str, Any], Any]] = [
        ({"regex": r"[a-f]{3}-\d{2}"}, lambda text: re.fullmatch(r"[a-f]{3}-\d{2}", text)),
        ({"choice": ["red or", "blue"]}, lambda text: text in ("red or", "blue")),
        ({"json": SCHEMA}, lambda text: is_valid(json.loads(text), SCHEMA)),
        ({"json": json.dumps(SCHEMA)}, lambda text: is_valid(json.loads(text), SCHEMA)),
    ]
    for form, fits in forms:
        answer = client.completions.create(
            model="chat", prompt="x", seed=1, max_tokens=120, extra_body={"structured_outputs": form}
        )
        assert answer.choices[0].finish_reason == "stop"
        assert fits(answer.choices[0].text), (form, answer.choices[0].text)


def test_an_answer_that_reaches_its_length_says_so(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="chat", messages=MESSAGES, response_format=FORMAT, max_tokens=4)
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("fields", "field", "sentence"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "wish"}}}},
            "response_format",
            "Invalid type: wish",
        ),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs", "unclosed group"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "must have one of"),
        ({"structured_outputs": {"json": 5}}, "structured_outputs.json", "must be an object or a text"),
        (
            {"response_format": {**FORMAT, "type": "json_object"}},
            "response_format.json_schema",
            'needs "type": "json_schema"',
        ),
        ({"structured_outputs": {}}, "structured_outputs", "must have one of"),
        ({"structured_outputs": {"grammar": "start: 'a'"}}, "structured_outputs.grammar", "there is no field"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "one",
        ),
        ({"model": "letters", "response_format": {"type": "json_object"}}, "response_format", "no tokens for such"),
        ({"structured_outputs": {"json": {"type": "integer", "multipleOf": 999983}}}, "structured_outputs", "too much"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(
    client: openai.OpenAI, fields: dict[str, Any], field: str, sentence: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        client.completions.create(model="chat", prompt="x", extra_body=fields)
    assert refusal.value.param == field
    assert sentence in refusal.value.message


def test_beyond_a_number_of_forms_that_wait_requests_are_refused(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded_run, "MOST_COMPILING", 0)
    with pytest.raises(openai.RateLimitError):
        client.completions.create(model="chat", prompt="x", extra_body={"structured_outputs": {"regex": "a"}})


def test_a_form_that_could_not_be_tried_may_be_sent_again(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask() -> openai.types.Completion:
        form = {"structured_outputs": {"regex": "[a-c]xy"}}
        return client.completions.create(model="chat", prompt="x", extra_body=form)

    with monkeypatch.context() as patch:
        patch.setattr("subprocess.run", Mock(side_effect=OSError(11, "no process is left")))
        with pytest.raises(openai.InternalServerError) as refusal:
            ask()
    assert refusal.value.status_code == 503
    assert refusal.value.response.headers["Retry-After"]
    assert ask().choices


def test_without_the_extra_a_sentence_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clearhead.inference.constraints.find_spec", lambda name: None)
    with (
        running([write_run(tmp_path / "run")]) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=60) as client,
        pytest.raises(openai.BadRequestError, match=r"clearhead\[grammar\]") as refusal,
    ):
        client.completions.create(model="run", prompt="x", extra_body={"structured_outputs": {"regex": "a"}})
    assert refusal.value.param == "structured_outputs"
