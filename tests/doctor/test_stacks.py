"""What a layer carries on, which norms it has, and whether a norm ends the stack."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from clearhead.doctor import check

V, D, LAYERS = 41, 32, 3


class Attention(nn.Module):
    """Causal, with one norm for queries and keys if it is given one."""

    def __init__(self, norm: nn.Module | None = None, scale: Callable[[Tensor], float] | None = None) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.norm, self.scale = norm or nn.Identity(), scale or (lambda q: q.shape[-1] ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (part(x).view(B, T, 2, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = self.norm(q), self.norm(k)
        ahead = torch.ones(T, T, dtype=torch.bool).triu(1)
        weights = (q @ k.transpose(-2, -1) * self.scale(q)).masked_fill(ahead, -torch.inf).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).reshape(B, T, D))  # type: ignore[no-any-return]


class Head(nn.Module):
    """One head of many, which are modules of their own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D // 2, bias=False) for _ in range(3))
        self.width, self.softmax = width, nn.Softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        ahead = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = self.q(x) @ self.k(x).transpose(1, 2) / self.width**0.5
        return self.softmax(scores.masked_fill(ahead, -torch.inf)) @ self.v(x)  # type: ignore[no-any-return]


class Heads(Attention):
    def __init__(self, width: int = D // 2) -> None:
        super().__init__()
        self.heads, self.o = nn.ModuleList(Head(width) for _ in range(2)), nn.Linear(D, D)
        del self.q, self.k, self.v

    def forward(self, x: Tensor) -> Tensor:
        return self.o(torch.cat([head(x) for head in self.heads], -1))  # type: ignore[no-any-return]


class Experts(nn.Module):
    """Maps that a router mixes for each token, by weights that sum to one."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(D, 3)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.Linear(D, D)) for _ in range(self.router.out_features)
        )

    def forward(self, x: Tensor) -> Tensor:
        shares = self.router(x).softmax(-1)
        return torch.stack([shares[..., [n]] * expert(x) for n, expert in enumerate(self.experts)]).sum(0)


class Projected(nn.Module):
    """A feed-forward with a residual of its own, of what it projects: by a wide map, a narrow one, or with a gain."""

    def __init__(self, rank: int = 0, has_gain: bool = False) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))
        self.project = nn.Sequential(nn.Linear(D, rank), nn.Linear(rank, D)) if rank else nn.Linear(D, D)
        self.gain = nn.Linear(D, D) if has_gain else None
        if self.gain is not None:
            nn.init.ones_(self.gain.bias)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.project(x)
        return self.inner(x) + (projected if self.gain is None else self.gain(x) * projected)  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, order: Callable[["Layer", Tensor], Tensor], attention: Attention | None = None) -> None:
        super().__init__()
        self.order = order
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attention = attention or Attention()
        self.mlp = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def forward(self, x: Tensor) -> Tensor:
        return self.order(self, x)


class PreNormLayer(Layer):
    """Says what it is meant to be."""


def pre(layer: Layer, x: Tensor) -> Tensor:
    x = x + layer.attention(layer.ln1(x))
    return x + layer.mlp(layer.ln2(x))  # type: ignore[no-any-return]


def post(layer: Layer, x: Tensor) -> Tensor:
    x = layer.ln1(x + layer.attention(x))
    return layer.ln2(x + layer.mlp(x))  # type: ignore[no-any-return]


def from_norms(layer: Layer, x: Tensor) -> Tensor:
    x = layer.ln1(x)
    x = x + layer.attention(x)
    x = layer.ln2(x)
    return x + layer.mlp(x)  # type: ignore[no-any-return]


def second_from_norm(layer: Layer, x: Tensor) -> Tensor:
    x = x + layer.attention(layer.ln1(x))
    x = layer.ln2(x)
    return x + layer.mlp(x)  # type: ignore[no-any-return]


def pre_with_one_norm(layer: Layer, x: Tensor) -> Tensor:
    x = x + layer.attention(layer.ln1(x))
    return x + layer.mlp(layer.ln1(x))  # type: ignore[no-any-return]


def pre_with_a_sum_within(layer: Layer, x: Tensor) -> Tensor:
    h = layer.ln1(x)
    x = x + layer.attention(h + h.cumsum(1).tanh())
    return x + layer.mlp(layer.ln2(x))  # type: ignore[no-any-return]


def post_with_one_norm(layer: Layer, x: Tensor) -> Tensor:
    x = layer.ln1(x + layer.attention(x))
    return layer.ln1(x + layer.mlp(x))  # type: ignore[no-any-return]


class Stack(nn.Module):
    """Layers by number or by name, one layer several times, or a norm that also ends them."""

    def __init__(
        self, layers: list[nn.Module], *, names: str = "{}", ends: bool = True, last: nn.Module | None = None
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.positions = nn.Embedding(V, D), nn.Embedding(64, D)
        self.blocks = nn.ModuleDict({names.format(number): layer for number, layer in enumerate(layers)})
        self.norm = last or (nn.LayerNorm(D) if ends else nn.Identity())
        self.head = nn.Linear(D, V)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions.weight[: ids.shape[1]]
        for layer in self.blocks.values():
            x = layer(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def stack(order: Callable[[Layer, Tensor], Tensor], kind: type[Layer] = PreNormLayer, **options: object) -> Stack:
    return Stack([kind(order) for _ in range(LAYERS)], **options)  # type: ignore[arg-type]


def shared_norm(ends: bool) -> Stack:
    """One norm in front of everything, and last, or in the layers alone."""
    layers, norm = [Layer(pre) for _ in range(LAYERS)], nn.LayerNorm(D)
    for layer in layers:
        layer.ln1 = layer.ln2 = norm
    return Stack([*layers], last=norm if ends else nn.LayerNorm(D))


def with_attention(make: Callable[[], Attention]) -> Stack:
    return Stack([Layer(pre, make()) for _ in range(LAYERS)])


def with_mlp(order: Callable[[Layer, Tensor], Tensor], make: Callable[[], nn.Module]) -> Stack:
    layers: list[nn.Module] = [Layer(order) for _ in range(LAYERS)]
    for layer in layers:
        layer.mlp = make()
    return Stack(layers)


def residual_within(layer: Layer, x: Tensor) -> Tensor:
    x = x + layer.attention(layer.ln1(x))
    return layer.ln2(layer.mlp(x))  # type: ignore[no-any-return]


FAULTS: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "the second residual from a norm": (lambda: stack(second_from_norm), {"N05"}),
    "one norm for both sublayers": (
        lambda: stack(pre_with_one_norm, names="block_{}"),
        {"N08", "A13"},
    ),  # and the other does nothing
    "one norm behind both": (lambda: stack(post_with_one_norm), {"N08", "A13"}),
    "one norm everywhere": (lambda: shared_norm(ends=True), {"N08"}),
    "one norm in all layers": (lambda: shared_norm(ends=False), {"N08"}),
    "no last norm": (lambda: stack(pre, ends=False), {"N03"}),
    "root of the length": (lambda: with_attention(lambda: Attention(scale=lambda q: q.shape[-2] ** -0.5)), {"A01"}),
    "root of what heads read": (lambda: with_attention(lambda: Heads(D)), {"A01"}),
    "no root in a head": (lambda: with_attention(lambda: Heads(1)), {"A01"}),
    "nothing leads around experts": (lambda: with_mlp(without_second, Experts), {"N04"}),
}
HEALTHY = {
    "pre": lambda: stack(pre),
    "a sum within the branch": lambda: stack(pre_with_a_sum_within),
    "post": lambda: stack(post, ends=False),
    "post in named layers": lambda: stack(post, names="block_{}", ends=False),
    "experts": lambda: with_mlp(pre, Experts),
    "a residual of what was projected": lambda: with_mlp(residual_within, Projected),
    "of what was projected by two maps": lambda: with_mlp(residual_within, lambda: Projected(rank=8)),
    "of what was projected, times a gain": lambda: with_mlp(residual_within, lambda: Projected(has_gain=True)),
    "heads that are modules": lambda: with_attention(Heads),
    "one layer three times": lambda: Stack([Layer(post)] * LAYERS, ends=False),
    "one norm for queries and keys": lambda: with_attention(lambda: Attention(nn.LayerNorm(D // 2))),
}


@pytest.mark.parametrize("name", FAULTS)
def test_layers_with_a_fault(name: str) -> None:
    build, ids = FAULTS[name]
    report = check(build(), only=["N03", "N05", "N08", "A01"])
    assert {finding.id for finding in report.findings if finding.status == "fail"} == ids, str(report)


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_layers(name: str) -> None:
    report = check(HEALTHY[name](), only=["N03", "N05", "N08", "A01"])
    assert not [finding for finding in report.findings if finding.id != "I02"], str(report)


class Single(nn.Module):
    """A model of one layer, which is an attribute and stands in no list."""

    def __init__(self, order: Callable[[Layer, Tensor], Tensor], pooled: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.positions = nn.Embedding(V, D), nn.Embedding(64, D)
        self.layer, self.norm, self.head, self.pooled = Layer(order), nn.LayerNorm(D), nn.Linear(D, V), pooled

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.layer(self.words(ids) + self.positions.weight[: ids.shape[1]]))
        return self.head(x.mean(1) if self.pooled else x)  # type: ignore[no-any-return]


def without_any(layer: Layer, x: Tensor) -> Tensor:
    return layer.mlp(layer.ln2(layer.attention(layer.ln1(x))))  # type: ignore[no-any-return]


def without_second(layer: Layer, x: Tensor) -> Tensor:
    x = x + layer.attention(layer.ln1(x))
    return layer.mlp(layer.ln2(x))  # type: ignore[no-any-return]


def without_first(layer: Layer, x: Tensor) -> Tensor:
    x = layer.attention(layer.ln1(x))
    return x + layer.mlp(layer.ln2(x))  # type: ignore[no-any-return]


def parallel(layer: Layer, x: Tensor) -> Tensor:
    return x + layer.attention(layer.ln1(x)) + layer.mlp(layer.ln2(x))  # type: ignore[no-any-return]


class PooledStack(Stack):
    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions.weight[: ids.shape[1]]
        for layer in self.blocks.values():
            x = layer(x)
        return self.head(self.norm(x).mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize(("order", "status"), [
    (without_any, "warn"), (without_second, "fail"), (without_first, "fail"), (pre, ""), (post, ""), (parallel, "")
])  # fmt: skip
def test_residuals_of_one_layer(order: Callable[[Layer, Tensor], Tensor], status: str, pooled: bool) -> None:
    report = check(Single(order, pooled), only=["N04"])
    assert "".join(finding.status for finding in report.findings if finding.id == "N04") == status, str(report)


@pytest.mark.parametrize("number", range(LAYERS))
@pytest.mark.parametrize("order", [without_first, without_second])
def test_a_residual_that_is_missing_in_one_layer_of_a_pooled_stack(
    order: Callable[[Layer, Tensor], Tensor], number: int
) -> None:
    report = check(PooledStack([Layer(order if n == number else pre) for n in range(LAYERS)]), only=["N04"])
    assert [(finding.id, finding.status) for finding in report.findings] == [("N04", "fail")], str(report)
    assert report.findings[0].where.module == f"blocks.{number}"


class TimeNorm(nn.Module):
    """Over the positions of a row, where it should be over the width."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-5).sqrt()


def test_a_norm_over_time_does_not_hide_what_comes_later() -> None:
    model = stack(from_norms)
    for layer in model.blocks.values():
        layer.ln2 = TimeNorm()
        layer.attention.scale = lambda q: 1.0  # type: ignore[union-attr]
    report = check(model)
    statuses = {(finding.id, finding.status) for finding in report.findings}
    assert {("N01", "fail"), ("N05", "warn"), ("A01", "fail")} <= statuses, str(report)
    assert not [outcome for outcome in report.checks if outcome.status == "blocked"], str(report)


class TimeFirst(nn.Module):
    """torch's layer, which takes the batch for time, in a model without positions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(V, D), nn.Linear(D, 2)
        self.layer = nn.TransformerEncoderLayer(D, 2, 64)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layer(self.words(ids)).mean(1))  # type: ignore[no-any-return]


def test_an_attention_over_the_batch_does_not_hide_what_comes_later() -> None:
    report = check(TimeFirst(), only=["A10", "P01"])
    assert {(finding.id, finding.status) for finding in report.findings} == {("A10", "fail"), ("P01", "warn")}, str(
        report
    )


@pytest.mark.parametrize("kind", [Layer, PreNormLayer])
@pytest.mark.parametrize("names", ["{}", "block_{}"])
def test_residuals_from_norms_are_in_effect_post_norm(kind: type[Layer], names: str) -> None:
    report = check(stack(from_norms, kind, names=names), only=["N05"])
    assert [(finding.id, finding.status) for finding in report.findings] == [("N05", "warn")], str(report)


class Body(Stack):
    """Layers without a head: a norm may follow elsewhere."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions.weight[: ids.shape[1]]
        for layer in self.blocks.values():
            x = layer(x)
        return x  # type: ignore[no-any-return]


def test_layers_without_a_head_may_leave_their_norm_to_others() -> None:
    model = Body([Layer(pre) for _ in range(LAYERS)], ends=False)
    del model.head
    report = check(model, only=["N03"])
    assert not [finding for finding in report.findings if finding.status == "fail"], str(report)


class MemoryFirst(nn.Module):
    """A decoder's layer that is given the memory before what it goes on from."""

    def __init__(self, *, residual: bool) -> None:
        super().__init__()
        self.residual = residual
        self.cross, self.up, self.down = (
            nn.MultiheadAttention(16, 2, batch_first=True),
            nn.Linear(16, 32),
            nn.Linear(32, 16),
        )
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))

    def forward(self, memory: Tensor, x: Tensor) -> Tensor:
        mixed = self.cross(x, memory, memory, need_weights=False)[0]
        x = self.norms[0](x + mixed if self.residual else mixed)
        return self.norms[1](x + self.down(self.up(x).relu()))  # type: ignore[no-any-return]


class Copier(nn.Module):
    """Tokens meet a source, and no other token."""

    def __init__(self, *, residual: bool) -> None:
        super().__init__()
        self.source_tokens, self.tokens, self.head = nn.Embedding(40, 16), nn.Embedding(40, 16), nn.Linear(16, 40)
        self.layers = nn.ModuleList(MemoryFirst(residual=residual) for _ in range(2))

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        memory, x = self.source_tokens(src), self.tokens(tgt)
        for layer in self.layers:
            x = layer(memory, x)
        return self.head(x)  # type: ignore[no-any-return]


def test_a_layer_that_reads_the_memory_first_has_its_residual_in_what_comes_second() -> None:
    for residual in (True, False):
        report = check(Copier(residual=residual), only=["N04"])
        assert [fault.id for fault in report.findings if fault.id == "N04"] == ([] if residual else ["N04"]), str(
            report
        )
