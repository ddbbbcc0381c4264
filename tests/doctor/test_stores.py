"""Caches that the caller makes, and caches in the model's own buffers: decoding with them is found out and judged."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead.doctor import check

V, D = 40, 16


class KVStore:
    """What one request has read."""

    shared: list[Tensor] = []  # noqa: RUF012 - the fault that is looked for

    def __init__(self) -> None:
        self.own: list[Tensor] = []


class Summing(nn.Module):
    """Adds up what stands before, scaled by the number of the token."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.tokens, self.positions, self.head = nn.Embedding(V, D), nn.Embedding(64, D), nn.Linear(D, V)

    def read(self, ids: Tensor, before: Tensor | None, begin: int) -> tuple[Tensor, Tensor]:
        begin = 0 if self.fault == "positions" else begin
        x = torch.tanh(self.tokens(ids) + self.positions(torch.arange(begin, begin + ids.shape[1])))
        whole = x if before is None else torch.cat((before, x), dim=1)
        logits: Tensor = self.head(whole.cumsum(1)[:, -ids.shape[1] :])
        return logits, whole


class GivenAStore(Summing):
    def forward(self, ids: Tensor, cache: KVStore | None = None) -> Tensor:
        kept = [] if cache is None else KVStore.shared if self.fault == "shared" else cache.own
        logits, whole = self.read(ids, kept[-1] if kept else None, kept[-1].shape[1] if kept else 0)
        kept.append(whole)
        return logits


class KeepsItInside(Summing):
    kept: Tensor

    def __init__(self, fault: str = "") -> None:
        super().__init__(fault)
        self.register_buffer("kept", torch.zeros(8, 64, D))

    def forward(self, ids: Tensor, start_pos: int | None = None) -> Tensor:
        begin = start_pos or 0
        before = self.kept[: len(ids), :begin] if begin else None
        logits, whole = self.read(ids, before, begin)
        if start_pos is not None:
            self.kept[: len(ids), : whole.shape[1]] = whole.detach()
        return logits


class IsReset(KeepsItInside):
    """Its cache is used where it is told to, and emptied by a method; without that, it goes on behind what it read."""

    def __init__(self, fault: str = "") -> None:
        super().__init__(fault)
        self.begin = 0

    def reset_kv_cache(self) -> None:
        self.begin = 0

    def forward(self, ids: Tensor, use_cache: bool = False) -> Tensor:  # type: ignore[override]
        logits: Tensor = super().forward(ids, self.begin if use_cache else None)
        if use_cache:
            self.begin += ids.shape[1]
        return logits


class HandsOn(Summing):
    """Two marks stand before every row, so the next position is not the number of tokens: the model returns it."""

    def forward(self, ids: Tensor, cache: Tensor | None = None, start: int = 0) -> tuple[Tensor, Tensor, int]:
        begin = start or 2
        logits, whole = self.read(ids, cache, begin)
        return logits, whole, begin + ids.shape[1] + (self.fault == "off by one")


class ReadsWholeRows(Summing):
    """Its caller makes the state and gives whole rows; it takes their last token, and returns all that it computed."""

    def forward(self, ids: Tensor, incremental_state: dict[str, Tensor] | None = None) -> tuple[Tensor, dict[str, Any]]:
        before = None
        if incremental_state is not None:
            ids, before = ids[:, -1:], incremental_state.get("before")
        logits, whole = self.read(ids, before, 0 if before is None else before.shape[1])
        if incremental_state is not None:
            incremental_state["before"] = whole
        return logits, {"inner_states": [whole]}


class OnlyCounts(Summing):
    """Told where tokens begin, it counts from there and remembers nothing."""

    def forward(self, ids: Tensor, start_pos: int = 0) -> Tensor:
        return self.read(ids, None, start_pos)[0]


class LooksAhead(Summing):
    """Every token sees the whole row; what it hands out as a cache is the row so far."""

    def forward(self, ids: Tensor, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
        _, whole = self.read(ids, cache, 0 if cache is None else cache.shape[1])
        logits: Tensor = self.head(whole[:, -ids.shape[1] :] + whole.sum(1, keepdim=True))
        return logits, whole


@pytest.mark.parametrize("model", [GivenAStore(), KeepsItInside(), IsReset(), HandsOn(), ReadsWholeRows(), OnlyCounts(),
                                   LooksAhead()])  # fmt: skip
def test_sound_caches_are_followed(model: nn.Module) -> None:
    report = check(model, only=["K01"])
    assert not report.findings, str(report)
    status = next(one.status for one in report.checks if one.name == "caches")
    assert status == ("skip" if isinstance(model, (OnlyCounts, LooksAhead)) else "pass"), str(report)


@pytest.mark.parametrize(
    ("model", "id"),
    [
        (GivenAStore("positions"), "K01"),
        (KeepsItInside("positions"), "K01"),
        (IsReset("positions"), "K01"),
        (HandsOn("off by one"), "K01"),
        (ReadsWholeRows("positions"), "K01"),
        (GivenAStore("shared"), "K06"),
    ],
)
def test_faulty_ones_are_told(model: nn.Module, id: str) -> None:
    KVStore.shared.clear()
    report = check(model, only=["K01", "K06"])
    assert [(finding.id, finding.status) for finding in report.findings] == [(id, "fail")], str(report)
