"""Designs that look like faults under one reading of the call, and not under a second."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor import Spec, check
from clearhead.doctor.kind import hints_of
from clearhead.doctor.probes.dependency import shape_of

D, V, T = 16, 41, 12


class Attention(nn.Module):
    """Over the tokens, or over the rows. `dim`: the axis of both."""

    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        self.qkv, self.out, self.dim = nn.Linear(D, 3 * D), nn.Linear(D, D), dim

    def forward(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x if self.dim else x.transpose(0, 1)).chunk(3, -1)
        scores = q @ k.mT / D**0.5
        scores = scores if seen is None else scores.masked_fill(~seen, -torch.inf)
        y = self.out(scores.softmax(-1) @ v)
        return y if self.dim else y.transpose(0, 1)  # type: ignore[no-any-return]


def feed_forward() -> nn.Sequential:
    return nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))


class Words(nn.Module):
    """Attentions and feed-forwards in lists, as in speech. `ruled_out`: the padding token is never predicted."""

    def __init__(self, *, ruled_out: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.positions = nn.Embedding(V, D), nn.Embedding(64, D)
        self.attentions = nn.ModuleList(Attention() for _ in range(2))
        self.mlps = nn.ModuleList(feed_forward() for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(4))
        self.head, self.ruled_out = nn.Linear(D, V), ruled_out

    def forward(self, ids: Tensor, use_positions: bool = True) -> Tensor:
        x = self.words(ids)
        x = x + self.positions(torch.arange(ids.shape[1])) if use_positions else x
        for number, (attention, mlp) in enumerate(zip(self.attentions, self.mlps, strict=True)):
            x = self.norms[2 * number](x + attention(x))
            x = self.norms[2 * number + 1](x + mlp(x))
        logits = self.head(x).log_softmax(-1)
        return logits.masked_fill(torch.arange(V) == 0, -torch.inf) if self.ruled_out else logits  # type: ignore[no-any-return]


class PositionsOff(Words):
    """Its positions are an option, and off."""

    def forward(self, ids: Tensor, use_positions: bool = False) -> Tensor:
        return super().forward(ids, use_positions)


class Unpositioned(Words):
    """Its positions are never used."""

    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(ids, False)


class Spoken(nn.Module):
    """A causal model that may be told who speaks, by a map that is called after positions and is no table of them."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(D, 2, 32, 0.0, batch_first=True)
        self.words, self.places, self.head = nn.Embedding(97, D), nn.Embedding(64, D), nn.Linear(D, 97)
        self.body, self.speaker_pos = nn.TransformerEncoder(layer, 1), nn.Linear(3, D, bias=False)

    def forward(self, ids: Tensor, speaker: Tensor | None = None) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        x = x if speaker is None else x + self.speaker_pos(speaker)[:, None]
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.body(x, mask))  # type: ignore[no-any-return]


class Predicting(nn.Module):
    """What it gives in evaluation it has detached; `always`: in training as well."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.words, self.head, self.always = nn.Embedding(97, D), nn.Linear(D, 97), always

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.words(ids))
        return logits if self.training and not self.always else logits.detach()


class Layer(nn.Module):
    """One residual around the attention and the feed-forward behind it; `lost`: the attention is only read by that."""

    def __init__(self, lost: bool) -> None:
        super().__init__()
        self.attention, self.mlp, self.norm, self.lost = Attention(), feed_forward(), nn.LayerNorm(D), lost

    def forward(self, x: Tensor) -> Tensor:
        y = self.attention(x)
        return self.norm(x + self.mlp(self.norm(x + y) if self.lost else y))  # type: ignore[no-any-return]


class Stack(nn.Module):
    def __init__(self, lost: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.positions, self.head = nn.Embedding(V, D), nn.Embedding(64, D), nn.Linear(D, V)
        self.layers = nn.ModuleList(Layer(lost) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)  # type: ignore[no-any-return]


class Table(nn.Module):
    """Rows of a table. `dims`: the axes of its attentions."""

    def __init__(self, *dims: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.values, self.positions = nn.Linear(3, D), nn.Parameter(torch.randn(64, D))
        self.attentions, self.head = nn.ModuleList(Attention(dim) for dim in dims), nn.Linear(D, 3)

    def forward(self, series: Tensor) -> Tensor:
        x = self.values(series) + self.positions[: series.shape[1]]
        for attention in self.attentions:
            x = x + attention(x)
        return self.head(x)  # type: ignore[no-any-return]


class Answer(nn.Module):
    """It gives back what it was given unless `encode` was called before."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return x


