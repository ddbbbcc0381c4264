"""What a person does with a model next raises no error, and sources as long as their targets."""

import math
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead.doctor import Spec, check

V, D, T = 41, 16, 12


def attend(q: Tensor, k: Tensor, hidden: Tensor | None = None, v: Tensor | None = None) -> Tensor:
    scores = q @ k.mT / math.sqrt(D)
    scores = scores if hidden is None else scores.masked_fill(hidden, -torch.inf)
    return scores.softmax(-1) @ (k if v is None else v)


def future(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).triu(1)


class Writer(nn.Module):
    """Causal, with a loss and a `generate`."""

    def __init__(self, *, in_place: bool = False, sets: bool = True, cuts: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.in_place, self.cuts = in_place, cuts
        self.words, self.places = nn.Embedding(V, D), nn.Embedding(T if not cuts else 64, D)
        self.q, self.k, self.v, self.head = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, V)
        if sets:
            self.width = V

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        x = self.words(ids) + (self.places.weight[: ids.shape[1]] if self.cuts else self.places.weight)
        x = x.tanh()
        n = ids.shape[1]
        branch = attend(self.q(x), self.k(x), future(n), self.v(x))
        if self.in_place:
            x += branch  # which the gradient of tanh needs
        else:
            x = x + branch
        logits = self.head(x)
        if targets is None:
            return logits, None
        return logits, nn.functional.cross_entropy(logits.view(-1, self.width), targets.view(-1))

    def generate(self, ids: Tensor, max_new_tokens: int) -> Tensor:
        for _ in range(max_new_tokens):
            ids = torch.cat([ids, self(ids)[0][:, -1:].argmax(-1)], dim=1)
        return ids


class Shifts(Writer):
    """It views what it has cut out of a batch, which works for a single row."""

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        logits, _ = super().forward(ids)
        if targets is None:
            return logits, None
        return logits, nn.functional.cross_entropy(logits[:, :-1].view(-1, V), targets[:, 1:].reshape(-1))


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (Writer(), None),
        (Writer(in_place=True), "backward"),
        (Writer(sets=False), "'width'"),
        (Writer(cuts=False), "generate()"),
        (Shifts(), "view size"),
    ],
    ids=["healthy", "in place", "not set", "not cut", "not contiguous"],
)
def test_an_ordinary_call_that_raises(model: nn.Module, word: str | None) -> None:
    report = check(model, only=["ordinary calls"])
    assert ("V03" in report) == (word is not None), str(report)
    if word:
        assert report["V03"].status == "fail"
        assert word in report["V03"].evidence.witness


class TimeFirst(Writer):
    """It views what it is given: columns of a batch."""

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        return super().forward(ids.t(), None if targets is None else targets.view(-1))


def test_targets_with_time_first_can_be_viewed() -> None:
    assert "V03" not in check(TimeFirst(), Spec(time_first=True), only=["ordinary calls"])


class Whole(Writer):
    """It reads whole rows alone, and says so where it writes."""

    def generate(self, ids: Tensor, max_new_tokens: int) -> Tensor:
        raise ValueError(f"fill the row up to {T} first")


class Later(Writer):
    """What it asks for is set by the script that trains it."""

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        logits, _ = super().forward(ids)
        return logits, None if targets is None else self.criterion(logits.view(-1, V), targets.view(-1))  # type: ignore[operator]


def test_what_a_model_wishes_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "V03" not in check(Whole(cuts=False), only=["ordinary calls"])
    assert "V03" in check(Later(), only=["ordinary calls"])
    texts = {Path("train.py"): "model.criterion = nn.CrossEntropyLoss()"}
    monkeypatch.setattr("clearhead.doctor.probes.mentions.texts_beside", lambda _: texts)
    assert "V03" not in check(Later(), only=["ordinary calls"])


