"""/studio/trainings: start a training, or go on with one, in a process of its own that outlives the studio."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from clearhead.config import RunConfig
from clearhead.config.presets import PRESETS
from clearhead.data import CORPORA, PAIR_CORPORA
from clearhead.files import write_whole
from clearhead.inspection import estimate_cost
from clearhead.pages import printable
from clearhead.server.http.bodies import RequestBody, read_body
from clearhead.server.http.errors import HttpError
from clearhead.server.studio.runs import run_of
from clearhead.workflows.hardware import choose_device, memory
from clearhead.workflows.runs.paths import RUNS

FOLDER = ".studio"  # under `runs`: pasted texts, and what trainings say
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
MOST = 2  # trainings at once that were started here
TAIL = 4000  # bytes of what a training says
OBJECTIVES = {"causal": "txt", "masked": "txt", "seq2seq": "tsv"}  # -> how a pasted text is stored


class TrainingBody(RequestBody):
    """What to train on and for how long; `text` is what was pasted, `corpus` the name of a built-in one."""

    name: str
    text: str | None = None
    corpus: str | None = None
    objective: Literal["causal", "masked", "seq2seq"] = "causal"
    preset: str | None = None
    minutes: float = Field(2, gt=0, le=7 * 24 * 60)

    @field_validator("name")
    @classmethod
    def _refuse_paths(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError("must consist of letters, digits, - and _, at most 64 of them")
        return name

    @model_validator(mode="after")
    def _refuse_nothing(self) -> "TrainingBody":
        if (self.text is None) == (self.corpus is None):
            raise ValueError("give either `text` or `corpus`")
        return self


@dataclass
class TrainingProcess:
    """A process that trains, and where it writes what it says."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def as_dict(self) -> dict[str, object]:
        """Whether it runs still, how it ended, and its last lines."""
        code = self.process.poll()
        return {"name": self.name, "is_running": code is None, "exit_code": code, "lines": _tail(self.log)}


class TrainingProcesses:
    """Those that were started here. Trainings from elsewhere are seen in their runs."""

    def __init__(self) -> None:
        self._trainings = dict[str, TrainingProcess]()
        self.starting = asyncio.Lock()

    def refuse(self, name: str) -> None:
        """Refuse another training of that name.

        Raises:
            HttpError: 409, this one runs; 429, as many as may be run already.
        """
        if name in self._trainings and self._trainings[name].process.poll() is None:
            raise HttpError(409, f"{name} is being trained", "name")
        if sum(training.process.poll() is None for training in self._trainings.values()) >= MOST:
            raise HttpError(429, f"{MOST} trainings run already; stop one, or wait for it", retry_after=10)

    def start(self, name: str, arguments: Sequence[str]) -> TrainingProcess:
        """Start `clearhead ARGUMENTS`. `refuse` comes before, and nothing else in between.

        Raises:
            HttpError: the folder of logs leads out of `runs`.
        """
        log = _own_folder() / f"{name}.log"
        log.unlink(missing_ok=True)  # a link is not followed
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "clearhead", *arguments],  # -P: no file here passes for a library
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # neither Ctrl-C here nor the studio's end reaches it
                env={**os.environ, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"},
            )
        training = self._trainings[name] = TrainingProcess(name, process, log)
        return training

    def kill(self) -> None:
        """End all of them now, unsaved."""
        for training in self._trainings.values():
            training.process.kill()
            training.process.wait()

    def listed(self) -> list[dict[str, object]]:
        """All of them, the last first."""
        return [training.as_dict() for training in reversed(self._trainings.values())]