class Boxes(nn.Module):
    """Boxes by an argmax of scores, which have the gradient; before them, a list of what its layers dropped."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.values, self.scores, self.sizes = nn.Linear(3, D), nn.Linear(D, 1), nn.Linear(D, 4)
        self.positions = nn.Parameter(torch.randn(64, D))

    def forward(self, x: Tensor) -> dict[str, Tensor | list[Tensor]]:
        x = (self.values(x) + self.positions[: x.shape[1]]).tanh()
        scores = self.scores(x).squeeze(-1)
        best = scores.argmax(-1)
        return {
            "dropped": [best[:, None].float()],
            "boxes": self.sizes(x)[torch.arange(len(x)), best],
            "score": scores[:, :2],
        }


def statuses(model: nn.Module, *only: str, kind: str | None = None) -> dict[str, str]:
    report = check(model, Spec(kind=kind), only=only)  # type: ignore[arg-type]
    return {finding.id: finding.status for finding in report.findings}


def test_an_attention_in_a_list_is_no_layer() -> None:
    assert statuses(Words(), "residuals") == {}


@pytest.mark.parametrize("lost", [False, True])
def test_one_residual_around_both_sublayers(lost: bool) -> None:
    assert statuses(Stack(lost), "residuals") == ({"N04": "fail"} if lost else {})


def test_a_token_that_is_never_predicted() -> None:
    assert statuses(Words(ruled_out=True), "finite", "dependencies", "rows") == {}


def test_positions_that_are_an_option() -> None:
    assert statuses(PositionsOff(), "gradients", "positions") == {}
    assert statuses(Unpositioned(), "gradients", "positions") == {"P01": "fail"}
    assert statuses(Spoken(), "gradients") == {"A13": "warn"}


def test_what_is_detached_in_evaluation_alone() -> None:
    assert statuses(Predicting(False), "gradients") == {}
    assert statuses(Predicting(True), "gradients") == {"I06": "fail"}


@pytest.mark.parametrize(("dims", "status"), [((1, 1), None), ((1, 0), "warn"), ((0, 0), "fail")])
def test_attention_over_rows_beside_one_over_tokens(dims: tuple[int, ...], status: str | None) -> None:
    assert statuses(Table(*dims), "rows", "dependencies") == ({"A10": status} if status else {})


def test_what_is_given_back_is_no_answer() -> None:
    with pytest.raises(Exception, match="no way was found"):
        check(Answer())


def test_what_an_argmax_chooses_by_is_taught_beside_it() -> None:
    assert statuses(Boxes(), "gradients") == {}


def test_blocks_of_positions() -> None:
    ends = torch.tensor([1, 4, 4, 4, 9, 9, 9, 9, 9, 12, 12, 12])
    assert shape_of(torch.arange(T) < ends[:, None])[0] == "blocks"
    assert shape_of(torch.arange(T) < (torch.arange(T) + 3)[:, None])[0] == "ahead"


def test_an_option_is_no_intention() -> None:
    class Optional(Words):
        def forward(self, ids: Tensor, use_causal_mask: bool = False) -> Tensor:
            return super().forward(ids)

    assert hints_of(Optional()).lead <= 0


def test_what_writes_all_tokens_at_once_is_not_causal() -> None:
    class AtOnce(Words):
        def generate(self, ids: Tensor) -> Tensor:
            return self.forward(ids).argmax(-1)

    class StepByStep(Words):
        def generate(self, ids: Tensor) -> Tensor:
            for _ in range(3):
                ids = torch.cat((ids, self.forward(ids)[:, -1:].argmax(-1)), 1)
            return ids

    class Handed(Words):
        def generate(self, ids: Tensor) -> Tensor:
            return Words.forward(self, ids)

    reasons_of = [[why for _, _, why in hints_of(model()).votes] for model in (AtOnce, StepByStep, Handed)]
    assert ["it has generate()" in reasons for reasons in reasons_of] == [False, True, True]


class Captions(nn.Module):
    """Reads a picture; its captions, which a triangle would be for, are written elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cut, self.head = nn.Conv2d(3, D, 8, 8), nn.Linear(D, V)

    def forward(self, images: Tensor, tril: Tensor | None = None) -> Tensor:
        assert images.shape[1:] == (3, 32, 32)
        x = self.cut(images).flatten(2).mT
        return self.head(x + x.mean(1, keepdim=True))  # type: ignore[no-any-return]

    def generate(self, images: Tensor) -> Tensor:
        for _ in range(3):
            images = images + self.forward(images).mean()
        return images


