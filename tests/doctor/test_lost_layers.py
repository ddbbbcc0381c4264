"""Layers whose output is dropped, and a final norm that is made and never called."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor import check

V, D, LAYERS = 41, 32, 3


class Layer(nn.Module):
    """Pre-norm, causal."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attention = nn.MultiheadAttention(D, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def forward(self, x: Tensor) -> Tensor:
        h, T = self.ln1(x), x.shape[1]
        ahead = torch.ones(T, T, dtype=torch.bool).triu(1)
        x = x + self.attention(h, h, h, attn_mask=ahead, need_weights=False)[0]
        return x + self.mlp(self.ln2(x))  # type: ignore[no-any-return]


class Stack(nn.Module):
    def __init__(self, run: Callable[[Tensor, nn.ModuleList], Tensor], ends: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.run, self.ends = run, ends
        self.words, self.positions = nn.Embedding(V, D), nn.Embedding(64, D)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions.weight[: ids.shape[1]]
        x = self.run(x, self.layers)
        logits: Tensor = self.head(self.norm(x) if self.ends else x)
        return logits


def in_turn(x: Tensor, layers: nn.ModuleList) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def last_counts(x: Tensor, layers: nn.ModuleList) -> Tensor:
    for layer in layers:
        y: Tensor = layer(x)
    return y


def one_dropped(x: Tensor, layers: nn.ModuleList) -> Tensor:
    for number, layer in enumerate(layers):
        y = layer(x)
        x = x if number == 1 else y
    return x


def one_not_called(x: Tensor, layers: nn.ModuleList) -> Tensor:
    return in_turn(x, nn.ModuleList([layers[0], layers[2]]))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("run", "found"),
    [
        (in_turn, None),
        (last_counts, ("fail", "layers.0")),
        (one_dropped, ("fail", "layers.1")),
        (one_not_called, ("warn", "layers.1")),
    ],
)
def test_layers_whose_output_is_dropped(
    run: Callable[[Tensor, nn.ModuleList], Tensor], found: tuple[str, str] | None
) -> None:
    report = check(Stack(run), only=["A13"])
    findings = [finding for finding in report.findings if finding.id == "A13"]
    assert [finding.status for finding in findings] == ([found[0]] if found else []), str(report)
    assert not found or (findings[0].where.module or "").startswith(found[1])


def test_a_final_norm_that_is_never_called() -> None:
    report = check(Stack(in_turn, ends=False))
    assert [(finding.id, finding.status) for finding in report.findings] == [("N03", "fail")], str(report)


class Maps(Layer):
    """Maps of its own, of which `uses` may leave some out."""

    def __init__(self, uses: str) -> None:
        super().__init__()
        self.uses, self.maps = uses, nn.ModuleDict({name: nn.Linear(D, D) for name in "qkv"})

    def forward(self, x: Tensor) -> Tensor:
        if not self.uses:
            return super().forward(x)
        read = {name: part(self.ln1(x)) for name, part in self.maps.items()}
        q, k, v = (read[name] for name in self.uses)
        scores = q @ k.mT / D**0.5  # (B, T, T)
        ahead = torch.ones_like(scores[0]).triu(1).bool()
        x = x + scores.masked_fill(ahead, -torch.inf).softmax(-1) @ v
        return x + self.mlp(self.ln2(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("uses", "status"), [("qkv", []), ("qkk", ["fail"]), ("", ["warn"])])
def test_one_of_several_maps_that_is_thrown_away_is_lost(uses: str, status: list[str]) -> None:
    model = Stack(in_turn)
    model.layers = nn.ModuleList(Maps(uses) for _ in range(LAYERS))
    for layer in model.layers if uses else ():
        del layer.attention
    report = check(model, only=["A13"])
    assert [finding.status for finding in report.findings if finding.id == "A13"] == status, str(report)


class Gated(Layer):
    """A gate of its own. `use`: what becomes of it."""

    def __init__(self, use: str) -> None:
        super().__init__()
        self.use, self.gate, self.last = use, nn.Linear(D, D), torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        opened = self.gate(x)
        if self.use == "kept":
            self.last = opened
        if self.use == "for one key":
            opened = (opened.mean(1, keepdim=True) @ x.mean(1, keepdim=True).mT).softmax(-1)  # (B, 1, 1)
        if self.use == "nowhere":
            opened = torch.where(torch.zeros_like(x).bool(), opened, 0)
        is_used = self.use in ("used", "for one key", "nowhere") or (self.use == "in training" and self.training)
        return super().forward(x + opened if is_used else x)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("use", "status"),
    [
        ("used", []),
        ("kept", ["warn"]),
        ("in training", ["warn"]),
        ("for one key", ["warn"]),
        ("nowhere", ["warn"]),
        ("dropped", ["fail"]),
    ],
)
def test_what_every_call_computes_and_nothing_reads(use: str, status: list[str]) -> None:
    model = Stack(in_turn)
    model.layers = nn.ModuleList(Gated(use) for _ in range(LAYERS))
    report = check(model, only=["A13"])
    assert [finding.status for finding in report.findings if finding.id == "A13"] == status, str(report)


