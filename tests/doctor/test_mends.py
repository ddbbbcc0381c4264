"""A fault does not hide the next, and an accusation holds for each input by itself."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from doctor_helpers import made, write
from torch import Tensor, nn

from clearhead.doctor import check, examination
from clearhead.doctor.mending import mended
from clearhead.doctor.probes.masking import causally_masked
from clearhead.doctor.subject import Subject

V, D = 41, 16
UNMASKED = ('        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))\n', "")
HEAD = "logits = self.head(self.ln_f(x))"
NOISY = (HEAD, "logits = self.head(self.ln_f(x) + torch.randn_like(x))")
AVERAGED = (HEAD, "logits = self.head(self.ln_f(x) + x.mean(1, keepdim=True))")


def outcome(path: Path, name: str) -> str:
    return next(checked.status for checked in check(made(path)).checks if checked.name == name)


def test_what_leaks_for_want_of_a_mask_is_masked_and_examined_further(tmp_path: Path) -> None:
    assert outcome(write(tmp_path, "gpt", UNMASKED), "paths") == "pass"
    assert outcome(write(tmp_path, "gpt", AVERAGED), "paths") == "blocked"


def test_what_is_random_is_seeded_and_examined_further(tmp_path: Path) -> None:
    report = check(made(write(tmp_path, "gpt", NOISY, UNMASKED)))
    assert {"T09", "M01"} <= {finding.id for finding in report.findings if finding.status == "fail"}
    assert "P02" not in report


def test_a_mend_that_does_not_help_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Subject] = []

    def noted(*arguments: Any) -> Subject | None:
        repaired = mended(*arguments)
        tried.extend([repaired] if repaired else [])
        return repaired

    monkeypatch.setattr(examination, "mended", noted)
    check(made(write(tmp_path, "gpt", UNMASKED, AVERAGED)))
    (rejected,) = tried
    inputs = rejected.inputs(2)
    with causally_masked():
        masked = rejected.run(inputs)
    assert not torch.equal(rejected.run(inputs), masked)


class Captioner(nn.Module):
    """Words with a mask of their own, and a picture's parts without."""

    def __init__(self, hides: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hides = hides
        self.words, self.places, self.parts = nn.Embedding(V, D, padding_idx=0), nn.Embedding(64, D), nn.Linear(12, D)
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))
        self.head = nn.Linear(D, V)

    def forward(self, x: Tensor, image_features: Tensor, tgt_padding_mask: Tensor | None = None) -> Tensor:
        memory = self.parts(image_features).mean(1, keepdim=True)
        x = self.words(x) + self.places.weight[: x.shape[1]]
        hidden = None if tgt_padding_mask is None or not self.hides else ~tgt_padding_mask[:, None]
        x = x + F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), attn_mask=hidden)
        return self.head(x + memory)  # type: ignore[no-any-return]


@pytest.mark.parametrize("hides", [True, False])
def test_of_several_inputs_a_mask_hides_its_own(hides: bool) -> None:
    assert ("M11" in check(Captioner(hides))) is not hides


class TinyBert(nn.Module):
    """A mask that hides what is True in it; a triangle that was left over."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(V, D), nn.Embedding(64, D)
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))
        self.head = nn.Linear(D, V)
        self.register_buffer("bias", torch.ones(64, 64).tril())

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        scores = self.q(x) @ self.k(x).mT / D**0.5
        scores = scores.masked_fill(attention_mask[:, None], -1e9)
        return self.head(x + scores.softmax(-1) @ self.v(x))  # type: ignore[no-any-return]

    def generate(self, ids: Tensor) -> Tensor:
        return self(ids, torch.zeros_like(ids).bool()).argmax(-1)  # type: ignore[no-any-return]


def test_a_name_alone_proves_neither_a_kind_nor_a_polarity() -> None:
    report = check(TinyBert())
    assert "M01" not in report
    assert report["M12"].status == "warn", str(report)
    assert "in much code an attention_mask is True for padding" in report["M12"].evidence.witness


class Thrown(TinyBert):
    """Reads numbers, and masks its scores, with a number, or a copy that it throws away; or the weights as well."""

    def __init__(self, keeps: bool, score: float = -torch.inf, *, again: bool = False) -> None:
        super().__init__()
        self.keeps, self.score, self.again, self.enter = keeps, score, again, nn.Linear(12, D)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        x = self.enter(x) + self.places.weight[: x.shape[1]]
        x = x + x.mean(1, keepdim=True)
        scores = self.q(x) @ self.k(x).mT / D**0.5
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        masked = scores.masked_fill(future, self.score)
        weights = (masked if self.keeps else scores).softmax(-1)
        weights = weights.masked_fill(future, 0.0) if self.again else weights
        return self.head(x + weights @ self.v(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "found"),
    [(Thrown(True), None), (Thrown(False), "M01"), (Thrown(True, 1e-9), "M01"), (Thrown(True, 1e-9, again=True), None)],
)
def test_a_mask_that_hides_nothing(model: nn.Module, found: str | None) -> None:
    failed = {finding.check: finding.id for finding in check(model).findings if finding.status == "fail"}
    assert failed.get("discarded") == found, failed


class Latents(TinyBert):
    """Causal: hides the padding of a prefix, whose end it is told; what comes after it has no padding."""

    def forward(self, ids: Tensor, prefix_len: int, pad_mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        hidden = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        if pad_mask is not None:
            hidden = hidden | (pad_mask & (torch.arange(ids.shape[1]) < prefix_len))[:, None]
        scores = (self.q(x) @ self.k(x).mT / D**0.5).masked_fill(hidden, -1e30)
        return self.head((x + scores.softmax(-1) @ self.v(x))[:, prefix_len:])  # type: ignore[no-any-return]


def test_padding_that_is_hidden_in_a_prefix_is_no_failure() -> None:
    assert "M11" not in {finding.id for finding in check(Latents()).findings if finding.status == "fail"}
