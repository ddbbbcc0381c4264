"""Models that are given several masks, or everything in one dict, and that shift their target by themselves."""

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor import Report, check

V, D = 41, 16


class Likeness(nn.Module):
    """Two texts, each with its own mask, to how like they are."""

    def __init__(self, divisor: str = "real") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.divisor = divisor
        self.words, self.places = nn.Embedding(V, D), nn.Embedding(64, D)
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))

    def encode(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        x = x + F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), attn_mask=mask[:, None, :] > 0)
        count = mask.sum(1, keepdim=True) if self.divisor == "real" else ids.shape[1]
        return (x * mask[..., None]).sum(1) / count  # type: ignore[no-any-return]

    def forward(self, query_ids: Tensor, query_mask: Tensor, text_ids: Tensor, text_mask: Tensor) -> Tensor:
        return (self.encode(query_ids, query_mask) * self.encode(text_ids, text_mask)).sum(-1)


class Seq2Seq(nn.Module):
    def __init__(self, hides_memory: bool = True, first: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hides_memory = hides_memory
        self.src_words, self.tgt_words, self.places = nn.Embedding(V, D), nn.Embedding(V, D), nn.Embedding(64, D)
        with warnings.catch_warnings(action="ignore"):  # torch's, that time first is slower
            self.core = nn.Transformer(D, 2, 1, 1, 2 * D, 0.0, batch_first=not first)
        self.head = nn.Linear(D, V)


class Tutorial(Seq2Seq):
    """Time first, and every mask is given by the caller."""

    def forward(
        self, src: Tensor, trg: Tensor, src_mask: Tensor, tgt_mask: Tensor, src_padding_mask: Tensor,
        tgt_padding_mask: Tensor, memory_key_padding_mask: Tensor,
    ) -> Tensor:  # fmt: skip
        x, y = (words(ids) + self.places.weight[: len(ids), None] for words, ids in
                ((self.src_words, src), (self.tgt_words, trg)))  # fmt: skip
        memory = memory_key_padding_mask if self.hides_memory else None
        return self.head(  # type: ignore[no-any-return]
            self.core(x, y, src_mask, tgt_mask, None, src_padding_mask, tgt_padding_mask, memory)
        )


class FromDict(Seq2Seq):
    """All of it in one dict; the target is shifted inside."""

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Any]:
        src, pad, tgt = batch["src"], batch["src_pad"], batch["tgt"]
        inputs, wanted = tgt[:, :-1], tgt[:, 1:]
        x = self.src_words(src) + self.places.weight[: src.shape[1]]
        y = self.tgt_words(inputs) + self.places.weight[: inputs.shape[1]]
        ahead = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).triu(1)
        out = self.core(x, y, tgt_mask=ahead, src_key_padding_mask=pad,
                        memory_key_padding_mask=pad if self.hides_memory else None)  # fmt: skip
        logits = self.head(out)
        return {"logits": logits, "loss": F.cross_entropy(logits.flatten(0, 1), wanted.flatten())}


class TellsPads(Seq2Seq):
    """The source's padding is told by a mask, the target's is a token that the loss leaves out."""

    def __init__(self, hides_memory: bool = True) -> None:
        super().__init__(hides_memory)
        self.tgt_pad_id = 0

    def forward(self, src: Tensor, tgt: Tensor, src_pad: Tensor | None = None) -> Tensor:
        x = self.src_words(src) + self.places.weight[: src.shape[1]]
        y = self.tgt_words(tgt) + self.places.weight[: tgt.shape[1]]
        ahead = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).triu(1)
        out = self.core(x, y, tgt_mask=ahead, src_key_padding_mask=src_pad,
                        memory_key_padding_mask=src_pad if self.hides_memory else None)  # fmt: skip
        return self.head(out)  # type: ignore[no-any-return]


def ids(report: Report) -> list[str]:
    return [finding.id for finding in report.findings if finding.status == "fail"]


@pytest.mark.parametrize("model", [Likeness(), Tutorial(first=True), FromDict(), TellsPads()])
def test_they_need_no_adapter(model: nn.Module) -> None:
    report = check(model)
    assert report.verdict == "healthy", str(report)
    assert "paddings" in {one.name for one in report.checks if one.status == "pass"}


@pytest.mark.parametrize("model", [Tutorial(False, first=True), FromDict(False), TellsPads(False)])
def test_the_memory_of_padding_is_found_under_any_of_the_masks(model: nn.Module) -> None:
    assert ids(check(model))[0] == "S01"


def test_how_much_padding_there_is_must_not_matter() -> None:
    report = check(Likeness("all"))
    assert set(ids(report)) == {"M22"}
    assert "three tokens of padding" in str(report)


