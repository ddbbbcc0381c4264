"""What the X-ray of a loss function tells: silent on sound losses, by name on those that are not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead import doctor
from clearhead.doctor.loss_examination import examine_loss
from clearhead.errors import DataError

PAD = 0


def shifted(logits: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD)


def given(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=PAD)


def smoothed(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, label_smoothing=0.1)


def by_hand(logits: Tensor, targets: Tensor) -> Tensor:
    keep = targets != PAD
    each = -logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    return (each * keep).sum() / keep.sum()


def smoothed_but_for_padding(logits: Tensor, targets: Tensor) -> Tensor:
    V, keep = logits.shape[-1], targets != PAD
    wanted = torch.full_like(logits, 0.1 / (V - 2)).scatter(-1, targets[..., None], 0.9)
    wanted[..., PAD] = 0
    return F.kl_div(logits.log_softmax(-1)[keep], wanted[keep], reduction="sum") / keep.sum()


def focal(logits: Tensor, targets: Tensor) -> Tensor:
    each = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none", ignore_index=PAD)
    return ((1 - torch.exp(-each.detach())) ** 2 * each).sum() / (targets != PAD).sum()


def weighted_by_class(logits: Tensor, targets: Tensor) -> Tensor:
    weight = torch.linspace(0.5, 2, logits.shape[-1])
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), weight=weight, ignore_index=PAD)


def held_down(logits: Tensor, targets: Tensor) -> Tensor:
    return smoothed(logits, targets) + 1e-3 * logits.logsumexp(-1).pow(2).mean()


def halved(logits: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * given(logits, targets)


def no_shift(logits: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten(), ignore_index=PAD)


def two_shifts(logits: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-2].flatten(0, 1), ids[:, 2:].flatten(), ignore_index=PAD)


def flattened_first(logits: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1)[:-1], ids.flatten()[1:], ignore_index=PAD)


def pads_scored(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def pads_in_the_mean(logits: Tensor, targets: Tensor) -> Tensor:
    return (
        F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none") * (targets.flatten() != PAD)
    ).mean()


def mean_of_rows(logits: Tensor, targets: Tensor) -> Tensor:
    keep = targets != PAD
    each = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none") * keep
    return (each.sum(1) / keep.sum(1)).mean()


def softmax_twice(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.softmax(-1).flatten(0, 1), targets.flatten(), ignore_index=PAD)


def likelihood_of_logits(logits: Tensor, targets: Tensor) -> Tensor:
    return F.nll_loss(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)


def smoothing_counts_pads(logits: Tensor, targets: Tensor) -> Tensor:
    log_p = logits.log_softmax(-1)
    keep = targets != PAD
    hard = (-log_p.gather(-1, targets[..., None])[..., 0] * keep).sum() / keep.sum()
    return 0.9 * hard - 0.1 * log_p.mean()


def mean_of_places(logits: Tensor, targets: Tensor) -> Tensor:
    keep = targets != PAD
    each = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none") * keep
    return (each.sum(0) / keep.sum(0)).mean()


def wrong_axis(logits: Tensor, targets: Tensor) -> Tensor:
    B, T, V = logits.shape
    return F.cross_entropy(logits.reshape(B, V, T), targets, ignore_index=PAD)


def flattened_and_shifted_again(logits: Tensor, ids: Tensor) -> Tensor:
    kept, labels = logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
    return F.cross_entropy(kept[:-1], labels[1:], ignore_index=PAD)


def another_token_ignored(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.masked_fill(targets == 3, PAD).flatten(), ignore_index=PAD)


def summed(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, reduction="sum")


def with_z_loss(logits: Tensor, targets: Tensor) -> Tensor:
    keep = targets != PAD
    return given(logits, targets) + 0.01 * logits.logsumexp(-1)[keep].square().mean()


def without_logarithm(logits: Tensor, targets: Tensor) -> Tensor:
    return F.nll_loss(logits.softmax(-1).flatten(0, 1), targets.flatten(), ignore_index=PAD)


def over_time(logits: Tensor, targets: Tensor) -> Tensor:
    return -logits.log_softmax(1).gather(-1, targets[..., None]).mean()


def scattered(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.transpose(1, 2).reshape(-1, logits.shape[-1]), targets.flatten())


def turned(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.t().flatten())


def cut_off(logits: Tensor, targets: Tensor) -> Tensor:
    return given(logits.detach(), targets).requires_grad_()


Loss = Callable[[Tensor, Tensor], Tensor]
SOUND: list[Loss] = [
    shifted, given, smoothed, by_hand, smoothed_but_for_padding, focal, weighted_by_class, held_down, halved,
    with_z_loss,
]  # fmt: skip
FAULTY: list[tuple[Loss, str]] = [
    (no_shift, "D01"),
    (two_shifts, "D02"),
    (flattened_first, "D03"),
    (flattened_and_shifted_again, "D02"),
    (pads_scored, "D05"),
    (pads_in_the_mean, "L01"),
    (mean_of_rows, "L02"),
    (mean_of_places, "L02"),
    (softmax_twice, "L03"),
    (likelihood_of_logits, "L04"),
    (smoothing_counts_pads, "L05"),
    (wrong_axis, "L07"),
    (another_token_ignored, "L08"),
    (summed, "L10"),
    (without_logarithm, "L04"),
    (over_time, "L07"),
    (scattered, "L07"),
    (turned, "D12"),
    (cut_off, "I06"),
]


@pytest.mark.parametrize("loss", SOUND)
def test_sound_losses_are_healthy(loss: Loss) -> None:
    report = examine_loss(loss, "mine")
    assert not report.findings, report.as_json()["lines"]


@pytest.mark.parametrize(("loss", "id"), FAULTY)
def test_faulty_losses_are_named(loss: Loss, id: str) -> None:
    report = examine_loss(loss, "mine")
    assert report.findings, report.xray.sentence
    assert report.findings[0].id == id, report.as_json()["lines"]


def test_a_loss_of_another_form_is_no_fault() -> None:
    def confident(logits: Tensor, targets: Tensor) -> Tensor:
        log_p = logits.log_softmax(-1)
        return given(logits, targets) + 0.3 * (log_p.exp() * log_p).sum(-1).mean()

    report = examine_loss(confident, "mine")
    assert {finding.status for finding in report.findings} == {"warn"}, report.as_json()["lines"]


@pytest.mark.parametrize("loss", [lambda logits: logits.sum(), lambda a, b: "text", lambda a, b: a @ b])
def test_what_is_no_loss_is_refused(loss: Loss) -> None:
    with pytest.raises(DataError, match="could not be called as loss"):
        examine_loss(loss, "mine")


def test_the_table_has_a_line_for_every_token() -> None:
    report = examine_loss(shifted, "mine")
    assert report.as_json()["verdict"] == "healthy"
    assert torch.tensor(report.as_json()["weights"]).shape == report.xray.ids.shape


def shifted_back(logits: Tensor, ids: Tensor) -> Tensor:
    """Rows are without padding."""
    return F.cross_entropy(logits[:, 1:].flatten(0, 1), ids[:, :-1].flatten())


def test_a_loss_that_looks_back_is_read_where_padding_is_spoken_of() -> None:
    (fault,) = (finding for finding in examine_loss(shifted_back, "mine").findings if finding.id == "D02")
    assert "the token at 2, which comes before it" in fault.evidence.witness


class EndsAsItPads(nn.Module):
    """A language model whose padding is its end of text, and whose loss ignores both."""

    def __init__(self, end: int) -> None:
        super().__init__()
        self.pad_token_id, self.eos_token_id = 2, end
        self.tokens, self.head = nn.Embedding(31, 16), nn.Linear(16, 31)

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        logits = self.head(self.tokens(ids).cumsum(1))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=self.pad_token_id)
        return logits, loss


def test_padding_that_ends_texts_must_be_learned_by_a_models_own_loss_too() -> None:
    assert "D04" in doctor.check(EndsAsItPads(end=2), only=["D04"])
    assert "D04" not in doctor.check(EndsAsItPads(end=3), only=["D04"])


class LossAlone(nn.Module):
    """Given labels it returns the loss and no logits, or logits flattened as it likes."""

    def __init__(self, *, turned: bool = False, twice: bool = False, shown: bool = False) -> None:
        super().__init__()
        self.turned, self.twice, self.shown = turned, twice, shown
        self.tokens, self.head = nn.Embedding(97, 16), nn.Linear(16, 97)

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.head(self.tokens(ids).cumsum(1))
        if labels is None:
            return logits
        flat = logits.transpose(0, 1).flatten(0, 1) if self.turned else logits[:, :-1].flatten(0, 1)
        wanted = labels.flatten() if self.turned else labels[:, 1:].flatten()
        loss = F.cross_entropy(flat.softmax(-1) if self.twice else flat, wanted)
        return (flat, loss) if self.shown else loss


@pytest.mark.parametrize("shown", [False, True])
def test_a_loss_without_its_logits_is_read_all_the_same(shown: bool) -> None:
    assert not doctor.check(LossAlone(shown=shown), only=["D02"]).findings
    turned = doctor.check(LossAlone(turned=True, shown=shown), only=["D12"])
    assert [finding.id for finding in turned.findings] == ["D12"], str(turned)
    twice = doctor.check(LossAlone(twice=True, shown=shown), only=["L03"])
    assert [finding.id for finding in twice.findings] == ["L03"], str(twice)


class Tagger(nn.Module):
    """Scores of classes, and a loss of tags: nothing is called labels. `fault` says what is wrong with it."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.tokens, self.mixed, self.head = nn.Embedding(97, 16), nn.MultiheadAttention(16, 2), nn.Linear(16, 5)

    def forward(self, ids: Tensor, lengths: Tensor | None = None, tags: Tensor | None = None) -> Any:
        x = self.tokens(ids).transpose(0, 1)
        scores = self.head(self.mixed(x, x, x)[0].transpose(0, 1))
        if tags is None:
            return scores, None
        if self.fault == "mean":
            return scores, F.cross_entropy(scores.transpose(1, 2), tags, reduction="none").mean()
        if self.fault == "overwritten":
            tags[tags == -100] = 0
        flat = scores.transpose(0, 1).flatten(0, 1) if self.fault == "turned" else scores.flatten(0, 1)
        return scores, F.cross_entropy(flat, tags.flatten())


