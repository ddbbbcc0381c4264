"""Targets and padding, held to what the file of a model says about them."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from doctor_helpers import made
from torch import Tensor, nn

from clearhead.doctor import check
from clearhead.doctor.loss_examination import examine_loss

FILE = """
import torch
import torch.nn.functional as F
from torch import nn


class Texts:
    def __init__(self, tokens):
        self.tokens = tokens

    def __getitem__(self, index):
        {data}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.mixing, self.head = nn.Embedding(41, 16), nn.Linear(16, 16), nn.Linear(16, 41)

    def forward(self, ids, targets=None):
        x = self.words(ids)
        logits = self.head(x + torch.tanh(self.mixing(x).cumsum(1) / torch.arange(1, ids.shape[1] + 1)[:, None]))
        if targets is None:
            return logits, None
        return logits, {loss}


def build():
    torch.manual_seed(0)
    return Model()
"""
PAIR = "return self.tokens[index : index + 8], self.tokens[index + 1 : index + 9]"
CHUNK = "chunk = self.tokens[index]\n        x, y = chunk[:-1], chunk[1:]\n        return x, y"
ROW = "return self.tokens[index : index + 8], self.tokens[index : index + 8]"
STRAIGHT = "F.cross_entropy(logits.flatten(0, 1), targets.flatten())"
SHIFTED = "F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten())"


@pytest.mark.parametrize(
    ("data", "loss", "ids"),
    [
        (PAIR, STRAIGHT, []),
        (CHUNK, STRAIGHT, []),
        (ROW, SHIFTED, []),
        (PAIR, SHIFTED, ["D02"]),
        (CHUNK, SHIFTED, ["D02"]),
    ],
)
def test_targets_that_a_data_set_has_shifted_are_not_shifted_again(
    data: str, loss: str, ids: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "model.py"
    path.write_text(FILE.format(data=data, loss=loss), "utf-8")
    report = check(made(path), only=["losses"])
    assert [finding.id for finding in report.findings] == ids, str(report)


class Padded(nn.Module):
    """A healthy model that knows padding, in its embedding and in its loss; other losses are in the classes below."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(41, 16, padding_idx=0)
        self.mixing, self.head = nn.Linear(16, 16), nn.Linear(16, 41)

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        x = self.words(ids)
        x = x + torch.tanh(self.mixing(x).cumsum(1) / torch.arange(1, ids.shape[1] + 1)[:, None])
        logits = self.head(x)
        return logits if targets is None else (logits, self.loss(logits, targets))

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        mask = y != 0
        return (F.cross_entropy(logits.mT, y, reduction="none") * mask).sum() / mask.sum()


class TooLate(Padded):
    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        mask = y != 0
        return (F.cross_entropy(logits.mT, y) * mask).sum() / mask.sum()


class Undeclared(Padded):
    """Only the loss knows it."""

    def __init__(self) -> None:
        super().__init__()
        self.words.padding_idx = None


class OverAll(Padded):
    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return (F.cross_entropy(logits.mT, y, reduction="none") * (y != 0)).mean()


class Unaware(Padded):
    """Its caller marks padding by -100."""

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits.mT, y)


class Marked(Padded):
    """The same, and it counts its targets."""

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits.mT, y, reduction="sum") / (y != -100).sum()


@pytest.mark.parametrize(
    ("kind", "ids"),
    [(Padded, []), (Undeclared, ["L08"]), (Unaware, []), (Marked, []), (TooLate, ["D05"]), (OverAll, ["L01"])],
)
def test_a_loss_that_looks_for_padding_does_not_count_it(kind: type[Padded], ids: list[str]) -> None:
    report = check(kind(), only=["losses"])
    assert [finding.id for finding in report.findings] == ids, str(report)


def summed(logits: Tensor, labels: Tensor, pad_id: int) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=pad_id)


def forgetful(logits: Tensor, labels: Tensor, pad_idx: int) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=0)


def computed(logits: Tensor, labels: Tensor) -> Tensor:
    return summed(logits, labels, pad_id=1)


def computed_of_others(logits: Tensor, labels: Tensor) -> Tensor:
    return forgetful(logits, labels, pad_idx=1)


def test_the_padding_that_a_loss_passes_on_by_name_is_not_scored() -> None:
    assert not [f for f in examine_loss(computed, "computed").findings if f.status == "fail"]
    assert "D05" in [f.id for f in examine_loss(computed_of_others, "computed_of_others").findings]