def test_pictures_are_read_from_both_sides() -> None:
    report = check(Captions(), only=["M01"])
    assert not report.findings, str(report)
    assert any("it reads pictures" in reason for one in report.assumptions for reason in one.reasons), str(report)


class Served(nn.Module):
    """Written to be used as it is: no graph, and a cache of its own for two rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.params = SimpleNamespace(max_batch_size=2, max_seq_len=32)
        self.words, self.places, self.head = nn.Embedding(V, D), nn.Embedding(32, D), nn.Linear(D, V)
        self.qkv = nn.Linear(D, 3 * D)
        self.keys, self.values = torch.zeros(2, 32, D), torch.zeros(2, 32, D)

    @torch.inference_mode()
    def forward(self, tokens: Tensor, start_pos: int) -> Tensor:
        B, T = tokens.shape
        x = self.words(tokens) + self.places.weight[start_pos : start_pos + T]
        q, k, v = self.qkv(x).chunk(3, -1)
        self.keys[:B, start_pos : start_pos + T], self.values[:B, start_pos : start_pos + T] = k, v
        k, v = self.keys[:B, : start_pos + T], self.values[:B, : start_pos + T]
        seen = torch.ones(T, start_pos + T, dtype=torch.bool).tril(start_pos)
        scores = (q @ k.mT / D**0.5).masked_fill(~seen, -torch.inf)
        return self.head(x + scores.softmax(-1) @ v)  # type: ignore[no-any-return]


def test_a_model_that_serves_few_rows_and_no_graph_is_healthy() -> None:
    report = check(Served())
    assert not [finding for finding in report.findings if finding.status == "fail"], str(report)
    assert "2 at a time" in report.paths[0], str(report.paths)


class Rereads(Words):
    """With a cache it is given the whole row again, and gives the last token's logits alone."""

    def forward(self, ids: Tensor, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x = self.words(ids) + self.positions.weight[: ids.shape[1]]
        x = x if cache is None else x[:, -1:]
        held = x if cache is None else torch.cat((cache, x), 1)
        seen = torch.ones(x.shape[1], held.shape[1], dtype=torch.bool).tril(held.shape[1] - x.shape[1])
        scores = (x @ held.mT / D**0.5).masked_fill(~seen, -torch.inf)
        return self.head(x + scores.softmax(-1) @ held), held


def test_a_cache_beside_which_the_whole_row_is_given() -> None:
    report = check(Rereads(), Spec(kind="causal"), only=["caches"])
    assert not report.findings, str(report)
    assert next(outcome.status for outcome in report.checks if outcome.name == "caches") == "pass", str(report)


class InParts(nn.Module):
    """Its `encode` and `decode` take masks, without which nothing is hidden."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.positions, self.project = nn.Embedding(V, D), nn.Embedding(64, D), nn.Linear(D, V)
        self.attention, self.crossing = Attention(), nn.MultiheadAttention(D, 2, batch_first=True)

    def encode(self, src: Tensor, mask_src: Tensor | None = None) -> Tensor:
        x = self.words(src) + self.positions.weight[: src.shape[1]]
        return x + self.attention(x, mask_src)  # type: ignore[no-any-return]

    def decode(self, tgt: Tensor, encoder_output: Tensor, mask_tgt: Tensor | None = None) -> Tensor:
        x = self.words(tgt) + self.positions.weight[: tgt.shape[1]]
        x = x + self.attention(x, mask_tgt)
        return x + self.crossing(x, encoder_output, encoder_output, need_weights=False)[0]  # type: ignore[no-any-return]


def test_masks_that_encode_and_decode_may_be_given() -> None:
    report = check(InParts(), only=["M01"])
    assert not report.findings, str(report)
    assert "mask_tgt=causal" in report.paths[0], str(report.paths)


@pytest.mark.parametrize(("keys", "expected"), [(1, ["A12"]), (2, [])])
def test_an_attention_that_has_no_choice(keys: int, expected: list[str]) -> None:
    class Fixed(Words):
        def forward(self, ids: Tensor, use_positions: bool = True) -> Tensor:
            x = self.words(ids) + self.positions.weight[: ids.shape[1]]
            seen = (torch.arange(ids.shape[1]) < keys).expand(ids.shape[1], -1)
            for attention in self.attentions:
                x = x + attention(x, seen)
            return self.head(x)  # type: ignore[no-any-return]

    report = check(Fixed(), Spec(kind="bidirectional"), only=["A12"])
    assert [finding.id for finding in report.findings if finding.check == "attention"] == expected, str(report)


@pytest.mark.parametrize(("scale", "status"), [(1.0, "warn"), (None, None)])
def test_a_scale_that_is_given_is_a_choice(scale: float | None, status: str | None) -> None:
    class Scaled(Words):
        def forward(self, ids: Tensor, use_positions: bool = True) -> Tensor:
            x = self.words(ids) + self.positions.weight[: ids.shape[1]]
            for attention in self.attentions:
                assert isinstance(attention, Attention)
                q, k, v = attention.qkv(x).chunk(3, -1)
                x = x + attention.out(F.scaled_dot_product_attention(q, k, v, scale=scale))
            return self.head(x)  # type: ignore[no-any-return]

    report = check(Scaled(), Spec(kind="bidirectional"), only=["scales"])
    assert [finding.status for finding in report.findings] == ([status] if status else []), str(report)


class Feeding(nn.Module):
    """Two stacks, one behind the other, each of which drops what it is given: embeddings, or the first one's output."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(V, D), nn.Linear(D, V)
        self.stacks = nn.ModuleDict({"first": Dropping(), "second": Dropping()})

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.stacks["second"](self.stacks["first"](self.words(ids))))  # type: ignore[no-any-return]


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(part for _ in range(2) for part in (Attention(), feed_forward()))

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(x, 0.1, self.training)
        for layer in self.layers:
            x = x + layer(x)
        return x


