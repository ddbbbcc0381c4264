"""Padding that is known from the code beside a model, and padding that one part of a model hides and another reads."""

import importlib.util
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor import Report, Spec, check

D = 16
ITEMS = """
import torch
from torch import nn
import torch.nn.functional as F

class Items(nn.Module):
    def __init__(self, hides, index=0):
        super().__init__()
        torch.manual_seed(0)
        self.hides = hides
        self.items, self.places = nn.Embedding(40, 16, padding_idx=index), nn.Embedding(32, 16)
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16, 40)

    def forward(self, ids):
        T = ids.shape[1]
        x = self.items(ids) + self.places.weight[:T]
        seen = torch.ones(T, T, dtype=torch.bool).tril()[None]
        if self.hides:
            seen = seen & (ids != 0)[:, None] | torch.eye(T, dtype=torch.bool)
        x = x + F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), attn_mask=seen)
        return self.head(x[:, -1])
"""
TEXTS = """
import torch
from torch import nn
import torch.nn.functional as F

class Texts(nn.Module):
    def __init__(self, reads_last):
        super().__init__()
        torch.manual_seed(0)
        self.reads_last = reads_last
        self.words, self.places = nn.Embedding(40, 16), nn.Embedding(64, 16)
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16, 5)

    def forward(self, ids):
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        x = x + F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), is_causal=self.reads_last)
        return self.head(x[:, -1] if self.reads_last else x.mean(1))
"""
FRONT = "def fill(row, size):\n    return [0] * (size - len(row)) + row\n"
BEHIND = "def fill(row, size):\n    return row + [0] * (size - len(row))\n"


