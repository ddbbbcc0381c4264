"""Calls of other kinds: *args, dicts in dicts, rows of codes, one row without an axis, outputs that are left behind."""

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus

from clearhead.doctor import Spec, check
from clearhead.doctor.calling import find_convention
from clearhead.doctor.state_guard import perturbed

D, V = 16, 40


def body(layers: int = 1) -> nn.Module:
    layer = nn.TransformerEncoderLayer(D, 2, 32, 0.0, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


class Clouds(nn.Module):
    """Two clouds of points, by position."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Conv1d(3, D, 1), body(), nn.Linear(D, 5)

    def forward(self, *clouds: Tensor) -> Tensor:
        first, second = (self.embed(cloud).mT for cloud in (clouds[0], clouds[1]))
        return self.head(self.body(torch.cat([first, second], 1)).mean(1))  # type: ignore[no-any-return]


class Matching(nn.Module):
    """Two dicts in a dict; it looks whether they are there before it reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place, self.body, self.head = nn.Linear(9, D), nn.Linear(2, D), body(), nn.Linear(D, 5)

    def forward(self, data: Mapping[str, Mapping[str, Tensor]]) -> Tensor:
        for name in ("left", "right"):
            assert name in data, f"Missing key {name}"
        left, right = data["left"], data["right"]
        rows = [self.embed(side["features"]) + self.place(side["points"]) for side in (left, right)]
        return self.head(self.body(torch.cat(rows, 1)).mean(1))  # type: ignore[no-any-return]


class Codebooks(nn.Module):
    """Several ids at each place, as rows of codes (B, codes, T). What is named after a length need be no number."""

    def __init__(self) -> None:
        super().__init__()
        self.window_size = [2, 2]
        self.tables = nn.ModuleList([nn.Embedding(V, D), nn.Embedding(30, D)])
        self.body, self.places, self.head = body(), nn.Embedding(64, D), nn.Linear(D, V)

    def forward(self, codes: Tensor) -> Tensor:
        _, count, T = codes.shape
        assert count == len(self.tables), f"{count} rows of codes, but {len(self.tables)} tables"
        x = sum(table(codes[:, number]) for number, table in enumerate(self.tables))
        return self.head(self.body(x + self.places(torch.arange(T))))  # type: ignore[no-any-return]


class OneGraph(nn.Module):
    """One graph a call; there is no axis for more of them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Linear(6, D), body(), nn.Linear(D, 2)

    def forward(self, nodes: Tensor) -> Tensor:
        count, _ = nodes.shape
        x = self.body(self.embed(nodes).view(1, count, D))
        return self.head(x[0].sum(0))  # type: ignore[no-any-return]


class LeftBehind(nn.Module):
    """It returns nothing, and keeps what it computed."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places, self.body, self.rate = nn.Embedding(V, D), nn.Embedding(64, D), body(), nn.Linear(D, 3)

    def forward(self, ids: Tensor) -> None:
        x = self.table(ids) + self.places(torch.arange(ids.shape[1]))
        self.intensity = softplus(self.rate(self.body(x)))


class Conditioned(nn.Module):
    """A vector for the whole row beside its ids."""

    def __init__(self) -> None:
        super().__init__()
        self.picture, self.table, self.places = nn.Linear(24, D), nn.Embedding(V, D), nn.Embedding(64, D)
        self.body, self.head = body(), nn.Linear(D, V)

    def forward(self, features: Tensor, captions: Tensor) -> Tensor:
        _, width = features.shape
        assert width == self.picture.in_features
        x = self.table(captions) + self.places(torch.arange(captions.shape[1]))
        return self.head(self.body(x + self.picture(features)[:, None]))  # type: ignore[no-any-return]


class Counted(LeftBehind):
    """Ids and how many of each row are real, in one argument."""

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        ids, counts = batch
        mask = torch.cat([torch.arange(int(max(counts)))[None] >= int(count) for count in counts])
        x = self.table(ids) + self.places(torch.arange(ids.shape[1]))
        return self.rate(self.body(x, src_key_padding_mask=mask))  # type: ignore[no-any-return]


class Taught(LeftBehind):
    """It returns the loss of the next tokens alone, and reads all but the last."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Linear(D, V)

    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        T = ids.shape[1] - 1
        x = self.table(ids[:, :-1]) + self.places(torch.arange(T))
        mask = nn.Transformer.generate_square_subsequent_mask(T)
        return cross_entropy(self.rate(self.body(x, mask=mask)).flatten(0, 1), ids[:, 1:].flatten())


CALLS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "by position": (Clouds, "model(*0=ids as 3 numbers in rows, *1=ids as 3 numbers in rows), one output for each row"),
    "dicts in a dict": (Matching, "model({...}), one output for each row"),
    "codes": (Codebooks, "model(codes=ids as 2 ids in rows)"),
    "ids and lengths": (Counted, "model(batch=ids as a pair with lengths)"),
    "one graph": (OneGraph, "model(nodes=ids as 6 numbers), one output for each row, 1 at a time"),
    "a vector for a row": (Conditioned, "model(features=numbers (B, 24), ids)"),
    "a loss alone": (Taught, "the output of rate in model(ids)"),
    "nothing returned": (LeftBehind, "the output of rate in model(ids)"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CALLS)
def test_a_way_to_call_it_is_learned_and_nobody_healthy_is_accused(name: str) -> None:
    build, sentence = CALLS[name]
    torch.manual_seed(0)
    model = build()
    known = find_convention(perturbed(model, 0), Spec())
    assert (known.convention.sentence, known.T < 20) == (sentence, True)
    assert not [finding for finding in check(model).findings if finding.status == "fail"]
