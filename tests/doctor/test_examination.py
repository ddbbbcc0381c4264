"""The examination as a whole: what is given back, waived, blocked and told."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from doctor_helpers import made, write
from torch import Tensor, nn

from clearhead.config import ModelConfig
from clearhead.doctor import Report, Spec, check
from clearhead.doctor.checks import CHECKS
from clearhead.doctor.examination import chosen
from clearhead.errors import FaultError, UsageError
from clearhead.models import build_model

SHAPE = {"vocab_size": 41, "block_size": 24, "n_layers": 2, "n_heads": 2, "d_model": 16}
OWN: list[dict[str, Any]] = [
    {},
    {"positions": "rope", "norm": "rmsnorm", "feedforward": "swiglu", "n_kv_heads": 1, "qk_norm": True},
    {"positions": "alibi", "norm_position": "post", "bias": True},
    {"positions": "sinusoidal", "feedforward": "relu", "tie_embeddings": False},
    {"positions": "relative", "scale_attention": False, "scale_logits": True},
    {"positions": "rope", "sliding_window": 5, "dropout": 0.2, "attention_dropout": 0.2},
    {
        "positions": "rope",
        "partial_rotary_factor": 0.5,
        "parallel_residual": True,
        "embedding_norm": True,
        "head_bias": True,
    },
    {"positions": "rope", "embedding_ngrams": 3, "logit_ngrams": 4, "tie_embeddings": False},
    {"architecture": "encoder"},
    {
        "architecture": "encoder",
        "norm_position": "post",
        "pad_id": 0,
        "n_token_types": 2,
        "head_transform": True,
        "bias": True,
    },
    {"architecture": "encoder", "positions": "rope", "parallel_residual": True},
    {"architecture": "encoder_decoder", "pad_id": 0},
    {"architecture": "encoder_decoder", "norm_position": "post", "positions": "sinusoidal", "scale_embedding": True},
    {"architecture": "encoder_decoder", "source_vocab_size": 23, "positions": "relative", "norm": "rmsnorm"},
    {"architecture": "bigram"},
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("options", OWN, ids=str)
def test_our_own_models_are_healthy(options: dict[str, Any]) -> None:
    report = check(build_model(ModelConfig.read(SHAPE, options), seed=1), level="standard")
    assert report.verdict == "healthy", str(report)
    assert not report.findings, str(report)
    kinds = {"encoder": "bidirectional", "encoder_decoder": "seq2seq"}
    assert report.kind == kinds.get(options.get("architecture", ""), "causal")
    assert not [c for c in report.checks if c.status == "blocked" or "could not be made" in c.note], str(report)


def snapshot(model: nn.Module) -> dict[str, Any]:
    def bits(tensor: Tensor) -> tuple[int, bytes]:
        return id(tensor), tensor.detach().numpy().tobytes()

    return {
        "tensors": {name: bits(t) for name, t in (*model.named_parameters(), *model.named_buffers())},
        "gradients": {name: bits(p.grad) for name, p in model.named_parameters() if p.grad is not None},
        "modes": [module.training for module in model.modules()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()],
        "attributes": [sorted(vars(module)) for module in model.modules()],
        "random": torch.get_rng_state().numpy().tobytes(),
        "global hooks": len(nn.modules.module._global_forward_hooks),
    }


@pytest.mark.sampled(3)
@pytest.mark.parametrize("host", ["gpt", "translator", "bert", "time_first", "llama"])
@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_given_back_bit_for_bit(host: str, training: bool, tmp_path: Path) -> None:
    model = made(write(tmp_path, host)).train(training)
    first = next(model.parameters())
    first.grad = torch.randn(first.shape, generator=torch.Generator().manual_seed(0))
    before = snapshot(model)
    check(model, level="standard")
    assert snapshot(model) == before


def test_a_model_that_cannot_be_called_is_given_back_too() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 4)

        def forward(self, ids: Tensor) -> Tensor:
            raise ValueError("never")

    model = Broken()
    before = snapshot(model)
    with pytest.raises(Exception, match="never"):
        check(model)
    assert snapshot(model) == before


def unmasked(folder: Path) -> nn.Module:
    return made(
        write(folder, "gpt", ('        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))\n', ""))
    )


def test_what_is_allowed_is_waived_with_its_reason(tmp_path: Path) -> None:
    report = check(unmasked(tmp_path), Spec(kind="causal", allow={"M01": "a joke"}))
    assert "M01" not in report
    told = next(c for c in report.checks if c.name == "dependencies")
    assert (told.status, told.note) == ("waived", "M01: a joke")


def test_what_a_failure_would_falsify_is_blocked(tmp_path: Path) -> None:
    mean = ("self.head(self.ln_f(x))", "self.head(self.ln_f(x) + x.mean(1, keepdim=True))")
    report = check(made(write(tmp_path, "gpt", mean)))
    by_name = {checked.name: checked for checked in report.checks}
    assert by_name["dependencies"].status == "fail"
    assert by_name["paths"].status == "blocked"
    assert "dependencies" in by_name["paths"].note
    assert [checked.name for checked in report.checks] == [one.name for one in CHECKS]


def test_a_declared_kind_beats_what_the_model_looks_like(tmp_path: Path) -> None:
    healthy = check(unmasked(tmp_path), Spec(kind="bidirectional"))
    assert "M01" not in healthy
    faulty = check(made(write(tmp_path, "gpt")), Spec(kind="bidirectional"))
    assert faulty["S03"].status == "fail"


def test_only_makes_what_it_rests_on_and_nothing_else(tmp_path: Path) -> None:
    report = check(made(write(tmp_path, "gpt")), only=["M01"])
    assert {c.name for c in report.checks} == {
        "finite",
        "deterministic",
        "discarded",
        "memory",
        "rows",
        "layouts",
        "norms",
        "dependencies",
        "paths",
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"only": ["M1"]}, "there is no check 'M1'"),
        ({"level": "deeper"}, "level 'deeper' is none of quick, standard, deep"),
        ({"spec": Spec(kind="casual")}, "kind 'casual' is none of causal"),  # type: ignore[arg-type]
        ({"spec": Spec(allow={"X": "y"})}, "there is no check 'X'"),
    ],
)
def test_words_that_mean_nothing_are_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        check(nn.Linear(2, 2), **options)


def test_a_report_goes_through_json_unchanged(tmp_path: Path) -> None:
    report = check(unmasked(tmp_path))
    told = json.loads(json.dumps(report.as_json()))
    assert json.loads(json.dumps(Report.from_json(told).as_json())) == told
    assert set(told) >= {"target", "kind", "verdict", "summary", "only", "findings", "checks", "paths", "seconds"}
    finding = told["findings"][0]
    assert set(finding) >= {"id", "title", "status", "evidence", "where", "causes", "why", "fix", "repro"}
    assert set(finding["evidence"]) == {"value", "threshold", "noise_floor", "witness", "against", "second"}
    assert set(finding["where"]) == {"module", "class", "file", "line", "op", "head", "backend"}
    assert finding["causes"][0]["id"] == finding["id"]
    assert all(c["milliseconds"] >= 0 for c in told["checks"])


def test_the_report_as_a_person_reads_it(tmp_path: Path) -> None:
    text = str(check(unmasked(tmp_path)))
    first, second, *_ = text.splitlines()
    assert first.startswith("GPT is faulty: 1 fault; assumed to be causal because it is called GPT: as bidirectional ")
    assert second == "FAIL M01  future tokens reach past positions  blocks.0.attn"
    assert "#!!!" in text
    assert "changing token" in text
    assert "  passed " not in text
    assert "  passed    finite, storage, deterministic" in check(unmasked(tmp_path)).text(verbose=True)


def test_it_raises_for_tests_of_your_own(tmp_path: Path) -> None:
    check(made(write(tmp_path, "gpt"))).raise_if_failed()
    with pytest.raises(FaultError, match=r"M01 future tokens reach past positions in blocks\.0\.attn"):
        check(unmasked(tmp_path)).raise_if_failed()
    with pytest.raises(KeyError):
        check(made(write(tmp_path, "gpt")), only=["M01"])["M01"]


def test_the_guilty_line_is_told(tmp_path: Path) -> None:
    path = write(tmp_path, "gpt", ('        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))\n', ""))
    where = check(made(path))["M01"].where
    assert where.file == str(path)
    assert where.line is not None
    assert "att @ v" in path.read_text(encoding="utf-8").splitlines()[where.line - 1]


def test_a_check_is_chosen_by_its_name_or_by_what_it_can_find() -> None:
    assert [one.name for one in chosen(["norms"])] == ["finite", "deterministic", "norms"]
    assert [one for one in chosen(["K01"]) if one.name != "generations"] == chosen(["caches"])
    assert chosen([]) == list(CHECKS)


def test_what_a_check_that_was_named_finds_is_told(tmp_path: Path) -> None:
    model = made(write(tmp_path, "gpt", ("return x + self.mlp(self.ln2(x))", "return self.mlp(self.ln2(x))")))
    assert [finding.id for finding in check(model, only=["residuals"]).findings] == ["N04"]
    with pytest.raises(UsageError, match="residual"):
        check(model, only=["residual"])
