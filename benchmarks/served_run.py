"""What the benchmarks of the server share: a run with random weights, its server in a process of its own, a client.

The client is a few lines over a socket, so that its own time is little beside the server's on the same two cores.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from generation_speed import GPT2, SHAPES

from clearhead import interop
from clearhead.config import ModelConfig, RunConfig
from clearhead.data import Tokenizer
from clearhead.models import build_model
from clearhead.workflows.exporting import export
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.tasks import TASKS

T = TypeVar("T")

# In the process of the server. What it spends in the model is counted where the queue calls it.
SERVER = """
import json, os, socket, sys, time
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
from pathlib import Path
from clearhead.cli.environment import prepare_process
prepare_process()
import torch
from clearhead.config.serving import ServerConfig
from clearhead.inference.decoder_backend import EagerDecoderBackend, NativeDecoderBackend
from clearhead.server import create_app
from clearhead.server.http.limited_server import LimitedServer
from clearhead.workflows.runs.folder import RunFolder
from starlette.responses import JSONResponse
from starlette.routing import Route

options = json.loads(sys.argv[2])
if threads := options.pop("threads"):
    torch.set_num_threads(threads)
seconds = [0.0]
def counted(method):
    def call(*arguments, **keywords):
        start_time = time.perf_counter()
        try:
            return method(*arguments, **keywords)
        finally:
            seconds[0] += time.perf_counter() - start_time
    return call
for backend in (EagerDecoderBackend, NativeDecoderBackend):
    backend.forward, backend.decode = counted(backend.forward), counted(backend.decode)

async def spent(request):
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return JSONResponse({"model": seconds[0], "process": time.process_time(), "resident": resident})

config = ServerConfig.read(options)
app = create_app([RunFolder(Path(sys.argv[1]))], config)
app.router.routes.insert(0, Route("/spent", spent))
listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
print(listener.getsockname()[1], flush=True)
LimitedServer(app, config).run(sockets=[listener])
"""


def random_run(folder: Path, shape: str) -> RunFolder:
    """A run of that shape with random weights; its tokens are characters."""
    config = ModelConfig.read(SHAPES[shape], GPT2)
    characters = [chr(code) for code in range(32, 0x20000) if not 0xD800 <= code < 0xE000]
    tokenizer = Tokenizer.characters(characters[: config.vocab_size])
    run = RunFolder(folder)
    folder.mkdir(parents=True)
    TASKS["causal"].write_tokenizers(folder, (tokenizer, tokenizer))
    run.save_model(build_model(config), interop.SpecialTokens(), step=0)
    run.write_config(RunConfig.read({"model": config.model_dump(), "data": {"source": "import:random"}}))
    return run


@contextmanager
def served(shape: str, threads: int = 0, **options: object) -> Iterator[tuple["Client", RunFolder]]:
    """A server of such a run, and a client of it."""
    with TemporaryDirectory() as folder:
        run = random_run(Path(folder) / "run", shape)
        argument = json.dumps({"threads": threads, **options})
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(run.folder), argument], stdout=subprocess.PIPE, env=os.environ, text=True
        )
        try:
            assert process.stdout is not None
            yield Client(int(process.stdout.readline())), run
        finally:
            process.terminate()
            process.wait(timeout=60)


@contextmanager
def served_by_transformers(run: RunFolder, threads: int = 0, seconds: float = 120.0) -> Iterator["Client"]:
    """`transformers serve` of the same weights, with its defaults, and a client of it.

    Raises:
        TimeoutError: it does not answer within so many seconds.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "exported"
        export(run, "hf", path)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(path), "--device", "cpu"]
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})},
        )
        try:
            client, deadline = Client(port), time.monotonic() + seconds
            while not run_client(client.is_there()):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise TimeoutError("transformers serve does not answer")
                time.sleep(0.2)
            yield client
        finally:
            process.terminate()
            process.wait(timeout=60)


def run_client(work: Coroutine[object, object, T]) -> T:
    """What clients do, on a quick event loop: they share the server's processors."""
    try:
        import uvloop  # so that --help needs no extra
    except ImportError:  # on Windows
        return asyncio.run(work)
    return uvloop.run(work)


class Client:
    """Requests of a server on this machine."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def is_there(self) -> bool:
        """Whether it accepts connections."""
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except ConnectionError:
            return False
        writer.close()
        return True

    async def get(self, path: str) -> Any:
        """The JSON at a path."""
        return await self._answer("GET", path, None)

    async def post(self, path: str, body: Mapping[str, object]) -> Any:
        """The JSON that comes back."""
        return await self._answer("POST", path, body)

    async def stream(self, body: Mapping[str, object]) -> AsyncIterator[tuple[float, str]]:
        """When each piece of the text of a completion came, and the piece.

        Raises:
            RuntimeError: another status than 200, which it says.
        """
        reader, writer = await self._ask("POST", "/v1/completions", {**body, "stream": True})
        try:
            status = int((await reader.readline()).split()[1])
            if status != 200:
                raise RuntimeError(str(status))
            while (line := await reader.readline()) != b"data: [DONE]\n":
                if line.startswith(b"data: "):
                    now = time.perf_counter()
                    event = json.loads(line[6:])
                    yield now, event["choices"][0]["text"]
                elif not line:
                    raise RuntimeError("cut off")
        finally:
            writer.close()

    async def _answer(self, method: str, path: str, body: Mapping[str, object] | None) -> Any:
        reader, writer = await self._ask(method, path, body)
        try:
            head, _, content = (await reader.read()).partition(b"\r\n\r\n")
            assert b" 200 " in head.splitlines()[0], content
            return json.loads(content)
        finally:
            writer.close()

    async def _ask(
        self, method: str, path: str, body: Mapping[str, object] | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        content = b"" if body is None else json.dumps(body).encode()
        lines = (f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", "Connection: close")
        writer.write("\r\n".join((*lines, f"Content-Length: {len(content)}", "", "")).encode() + content)
        return reader, writer
