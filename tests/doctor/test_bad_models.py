"""Models that cannot be examined get a sentence; those that are only wrapped, narrow or ill-mannered are examined."""

import io
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor import Report, Spec, check
from clearhead.doctor.__main__ import answer_to
from clearhead.doctor.isolated import Request
from clearhead.doctor.load.loading import load
from clearhead.errors import DataError

V, D = 29, 16


class Small(nn.Module):
    """One causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(V, D)
        self.places = nn.Embedding(32, D)
        self.maps = nn.Linear(D, 3 * D)
        self.head = nn.Linear(D, V)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids) + self.places(torch.arange(ids.shape[1]))
        query, key, value = self.maps(x).chunk(3, dim=-1)
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        logits: Tensor = self.head(x + F.scaled_dot_product_attention(query, key, value, mask))
        return logits


def causal(model: nn.Module, **options: Any) -> Report:
    return check(model, Spec(kind="causal"), **options)


# --- examined all the same ---


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_any_precision_are_examined(dtype: torch.dtype) -> None:
    report = causal(Small().to(dtype))
    assert report.verdict == "healthy", str(report)


def test_what_only_spreads_or_compiles_a_model_is_taken_off() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch.compile imports warns of itself
        compiled = torch.compile(Small(), backend="eager")
    for model in (nn.DataParallel(Small()), compiled):
        assert isinstance(model, nn.Module)
        report = causal(model)
        assert report.verdict == "healthy", str(report)
        assert f"without the {type(model).__name__} around it" in report.paths
    in_place = Small()
    in_place.compile(backend="eager")
    assert causal(in_place).verdict == "healthy"


def test_a_scripted_model_is_a_black_box_and_judged_as_one() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch asks for something newer
        model = torch.jit.script(Small())
    report = causal(model)
    assert (report.verdict, report.exit_code) == ("partial", 3), str(report)  # what looks inside could not be made
    assert next(check.status for check in report.checks if check.name == "dependencies") == "pass"


def test_a_class_is_made_into_its_model(tmp_path: Path) -> None:
    path = tmp_path / "class_target.py"
    path.write_text("import torch\nclass Mine(torch.nn.Linear):\n    def __init__(self):\n"
                    "        super().__init__(2, 2)\n", encoding="utf-8")  # fmt: skip
    assert type(load(f"{path}:Mine")).__name__ == "Mine"


class Unmannerly(Small):
    """Changes, whenever it is called, everything that a process has one of."""

    def forward(self, ids: Tensor) -> Tensor:
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)
        torch.set_grad_enabled(torch.is_grad_enabled())
        random.seed(1)
        numpy.random.seed(1)
        torch.manual_seed(1)
        return super().forward(ids)


def test_what_a_model_changes_for_all_is_changed_back() -> None:
    def state() -> tuple[Any, ...]:
        drawn = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]
        return drawn, torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled()

    model = Unmannerly()
    before = state()
    report = causal(model)
    assert state() == before
    assert report.verdict == "healthy", str(report)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.device("meta")])
def test_what_is_set_for_all_does_not_stand_in_the_way(mode: Callable[[], Any]) -> None:
    model = Small()
    with mode():
        report = causal(model)
    assert report.verdict == "healthy", str(report)
    assert not [one for one in report.checks if "could not be made" in one.note], str(report)


def test_without_time_nothing_is_claimed() -> None:
    report = causal(Small(), seconds=0.0)
    assert {one.status for one in report.checks} == {"skip"}
    assert {one.note for one in report.checks} == {"no time was left"}
    assert report.verdict == "unknown"


# --- refused in a sentence ---


def lazy() -> nn.Module:
    model = Small()
    model.head = nn.LazyLinear(V)
    return model


def quantized() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch asks for something newer
        made: nn.Module = torch.ao.quantization.quantize_dynamic(Small(), {nn.Linear})  # type: ignore[no-untyped-call]
        return made


class Returns(Small):
    """What it returns has nothing of logits."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, ids: Tensor) -> Any:
        return self.value


class Recursive(Small):
    def forward(self, ids: Tensor) -> Tensor:
        return self.forward(ids)


class Greedy(Small):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) + torch.empty(1 << 50).sum()


class OnCuda(Small):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids.cuda())


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "lazy": (lazy, "head.weight of Small has no shape yet; call the model once"),
    "meta": (lambda: Small().to("meta"), "table.weight of Small is on the meta device and has no numbers"),
    "quantized": (quantized, "of Small is quantized"),
    "no module": (lambda: 3, "a torch.nn.Module can be examined, not an int"),
    "class": (lambda: Small, "a torch.nn.Module can be examined, not a type"),
    "nothing": (lambda: Returns(None), "no way was found to call Returns with token ids"),
    "number": (lambda: Returns(3.0), "no way was found to call Returns with token ids"),
    "pooled": (lambda: Returns(torch.zeros(5, V)), "no way was found to call Returns with token ids"),
    "recursive": (Recursive, "RecursionError"),
    "greedy": (Greedy, "needs more memory than there is: make the model smaller"),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_examined_is_refused_in_a_sentence(name: str) -> None:
    make, said = REFUSED[name]
    with pytest.raises(DataError, match=said):
        causal(make())


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what the model asks for")
def test_a_model_that_needs_cuda_is_told_that_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"OnCuda cannot be called .*this machine has no CUDA"):
        causal(OnCuda())
    path = tmp_path / "cuda_target.py"
    path.write_text("import torch\ndef build():\n    return torch.nn.Linear(2, 2).cuda()\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"cannot be called .*cuda_target.py:3\); this machine has no CUDA"):
        load(f"{path}:build")


FILES = {
    "exits": ("import sys\ndef build():\n    sys.exit(3)\n", "cannot be called (SystemExit: 3"),
    "asks": ("def build():\n    return input()\n", "cannot be called (EOFError"),
    "endless": ("def build():\n    return build()\n", "cannot be called (RecursionError"),
    "greedy": ("import torch\ndef build():\n    return torch.ones(1 << 50)\n", "needs more memory than there is"),
    "arguments": ("def build(size, *, depth):\n    return size\n", "needs arguments (size, depth); add a function"),
    "lost": ("import no_such_package_at_all\n", "cannot be imported (ModuleNotFoundError"),
    "loud": ("raise SystemExit\n", "cannot be imported (SystemExit"),
    "later": (
        "import sys, torch\nclass M(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(2, 2)\n"
        "    def forward(self, ids):\n        sys.exit(5)\n",
        "calls sys.exit(5) where it should continue",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_code_that_misbehaves_gets_a_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = FILES[name]
    (tmp_path / f"{name}_target.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    name = f"{name}_target.py:" + ("M" if name == "later" else "build")
    told = answer_to(asdict(Request(name, kind="causal")) | {"timeout": 60.0})
    assert told["exit_code"] == 3
    assert said in str(told["error"])
    assert "\n" not in str(told["error"])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit")
def test_a_call_that_needs_too_much_memory_is_an_error_and_not_the_end() -> None:
    code = (
        "import os, torch\nfrom clearhead.doctor.__main__ import _limit_memory\n_limit_memory()\n"
        "size = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')\n"
        "try: torch.empty(size * 9 // 10, dtype=torch.uint8)\nexcept RuntimeError: print('an error')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "an error\n", done.stderr