def examined(folder: Path, beside: str, hides: bool, code: str = ITEMS) -> Report:
    (folder / "items.py").write_text(code, encoding="utf-8")
    (folder / "data.py").write_text(beside, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("items", folder / "items.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with patch.dict(sys.modules, {"items": module}):
        spec.loader.exec_module(module)
        return check((module.Items if code == ITEMS else module.Texts)(hides), only=["paddings"])


def failures(report: Report) -> list[str]:
    return [finding.id for finding in report.findings if finding.status == "fail"]


def test_padding_in_front_is_attended_to(tmp_path: Path) -> None:
    report = examined(tmp_path, FRONT, hides=False)
    assert failures(report) == ["M11"]
    assert "data.py" in report.findings[0].evidence.witness


def test_padding_in_front_that_is_hidden_is_no_fault_of_the_last_position(tmp_path: Path) -> None:
    assert failures(examined(tmp_path, FRONT, hides=True)) == []
    assert failures(examined(tmp_path, BEHIND, hides=True)) == ["M22"], "behind, the last position is padding"


@pytest.mark.parametrize(
    "beside",
    [
        "for i in reversed(items):\n    row[at] = i\n    at -= 1\n",
        "row = np.pad(row, (size - len(row), 0))\n",
        "tokenizer.padding_side = 'left'\n",
        "row[-len(items):] = items\n",
        "seq[-n_user_items:]=items\n",
        "TEXT = data.Field(pad_first=True)\n",
        "row = [0] * num_padding + items\n",
    ],
)
def test_ways_to_fill_a_row_in_front(beside: str, tmp_path: Path) -> None:
    assert failures(examined(tmp_path, beside, hides=False)) == ["M11"]


@pytest.mark.parametrize(
    "beside",
    [
        "tokenizer.padding_side = 'left'\nbatch = tokenizer(texts, padding=True)\n",
        FRONT + "channels = [64] + [128] * 3\n",
        FRONT + BEHIND,
        "self.buffer[-n:] = new\nbias[-hidden:] = 1.0\nmask[-num_masked:] = True\n",
        "+[+[" * (1 << 15),
        "a.a." * (1 << 15),
        "rnn." * (1 << 15),
        "\n" * (1 << 17),
    ],
    ids=["a tokenizer's padding", "lists", "both", "tails", "brackets", "names", "libraries", "lines"],
)
def test_what_tells_no_side_makes_no_failure_and_takes_no_time(beside: str, tmp_path: Path) -> None:
    assert failures(examined(tmp_path, beside, hides=True)) == []


@pytest.mark.parametrize(
    "beside",
    [
        BEHIND,
        "from torch.nn.utils.rnn import pad_sequence\nbatch = pad_sequence(rows, batch_first=True)\n",
        "TEXT = data.Field(lower=True, fix_length=60)\n",
        "batches = BucketIterator(texts, batch_size=8)\n",
    ],
)
def test_padding_of_which_nothing_tells_the_model(beside: str, tmp_path: Path) -> None:
    report = examined(tmp_path, beside, False, TEXTS)
    assert failures(report) == ["M11"]
    assert "data.py" in report.findings[0].evidence.second
    assert failures(examined(tmp_path, beside, True, TEXTS)) == ["M22"]


@pytest.mark.parametrize(
    "beside",
    [
        "",
        FRONT,
        FRONT + BEHIND,
        "layer = nn.Conv1d(16, 16, 3, padding=1)\n",
        "from torchtext.data import BucketIterator\nTEXT = data.Field(fix_length=None)\n",
        "TEXT = data.Field(fix_length=60, pad_first=True)\n",
    ],
)
def test_rows_that_nothing_fills_up_behind_need_no_mask(beside: str, tmp_path: Path) -> None:
    assert failures(examined(tmp_path, beside, False, TEXTS)) == []


class Forgetful(nn.Module):
    """A class for each text; scores of what its mask calls padding are made zero, which a softmax does not hide."""

    def __init__(self, hides: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hides = hides
        self.words, self.head = nn.Embedding(40, D), nn.Linear(D, 5)
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.words(ids)
        scores = self.q(x) @ self.k(x).transpose(1, 2) / D**0.5
        scores = scores if mask is None else scores.masked_fill(~mask[:, None], self.hides)
        return self.head(x[:, 0] + (scores.softmax(-1) @ self.v(x))[:, 0])  # type: ignore[no-any-return]


@pytest.mark.parametrize(("hides", "expected"), [(-torch.inf, []), (0.0, [("M11", "warn")])])
def test_a_mask_of_one_class_for_each_row_may_be_of_padding(hides: float, expected: list[tuple[str, str]]) -> None:
    report = check(Forgetful(hides), only=["paddings"])
    assert [(finding.id, finding.status) for finding in report.findings] == expected, str(report)


def test_a_token_that_is_hidden_in_a_way_of_the_models_own_is_no_failure(tmp_path: Path) -> None:
    code = TEXTS.replace("is_causal=self.reads_last)", "attn_mask=ids.bool()[:, None])")
    code = code.replace("x.mean(1)", "(x * ids.bool()[..., None]).sum(1) / ids.bool().sum(1, keepdim=True)")
    assert failures(examined(tmp_path, BEHIND, False, code)) == []


class Odd(nn.Module):
    """It knows its padding token, and takes rows of an odd number of tokens only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(40, D, padding_idx=0), nn.Linear(D, 40)
        self.layer = nn.TransformerEncoderLayer(D, 2, 64, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        if ids.shape[1] % 2 == 0:
            raise ValueError("an even number of tokens")
        return self.head(self.layer(self.words(ids)))  # type: ignore[no-any-return]


def test_padding_that_cannot_be_added_is_not_said_to_be_hidden() -> None:
    report = check(Odd(), Spec(kind="bidirectional"), only=["paddings"])
    assert [outcome.status for outcome in report.checks if outcome.name == "paddings"] == ["skip"], str(report)
    assert any("could not be run" in path for path in report.paths), str(report.paths)


class Numbered(nn.Module):
    """Its caller says which token is padding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(40, D), nn.Linear(D, 40)
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))

    def forward(self, src: Tensor, tgt: Tensor, src_pad_idx: int, trg_pad_idx: int) -> Tensor:
        x, y = self.words(src), self.words(tgt)
        sees = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).tril() & (tgt != trg_pad_idx)[:, None]
        sees = sees | torch.eye(y.shape[1], dtype=torch.bool)
        y = y + F.scaled_dot_product_attention(self.q(y), self.k(y), self.v(y), attn_mask=sees)
        hidden = (src == src_pad_idx)[:, None].expand(-1, y.shape[1], -1)
        return self.head(y + F.scaled_dot_product_attention(self.q(y), self.k(x), self.v(x), attn_mask=~hidden))  # type: ignore[no-any-return]