def test_each_of_two_stacks_may_drop_what_it_is_given() -> None:
    report = check(Feeding(), Spec(kind="bidirectional"), only=["N10"])
    assert [(finding.id, finding.status) for finding in report.findings] == [("N10", "warn")], str(report)


class Masking(nn.Module):
    """Of what it returns, the mask that it drew is a number for each row; the rest has another shape."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cut, self.attention = nn.Conv2d(3, D, 8, 8), Attention()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        assert images.shape[1:] == (3, 32, 32)
        x = self.cut(images).flatten(2).mT
        drawn = torch.rand(len(x), 16)
        return self.attention(x * drawn[..., None]).mean(), drawn


def test_what_is_drawn_at_random_reads_nothing() -> None:
    report = check(Masking(), only=["dependencies"])
    assert [finding.id for finding in report.findings] == ["T09"], str(report)


class Unsplit(Words):
    """Its heads are told and never split; scores are divided by the root of what a head's width would be."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.num_heads, self.width = heads, D // 4

    def forward(self, ids: Tensor, use_positions: bool = True) -> Tensor:
        x = self.words(ids) + self.positions.weight[: ids.shape[1]]
        for attention in self.attentions:
            q, k, v = attention.qkv(x).chunk(3, -1)  # type: ignore[operator]
            x = x + (q @ k.mT / self.width**0.5).softmax(-1) @ v
        return self.head(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("heads", "expected"), [(4, ["A01"]), (1, [])])
def test_heads_that_are_told_and_not_split(heads: int, expected: list[str]) -> None:
    report = check(Unsplit(heads), Spec(kind="bidirectional"), only=["scales"])
    assert [finding.id for finding in report.findings if finding.status == "fail"] == expected, str(report)


