"""What is true of the code, and has no effect as it is used: a warning, unless something else speaks against it."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor import Report, Spec, check
from clearhead.doctor.catalogue.severity import FIRST_SIGHT

V, D = 41, 16


def statuses(report: Report) -> set[tuple[str, str]]:
    return {(finding.id, finding.status) for finding in report.findings}


class Remembers(nn.Module):
    """Attention of numbered words to those before them. The cache is returned if `store_cache` says so."""

    def __init__(self, begins: Callable[[int, int], int]) -> None:
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(V, D), nn.Embedding(64, D), nn.Linear(D, V)
        self.qkv, self.begins = nn.Linear(D, 3 * D), begins

    def forward(
        self, ids: Tensor, cache: tuple[Tensor, Tensor] | None = None, store_cache: bool = False
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        n, before = ids.shape[1], 0 if cache is None else cache[0].shape[1]
        x = self.words(ids) + self.places(torch.arange(before, before + n))
        q, *kv = self.qkv(x).chunk(3, -1)
        k, v = kv if cache is None else (torch.cat(pair, 1) for pair in zip(cache, kv, strict=True))
        hidden = torch.ones(n, before + n, dtype=torch.bool).triu(1 + self.begins(before, n))
        x = x + F.scaled_dot_product_attention(q, k, v, attn_mask=~hidden)
        return self.head(x), (k, v) if store_cache else None


@pytest.mark.parametrize(
    ("begins", "expected"),
    [
        (lambda before, n: before, set()),
        (lambda before, n: before if n == 1 else 0, {("K04", "warn")}),  # what writes text hands on single tokens
        (lambda before, n: before if n > 1 or not before else 1, {("K02", "fail")}),
    ],
    ids=["right", "several at once", "one by one"],
)
def test_a_cache_is_used_one_token_at_a_time(begins: Callable[[int, int], int], expected: set[tuple[str, str]]) -> None:
    torch.manual_seed(0)
    report = check(Remembers(begins), Spec(kind="causal"), only=["caches"])
    assert statuses(report) == expected, str(report)
    assert any(path == "cached by cache" for path in report.paths), report.paths


class Translator(nn.Module):
    """An encoder that looks back: by a recurrence, or by an attention with a mask; and a decoder that reads it all."""

    def __init__(self, *, recurrent: bool) -> None:
        super().__init__()
        self.source, self.target, self.places = nn.Embedding(V, D), nn.Embedding(V, D), nn.Embedding(64, D)
        self.reads = nn.GRU(D, D, batch_first=True) if recurrent else nn.MultiheadAttention(D, 2, batch_first=True)
        self.attends, self.looks = (nn.MultiheadAttention(D, 2, batch_first=True) for _ in range(2))
        self.head = nn.Linear(D, V)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        s, t = self.source(src), self.target(tgt) + self.places(torch.arange(tgt.shape[1]))
        s = s + self.places(torch.arange(src.shape[1]))
        if isinstance(self.reads, nn.GRU):
            s = s + self.reads(s)[0]
        else:
            s = s + self.reads(s, s, s, attn_mask=hides(s), need_weights=False)[0]
        t = t + self.attends(t, t, t, attn_mask=hides(t), need_weights=False)[0]
        return self.head(t + self.looks(t, s, s, need_weights=False)[0])  # type: ignore[no-any-return]


def hides(x: Tensor) -> Tensor:
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)


@pytest.mark.parametrize(("recurrent", "status"), [(True, "warn"), (False, "fail")])
def test_a_recurrence_only_looks_back(recurrent: bool, status: str) -> None:
    report = check(Translator(recurrent=recurrent), only=["sources"])
    assert statuses(report) == {("S03", status)}, str(report)


class Masked(Translator):
    """It takes a mask of its target, whose padding it hides with -inf."""

    def forward(self, src: Tensor, tgt: Tensor, tgt_mask: Tensor) -> Tensor:  # type: ignore[override]
        s, t = self.source(src), self.target(tgt) + self.places(torch.arange(tgt.shape[1]))
        for _ in range(2):
            scores = (t @ t.mT / D**0.5).masked_fill(hides(t) | ~tgt_mask[:, None, :], -torch.inf)
            t = t + scores.softmax(-1) @ t
        return self.head(t + self.looks(t, s, s, need_weights=False)[0])  # type: ignore[no-any-return]


def test_a_target_is_padded_at_its_end() -> None:
    report = check(Masked(recurrent=False), only=["paddings"])
    assert not any(id == "M14" for id, _ in statuses(report)), str(report)
    assert "tgt_mask" in " ".join(report.paths)


class Padded(nn.Module):
    """Attention that hides padding with -inf, so that a row that begins with padding sees nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(V, D), nn.Embedding(64, D), nn.Linear(D, V)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        """attention_mask: 1 for real tokens, 0 for padding."""
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for _ in range(2):
            hidden = hides(x) | (attention_mask[:, None, :] == 0)
            x = x + (x @ x.mT / D**0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ x
        return self.head(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("side", "status"), [("front", "fail"), ("behind", "warn"), ("", "warn")])
def test_no_number_at_a_real_token_behind_padding(side: str, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clearhead.doctor.checks.padding.amounts.filled_side", lambda model: ("data.py", side))
    report = check(Padded(), Spec(kind="causal"), only=["paddings"])
    assert ("M14", status) in statuses(report), str(report)


class Draws(nn.Module):
    """Random numbers: of a word, which is the last thing that it does, or in what it reads."""

    def __init__(self, *, last: bool) -> None:
        super().__init__()
        self.words, self.head, self.last = nn.Embedding(V, D), nn.Linear(D, V), last

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        x = x if self.last else x + torch.randn_like(x)
        logits: Tensor = self.head(x)
        return logits + torch.randn_like(logits) if self.last else logits


@pytest.mark.parametrize(("last", "status"), [(True, "warn"), (False, "fail")])
def test_what_is_given_may_be_a_sample(last: bool, status: str) -> None:
    report = check(Draws(last=last), Spec(kind="causal"), only=["deterministic"])
    assert statuses(report) == {("T09", status)}, str(report)


class Layer(nn.Module):
    """Both sublayers are added to what a norm made of the stream, and it is called pre-norm."""

    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attention = nn.MultiheadAttention(D, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def forward(self, x: Tensor) -> Tensor:
        x = self.n1(x)  # pre-norm
        x = x + self.attention(x, x, x, attn_mask=hides(x), need_weights=False)[0]
        x = self.n2(x)
        return x + self.mlp(x)  # type: ignore[no-any-return]


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(V, D), nn.Embedding(64, D), nn.Linear(D, V)
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(2)), nn.LayerNorm(D)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def test_norms_in_front_of_a_post_norm() -> None:
    report = check(Stack(), Spec(kind="causal"), only=["streams"])
    assert statuses(report) == {("N05", "warn")}, str(report)


class Leaks(nn.Module):
    """Behind the softmax every weight grows by a little."""

    def __init__(self, little: float) -> None:
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(V, D), nn.Embedding(64, D), nn.Linear(D, V)
        self.little = little

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        weights = (x @ x.mT / D**0.5).masked_fill(hides(x), -torch.inf).softmax(-1) + self.little
        return self.head(x + weights @ x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("little", "status"), [(3e-4, "warn"), (0.1, "fail")])
def test_a_leak_may_be_too_small_to_matter(little: float, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setitem(FIRST_SIGHT, "dependencies M19", (0, 1, 0))
    report = check(Leaks(little), Spec(kind="causal"), only=["dependencies"])
    assert statuses(report) == {("M19", status)}, str(report)


class Averages(Translator):
    """What it reads of the source is the mean, with scores of zero; `scored`: with other scores, all the same."""

    scored = False

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        s, t = self.source(src), self.target(tgt) + self.places(torch.arange(tgt.shape[1]))
        s = s + self.places(torch.arange(src.shape[1]))
        s = s + self.attends(s, s, s, need_weights=False)[0]
        scores = t @ s.mT
        scores = (t @ s.mean(1, keepdim=True).expand_as(s).mT) if self.scored else scores * 0
        return self.head(t + (scores / D**0.5).softmax(-1) @ s)  # type: ignore[no-any-return]


@pytest.mark.parametrize("scored", [True, False])
def test_scores_of_zero_may_be_a_masks(scored: bool) -> None:
    averages = Averages(recurrent=False)
    averages.scored = scored
    report = check(averages, only=["sources"])
    assert (("S06", "fail") in statuses(report)) == scored, str(report)


class Attends(nn.Module):
    """An attention that has one map more than it needs."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.extra = (nn.Linear(D, D) for _ in range(4))

    def read(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), is_causal=True)


class Sometimes(Attends):
    def forward(self, x: Tensor) -> Tensor:
        return x + (self.read(self.extra(x)) if x.abs().max() > 1e9 else self.read(x))


class Never(Attends):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.read(x)


class Attentions(nn.Module):
    def __init__(self, layer: type[nn.Module]) -> None:
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(V, D), nn.Embedding(64, D), nn.Linear(D, V)
        self.layers = nn.ModuleList(layer() for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("layer", "status"), [(Sometimes, "warn"), (Never, "fail")])
def test_a_map_may_be_for_other_inputs(layer: type[nn.Module], status: str) -> None:
    report = check(Attentions(layer), Spec(kind="causal"), only=["gradients"])
    assert statuses(report) == {("A13", status)}, str(report)
