"""A batch of the person's own: read without running code, understood by its names, and run as it is."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from doctor_helpers import made, write
from torch import Tensor, nn

from clearhead.doctor import Report, Spec, check
from clearhead.doctor.calling.batches import GivenBatch, load_batch
from clearhead.doctor.preparation import prepare
from clearhead.doctor.subject import Subject
from clearhead.errors import DataError


def ids(rows: int, T: int, low: int = 5, high: int = 30) -> Tensor:
    return torch.randint(low, high, (rows, T), generator=torch.Generator().manual_seed(3))


def subject_of(folder: Path, host: str, batch: Any) -> Subject:
    return prepare(made(write(folder, host)), Spec(), "quick", 0, GivenBatch.of(batch))


def status(report: Report, name: str) -> str:
    return next(one.status for one in report.checks if one.name == name)


class Explosive:
    def __reduce__(self) -> Any:
        return (Path("exploded").touch, ())


def test_no_code_of_a_file_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"ids": Explosive()}, "batch.pt")
    with pytest.raises(DataError, match="cannot be read as plain tensors"):
        load_batch("batch.pt")
    Path("pickle.pt").write_bytes(pickle.dumps(Explosive()))
    with pytest.raises(DataError, match="cannot be read as plain tensors"):
        load_batch("pickle.pt")
    assert not Path("exploded").exists()


@pytest.mark.parametrize("content", [b"", b"not a batch", b"PK\x03\x04" + bytes(40), bytes(1000)])
def test_files_that_hold_something_else_get_a_sentence(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "batch.pt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"batch\.pt cannot be read as plain tensors"):
        load_batch(str(path))
    with pytest.raises(DataError, match="there is no file"):
        load_batch(str(tmp_path))


@pytest.mark.parametrize(
    "given", [torch.zeros(3, 4), torch.zeros(3, dtype=torch.long), {"a": 1}, [], "text", 3, {"x": torch.zeros(0, 4)}]
)
def test_what_holds_no_ids_is_refused(given: Any) -> None:
    with pytest.raises(DataError, match="holds no token ids"):
        GivenBatch.of(given)


def test_its_tokens_are_those_that_the_model_is_given(tmp_path: Path) -> None:
    own = ids(4, 30, 5, 27)
    subject = subject_of(tmp_path, "gpt", {"idx": own, "targets": own})
    assert set(subject.pool.tolist()) <= set(own.flatten().tolist())
    assert set(subject.inputs(3).ids.flatten().tolist()) <= set(own.flatten().tolist())
    few = torch.tensor([[7, 8, 7, 8]])
    assert len(subject_of(tmp_path, "gpt", few).pool) > 20, "rows of different tokens need more than two"


@pytest.mark.parametrize(
    "form", [lambda s, t: (s, t), lambda s, t: {"src": s, "tgt": t}, lambda s, t: {"tgt": t, "src": s, "noise": 3}]
)
def test_source_and_target_are_told_apart(form: Any, tmp_path: Path) -> None:
    source, target = ids(3, 9), ids(3, 12)
    subject = subject_of(tmp_path, "translator", form(source, target))
    assert subject.own is not None
    assert subject.own.inputs.source is not None
    assert torch.equal(subject.own.inputs.source, source)
    assert torch.equal(subject.own.inputs.ids, target)


def test_time_first_batches_are_turned(tmp_path: Path) -> None:
    own = ids(3, 8)
    subject = subject_of(tmp_path, "time_first", own.t())
    assert subject.own is not None
    assert torch.equal(subject.own.inputs.ids, own)


def test_masks_are_given_as_they_came(tmp_path: Path) -> None:
    own, mask = ids(3, 10), torch.ones(3, 10, dtype=torch.long)
    mask[0, 7:] = 0
    subject = subject_of(tmp_path, "bert", {"input_ids": own, "attention_mask": mask, "labels": own})
    assert subject.own is not None
    assert list(subject.own.more) == ["attention_mask"]
    report = check(subject.original, batch={"input_ids": own, "attention_mask": mask})
    assert status(report, "finite") == "pass", str(report)
    assert "the batch as it is, 3 of 3 rows of 10 tokens, with its attention_mask" in report.paths


@pytest.mark.parametrize(
    ("host", "given", "said"),
    [
        ("gpt", torch.full((2, 9), 10_000), "holds token 10000, and the model knows 0 to"),
        ("gpt", torch.full((2, 9), -1), "holds token -1"),
        ("translator", torch.ones(2, 9, dtype=torch.long), "does not say which are its source and target"),
        ("translator", (torch.ones(2, 9, dtype=torch.long), torch.ones(3, 9, dtype=torch.long)), "2 rows of sources"),
        ("gpt", {"pictures": torch.ones(2, 9, dtype=torch.long)}, r"\(pictures\) does not say which are its token ids"),
    ],
)
def test_batches_for_another_model_are_refused(host: str, given: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        subject_of(tmp_path, host, given)


class FarSighted(nn.Module):
    """A GPT whose mask ends at 32 tokens: what is later is seen from everywhere behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(41, 16), nn.Embedding(64, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 41)

    def forward(self, ids: Tensor) -> Tensor:
        T = ids.shape[1]
        hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
        hidden[40:] = False
        x = self.table(ids) + self.places.weight[:T]
        return self.head(x + self.attention(x, x, x, attn_mask=hidden, need_weights=False)[0])  # type: ignore[no-any-return]


