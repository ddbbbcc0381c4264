"""What names, docstrings and settings declare, held against behavior: polarity, padding, documents, windows, rows."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor import Report, check
from clearhead.doctor.load.loading import load

V, D, PAD = 41, 16, 3


def triangle(T: int) -> Tensor:
    return torch.ones(T, T, dtype=torch.bool).tril()


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.q, self.kv, self.out = nn.LayerNorm(D), nn.Linear(D, D), nn.Linear(D, 2 * D), nn.Linear(D, D)

    def forward(self, x: Tensor, allowed: Tensor | None = None, memory: Tensor | None = None) -> Tensor:
        h = self.norm(x)
        k, v = self.kv(h if memory is None else memory).chunk(2, -1)
        return x + self.out(F.scaled_dot_product_attention(self.q(h), k, v, attn_mask=allowed))  # type: ignore[no-any-return]


class Tokens(nn.Module):
    """A model."""

    def __init__(self, fault: str = "", pad: int | None = None, outputs: int = V) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fault = fault
        self.words, self.places = nn.Embedding(V, D, padding_idx=pad), nn.Embedding(64, D)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, outputs))

    def read(self, ids: Tensor, *allowed: Tensor | None) -> Tensor:
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        for number, layer in enumerate(self.layers):
            x = layer(x, allowed[number % len(allowed)])
        return x  # type: ignore[no-any-return]


class Documents(Tokens):
    """Causal: it predicts the next token of packed documents."""

    def forward(self, ids: Tensor, doc_ids: Tensor | None = None) -> Tensor:
        causal = triangle(ids.shape[1])
        if doc_ids is None or self.fault == "ignored":
            return self.head(self.read(ids, causal))  # type: ignore[no-any-return]
        apart = causal & (doc_ids[:, :, None] == doc_ids[:, None])
        return self.head(self.read(ids, causal if self.fault == "first layer" else apart, apart))  # type: ignore[no-any-return]


class Kinds(Tokens):
    """Causal, and told what kind of document each token is of, which is added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Embedding(4, D)

    def forward(self, ids: Tensor, doc_idx: Tensor | None = None) -> Tensor:
        x = self.read(ids, triangle(ids.shape[1]))
        return self.head(x if doc_idx is None else x + self.kinds(doc_idx).cumsum(1))  # type: ignore[no-any-return]


class Prefix(Tokens):
    """Causal after a prefix that sees itself."""

    def forward(self, ids: Tensor, prefix_len: int = 0) -> Tensor:
        T = ids.shape[1]
        n = prefix_len + 2 if self.fault and prefix_len else prefix_len
        return self.head(self.read(ids, triangle(T) | (torch.arange(T) < n)))  # type: ignore[no-any-return]


class Windows(Tokens):
    """Causal, with windows in some layers."""

    def __init__(self, fault: str = "", window: int = 4) -> None:
        super().__init__(fault)
        self.config = SimpleNamespace(sliding_window=window, layer_types=["sliding_attention", "full_attention"])

    def forward(self, ids: Tensor) -> Tensor:
        T = ids.shape[1]
        causal = triangle(T)
        window = causal & (torch.arange(T)[:, None] - torch.arange(T) < self.config.sliding_window)
        order = {"": (window, causal), "exchanged": (causal, window), "none": (causal,), "both": (window,)}
        return self.head(self.read(ids, *order[self.fault]))  # type: ignore[no-any-return]


class Told(Tokens):
    """A tagger.

    Args:
        padding: True where a token is padding.
    """

    def forward(self, ids: Tensor, padding: Tensor | None = None) -> Tensor:
        if padding is None:
            return self.head(self.read(ids, None))  # type: ignore[no-any-return]
        return self.head(self.read(ids, (padding if self.fault else ~padding)[:, None]))  # type: ignore[no-any-return]


class Named(Tokens):
    """A tagger."""

    def forward(self, ids: Tensor, valid_mask: Tensor | None = None) -> Tensor:
        if valid_mask is None:
            return self.head(self.read(ids, None))  # type: ignore[no-any-return]
        return self.head(self.read(ids, (~valid_mask if self.fault else valid_mask)[:, None]))  # type: ignore[no-any-return]


class Unused(Tokens):
    """A tagger."""

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.head(self.read(ids, None if mask is None or self.fault else mask[:, None] > 0))  # type: ignore[no-any-return]


class Scaled(Tokens):
    """A tagger whose mask, as soon as there is one, does more than to hide."""

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.read(ids, None if mask is None else mask[:, None] > 0)
        return self.head(x) * (1 if mask is None or not self.fault else 2)  # type: ignore[no-any-return]


class Causal(Tokens):
    """A language model.

    Args:
        mask: (T, T), True where a query may attend to a key.
    """

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.read(ids, ~mask if self.fault else mask))  # type: ignore[no-any-return]