class Translator(nn.Module):
    """Its cross-attention has the decoder's mask, or the target is read nowhere, or both are looked back upon."""

    def __init__(self, *, masked: bool = True, looks_back: bool = False, reads: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.masked, self.looks_back, self.reads = masked, looks_back, reads
        self.src_words, self.tgt_words, self.places = nn.Embedding(V, D), nn.Embedding(V, D), nn.Embedding(64, D)
        self.maps = nn.ModuleList(nn.Linear(D, D) for _ in range(9))
        self.head = nn.Linear(D, V)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        memory, y = (words(ids) + self.places.weight[: ids.shape[1]] for words, ids in
                     ((self.src_words, src), (self.tgt_words, tgt if self.reads else src)))  # fmt: skip
        hidden = future(tgt.shape[1]) | (tgt == 0)[:, None]  # of padding
        q, k, v, q2, k2, v2, q3, k3, v3 = self.maps
        memory = memory + attend(q(memory), k(memory), hidden if self.looks_back else None, v(memory))
        y = y + attend(q2(y), k2(y), hidden, v2(y))
        return self.head(y + attend(q3(y), k3(memory), hidden if self.masked else None, v3(memory)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (Translator(), {"S04": "fail"}),
        (Translator(looks_back=True), {}),
        (Translator(masked=False), {}),
    ],
    ids=["a decoder's mask", "step by step", "healthy"],
)
def test_a_source_as_long_as_its_target(model: nn.Module, found: dict[str, str]) -> None:
    report = check(model, Spec(kind="seq2seq"), only=["S04"])
    assert {one.id: one.status for one in report.findings if one.check == "sources"} == found, str(report)


def test_a_target_that_is_not_read() -> None:
    report = check(Translator(reads=False), only=["dependencies"])
    assert report["A13"].status == "fail", str(report)


class Emptied(Writer):
    """Rows of which nothing is left get scores of zero, so that they are finite."""

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        hidden = future(ids.shape[1]) | (ids == 0)[:, None]
        scores = (self.q(x) @ self.k(x).mT).masked_fill(hidden, -torch.inf)
        scores = scores.masked_fill(scores.isinf().all(-1, keepdim=True), 0.0)
        return self.head(x + scores.softmax(-1) @ self.v(x)), None


def test_scores_of_rows_that_see_nothing() -> None:
    assert "M11" not in check(Emptied(), only=["discarded"])


class Rotated(Writer):
    """A table of positions that a switch leaves out: it knows the order by its mask and a rotation."""

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        x = self.words(ids)
        angles = torch.arange(ids.shape[1])[:, None] / 10 ** torch.arange(0, 1, 2 / D)
        q, k = (self._turned(part(x), angles) for part in (self.q, self.k))
        return self.head(x + attend(q, k, future(ids.shape[1]), self.v(x))), None

    def _turned(self, x: Tensor, angles: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def test_a_table_of_positions_beside_a_rotation() -> None:
    report = check(Rotated(), only=["gradients"])
    assert "P01" not in report
    assert report["A13"], str(report)


class Turned(Writer):
    """Time and width are exchanged, and read as if they were not."""

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        y = attend(self.q(x), self.k(x), future(ids.shape[1]), self.v(x))
        return self.head(x + y.transpose(1, 2).contiguous().view(x.shape)), None


def test_time_and_width_exchanged_mix_no_rows() -> None:
    report = check(Turned(), only=["layouts"])
    assert report["A05"].status == "fail", str(report)


class Parted(nn.Module):
    """Tokens see one another between separators; heads of a row are to have its mask, or have those of other rows."""

    def __init__(self, exchanged: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.exchanged, self.config = exchanged, {"sep_token_id": 3}
        self.words, self.places, self.head = nn.Embedding(V, D), nn.Embedding(64, D), nn.Linear(D, V)
        self.attention = nn.MultiheadAttention(D, 4, batch_first=True)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        return self.head(x + self.attention(x, x, x, attn_mask=self.hidden(ids, mask))[0])  # type: ignore[no-any-return]

    def hidden(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        parts = (ids == 3).cumsum(1)
        hidden = parts[:, None] != parts[:, :, None]
        return hidden.repeat(4, 1, 1) if self.exchanged else hidden.repeat_interleave(4, 0)


class Told(Parted):
    """The same with a mask of queries and keys that its caller gives it."""

    def hidden(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        assert mask is not None
        hidden = ~mask
        return hidden.repeat(4, 1, 1) if self.exchanged else hidden.repeat_interleave(4, 0)


@pytest.mark.parametrize("exchanged", [False, True])
@pytest.mark.parametrize("model", [Parted, Told])
def test_heads_with_the_masks_of_other_rows(model: type[Parted], exchanged: bool) -> None:
    report = check(model(exchanged), only=["M15"])
    assert ("M15" in report) == exchanged, str(report)


FILE = """
import torch
from torch import nn
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places, self.head = nn.Embedding(41, 16), nn.Embedding(64, 16), nn.Linear(16, 41)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    def forward(self, ids):
        return self.head(self.layer(self.words(ids) + self.places.weight[: ids.shape[1]]))
"""
BESIDE = "from open_reader import Reader\nx, y = ids[i : i + n], ids[i + %d : i + n + %d]\n"


@pytest.mark.parametrize("by", [0, 1])
def test_the_files_beside_say_that_the_next_token_is_learned(
    by: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "open_reader.py").write_text(FILE, encoding="utf-8")
    (tmp_path / "learn.py").write_text(BESIDE % (by, by), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "open_reader", raising=False)
    monkeypatch.chdir(tmp_path)
    report = check(import_module("open_reader").Reader(), only=["dependencies"])
    assert {one.id: one.status for one in report.findings} == ({"M01": "fail"} if by else {}), str(report)


class Clamped(Writer):
    """Writes over its ids, and looks ahead."""

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        x = self.words(ids.clamp_(max=V // 2)) + self.places.weight[: ids.shape[1]]
        return self.head(x + attend(self.q(x), self.k(x), None, self.v(x))), None


def test_what_is_written_over_hides_no_other_fault() -> None:
    report = check(Clamped(), Spec(kind="causal"), only=["D18", "dependencies"])
    assert {one.id: one.status for one in report.findings} == {"D18": "fail", "M01": "fail"}, str(report)


class Stored(Writer):
    """Keeps keys and values, and cuts the mask of several tokens behind them to these tokens alone."""

    def forward(self, ids: Tensor, targets: Tensor | None = None, past: Any = None) -> Any:
        begin = 0 if past is None else past[0].shape[1]
        x = self.words(ids) + self.places.weight[begin : begin + ids.shape[1]]
        k, v = self.k(x), self.v(x)
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        hidden = None if ids.shape[1] == 1 else future(ids.shape[1])
        return self.head(x + attend(self.q(x), k, hidden, v)), (k, v)


def test_several_tokens_behind_a_cache_that_raise() -> None:
    report = check(Stored(), only=["caches"])
    assert report["K04"].status == "warn", str(report)
