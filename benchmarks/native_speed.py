"""The native engine beside what PyTorch compiles: greedy tokens of one text, the same weights, interleaved.

    python benchmarks/native_speed.py [--rounds 7] [--large] [--keep]

PyTorch's side is a decoding step as gpt-fast writes it (`static_decoder.py`), with caches just long enough for the
text. It runs uncompiled, under `torch.compile`, and from a package of AOTInductor. Tuned means `freezing`,
`max_autotune` and `cpp_wrapper`. (`mode="reduce-overhead"` is left out: it means CUDA graphs, and changes nothing on a
CPU.) All of them begin with one token and write the same tokens, which is checked before anything is measured.

A table for each shape: tokens per second, and seconds to the first token in a new process that has loaded torch and
built the model. "New" has empty caches; "again" finds what the process before it compiled. The 0.8 M shape is computed
on one thread, the 124 M shape (`--large`) on as many as torch chooses. Seconds are always the wall's.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # for all sides: a busy neighbor then costs little

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from generation_speed import GPT2, NEW_TOKENS, SHAPES
from side_by_side import Row, Work, arguments, compile_package, machine, measure, spread
from static_decoder import StaticDecoder
from torch import Tensor

from clearhead.cli.environment import prepare_process
from clearhead.config import EngineConfig, ModelConfig, SamplingConfig
from clearhead.inference import Engine, stream_ids
from clearhead.models import DecoderLM, build_model
from clearhead.workflows.hardware import threads

FIRST = 1  # the token that every text begins with
TUNED = {"freezing": True, "max_autotune": True, "cpp_wrapper": True}
TOLERANCE = 1e-3  # of the largest logit
MAX_SECONDS = 600  # of a process that writes a first token
THREADS = {"0.8M": 1, "124M": None}  # None: as many as torch chooses
RESULTS = Path(__file__).parent / "results" / "native_speed.md"

Step = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # token (1,), position (1,) -> next token (1,), logits (1, V)
Writer = Callable[[int], list[int]]  # writes so many tokens


class StaticWriter:
    """Writes by calling a step again and again; `logits` (1, V) are those of its last call."""

    def __init__(self, step: Step, length: int) -> None:
        self.step, self.positions = step, torch.arange(length)[:, None].unbind()
        self.logits = torch.empty(0)

    @torch.no_grad()
    def __call__(self, tokens: int) -> list[int]:
        written = [torch.tensor([FIRST])]
        for position in self.positions[:tokens]:
            token, self.logits = self.step(written[-1], position)
            written.append(token)
        return [int(token) for token in torch.cat(written[1:])]


def clearhead_writer(model: DecoderLM, engine: str) -> Writer:
    """What a person calls who generates a text."""
    kept = Engine(model, EngineConfig.read({"engine": engine}))

    def write(tokens: int) -> list[int]:
        sampling = SamplingConfig(max_new_tokens=tokens, greedy=True)
        notices = list[str]()
        columns = list(stream_ids(model, [[FIRST]], sampling, engine=kept, on_notice=notices.append))
        if refusals := [notice for notice in notices if "without native code" in notice]:
            raise RuntimeError(refusals[0])
        return [token for column in columns for token in column.values() if token is not None]

    return write


def packaged(step: StaticDecoder, package: Path, options: dict[str, Any] | None = None) -> Step:
    """The step from a package of AOTInductor, which is made where there is none."""
    from torch._inductor import aoti_compile_and_package, aoti_load_package

    if not package.exists():
        inputs = (torch.tensor([FIRST]), torch.tensor([0]))
        with torch.no_grad():
            aoti_compile_and_package(
                torch.export.export(step, inputs), package_path=str(package), inductor_configs=options
            )
    loaded: Step = aoti_load_package(str(package))
    return loaded


PYTORCH: dict[str, Callable[[StaticDecoder, Path], Step]] = {
    "plain PyTorch": lambda step, folder: step,
    "torch.compile": lambda step, folder: torch.compile(step, fullgraph=True),
    "torch.compile, tuned": lambda step, folder: torch.compile(step, fullgraph=True, options=TUNED),  # type: ignore[arg-type]
    "AOTInductor": lambda step, folder: packaged(step, folder / "step.pt2"),
    "AOTInductor, tuned": lambda step, folder: packaged(step, folder / "tuned.pt2", TUNED),
}
METHODS = ["Clearhead eager", "Clearhead native", *PYTORCH]


def prepare(method: str, model: DecoderLM, tokens: int, folder: Path) -> Writer:
    """What writes up to so many tokens by this method, and keeps in this folder what can be used again."""
    if method not in PYTORCH:
        return clearhead_writer(model, method.split()[1])
    return StaticWriter(PYTORCH[method](StaticDecoder(model, tokens), folder), tokens)


def build(shape: str) -> DecoderLM:
    model = build_model(ModelConfig.read(SHAPES[shape], GPT2), seed=1).eval()
    assert isinstance(model, DecoderLM)
    with torch.no_grad():  # an untrained model would write one token again and again
        model.positions.get_parameter("weight").mul_(10)
    return model


def caches(folder: Path) -> dict[str, str]:
    """Where each method finds again what it compiled."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "CLEARHEAD_CACHE": str(folder / "clearhead")}