class Classes(Tokens):
    """A class for each text; padding is known by the table of words alone."""

    def __init__(self, fault: str = "") -> None:
        super().__init__(fault, PAD, 5)

    def forward(self, ids: Tensor) -> Tensor:
        real = ids != PAD
        x = self.read(ids, None if self.fault == "attended" else real[:, None])
        if self.fault == "mean":
            return self.head(x.mean(1))  # type: ignore[no-any-return]
        return self.head(x[:, -1 if self.fault == "last" else 0])  # type: ignore[no-any-return]


class Tagger(Tokens):
    """A bidirectional tagger, whose table of words alone knows the padding."""

    def __init__(self) -> None:
        super().__init__(pad=PAD)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.read(ids, None))  # type: ignore[no-any-return]


class Translator(Tokens):
    """Knows the padding of the source, and of the target, which is padded behind."""

    def __init__(self, fault: str = "") -> None:
        super().__init__(fault, PAD)
        self.src_pad_index = self.trg_pad_index = PAD
        self.source_words, self.encoder, self.cross = nn.Embedding(V, D), Layer(), Layer()

    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        real, y = (src != PAD)[:, None], (trg != PAD)[:, None]
        memory = self.encoder(
            self.source_words(src) + self.places.weight[: src.shape[1]], None if self.fault == "encoder" else real
        )
        x = self.read(trg, triangle(trg.shape[1]) & y)
        return self.head(self.cross(x, None if self.fault == "cross" else real, memory))  # type: ignore[no-any-return]


class Mixed(Tokens):
    """Causal, and rows see each other in one of several ways."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.read(ids, triangle(ids.shape[1]))
        if self.fault == "attention":
            x = x + F.scaled_dot_product_attention(*(x.transpose(0, 1),) * 3).transpose(0, 1)
        elif self.fault == "largest":
            x = x + x.amax(0)
        elif self.fault == "first":
            x = x + x[:1]
        return self.head(x)  # type: ignore[no-any-return]


ALONE = """
import torch

class Reader(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = torch.nn.Embedding(41, 16), torch.nn.Embedding(64, 16)
        self.mix, self.head = torch.nn.MultiheadAttention(16, 2, batch_first=True), torch.nn.Linear(16, 41)

    def forward(self, ids):
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        return self.head(x + self.mix(x, x, x, need_weights=False)[0])

def grow(model, ids):
    return torch.cat([ids, torch.multinomial(model(ids)[:, -1].softmax(-1), 1)], 1)
"""


def failures(report: Report) -> list[str]:
    return [finding.id for finding in report.findings if finding.status == "fail"]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("model", "id"),
    [
        (Documents("ignored"), "M17"),
        (Documents("first layer"), "M17"),
        (Prefix("beyond"), "M18"),
        (Windows("exchanged"), "M16"),
        (Windows("none"), "M16"),
        (Windows("both"), "M16"),
        (Windows("exchanged", window=24), "M16"),
        (Told("inverted"), "M12"),
        (Named("inverted"), "M12"),
        (Unused("yes"), "M11"),
        (Causal("inverted"), "M05"),
        (Classes("attended"), "M11"),
        (Classes("mean"), "M22"),
        (Classes("last"), "M22"),
        (Tagger(), "M11"),
        (Translator("encoder"), "M11"),
        (Translator("cross"), "S01"),
        (Mixed("attention"), "A10"),
        (Mixed("largest"), "N02"),
        (Mixed("first"), "M15"),
    ],
    ids=lambda value: f"{type(value).__name__} {value.fault}" if isinstance(value, Tokens) else value,
)
def test_what_is_declared_must_hold(model: Tokens, id: str) -> None:
    report = check(model)
    assert failures(report)[:1] == [id], str(report)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "model",
    [Documents(), Kinds(), Prefix(), Windows(), Windows(window=24), Told(), Named(), Unused(), Scaled(), Causal(),
     Classes(), Translator(), Mixed()],
    ids=lambda model: type(model).__name__,
)  # fmt: skip
def test_what_holds_is_no_fault(model: Tokens) -> None:
    report = check(model)
    assert not failures(report), str(report)


def test_a_mask_that_hides_nothing_is_as_good_as_none() -> None:
    report = check(Scaled("more"))
    assert failures(report) == ["M12"], str(report)
    assert "compared with no mask" in str(report)


@pytest.mark.parametrize(("code", "found"), [(ALONE, ["M01"]), (ALONE.partition("def grow")[0], [])])
def test_a_function_beside_the_model_says_that_it_is_causal(tmp_path: Path, code: str, found: list[str]) -> None:
    file = tmp_path / "alone.py"
    file.write_text(code, encoding="utf-8")
    assert failures(check(load(f"{file}:Reader"))) == found