def test_the_number_of_padding_is_no_row_of_tokens() -> None:
    report = check(Numbered(), only=["M01", "paddings"])
    assert failures(report) == [], str(report)
    assert any("src_pad_idx=0" in path for path in report.paths), str(report.paths)


def test_the_file_of_another_project_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "other" / "data.py").write_text(FRONT, encoding="utf-8")
    assert failures(examined(tmp_path / "mine", "", hides=False)) == []
    (tmp_path / "train.py").write_text("", encoding="utf-8")
    assert failures(examined(tmp_path / "mine", "", hides=False)) == ["M11"], "now both are of one project"


def test_a_comment_fills_no_row(tmp_path: Path) -> None:
    assert failures(examined(tmp_path, "# left_padded rows: row = [0] * (size - len(row)) + row\n", hides=False)) == []


class Pooled(nn.Module):
    """Frames and a mask, of which nothing says what it means, to one vector."""

    def __init__(self, pools_all: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pools_all = pools_all
        self.inner = nn.Linear(7, D)
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))
        self.head = nn.Linear(D, 5)

    def forward(self, frames: Tensor, mask: Tensor) -> Tensor:
        x = self.inner(frames)
        x = x + F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), attn_mask=~mask[:, None])
        weights = torch.ones_like(x[..., :1]) if self.pools_all else (~mask)[..., None].to(x.dtype)
        return self.head((x * weights).sum(1) / weights.sum(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("pools_all", "expected"), [(True, ["M22"]), (False, [])])
def test_what_an_attention_hides_is_pooled(pools_all: bool, expected: list[str]) -> None:
    assert failures(check(Pooled(pools_all), only=["paddings"])) == expected


class Speech(nn.Module):
    """Frames and their lengths, from which the lengths of the output come, and perhaps a mask."""

    def __init__(self, masks: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.masks = masks
        self.inner = nn.Linear(7, D)
        self.mixing = nn.Conv1d(D, D, 1)
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))
        self.head = nn.Linear(D, 5)

    def forward(self, frames: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x = self.mixing(self.inner(frames).transpose(1, 2)).transpose(1, 2)
        mask = torch.arange(x.shape[1])[None, None] < lengths[:, None, None]
        x = x + F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), attn_mask=mask if self.masks else None)
        return self.head(x), lengths // 1


@pytest.mark.parametrize(("masks", "expected"), [(True, []), (False, ["M11"])])
def test_lengths_that_hide_nothing(masks: bool, expected: list[str]) -> None:
    assert failures(check(Speech(masks), only=["paddings"])) == expected


class Translator(nn.Module):
    """Its encoder hides what `src_mask` says; the memory has a mask of its own, if there is one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.src, self.tgt, self.places = nn.Embedding(40, D), nn.Embedding(40, D), nn.Embedding(64, D)
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))
        self.head = nn.Linear(D, 40)

    def attend(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        attended = F.scaled_dot_product_attention(self.q(x), self.k(memory), self.v(memory), attn_mask=mask)
        return x + attended

    def translate(self, src: Tensor, tgt: Tensor, src_mask: Tensor | None, memory_mask: Tensor | None) -> Tensor:
        x, y = self.src(src) + self.places.weight[: src.shape[1]], self.tgt(tgt) + self.places.weight[: tgt.shape[1]]
        x = self.attend(x, x, None if src_mask is None else src_mask.expand(-1, src.shape[1], -1))
        y = self.attend(y, y, torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool).tril())
        memory_mask = None if memory_mask is None else memory_mask.expand(-1, tgt.shape[1], -1)
        return self.head(self.attend(y, x, memory_mask))  # type: ignore[no-any-return]

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None) -> Tensor:
        return self.translate(src, tgt, src_mask, None)


class Masked(Translator):
    def forward(
        self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None, kv_mask: Tensor | None = None
    ) -> Tensor:
        return self.translate(src, tgt, src_mask, kv_mask)


@pytest.mark.parametrize(("model", "expected"), [(Translator, ["S01"]), (Masked, [])])
def test_a_memory_that_may_have_a_mask_of_its_own(model: type[Translator], expected: list[str]) -> None:
    assert failures(check(model(), only=["paddings"])) == expected