class Ahead(Stack):
    """A second head. `use`: what becomes of it if there are targets, of each token or of each row."""

    def __init__(self, use: str) -> None:
        super().__init__(in_turn)
        self.use, self.second = use, nn.Linear(D, V)

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        x = self.norm(self.run(self.words(ids) + self.positions.weight[: ids.shape[1]], self.layers))
        logits, second = self.head(x), self.second(x)
        if targets is None:
            return logits, None
        if self.use == "of rows":
            return logits, F.cross_entropy(second[:, 0], targets)
        if self.use == "of pictures":
            return logits, F.cross_entropy(second.mean(1), targets.reshape(len(ids), 3, 224, 224)[:, 0, 0, 0])
        loss = F.cross_entropy(logits.mT, targets)
        return logits, loss + 0.3 * F.cross_entropy(second.mT, targets) if self.use == "of tokens" else loss


@pytest.mark.parametrize(
    ("use", "status"), [("of tokens", ["warn"]), ("of rows", ["warn"]), ("of pictures", ["warn"]), ("none", ["fail"])]
)
def test_a_head_that_only_the_loss_reads_is_not_computed_in_vain(use: str, status: list[str]) -> None:
    report = check(Ahead(use), only=["A13"])
    assert [finding.status for finding in report.findings if finding.id == "A13"] == status, str(report)


class Scaled(Layer):
    """A weight that nothing reads, in a layer that is called."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(D))


def test_a_single_weight_that_nothing_reads_is_warned_of() -> None:
    model = Stack(in_turn)
    model.layers = nn.ModuleList(Scaled() for _ in range(LAYERS))
    report = check(model, only=["gradients"])
    assert [(finding.id, finding.status) for finding in report.findings] == [("A13", "warn")], str(report)
    assert not report.broken


class Unused(Layer):
    """A norm of its own that nothing calls."""

    def __init__(self) -> None:
        super().__init__()
        self.ln3 = nn.LayerNorm(D)


class Dropped(Layer):
    """A norm of its own whose output is dropped, beside numbers that every call changes."""

    def __init__(self) -> None:
        super().__init__()
        self.ln3 = nn.LayerNorm(D)
        self.counted = nn.BatchNorm1d(D, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        self.counted(x.mT)
        self.ln3(x)
        return super().forward(x)


@pytest.mark.parametrize("kind", [Unused, Dropped])
def test_a_norm_of_a_layer_that_does_nothing(kind: type[Layer]) -> None:
    model = Stack(in_turn)
    model.layers = nn.ModuleList(kind() for _ in range(LAYERS))
    report = check(model, only=["gradients"])
    (lost,) = [finding for finding in report.findings if finding.id == "A13"]
    assert (lost.status, "ln3" in lost.evidence.witness) == ("fail", True), str(report)


class One(nn.Module):
    """One layer, called as often as a number of it says."""

    def __init__(self, **numbers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        vars(self).update(numbers)
        self.times = max(numbers.values())
        self.words, self.positions = nn.Embedding(V, D), nn.Embedding(64, D)
        self.layer, self.norm, self.head = Layer(), nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions.weight[: ids.shape[1]]
        for _ in range(self.times):
            x = self.layer(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


class OneThatShares(One):
    """The layers share their weights, as in ALBERT."""


class OneCalledShared(One):
    shared_layer: nn.Module | None = None


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (One(num_layers=3), ["I02"]),
        (One(nLayers=3), ["I02"]),
        (One(num_heads=3), []),
        (One(n_layer=2, steps=3), []),
        (OneThatShares(num_layers=3), []),
        (OneCalledShared(num_layers=3), []),
    ],
    ids=["layers", "in camels", "heads", "another number", "shared", "in a name"],
)
def test_one_layer_called_as_often_as_there_are_to_be_layers(model: One, found: list[str]) -> None:
    report = check(model, only=["storage"])
    assert [finding.id for finding in report.findings if finding.status == "fail"] == found, str(report)


def test_one_layer_without_a_last_norm() -> None:
    model = One(steps=4)
    model.norm = nn.Identity()  # type: ignore[assignment]
    report = check(model, only=["N03"])
    assert [(finding.id, finding.status) for finding in report.findings] == [("N03", "fail")], str(report)
