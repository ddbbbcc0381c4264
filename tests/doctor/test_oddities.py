"""Healthy models that look odd: none is accused."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from causal_helpers import MAX_LENGTH, Attention, Block, CausalModel, D, H, V, triangle
from torch import Tensor, nn

from clearhead import doctor


class Balanced(nn.Module):
    """Experts are chosen with a balance on top of their scores, which no gradient is to reach."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.balance = nn.Linear(D, 3), nn.Parameter(torch.zeros(3))
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.Linear(D, D)) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x).sigmoid()
        chosen = (scores + self.balance).topk(2, dim=-1).indices
        weights = torch.zeros_like(scores).scatter(-1, chosen, scores.gather(-1, chosen))
        made = torch.stack([expert(x) for expert in self.experts], dim=-1)
        return (made * weights[..., None, :]).sum(-1)


class BalancedModel(CausalModel):
    def __init__(self) -> None:
        super().__init__(Block(Balanced()), Block())


class SparseExperts(nn.Module):
    """More experts than tokens: some are sent none."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(D, 60)
        self.up = nn.ParameterList([nn.Parameter(torch.randn(D, D) / 4) for _ in range(60)])

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.router(x).softmax(-1).max(-1, keepdim=True)
        return torch.stack([(chosen == n) * weight * F.gelu(x @ up) for n, up in enumerate(self.up)]).sum(0)


class SparseModel(CausalModel):
    def __init__(self) -> None:
        super().__init__(Block(SparseExperts()), Block())


class ShapesUnread(CausalModel):
    """A second table is read at its padding alone where nobody gives it anything."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes = nn.Embedding(9, D, padding_idx=0)
        nn.init.normal_(self.shapes.weight)

    def forward(self, ids: Tensor, shape_ids: Tensor | None = None) -> Any:
        shapes = torch.zeros_like(ids) if shape_ids is None else shape_ids
        return self.head(self.hidden(ids) + self.shapes(shapes))


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(D, H, 1, 1, 2 * D, 0.0, batch_first=True)
        self.source, self.target, self.places = nn.Embedding(V, D), nn.Embedding(V, D), nn.Embedding(MAX_LENGTH, D)
        self.head = nn.Linear(D, V)

    def logits(self, src: Tensor, tgt: Tensor, **masks: Tensor | None) -> Tensor:
        x = self.source(src) + self.places(torch.arange(src.shape[1]))
        y = self.target(tgt) + self.places(torch.arange(tgt.shape[1]))
        return self.head(self.transformer(x, y, tgt_mask=~triangle(tgt.shape[1]), **masks))  # type: ignore[no-any-return]


class ShiftingTranslator(Translator):
    """The labels are the target itself."""

    def forward(self, src: Tensor, tgt: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.logits(src, tgt)
        if labels is None:
            return logits
        return logits, F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


class OwnProbabilities(CausalModel):
    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        log_p = super().forward(ids).log_softmax(-1)
        if targets is None:
            return log_p, None
        return log_p, F.nll_loss(log_p.flatten(0, 1), targets.flatten(), ignore_index=-1)


class PaddedBehind(CausalModel):
    """Lengths mean that padding stands behind; a prompt is read from both sides on demand."""

    def forward(self, ids: Tensor, lengths: Tensor | None = None, prompt_length: int = 0) -> Any:
        T = ids.shape[1]
        allowed = None if lengths is None else (torch.arange(T) < lengths[:, None])[:, None, None]
        x = self.hidden(ids, allowed)
        return self.head(x) if prompt_length == 0 else self.head(x + x[:, :prompt_length].mean(1, keepdim=True))


class MaskedTwice(Translator):
    """One mask is for the encoder, another for what reads it."""

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
    ) -> Any:
        masks = {"src_key_padding_mask": src_padding_mask, "memory_key_padding_mask": memory_key_padding_mask}
        return self.logits(src, tgt, **masks)


class MaskedOnce(MaskedTwice):
    def logits(self, src: Tensor, tgt: Tensor, **masks: Tensor | None) -> Tensor:
        return super().logits(src, tgt, src_key_padding_mask=masks["src_key_padding_mask"])