class Patches(nn.Module):
    """A class for a picture. `moves`: the axis of the places is moved before they are laid in a row."""

    def __init__(self, moves: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.moves, self.cut = moves, nn.Conv2d(3, 2 * D, 8, 8)
        self.layer, self.head = nn.TransformerEncoderLayer(2 * D, 2, 64, batch_first=True), nn.Linear(2 * D, 5)
        self.places = nn.Parameter(torch.randn(16, 2 * D))

    def forward(self, images: Tensor) -> Tensor:
        assert images.shape[1:] == (3, 32, 32)
        x = self.cut(images)  # (B, 2 D, 4, 4)
        x = x.flatten(2).mT if self.moves else torch.reshape(x, (len(x), 16, 2 * D))
        return self.head(self.layer(x + self.places).mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("moves", "expected"), [(True, []), (False, ["A04"])])
def test_patches_that_are_laid_in_a_row(moves: bool, expected: list[str]) -> None:
    report = check(Patches(moves), only=["layouts"])
    assert [finding.id for finding in report.findings] == expected, str(report)


@pytest.mark.parametrize(("factor", "expected"), [(D**0.5, ["E03"]), (1.0, [])])
def test_tokens_that_drown_their_positions(factor: float, expected: list[str]) -> None:
    class Loud(Words):
        def forward(self, ids: Tensor, use_positions: bool = True) -> Tensor:
            x = self.words(ids) * factor + 0.7 * self.positions.weight[: ids.shape[1]]
            for attention in self.attentions:
                x = x + attention(x)
            return self.head(x)  # type: ignore[no-any-return]

    report = check(Loud(), Spec(kind="bidirectional"), only=["embeddings"])
    assert [finding.id for finding in report.findings] == expected, str(report)


@pytest.mark.parametrize(("mask", "expected"), [(-100.0, ["fail"]), (-2000.0, ["warn"]), (-torch.inf, [])])
def test_a_mask_that_scores_of_trained_models_do_not_reach_is_a_warning(mask: float, expected: list[str]) -> None:
    class Weak(Words):
        def forward(self, ids: Tensor, use_positions: bool = True) -> Tensor:
            x = self.words(ids) + self.positions.weight[: ids.shape[1]]
            later = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
            for attention in self.attentions:
                q, k, v = attention.qkv(x).chunk(3, -1)  # type: ignore[operator]
                x = x + (q @ k.mT / D**0.5).masked_fill(later, mask).softmax(-1) @ v
            return self.head(x)  # type: ignore[no-any-return]

    report = check(Weak(), Spec(kind="causal"), only=["M08"])
    assert [finding.status for finding in report.findings if finding.id == "M08"] == expected, str(report)


def cut(pictures: Tensor, how: str) -> Tensor:
    """Patches of 8 x 8 pixels, (B, 16, 192), of pictures (B, 3, 32, 32). `how`: right in one of two ways, or wrong."""
    B = len(pictures)
    if how == "unfolded":
        return F.unfold(pictures, 8, stride=8).mT
    if how == "moved":
        return pictures.reshape(B, 3, 4, 8, 4, 8).permute(0, 2, 4, 1, 3, 5).reshape(B, 16, 192)
    if how == "viewed":
        return pictures.reshape(B, 16, 192)
    if how == "not moved":
        return pictures.unfold(2, 8, 8).unfold(3, 8, 8).contiguous().view(B, 16, 192)
    return pictures.reshape(B, 3, 8, 4, 8, 4).permute(0, 3, 5, 1, 2, 4).reshape(B, 16, 192)  # every fourth pixel


class Cutting(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.into, self.head = how, nn.Linear(192, D), nn.Linear(D, 5)
        self.layer, self.places = (
            nn.TransformerEncoderLayer(D, 2, 64, batch_first=True),
            nn.Parameter(torch.ones(16, D)),
        )

    def forward(self, pictures: Tensor) -> Tensor:
        assert pictures.shape[1:] == (3, 32, 32)
        return self.head(self.layer(self.into(cut(pictures, self.how)) + self.places).mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("how", "expected"),
    [("unfolded", []), ("moved", []), ("viewed", ["A04"]), ("not moved", ["A04"]), ("apart", ["A04"])],
)
def test_the_pixels_of_a_patch_lie_together(how: str, expected: list[str]) -> None:
    report = check(Cutting(how), only=["layouts"])
    assert [finding.id for finding in report.findings] == expected, str(report)


def test_a_picture_that_is_given_by_position_is_no_error() -> None:
    class Positional(Cutting):
        def forward(self, *pictures: Tensor) -> Tensor:
            return super().forward(pictures[0])

    report = check(Positional("moved"), only=["layouts"])
    assert not [outcome for outcome in report.checks if "could not be made" in outcome.note], str(report)
