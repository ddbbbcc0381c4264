"""What only a GPU can show: it computes what the CPU does, and a training step waits for it once. Skipped elsewhere.

Every model here is tiny, in float32 and without TF32, so that both devices agree to rounding.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead.config.presets import PRESETS
from clearhead.doctor import check
from clearhead.errors import FaultError
from clearhead.inference import beam_search
from clearhead.models import build_model
from clearhead.training import Stepped, fit
from clearhead.workflows.run import Run

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
    pytest.mark.timeout(300),  # torch.compile starts cold
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:torch"),  # of the compiler's own
]
GPU = torch.device("cuda")
MODEL = {"n_layers": 2, "n_heads": 2, "n_kv_heads": 2, "d_model": 32, "block_size": 32, "dropout": 0.0}
FAMILIES = ["tutorial", "llama", "tiny"]  # learned positions and AdamW; rotary; the default, with Muon


def config_of(name: str, **train: Any) -> ch.RunConfig:
    options = {"model": {**MODEL, "vocab_size": 65}, "train": {"batch_size": 8, "precision": "float32", **train}}
    return ch.RunConfig.read(PRESETS[name].options, options)


def batch(step: int) -> tuple[Tensor, Tensor]:
    """(8, 32) ids and the tokens that follow them; the same on every device."""
    starts = torch.randint(65, (8, 1), generator=torch.Generator().manual_seed(step))
    ids = (starts + 3 * torch.arange(33)) % 65  # counting by threes is soon learned
    return ids[:, :-1], ids[:, 1:]


def losses_on(device: str, name: str, compiled: str) -> list[float]:
    config = config_of(name, steps=12, warmup_steps=2, compile=compiled)
    model = build_model(config.model, seed=1).to(device)
    return [event.loss for event in fit(model, config.train, batch, seed=1) if isinstance(event, Stepped)]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("compiled", ["off", "on"])
def test_training_gives_the_losses_of_the_cpu(name: str, compiled: str) -> None:
    expected = losses_on("cpu", name, "off")
    assert losses_on("cuda", name, compiled) == pytest.approx(expected, rel=2e-3)
    assert expected[-1] < expected[0]


def test_a_step_waits_for_the_gpu_once() -> None:
    """PyTorch refuses every other wait: the loop asks for loss and norm together, and for nothing else."""
    config = config_of("tiny", steps=8, compile="off")
    model = build_model(config.model).to(GPU)
    events = fit(model, config.train, batch, seed=1)
    for _ in range(3):
        next(events)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with pytest.warns(UserWarning, match="synchroniz") as waits:
            steps = sum(isinstance(next(events), Stepped) for _ in range(4))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    messages = [str(wait.message) for wait in waits if "synchroniz" in str(wait.message)]
    assert len(messages) == steps, messages


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_the_cpu(name: str) -> None:
    model = build_model(config_of(name).model, seed=2).eval()
    ids, _ = batch(0)
    with torch.no_grad():
        expected = model(ids)
        torch.testing.assert_close(model.to(GPU)(ids.to(GPU)).cpu(), expected, rtol=1e-4, atol=1e-4)


def test_padding_moves_nothing_on_the_gpu() -> None:
    """Rows padded on the left attend to the same tokens as alone, in the fused kernels of a GPU as well."""
    model = build_model(config_of("llama").model, seed=3).eval().to(GPU)
    ids, _ = batch(0)
    lengths = [5, 12, 32, 1, 7, 30, 16, 2]
    rows = [row[:length].to(GPU) for row, length in zip(ids, lengths, strict=True)]
    padded = torch.stack([torch.cat([row.new_zeros(32 - len(row)), row]) for row in rows])
    positions = ch.positions_from_lengths(torch.tensor(lengths), 32, "left").to(GPU)
    with torch.no_grad():
        together = model(padded, positions=positions)
        for logits, row in zip(together, rows, strict=True):
            torch.testing.assert_close(logits[-len(row) :], model(row[None])[0], rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that was trained on the GPU, with torch.compile, in the precision that it chooses."""
    folder = tmp_path_factory.mktemp("gpu")
    text = folder / "my.txt"
    text.write_text("To be, or not to be, that is the question.\n" * 200, encoding="utf-8")
    train = {"steps": 60, "batch_size": 8, "eval_every": 30, "save_every": 20, "device": "cuda"}
    return ch.train(text, out=folder / "run", options={"model": MODEL, "train": train})


def test_a_run_generates_alike_on_both_devices(run: Run) -> None:
    prompts = ["To be", "that is"]
    on_gpu = run.generate(prompts, max_new_tokens=40, greedy=True, device="cuda")
    assert on_gpu == run.generate(prompts, max_new_tokens=40, greedy=True, device="cpu")
    assert "question" in on_gpu[0]


def test_a_run_is_evaluated_alike_on_both_devices(run: Run) -> None:
    on_gpu, on_cpu = (ch.evaluate(run, device=device) for device in ("cuda", "cpu"))
    assert on_gpu.loss == pytest.approx(on_cpu.loss, rel=1e-3)


def test_a_training_resumes_on_the_gpu(run: Run, tmp_path: Path) -> None:
    """Half of the steps are taken on the CPU, the rest on the GPU."""
    text = run.folder.parent / "my.txt"
    train = {"steps": 20, "batch_size": 8, "save_every": 5, "precision": "float32", "compile": "off"}
    train |= {"schedule": "constant", "warmup_steps": 2}  # neither depends on the number of steps
    first = ch.train(text, out=tmp_path / "a", options={"model": MODEL, "train": {**train, "device": "cpu"}})
    more = ch.resume(first, options={"train": {"steps": 40, "device": "cuda"}})
    whole = ch.train(text, out=tmp_path / "b", options={"model": MODEL, "train": {**train, "steps": 40}})
    assert ch.evaluate(more).loss == pytest.approx(ch.evaluate(whole).loss, rel=0.01)


def test_beam_search_on_the_gpu_finds_what_the_cpu_finds() -> None:
    options = {"model": {**MODEL, "vocab_size": 40, "pad_id": 0}}
    config = ch.RunConfig.read(PRESETS["vaswani2017"].options, options).model
    torch.manual_seed(4)
    model = ch.EncoderDecoder(config).eval()
    sources = [[5, 6, 7, 2], [9, 2], [11, 12, 13, 14, 15, 2]]
    search = ch.TranslationConfig(beam_size=4, max_new_tokens=12)
    on_cpu = beam_search(model, sources, search, end=2)
    on_gpu = beam_search(model.to(GPU), sources, search, end=2)
    for expected, hypotheses in zip(on_cpu, on_gpu, strict=True):
        assert [hypothesis.ids for hypothesis in hypotheses] == [hypothesis.ids for hypothesis in expected]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_doctor_finds_nothing_on_the_gpu_in_a_healthy_model(name: str) -> None:
    check(build_model(config_of(name).model, seed=5), device="cuda").raise_if_failed()


class SeesTheFuture(ch.DecoderLM):
    """Mixes the next token into each position."""

    def forward(self, ids: Tensor, **options: Any) -> Tensor:
        return super().forward(ids, **options) + 0.1 * super().forward(ids.roll(-1, 1), **options)


def test_the_doctor_finds_a_leak_on_the_gpu() -> None:
    with pytest.raises(FaultError, match=r"future|later"):
        check(SeesTheFuture(config_of("tutorial").model), device="cuda").raise_if_failed()
