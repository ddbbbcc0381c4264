"""What writes with a model beside its class, and what writes translations, is found and held to the logits."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from clearhead.doctor import check


@torch.no_grad()
def generate_text_simple(model: nn.Module, idx: Tensor, max_new_tokens: int, context_size: int) -> Tensor:
    """Beside the class, as tutorials have it; `model.at` says which logits it takes."""
    for _ in range(max_new_tokens):
        logits = model(idx[:, -context_size:])[:, getattr(model, "at", -1)]
        idx = torch.cat((idx, logits.argmax(-1, keepdim=True)), dim=1)
    return idx


class Plain(nn.Module):
    """A model of running means; what writes with it stands beside it. `at`: where that reads the next token."""

    def __init__(self, at: int = -1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.at = at
        self.words, self.mixing, self.head = nn.Embedding(41, 16), nn.Linear(16, 16), nn.Linear(16, 41)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        x = x + torch.tanh(self.mixing(x).cumsum(1) / torch.arange(1, ids.shape[1] + 1)[:, None])
        logits: Tensor = self.head(x)
        return logits


@pytest.mark.parametrize(("at", "ids"), [(-1, []), (0, ["K11"])])
def test_a_function_beside_the_class_is_held_to_the_logits(at: int, ids: list[str]) -> None:
    report = check(Plain(at), only=["generations"])
    assert [finding.id for finding in report.findings] == ids, str(report)
    assert "what generate_text_simple() writes" in report.paths or ids
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    for fault in report.findings:
        assert lines[(fault.where.line or 0) - 1].startswith("def generate_text_simple("), "and no decorator above"


class Translator(nn.Module):
    """Reads a source, and writes a target that begins with token 1; `fault`: the target's order of reading is lost."""

    def __init__(self, fault: bool = False, prompted: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fault = fault
        self.words, self.mixing, self.head = nn.Embedding(41, 16), nn.Linear(16, 16), nn.Linear(16, 41)
        self.cross = nn.MultiheadAttention(16, 2, batch_first=True)

    def encode(self, src: Tensor) -> Tensor:
        return torch.tanh(self.mixing(self.words(src)))

    def decode(self, memory: Tensor, tgt: Tensor) -> Tensor:
        x = self.words(tgt)
        x = x + torch.tanh(self.mixing(x).cumsum(1) / torch.arange(1, tgt.shape[1] + 1)[:, None])
        logits: Tensor = self.head(x + self.cross(x, memory, memory, need_weights=False)[0])
        return logits

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.decode(self.encode(src), tgt)

    def greedy_decode(self, src: Tensor, max_len: int, start_symbol: int, end_symbol: int) -> Tensor:
        memory, ys = self.encode(src), torch.full((len(src), 1), start_symbol)
        for _ in range(max_len - 1):
            read = ys[:, -1:] if self.fault else ys
            ys = torch.cat((ys, self.decode(memory, read)[:, -1].argmax(-1, keepdim=True)), dim=1)
            if bool((ys[:, -1] == end_symbol).all()):
                break
        return ys


@pytest.mark.parametrize("fault", [False, True])
def test_what_writes_a_translation_is_held_to_the_logits(fault: bool) -> None:
    report = check(Translator(fault), only=["generations"])
    assert [(f.id, f.status) for f in report.findings] == ([("K11", "fail")] if fault else []), str(report)
    assert "what greedy_decode() writes" in report.paths
