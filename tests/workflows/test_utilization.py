"""How well a training uses its devices: by hand, and as the records, the console and the report have it."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from clearhead.config import RunConfig
from clearhead.inspection import flops_per_token
from clearhead.training import Stepped
from clearhead.workflows.events import Started
from clearhead.workflows.gpu_peaks import PEAKS, gpu_peak
from clearhead.workflows.narration import Narrator
from clearhead.workflows.progress import StreamScreen
from clearhead.workflows.runs.history import History
from clearhead.workflows.runs.records import record_of
from clearhead.workflows.utilization import Utilization

CPU = torch.device("cpu")
GPUS = {
    "NVIDIA H100 80GB HBM3": 989.4,
    "NVIDIA H100 PCIe": 756.5,
    "NVIDIA H100 NVL": 835.5,
    "NVIDIA A100-SXM4-80GB": 312.0,
    "NVIDIA L4": 121.0,
    "NVIDIA L40S": 362.0,
    "NVIDIA GeForce RTX 4090": 165.2,
    "NVIDIA GeForce RTX 4090 D": None,
    "NVIDIA GeForce RTX 4090 Laptop GPU": None,
    "Tesla T4": None,
    "NVIDIA GeForce GTX 1080": None,
}


@pytest.mark.parametrize("name", GPUS)
def test_a_gpu_is_known_by_its_name(name: str) -> None:
    peak = GPUS[name]
    assert gpu_peak(name, bfloat16=True) == (None if peak is None else 1e12 * peak)
    in_float32 = gpu_peak(name, bfloat16=False)
    assert in_float32 is None or peak is None or in_float32 < 1e12 * peak


def test_no_gpu_is_hidden_behind_a_shorter_name() -> None:
    for piece, in_bfloat16, _ in PEAKS:
        assert gpu_peak(f"NVIDIA {piece}", bfloat16=True) == (None if in_bfloat16 is None else 1e12 * in_bfloat16)


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_utilization_is_what_the_model_needs_of_what_the_devices_do(objective: str) -> None:
    architecture = "encoder" if objective == "masked" else "decoder"
    config = RunConfig.read({"objective": objective, "model": {"architecture": architecture}})
    alone = Utilization.of(config, CPU)
    assert alone.peak is None
    assert set(alone.record(step(tokens=100, seconds=2.0))) == {"peak_memory"}
    shared = replace(alone, n_devices=4, peak=1e12)
    whole = config.train.batch_size * config.model.block_size
    record = shared.record(step(tokens=100, seconds=2.0))
    assert record["tokens_per_second_per_device"] == 100 / 2.0 / 4
    tokens = 100 if objective == "causal" else whole  # whatever is masked, all of the batch is computed
    assert record["mfu"] == pytest.approx(3 * flops_per_token(config.model) * tokens / 2.0 / 4e12, abs=1e-4)
    line = json.dumps({"kind": "step", "step": 1, "loss": 1.0, "tokens": 100, "seconds": 2.0, **record})
    history = History.of([record_of(line) or {}])
    assert history.peak_memory == record["peak_memory"]
    assert list(history.mfu) == [(1, 100 * float(record["mfu"] or 0))]
    assert record_of(line.replace('"mfu": ', '"mfu": "')) is None


def step(tokens: int, seconds: float) -> Stepped:
    return Stepped(1, 1.0, 0.1, 0.1, tokens, seconds, skipped=False)


def test_the_console_says_it_where_there_is_something_to_say(capsys: pytest.CaptureFixture[str]) -> None:
    alone = Utilization(CPU, 1, 10**9, None, None)
    for utilization, news in (
        (alone, "50 tokens/s  rate"),
        (replace(alone, n_devices=2), "50 tokens/s (25 per device)  rate"),
        (replace(alone, n_devices=2, peak=1e11), "50 tokens/s (25 per device)  MFU 25.0%  rate"),
    ):
        narrator = Narrator(StreamScreen(sys.stdout, rewrites=False))
        narrator.tell(Started(Path("run"), 0, 10, None, utilization=utilization))
        narrator.tell(step(tokens=100, seconds=2.0))
        assert news in capsys.readouterr().out
