"""Dropout of the stream: of embeddings and at the end of a stack it may be meant, within a stack it is not."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor import check

V, D, LAYERS = 41, 24, 2


class Attention(nn.Module):
    def __init__(self, *, causal: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.causal = causal

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        q, k, v = (
            part(read).view(len(x), -1, 2, D // 2).transpose(1, 2)
            for part, read in ((self.q, x), (self.k, memory), (self.v, memory))
        )
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.o(heads.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Pre-norm. `reads`: it attends to a memory, too; `drops`: also what it carries on."""

    def __init__(self, *, causal: bool, reads: bool, drops: bool) -> None:
        super().__init__()
        self.ln1, self.ln2, self.ln3 = (nn.LayerNorm(D) if reads or n < 2 else nn.Identity() for n in range(3))
        self.attention, self.cross = Attention(causal=causal), Attention() if reads else None
        self.mlp = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))
        self.drop, self.drops = nn.Dropout(0.1), drops

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        h = self.ln1(x)
        x = x + self.drop(self.attention(h, h))
        if self.cross is not None:
            x = x + self.drop(self.cross(self.ln3(x), memory))
        x = x + self.drop(self.mlp(self.ln2(x)))
        return self.drop(x) if self.drops else x


class Embeddings(nn.Module):
    """With something that is made from themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(V, D), nn.Embedding(64, D)
        self.mlp, self.drop = nn.Linear(D, D), nn.Dropout(0.1)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        return self.drop(x + F.gelu(self.mlp(x)))  # type: ignore[no-any-return]


def layers(*, causal: bool = False, reads: bool = False, drops: bool = False) -> nn.ModuleList:
    return nn.ModuleList(Layer(causal=causal, reads=reads, drops=drops) for _ in range(LAYERS))


class Translator(nn.Module):
    """`drops`: the layers of the decoder drop what they carry on; `encoder_drops`: those of the encoder."""

    def __init__(self, drops: bool, encoder_drops: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.source, self.target = Embeddings(), Embeddings()
        self.encoder, self.decoder = layers(drops=encoder_drops), layers(causal=True, reads=True, drops=drops)
        self.ln1, self.ln2, self.head = nn.LayerNorm(D), nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        memory = self.source(src)
        for layer in self.encoder:
            memory = layer(memory)
        memory, x = self.ln1(memory), self.target(tgt)  # these come after the encoder's attention
        for layer in self.decoder:
            x = layer(x, memory)
        return self.head(self.ln2(x))  # type: ignore[no-any-return]


class TwoStacks(nn.Module):
    """One stack reads what another returns. `between`: what stands there; `drops`: the layers of the second do it."""

    def __init__(self, between: nn.Module, drops: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embeddings, self.between = Embeddings(), between
        self.lower, self.upper = layers(causal=True), layers(causal=True, drops=drops)
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embeddings(ids)
        for layer in self.lower:
            x = layer(x)
        x = self.between(x)
        for layer in self.upper:
            x = layer(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


class Ends(nn.Module):
    """How T5 ends a stack."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(D), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(x))  # type: ignore[no-any-return]


def statuses(model: nn.Module) -> list[str]:
    return [finding.status for finding in check(model, only=["N10"]).findings if finding.id == "N10"]


@pytest.mark.parametrize(("drops", "status"), [(False, []), (True, ["fail"])])
def test_a_decoders_embeddings_stand_before_its_own_attention(drops: bool, status: list[str]) -> None:
    assert statuses(Translator(drops)) == status


@pytest.mark.parametrize(("drops", "status"), [(False, []), (True, ["fail"])])
def test_an_encoders_stream_is_one_as_well(drops: bool, status: list[str]) -> None:
    assert statuses(Translator(False, encoder_drops=drops)) == status


class Carrying(Layer):
    """It drops what it carries on, and not what its branches add."""

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        h = self.ln1(x)
        x = self.drop(x) + self.attention(h, h)
        return self.drop(x) + self.mlp(self.ln2(x))  # type: ignore[no-any-return]


def test_dropout_of_what_is_carried_on_in_place_of_the_branch() -> None:
    model = TwoStacks(nn.Identity(), drops=False)
    model.upper = nn.ModuleList(Carrying(causal=True, reads=False, drops=False) for _ in range(LAYERS))
    assert statuses(model) == ["fail"]


@pytest.mark.parametrize(
    ("between", "drops", "status"),
    [
        (nn.Identity(), False, []),
        (Ends(), False, ["warn"]),
        (nn.Dropout(0.1), False, ["fail"]),
        (Ends(), True, ["fail"]),
    ],
)
def test_a_stack_may_end_with_a_norm_that_is_dropped(between: nn.Module, drops: bool, status: list[str]) -> None:
    assert statuses(TwoStacks(between, drops)) == status


class Composed(Layer):
    """One sublayer, of an attention and a map behind it; what it reads is dropped, and what it carries on is not."""

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        h = self.drop(x)
        return x + self.mlp(self.ln2(self.drop(self.attention(h, h))))  # type: ignore[no-any-return]


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embeddings, self.ln, self.head = Embeddings(), nn.LayerNorm(D), nn.Linear(D, V)
        self.layers = nn.ModuleList(Composed(causal=True, reads=False, drops=False) for _ in range(LAYERS))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embeddings(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.ln(x))  # type: ignore[no-any-return]


def test_what_a_branch_reads_may_be_dropped() -> None:
    assert "N10" not in {finding.id for finding in check(Reader(), only=["N10"]).findings}
