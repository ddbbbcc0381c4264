"""What was guessed of a model can be read in another way; what fails in one reading alone is a warning.

And a failure contradicts something: what is only unlike other models is a warning as well.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from doctor_helpers import HOSTS, made
from torch import Tensor, nn

from clearhead.doctor import Finding, Report, Spec, check, examination
from clearhead.doctor.catalogue.severity import AGAINST, FIRST_SIGHT, OF_MASKS, SECOND, SIGNS, is_failure
from clearhead.doctor.checks import CHECKS
from clearhead.doctor.checks.base import finding
from clearhead.doctor.training.checks import TRAINING_CHECKS

V, D, HEADS = 29, 16, 2


def statuses(report: Report) -> set[tuple[str, str]]:
    return {(fault.id, fault.status) for fault in report.findings}


class Layer(nn.Module):
    """Attention and a feed-forward. `seen`: (..., T_q, T_k), True where a key may be seen."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.query, self.key, self.value, self.out = (nn.Linear(D, D) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))
        self.fills = True  # a query that sees nothing reads zeros, and not NaN

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        normed = self.norm(x)
        parts = (part(normed).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
        query, key, value = parts  # (B, H, T, K)
        scores = (query @ key.mT / (D / HEADS) ** 0.5).masked_fill(~seen, -torch.inf)
        weights = scores.softmax(-1).nan_to_num() if self.fills else scores.softmax(-1)
        x = x + self.out((weights @ value).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class Tokens(nn.Module):
    """Two layers over tokens and their places."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(V, D), nn.Embedding(64, D)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V)

    def read(self, ids: Tensor, seen: Tensor, places: Tensor | None = None) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]) if places is None else places)
        for layer in self.layers:
            x = layer(x, seen)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def triangle(ids: Tensor) -> Tensor:
    return torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()


class WholeMask(Tokens):
    """A causal language model; a mask takes the place of the causal one. `leaks`: it is not made if none is given."""

    leaks = False

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        causal = torch.ones_like(triangle(ids)) if self.leaks else triangle(ids)
        return self.read(ids, causal if mask is None else mask.bool())


class Ignored(Tokens):
    """A causal language model. `pad` is true where a token is padding, which sees only padding; or if `wrong`, all."""

    wrong = False

    def forward(self, ids: Tensor, pad: Tensor | None = None) -> Tensor:
        pad = torch.zeros_like(ids, dtype=torch.bool) if pad is None else pad.bool()
        alike = pad[:, None, :, None] == pad[:, None, None, :]  # (B, 1, T, T)
        places = ((~pad).long().cumsum(1) - 1).clamp(min=0)
        return self.read(ids, triangle(ids) & (torch.ones_like(alike) if self.wrong else alike), places)


class Strict(Tokens):
    """A translator whose masks are true where nothing is seen; one of the target takes the place of the causal one."""

    def __init__(self) -> None:
        super().__init__()
        for layer in self.layers:
            assert isinstance(layer, Layer)
            layer.fills = False

    def forward(self, src: Tensor, tgt: Tensor, tgt_mask: Tensor | None = None) -> Tensor:
        seen = triangle(tgt)[None, None] if tgt_mask is None else tgt_mask == 0
        light: Tensor = self.head(self.words(src).cumsum(1)).mean(1, keepdim=True)
        return self.read(tgt, seen) + light


@pytest.mark.parametrize("model", [WholeMask(), Ignored()], ids=lambda model: type(model).__name__)
def test_a_mask_is_read_in_the_way_that_fits(model: nn.Module) -> None:
    assert not {id for id, status in statuses(check(model)) if status == "fail"}


def test_a_form_of_a_mask_that_changes_nothing_is_the_one_that_is_meant() -> None:
    assert not check(Strict(), only=["paths", "paddings"]).findings


def test_what_no_reading_of_a_mask_explains_fails() -> None:
    leaking, ignoring = WholeMask(), Ignored()
    leaking.leaks = ignoring.wrong = True
    assert "M01" in {id for id, status in statuses(check(leaking)) if status == "fail"}
    assert "M11" in {id for id, status in statuses(check(ignoring)) if status == "fail"}


class Steered(Tokens):
    """Moves, each read in the light of those before it, and of a condition that is read as a whole."""

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        light: Tensor = self.head(self.words(second)).mean(1, keepdim=True)
        return self.read(first, triangle(first)) + light


class Translator(Steered):
    """The same, and its arguments say which of them is the source."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return super().forward(src, tgt)


def test_which_row_is_the_source_must_be_said() -> None:
    assert not {id for id, status in statuses(check(Steered())) if status == "fail"}


class Mixing(Tokens):
    """Every token sees every other."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.read(ids, torch.ones_like(triangle(ids)))


class Judged(Mixing):
    """Steps, each seen by all, in the light of two series of numbers, neither of which is called a source."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.act = nn.Linear(5, V), nn.Linear(3, V)

    def forward(self, states: Tensor, acts: Tensor, steps: Tensor) -> Tensor:  # type: ignore[override]
        light: Tensor = (self.enter(states) + self.act(acts)).mean(1, keepdim=True)
        return super().forward(steps) + light


def test_two_series_of_numbers_make_no_target() -> None:
    report = check(Judged())
    assert ("M01", "warn") in statuses(report), report
    assert not {id for id, status in statuses(report) if status == "fail"}


class Asked(Tokens):
    """A translator that hides the future only where its caller gives a mask, which is named after neither side."""

    def forward(self, source: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        seen = torch.ones_like(triangle(target)) if mask is None else mask == 1
        light: Tensor = self.head(self.words(source)).mean(1, keepdim=True)
        return self.read(target, seen) + light


def test_a_mask_of_a_target_need_not_be_called_so() -> None:
    report = check(Asked())
    assert "M01" not in {id for id, _ in statuses(report)}, report


class Switched(Tokens):
    """Its attention would be causal if it were asked to be."""

    def __init__(self) -> None:
        super().__init__()
        self.use_causal_mask = False

    def forward(self, ids: Tensor) -> Tensor:
        return self.read(ids, triangle(ids) if self.use_causal_mask else torch.ones_like(triangle(ids)))


def test_what_is_switched_off_is_not_meant() -> None:
    report = check(Switched())
    assert report.kind == "bidirectional"
    assert "M01" not in {id for id, _ in statuses(report)}, report


class Told(Tokens):
    """Its words know which token is padding, and its caller gives a mask under a name that it does not list."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(V, D, padding_idx=0)

    def forward(self, ids: Tensor, **more: Tensor) -> Tensor:
        return self.read(ids, torch.ones_like(triangle(ids)) if "mask" not in more else more["mask"])


def test_what_a_caller_may_say_unnamed_makes_a_warning() -> None:
    report = check(Told(), Spec(kind="bidirectional"))
    assert ("M11", "warn") in statuses(report), report
    assert not {id for id, status in statuses(report) if status == "fail"}


class QueriesAlone(Tokens):
    """Attention whose queries alone are normalized: in every layer, as if meant, or in one."""

    def __init__(self, *, everywhere: bool) -> None:
        super().__init__()
        self.everywhere = everywhere
        self.mixers = nn.ModuleList(nn.MultiheadAttention(D, HEADS, batch_first=True) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for number, (norm, mixer) in enumerate(zip(self.norms, self.mixers, strict=True)):
            query = norm(x)
            read = x if self.everywhere or number else query
            x = x + mixer(query, read, read, attn_mask=~triangle(ids), need_weights=False)[0]
        return self.head(self.norm(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("everywhere", "status"), [(True, "warn"), (False, "fail")])
def test_what_all_layers_do_may_be_meant(everywhere: bool, status: str) -> None:
    report = check(QueriesAlone(everywhere=everywhere), Spec(kind="causal"), only=["query norms"])
    assert statuses(report) == {("N12", status)}, report


class Remembering(Tokens):
    """It gives its loss, and what it read for the next call. `words_first`: no, its logits, of each word by itself."""

    words_first = False

    def forward(self, ids: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        words: Tensor = self.words(ids)
        logits = self.read(ids, triangle(ids))
        alone: Tensor = self.head(words) + 0 * logits
        return alone if self.words_first else (logits.exp().sum(-1).log().mean(), words)


def test_what_a_model_remembers_is_no_lost_attention() -> None:
    remembering, lost = Remembering(), Remembering()
    lost.words_first = True
    assert ("A12", "warn") in statuses(check(remembering, Spec(kind="causal")))
    assert ("A12", "fail") in statuses(check(lost, Spec(kind="causal")))


class Crowded(Tokens):
    """Of all tokens of a batch, each expert takes as many as fit."""

    def forward(self, ids: Tensor) -> Tensor:
        logits = self.read(ids, triangle(ids))
        scores = logits[..., 0].flatten()
        taken = torch.zeros_like(scores).scatter(0, scores.topk(len(scores) // 2).indices, 1)
        return logits * (1 + taken.view_as(ids)[..., None])


def test_experts_with_a_capacity_are_called_so() -> None:
    assert check(Crowded(), Spec(kind="causal"), only=["rows"])["F05"].status == "fail"


class OneByOne(Tokens):
    """It takes one row, and how much of it is real."""

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        assert len(ids) == len(lengths) == 1
        real = torch.arange(ids.shape[1]) < lengths[:, None]
        return self.read(ids, real[:, None, None])


def test_rows_that_are_given_one_by_one_have_lengths_of_their_own() -> None:
    report = check(OneByOne(), Spec(kind="bidirectional"), only=["padded rows", "paddings"])
    assert not report.findings, report
    assert {done.name: done.status for done in report.checks}["padded rows"] == "pass"


class MixingLM(Mixing):
    """Its class is called a language model."""


class Hinted(Mixing):
    """It mentions one word: future."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(D, 5)


def test_a_kind_that_one_word_suggests_makes_no_failure() -> None:
    assert ("M01", "fail") in statuses(check(MixingLM()))
    assert ("M01", "fail") in statuses(check(Hinted(), Spec(kind="causal")))
    report = check(Hinted())
    assert report.kind == "causal"
    assert ("M01", "warn") in statuses(report)
    assert "but not if it is read as bidirectional" in str(report)


@pytest.mark.parametrize(
    ("seen", "second", "status"),
    [((2, 1, 0), "", "fail"), ((2, 1, 1), "", "warn"), ((0, 1, 0), "", "warn"), ((0, 0, 1), "its other mask", "fail")],
)
def test_a_kind_that_was_not_mostly_right_needs_a_second_observation(
    monkeypatch: pytest.MonkeyPatch, seen: tuple[int, int, int], second: str, status: str
) -> None:
    monkeypatch.setitem(FIRST_SIGHT, "norms N01", seen)
    run: Callable[[object], list[Finding]] = lambda _: [finding("N01", "", against="its layers", second=second)]  # noqa: E731
    norms = next(replace(norm, run=run, needs=()) for norm in CHECKS if norm.name == "norms")
    monkeypatch.setattr(examination, "CHECKS", (norms,))
    report = check(made(HOSTS / "gpt.py"))
    assert statuses(report) == {("N01", status)}
    assert ("against   its layers, and its other mask" in str(report)) == bool(second)


def test_a_sign_makes_no_failure() -> None:
    kinds = (kind.rpartition(" ") for kind in SIGNS)
    assert not any(is_failure(check, id, "its layers", "its other mask") for check, _, id in kinds)


@pytest.mark.parametrize(("against", "status"), [("", "warn"), ("its other layers", "fail")])
def test_what_contradicts_nothing_is_a_warning(monkeypatch: pytest.MonkeyPatch, against: str, status: str) -> None:
    run: Callable[[object], list[Finding]] = lambda _: [finding("N01", "a norm over time", against=against)]  # noqa: E731
    norms = next(replace(norm, run=run, needs=()) for norm in CHECKS if norm.name == "norms")
    monkeypatch.setattr(examination, "CHECKS", (norms,))
    report = check(made(HOSTS / "gpt.py"))
    assert statuses(report) == {("N01", status)}
    assert ("against   its other layers" in str(report)) == bool(against)


def test_what_is_said_to_be_contradicted_belongs_to_a_check() -> None:
    names = {done.name for done in CHECKS} | {done.name for done in TRAINING_CHECKS}
    kinds = {kind.rpartition(" ")[::2] for kind in (*SIGNS, *FIRST_SIGHT, *SECOND)}
    assert names >= {*AGAINST, *OF_MASKS, *(name for name, _ in kinds)}
    covered = {(done.name, id) for done in CHECKS for id in done.covers}
    covered |= {(done.name, id) for done in TRAINING_CHECKS for id in done.covers}
    assert covered >= kinds