async def start_training(request: Request) -> Response:
    """Train a new run."""
    body = await read_body(request, TrainingBody)
    known = request.app.state.runs.names()
    if body.name in known or await asyncio.to_thread((RUNS / body.name).exists):
        raise HttpError(409, f"there is a run called {body.name} already; choose another name", "name")
    if body.corpus is not None and body.corpus not in CORPORA and body.corpus not in PAIR_CORPORA:
        raise HttpError(400, f"`corpus` must be one of {', '.join((*CORPORA, *PAIR_CORPORA))}", "corpus")
    if body.preset is not None and body.preset not in PRESETS:
        raise HttpError(400, f"`preset` must be one of {', '.join(PRESETS)}", "preset")
    trainings: TrainingProcesses = request.app.state.trainings
    async with trainings.starting:
        trainings.refuse(body.name)
        source = await asyncio.to_thread(_store, body) if body.corpus is None else body.corpus
        arguments = ["train", source, "--minutes", f"{body.minutes:g}", "--out", str(RUNS / body.name)]
        if body.preset is not None:
            arguments += ["--preset", body.preset]
        elif body.objective == "masked":
            arguments += ["--objective", body.objective]
        started = await asyncio.to_thread(trainings.start, body.name, arguments)
    return JSONResponse(started.as_dict(), status_code=201)


async def go_on(request: Request) -> Response:
    """Go on with a run that was stopped."""
    run = run_of(request)
    if await asyncio.to_thread(lambda: run.is_training):
        raise HttpError(409, f"{run.name} is being trained")
    trainings: TrainingProcesses = request.app.state.trainings
    async with trainings.starting:
        trainings.refuse(run.name)
        started = await asyncio.to_thread(trainings.start, run.name, ["resume", str(run.folder)])
    return JSONResponse(started.as_dict(), status_code=201)


async def list_trainings(request: Request) -> Response:
    """Those that were started here, and what they say."""
    return JSONResponse({"trainings": await asyncio.to_thread(request.app.state.trainings.listed)})


async def list_choices(request: Request) -> Response:
    """What a training can be made of: corpora, and presets with their size and memory."""

    def read() -> dict[str, object]:
        return {
            "corpora": {name: corpus.about for name, corpus in CORPORA.items()},
            "pairs": {name: corpus.about for name, corpus in PAIR_CORPORA.items()},
            "presets": [_described(name) for name in PRESETS],
            "memory": memory(choose_device("auto")),
        }

    return JSONResponse(await asyncio.to_thread(read))


def _described(name: str) -> dict[str, object]:
    preset = PRESETS[name]
    config = RunConfig.read(preset.options)
    cost = estimate_cost(config.model, config.train)
    return {
        "name": name,
        "about": preset.about,
        "objective": preset.objective,
        "parameters": cost.parameters,
        "flops_per_token": cost.flops_per_token,
        "bytes": cost.bytes["training"],
    }


def _store(body: TrainingBody) -> str:
    """Write what was pasted where the run can find it again; never in place of another run's, nor through a link."""
    folder, end = _own_folder(), OBJECTIVES[body.objective]
    content = (body.text or "").encode("utf-8", "replace")
    for number in count(1):
        path = folder / (f"{body.name}.{end}" if number == 1 else f"{body.name}-{number}.{end}")
        if not os.path.lexists(path):
            write_whole(path, lambda temporary: temporary.write_bytes(content))
            return str(path)
    raise AssertionError("there are more numbers than files")


def _own_folder() -> Path:
    """Where the studio keeps what it writes beside runs.

    Raises:
        HttpError: it leads out of `runs`.
    """
    folder = RUNS / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    if folder.resolve() != RUNS.resolve() / FOLDER:
        raise HttpError(403, f"{folder} is a link that leads elsewhere; remove it")
    return folder


def _tail(log: Path) -> list[str]:
    """The last lines of a log, as a page may show them."""
    try:
        with log.open("rb") as lines:
            size = lines.seek(0, os.SEEK_END)
            lines.seek(max(0, size - TAIL))
            content = lines.read(TAIL).decode("utf-8", "replace")
    except OSError:
        return []
    return [printable(line) for line in content.splitlines()[-40:]]


ROUTES = [
    Route("/studio/choices", list_choices, methods=["GET"]),
    Route("/studio/trainings", list_trainings, methods=["GET"]),
    Route("/studio/trainings", start_training, methods=["POST"]),
    Route("/studio/runs/{name}/resume", go_on, methods=["POST"]),
]