@pytest.mark.parametrize(("fault", "id"), [("", ""), ("mean", "L01"), ("overwritten", "D05"), ("turned", "D12")])
def test_targets_of_any_name_and_of_fewer_classes_are_read(fault: str, id: str) -> None:
    report = doctor.check(Tagger(fault), doctor.Spec(kind="bidirectional"), only=["losses"])
    assert next(one.status for one in report.checks if one.name == "losses") == ("fail" if fault else "pass")
    assert [(finding.id, finding.status) for finding in report.findings] == ([(id, "fail")] if id else []), str(report)


class Odd(LossAlone):
    """What it does where it is given targets: drops numbers, writes over them, or gives every row the same weight."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        x = self.tokens(ids).cumsum(1)
        if targets is not None:
            x = F.dropout(x, 0.5, training=self.fault == "drops" or self.training)
        logits = self.head(x)
        if targets is None:
            return logits, None
        if self.fault == "overwrites":
            targets[targets == -100] = -1
        targets = targets.masked_fill(targets == -1, -100)
        if self.fault == "by row":
            each = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
            return logits, (each.sum(1) / (targets >= 0).sum(1)).mean()
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@pytest.mark.parametrize(
    ("fault", "found"),
    [("", []), ("drops", [("A08", "fail")]), ("overwrites", [("D18", "warn")]), ("by row", [("L02", "warn")])],
)
def test_targets_change_nothing_but_the_loss(fault: str, found: list[tuple[str, str]]) -> None:
    report = doctor.check(Odd(fault), doctor.Spec(kind="causal"), only=["losses"])
    assert [(finding.id, finding.status) for finding in report.findings] == found, str(report)


def spares_token_three(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=3)


@pytest.mark.parametrize(("pad_id", "found"), [(None, [("L08", "warn")]), (3, []), (5, [("D05", "fail")])])
def test_a_token_that_is_left_out_may_be_padding(pad_id: int | None, found: list[tuple[str, str]]) -> None:
    spares_token_three.__module__ = "nowhere"  # where nothing says which token is padding
    report = examine_loss(spares_token_three, "spares_token_three", pad_id)
    assert [(finding.id, finding.status) for finding in report.findings] == found
