"""What a person can type at once to use a server: a line for curl, and lines for Python."""

import json
import shlex
from collections.abc import Mapping

TOKEN_VARIABLE = "CLEARHEAD_TOKEN"

# The kind of a model -> path, what is sent there, and OpenAI's function and what of its answer is printed.
CALLS: Mapping[str, tuple[str, Mapping[str, object], tuple[str, str] | None]] = {
    "causal": (
        "/v1/completions",
        {"prompt": "Once upon a time", "max_tokens": 40},
        ("completions", "answer.choices[0].text"),
    ),
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 40},
        ("chat.completions", "answer.choices[0].message.content"),
    ),
    "masked": ("/v1/embeddings", {"input": "Once upon a time"}, ("embeddings", "answer.data[0].embedding")),
    "seq2seq": ("/translate", {"text": "the dog sleeps"}, None),
}


def curl_line(url: str, model: str, kind: str, *, needs_token: bool) -> str:
    """A command for a POSIX shell."""
    path, fields, _ = CALLS[kind]
    headers = ["-H 'Content-Type: application/json'"]
    if needs_token:
        headers.append(f'-H "Authorization: Bearer ${TOKEN_VARIABLE}"')
    body = json.dumps({"model": model, **fields})
    return f"curl {url}{path} {' '.join(headers)} -d {shlex.quote(body)}"


def openai_lines(url: str, model: str, kind: str, *, needs_token: bool) -> tuple[str, ...]:
    """A program that uses OpenAI's client; none where OpenAI has no such thing."""
    _, fields, function = CALLS[kind]
    if function is None:
        return ()
    room, answer = function
    arguments = ", ".join(f"{name}={json.dumps(value)}" for name, value in {"model": model, **fields}.items())
    key = f'os.environ["{TOKEN_VARIABLE}"]' if needs_token else '"none"'
    return (
        *(["import os"] if needs_token else []),
        "from openai import OpenAI",
        f'client = OpenAI(base_url="{url}/v1", api_key={key})',
        f"answer = client.{room}.create({arguments})",
        f"print({answer})",
    )