def test_a_leak_beyond_the_usual_lengths_is_met_on_the_batch() -> None:
    torch.manual_seed(0)
    model, spec = FarSighted(), Spec(kind="causal")
    assert check(model, spec).verdict == "healthy"
    assert check(model, spec, batch=ids(2, 30)).verdict == "healthy"
    report = check(model, spec, batch=ids(6, 50))
    assert report.verdict == "faulty"
    finding = next(one for one in report.findings if one.check == "paths")
    assert "of the batch, changing the tokens after" in finding.evidence.witness
    assert finding.where.module == "attention"


class Fragile(FarSighted):
    """NaN for rows that begin with padding."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).masked_fill((ids[:, :1] == 1)[..., None], torch.nan)


def test_numbers_that_are_none_on_the_batch_are_found() -> None:
    torch.manual_seed(0)
    batch = ids(3, 12)
    assert status(check(Fragile(), Spec(kind="causal"), batch=batch, only=["M14"]), "finite") == "pass"
    batch[1, 0] = 1
    report = check(Fragile(), Spec(kind="causal"), batch=batch)
    finding = report["M14"]
    assert (finding.check, status(report, "dependencies")) == ("finite", "blocked")
    assert finding.evidence.witness == "logits 1 of row 1 of the batch are not finite"


GIVEN: list[Tensor] = []  # masks that a model was given


class Masked(FarSighted):
    """Keeps the masks."""

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        GIVEN.extend(mask for mask in [attention_mask] if mask is not None)
        return super().forward(ids)


def test_the_mask_of_the_batch_is_what_the_model_is_given() -> None:
    batch, mask = ids(3, 12), torch.ones(3, 12, dtype=torch.long)
    mask[1, 7:] = 0
    check(Masked(), Spec(kind="causal"), batch={"ids": batch, "attention_mask": mask}, only=["M14"])
    assert any(torch.equal(given, mask) for given in GIVEN)


class Long(FarSighted):
    """Takes rows of 29 tokens and no others."""

    def forward(self, ids: Tensor) -> Tensor:
        assert ids.shape[1] == 29
        return super().forward(ids)


def test_a_length_that_is_not_usual_is_learned_from_the_batch() -> None:
    torch.manual_seed(0)
    report = check(Long(), Spec(kind="causal"), batch=ids(4, 29))
    assert report.verdict == "healthy", str(report)


@pytest.mark.parametrize(("ahead", "id"), [(1, None), (0, "D01"), (2, "D02")])
def test_its_labels_and_the_models_own_shift_come_to_the_next_token(ahead: int, id: str | None, tmp_path: Path) -> None:
    rows = ids(3, 13)
    batch = {"idx": rows[:, :10], "targets": rows[:, ahead : 10 + ahead]}
    report = check(made(write(tmp_path, "gpt")), only=["D01", "D02"], batch=batch)
    assert [one.id for one in report.findings] == ([id] if id else []), str(report)
    assert "the batch's 'targets' beside its ids" in report.paths