class Told(Likeness):
    """One text, whose mask is told of in words only."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault, self.head = fault, nn.Linear(D, 5)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """ids (B, T); mask (B, T), True for real tokens."""
        keep = torch.ones_like(ids, dtype=torch.bool) if mask is None or self.fault == "unread" else mask
        return self.head(self.encode(ids, ~keep if self.fault == "inverted" and mask is not None else keep))  # type: ignore[no-any-return]


class ToldOtherwise(Told):
    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """The mask is 1 at padding."""
        return super().forward(ids, None if mask is None else ~mask.bool())


@pytest.mark.parametrize(
    ("model", "found"),
    [(Told(), []), (ToldOtherwise(), []), (Told("inverted"), ["M12"]), (ToldOtherwise("inverted"), ["M12"]),
     (Told("unread"), ["M11"])],
)  # fmt: skip
def test_what_a_mask_means_may_be_said_in_words(model: nn.Module, found: list[str]) -> None:
    assert ids(check(model, only=["paddings"])) == found


class Softly(nn.Module):
    """Attentions the scores of which a mask sets to minus infinity. `safe`: the second has numbers for empty rows."""

    def __init__(self, *, safe: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(V, D), nn.Linear(D, V)
        self.layers = nn.ModuleList(Softened(safe=safe or number != 1) for number in range(3))

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x, attention_mask.bool())
        return self.head(x)  # type: ignore[no-any-return]


class Softened(nn.Module):
    def __init__(self, *, safe: bool) -> None:
        super().__init__()
        self.safe, self.q, self.k, self.v = safe, nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        T = x.shape[1]
        sees = torch.ones(T, T, dtype=torch.bool).tril() & keep[:, None, :]  # (B, T, T)
        shares = (self.q(x) @ self.k(x).mT).masked_fill(~sees, -torch.inf).softmax(-1)
        seen: Tensor = (shares.nan_to_num() if self.safe else shares) @ self.v(x)
        return x + seen


def test_nan_is_told_at_the_module_that_makes_it() -> None:
    assert not ids(check(Softly(safe=True), only=["paddings"]))
    report = check(Softly(safe=False), only=["paddings"])
    assert [(finding.id, finding.where.module) for finding in report.findings] == [("M14", "layers.1")], str(report)


class OnlyAsLong(Seq2Seq):
    """Its targets are called as labels are, and a mask lies on the wrong axis: it takes equal lengths only."""

    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        x = self.src_words(src) + self.places.weight[: src.shape[1]]
        y = self.tgt_words(trg) + self.places.weight[: trg.shape[1]]
        hidden = (src == 0)[:, :, None].expand(-1, -1, trg.shape[1]).repeat_interleave(2, dim=0)  # (B * H, S, T)
        ahead = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).triu(1)
        return self.head(self.core(x, y, tgt_mask=ahead, memory_mask=hidden))  # type: ignore[no-any-return]


def test_what_moves_the_logits_is_no_label() -> None:
    report = check(OnlyAsLong(), only=["paddings"])
    assert "model(source, ids)" in report.paths, report.paths
    assert ids(report), str(report)


class TwoVoices(nn.Module):
    """Pitches and lengths of notes, place by place, to the next pitch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pitches, self.lengths, self.places = nn.Embedding(V, D), nn.Embedding(V, D), nn.Embedding(64, D)
        self.layer = nn.TransformerEncoderLayer(D, 2, 2 * D, 0.0, batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, pitch_ids: Tensor, length_ids: Tensor) -> Tensor:
        T = pitch_ids.shape[1]
        x = self.pitches(pitch_ids) + self.lengths(length_ids) + self.places.weight[:T]
        ahead = torch.ones(T, T, dtype=torch.bool).triu(1)
        return self.head(self.norm(self.layer(x, src_mask=ahead)))  # type: ignore[no-any-return]


def test_two_rows_that_belong_together_are_no_source_and_target() -> None:
    assert check(TwoVoices()).verdict == "healthy"


class MakesItsMask(nn.Module):
    """A mask may be given, and is made of the tokens if not. Whether it, given or made, reaches the last layer."""

    def __init__(self, *, given: bool = True, made: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.given, self.made, self.pad_id = given, made, 0
        self.words, self.places, self.head = nn.Embedding(V, D), nn.Embedding(64, D), nn.Linear(D, 5)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(D, 2, D, 0.0, batch_first=True) for _ in range(2))

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        reaches = self.made if mask is None else self.given
        mask = tokens == self.pad_id if mask is None else mask
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        x = self.layers[0](x, src_key_padding_mask=mask)
        return self.head(self.layers[1](x, src_key_padding_mask=mask if reaches else None))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("given", "made", "found"),
    [(True, True, []), (False, False, [("M11", "fail")]), (True, False, [("M11", "warn")])],
)
def test_a_mask_that_a_model_makes_hides_padding_everywhere(
    given: bool, made: bool, found: list[tuple[str, str]]
) -> None:
    report = check(MakesItsMask(given=given, made=made), only=["paddings"])
    assert [(finding.id, finding.status) for finding in report.findings] == found
