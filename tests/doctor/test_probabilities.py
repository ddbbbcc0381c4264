"""A softmax at a model's end is a fault where the loss beside it takes logits."""

from pathlib import Path

import pytest
from doctor_helpers import made
from torch import nn

from clearhead.doctor import check

FILE = """
import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(41, 16), nn.Linear(16, {classes})

    def forward(self, ids):
        logits = self.head(torch.tanh(self.words(ids)){pooled})
        return {returned}


def loss_of(model, ids, targets):
    return {loss}


def build():
    torch.manual_seed(0)
    return Classifier()
"""
CROSS_ENTROPY = "nn.functional.cross_entropy(model(ids), targets)"


def model(folder: Path, returned: str, loss: str, pooled: str) -> nn.Module:
    path = folder / "classifier.py"
    path.write_text(FILE.format(returned=returned, loss=loss, pooled=pooled, classes=5 if pooled else 41), "utf-8")
    return made(path)


@pytest.mark.parametrize("pooled", ["", ".mean(1)"])
@pytest.mark.parametrize(
    ("returned", "loss", "found"),
    [
        ("logits", CROSS_ENTROPY, []),
        ("logits.softmax(-1)", CROSS_ENTROPY, [("L03", "fail")]),
        ("logits.softmax(-1)", "nn.NLLLoss()(model(ids), targets)", [("L03", "fail")]),
        ("logits.log_softmax(-1)", "nn.NLLLoss()(model(ids), targets)", []),
        ("logits.softmax(-1)", "-model(ids).log()[targets].mean()", [("L03", "warn")]),
        ("logits if self.training else logits.softmax(-1)", CROSS_ENTROPY, []),
        ("logits.sigmoid()", CROSS_ENTROPY, []),
    ],
)
def test_probabilities_for_a_loss_of_logits(
    returned: str, loss: str, found: list[tuple[str, str]], pooled: str, tmp_path: Path
) -> None:
    report = check(model(tmp_path, returned, loss, pooled), only=["probabilities"])
    assert [(finding.id, finding.status) for finding in report.findings] == found, str(report)


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("from classifier import Classifier\nloss = CrossEntropyLoss()(Classifier()(ids), targets)\n", "fail"),
        ("from classifier import Classifier\nloss = NLLLoss()(Classifier()(ids).log(), targets)\n", "warn"),
        ("from elsewhere import Classifier\nloss = CrossEntropyLoss()(Classifier()(ids), targets)\n", "warn"),
        ("from classifier import Other\nloss = CrossEntropyLoss()(Other()(ids), targets)\n", "warn"),
    ],
)
def test_the_loss_may_be_in_the_script_that_trains_it(script: str, status: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script, "utf-8")
    report = check(model(tmp_path, "logits.softmax(-1)", "None", ""), only=["probabilities"])
    assert [(finding.id, finding.status) for finding in report.findings] == [("L03", status)], str(report)
