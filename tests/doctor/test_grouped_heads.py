"""Query heads that share keys and values: neighbors, in turns, or keys of one head beside values of another."""

import pytest
import torch
import torch.nn.functional as F
from causal_helpers import Block, CausalModel, D
from torch import Tensor, nn

from clearhead import doctor

HEADS, GROUPS, WIDTH = 4, 2, 6


def neighbors(x: Tensor) -> Tensor:
    return x.repeat_interleave(HEADS // GROUPS, dim=1)


def in_turns(x: Tensor) -> Tensor:
    return x.repeat(1, HEADS // GROUPS, 1, 1)


class Grouped(nn.Module):
    def __init__(self, keys: str, values: str) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(D, HEADS * WIDTH), nn.Linear(D, 2 * GROUPS * WIDTH)
        self.out, self.ways = nn.Linear(HEADS * WIDTH, D), (keys, values)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        B, T, _ = x.shape
        q = self.q(x).view(B, T, HEADS, WIDTH).transpose(1, 2)
        kv = self.kv(x).view(B, T, 2, GROUPS, WIDTH).permute(2, 0, 3, 1, 4)
        k, v = (globals()[way](part) for way, part in zip(self.ways, kv, strict=True))
        weights = (q @ k.mT / WIDTH**0.5).masked_fill(~allowed, -torch.inf).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(B, T, -1))  # type: ignore[no-any-return]


class Fused(Grouped):
    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        B, T, _ = x.shape
        q = self.q(x).view(B, T, HEADS, WIDTH).transpose(1, 2)
        k, v = self.kv(x).view(B, T, 2, GROUPS, WIDTH).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).reshape(B, T, -1))  # type: ignore[no-any-return]


def examined(attention: nn.Module) -> doctor.Report:
    block = Block()
    block.attention = attention  # type: ignore[assignment]
    return doctor.check(CausalModel(block), only=["A07"])


@pytest.mark.parametrize("kind", [Grouped, Fused])
def test_heads_may_share_keys_with_their_values(kind: type[Grouped]) -> None:
    torch.manual_seed(0)
    assert not examined(kind("neighbors", "neighbors")).findings
    assert not examined(kind("in_turns", "in_turns")).findings


def test_keys_of_one_head_beside_values_of_another() -> None:
    torch.manual_seed(0)
    report = examined(Grouped("in_turns", "neighbors"))
    assert [(one.id, one.status, one.where.module) for one in report.findings] == [
        ("A07", "fail", "blocks.0.attention")
    ], str(report)