def print_first_token(shape: str, method: str, folder: Path) -> None:
    """Of this process: the seconds from the built model to the first token, or why it has none, as JSON."""
    model = build(shape)
    with threads(THREADS[shape]):
        start_time = time.perf_counter()
        try:
            prepare(method, model, NEW_TOKENS[shape], folder)(1)
        except Exception as error:
            print(json.dumps({"reason": (str(error).strip() or type(error).__name__).splitlines()[0]}))
        else:
            print(json.dumps({"seconds": time.perf_counter() - start_time}))


def first_token(shape: str, method: str, folder: Path) -> dict[str, Any]:
    """`print_first_token` in a process of its own."""
    command = [sys.executable, __file__, "--first-token", shape, method, str(folder)]
    environment = os.environ | caches(folder)
    try:
        process = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=MAX_SECONDS)
    except subprocess.TimeoutExpired:
        return {"reason": f"no token within {MAX_SECONDS} seconds"}
    lines = process.stdout.splitlines()
    answer: dict[str, Any] = json.loads(lines[-1]) if lines else {"reason": f"it ended with {process.returncode}"}
    return answer


def table(shape: str, rounds: int, clock: str, folder: Path) -> list[str]:
    """The lines of one shape's table."""
    model, tokens = build(shape), NEW_TOKENS[shape]
    starts = {method: [first_token(shape, method, folder) for _ in range(2)] for method in METHODS}
    with threads(THREADS[shape]):
        reasons = {name: start["reason"] for name, both in starts.items() for start in both if "reason" in start}
        writers = {method: prepare(method, model, tokens, folder) for method in METHODS if method not in reasons}
        refuse_differences(model, writers, tokens)
        rows = [Row(method, "", counted(writer, tokens)) for method, writer in writers.items()]
        rates = dict(zip(writers, measure(rows, rounds, clock), strict=True))
        described = f"{shape}, {tokens} tokens, threads: {torch.get_num_threads()}"
    native = statistics.median(rates.get("Clearhead native", [float("nan")]))
    lines = [
        f"| {described} | tokens per second | ratio to native | first token, new (s) | first token, again (s) |",
        "|---|---|---|---|---|",
    ]
    for method in METHODS:
        if method in reasons:
            lines.append(f"| {method} | {reasons[method]} | | | |")
            continue
        new, again = (f"{start['seconds']:.3g}" for start in starts[method])
        ratio = statistics.median(rates[method]) / native
        lines.append(f"| {method} | {spread(rates[method])} | {ratio:.2f} | {new} | {again} |")
    package, library = megabytes(folder, "step.pt2"), megabytes(folder / "clearhead", "*.so")
    return [
        *lines,
        "",
        f"AOTInductor's package has {package}; the native library, which serves every model, {library}.",
    ]


def refuse_differences(model: DecoderLM, writers: dict[str, Writer], tokens: int) -> None:
    """All write the same tokens, and the last logits of PyTorch's steps are those of the model called on the text."""
    first, *others = texts = [writer(tokens) for writer in writers.values()]
    assert all(text == first for text in others), f"different texts: {dict(zip(writers, texts, strict=True))}"
    with torch.inference_mode():
        expected = model(torch.tensor([[FIRST, *first[:-1]]]))[:, -1]  # (1, V)
    for method, writer in writers.items():
        if isinstance(writer, StaticWriter):
            difference = (writer.logits - expected).abs().max() / expected.abs().max()
            assert difference < TOLERANCE, f"{method}: the logits differ by {difference:.1e} of the largest"
    print(f"{len(set(first))} different tokens, equal in all texts", file=sys.stderr)


def counted(writer: Writer, tokens: int) -> Work:
    return lambda: len(writer(tokens))


def megabytes(folder: Path, pattern: str) -> str:
    return f"{sum(path.stat().st_size for path in folder.rglob(pattern)) / 1e6:.3g} MB"


def main() -> None:
    parser = arguments(__doc__, 7, RESULTS)
    parser.add_argument("--large", action="store_true", help="the 124 M shape as well")
    parser.add_argument("--first-token", nargs=3, metavar=("SHAPE", "METHOD", "FOLDER"), help="used by this program")
    args = parser.parse_args()
    prepare_process()  # the allocator, for all sides
    if args.first_token:
        shape, method, folder = args.first_token
        print_first_token(shape, method, Path(folder))
        return
    compile_package()
    lines = [f"{machine()}, {args.clock} clock, {args.rounds} rounds, interleaved; medians (lowest to highest)."]
    for shape in ("0.8M", "124M") if args.large else ("0.8M",):
        with tempfile.TemporaryDirectory() as name:
            os.environ |= caches(Path(name))
            lines += ["", *table(shape, args.rounds, args.clock, Path(name))]
        print("\n".join(lines), flush=True)
    if args.keep:
        RESULTS.write_text("# Native code beside PyTorch's compilers\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