class NumberedByItsCaller(CausalModel):
    """Tokens are kept in a buffer of the caller's, who says where they begin."""

    def new_cache(self, rows: int) -> list[Tensor]:
        return [torch.zeros(rows, MAX_LENGTH, dtype=torch.long)]

    def forward(self, ids: Tensor, start_pos: int = 0, kv_cache: list[Tensor] | None = None) -> Any:
        if kv_cache is None:
            return self.head(self.hidden(ids))
        end = start_pos + ids.shape[1]
        kv_cache[0][:, start_pos:end] = ids
        return self.head(self.hidden(kv_cache[0][:, :end])[:, start_pos:])


class NamedOtherwise(CausalModel):
    """What was read before goes in as one state, and another is for something else."""

    def forward(self, ids: Tensor, past_style: Tensor | None = None, read_state: Tensor | None = None) -> Any:
        n = 0 if read_state is None else read_state.shape[-1]
        whole = ids if read_state is None else torch.cat([read_state[0], ids], dim=1)
        return self.head(self.hidden(whole))[:, n:], whole[None]


class HybridBlock(Block):
    """Normalizes queries, keys and values, and the stream behind the attention."""

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (self.norm1(part) for part in self.attention.qkv(x).chunk(3, dim=-1))
        q, k, v = (part.view(B, T, H, D // H).transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        x = self.norm2(x + self.attention.out(y.transpose(1, 2).reshape(B, T, D)))
        return x + self.feedforward(x)  # type: ignore[no-any-return]


class NormBetweenStages(CausalModel):
    """Two stacks, each of which ends with a norm: the second one's stream begins as what a norm made."""

    def __init__(self) -> None:
        super().__init__()
        self.refining, self.last_norm = nn.ModuleList([Block(), Block()]), nn.LayerNorm(D)

    def forward(self, ids: Tensor) -> Any:
        x = self.hidden(ids)
        for block in self.refining:
            x = block(x, triangle(ids.shape[1]))
        return self.head(self.last_norm(x))


CASES: dict[type[nn.Module], list[str]] = {
    BalancedModel: ["I06"],
    SparseModel: ["A13"],
    ShapesUnread: ["I06"],
    ShiftingTranslator: ["D02"],
    OwnProbabilities: ["L04"],
    PaddedBehind: ["M11"],
    MaskedTwice: ["M11"],
    NumberedByItsCaller: ["K01"],
    NamedOtherwise: ["K01"],
    NormBetweenStages: ["N05"],
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("kind", "ids"), CASES.items(), ids=lambda one: getattr(one, "__name__", ""))
def test_healthy_oddities(kind: type[nn.Module], ids: list[str]) -> None:
    torch.manual_seed(0)
    report = doctor.check(kind(), level="standard", only=ids)
    assert not report.findings, str(report)
    assert not [one for one in report.checks if "could not be made" in one.note], str(report)
    assert any(one.status == "pass" and set(ids) & set(one.covers) for one in report.checks), str(report)


def test_a_mask_that_is_given_and_not_used_is_still_found() -> None:
    torch.manual_seed(0)
    assert "M11" in {c.id for one in doctor.check(MaskedOnce(), only=["M11", "S01"]).findings for c in one.causes}


class Deaf(Attention):
    """Is handed a table of positions, and makes nothing of it."""

    def forward(self, x: Tensor, allowed: Tensor, places: Tensor | None = None) -> Tensor:
        return super().forward(x, allowed)


class BlockOfTheDeaf(Block):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Deaf()

    def forward(self, x: Tensor, allowed: Tensor, places: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x), allowed, places)
        return x + self.feedforward(self.norm2(x))  # type: ignore[no-any-return]


class PositionsUnheard(CausalModel):
    def __init__(self) -> None:
        super().__init__(BlockOfTheDeaf(), BlockOfTheDeaf())
        self.positions, self.places = self.places, None  # type: ignore[assignment]

    def forward(self, ids: Tensor) -> Any:
        x, T = self.tokens(ids), ids.shape[1]
        for block in self.blocks:
            x = block(x, triangle(T), self.positions(torch.arange(T))[None])
        return self.head(self.norm(x))


def test_positions_that_are_handed_over_and_not_heard_are_missing() -> None:
    torch.manual_seed(0)
    assert doctor.check(PositionsUnheard(), only=["positions"])["P01"].status == "fail"


def test_norms_of_both_kinds_in_a_layer_are_no_fault_where_none_stands_before_a_sublayer() -> None:
    torch.manual_seed(0)
    report = doctor.check(CausalModel(HybridBlock(), HybridBlock()), only=["N05"])
    assert not report.findings, str(report)


class Level(nn.Module):
    """Layers, and behind them what would halve their number of tokens: it adds to what a norm made."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm, self.inner, self.outer = nn.LayerNorm(D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, allowed)
        x = self.norm(x)
        return x + self.outer(F.gelu(self.inner(x)))  # type: ignore[no-any-return]


def test_what_stands_behind_the_layers_of_a_level_is_no_sublayer() -> None:
    torch.manual_seed(0)
    report = doctor.check(CausalModel(Level(), Level()), only=["N05"])
    assert not [finding for finding in report.findings if finding.status == "fail"], str(report)
    assert next(outcome.status for outcome in report.checks if outcome.name == "streams") != "skip", str(report)


def test_layers_are_born_equal_only_where_their_numbers_were_drawn() -> None:
    torch.manual_seed(0)
    model = CausalModel()
    model.blocks[1].load_state_dict(model.blocks[0].state_dict())
    witness = doctor.check(model, only=["I01"])["I01"].evidence.witness
    assert witness == "every matrix of blocks.1 equals that of blocks.0 to the last bit"
    for block in model.blocks:
        for matrix in (one for one in block.parameters() if one.dim() > 1):
            nn.init.eye_(matrix)
    assert "I01" not in doctor.check(model, only=["I01"])


class LooksAhead(nn.Module):
    """Nothing says what it is meant to be but what it does: all of the past reaches a token, and one to come."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(V, D), nn.Linear(D, V)

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.tanh(self.tokens(ids)).cumsum(1)
        logits: Tensor = self.head(torch.cat((x[:, 1:], x[:, -1:]), dim=1))
        return logits


def test_who_sees_far_back_and_a_little_ahead_is_meant_to_be_causal() -> None:
    report = doctor.check(LooksAhead(), only=["dependencies"])
    assert (report.kind, report.verdict) == ("causal", "faulty"), str(report)


class OneSided(CausalModel):
    """`sides`: for each block, whether tokens see what comes before them, or what comes later."""

    def __init__(self, *sides: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.sides = sides

    def hidden(self, ids: Tensor, allowed: Tensor | None = None) -> Tensor:
        x, T = self.tokens(ids) + self.places(torch.arange(ids.shape[1])), ids.shape[1]
        for block, side in zip(self.blocks, self.sides, strict=True):
            x = block(x, triangle(T) if side == "before" else triangle(T).T)
        return self.norm(x)  # type: ignore[no-any-return]


class ReadsBackwards(OneSided):
    """It reads a text right to left."""


def test_a_model_of_the_other_direction_may_look_ahead_alone() -> None:
    report = doctor.check(ReadsBackwards("later", "later"), doctor.Spec(kind="bidirectional"), only=["attention"])
    assert "M04" not in report, str(report)


@pytest.mark.parametrize(
    ("sides", "ids"), [(("later", "later"), ["M04"]), (("before", "later"), []), (("before", "before"), [])]
)
def test_attention_to_what_comes_later_alone_is_a_fault_unless_another_looks_back(
    sides: tuple[str, str], ids: list[str]
) -> None:
    report = doctor.check(OneSided(*sides), doctor.Spec(kind="bidirectional"), only=["attention"])
    assert [finding.id for finding in report.findings if finding.status == "fail"] == ids, str(report)


@pytest.mark.parametrize("side", ["before", "later"])
def test_who_looks_one_way_is_said_to(side: str) -> None:
    report = doctor.check(OneSided(side, side), only=["attention"])
    assert not [reason for assumption in report.assumptions for reason in assumption.reasons if "100%" in reason]
    assert report.kind == "causal", str(report)
