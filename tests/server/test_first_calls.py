"""What a server prints for a first try fits the kind of its first run."""

import json
import shlex

import pytest

from clearhead.server.first_calls import CALLS, curl_line, openai_lines


@pytest.mark.parametrize("kind", CALLS)
def test_a_command_sends_what_its_route_takes(kind: str) -> None:
    command = shlex.split(curl_line("http://localhost:1", "m", kind, needs_token=False))
    body = json.loads(command[command.index("-d") + 1])
    assert body["model"] == "m"
    assert ("messages" in body) == command[1].endswith("/chat/completions") == (kind == "chat")
    program = "\n".join(openai_lines("http://localhost:1", "m", kind, needs_token=True))
    compile(program, "program", "exec")
    assert ("chat.completions.create" in program) == (kind == "chat")
