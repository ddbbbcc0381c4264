"""Models that read something else than rows of ids: what each argument must be is learned from how far a call comes."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clearhead.doctor import Spec, check
from clearhead.doctor.calling import Convention, find_convention
from clearhead.doctor.calling.climbing import climbed
from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.state_guard import perturbed
from clearhead.errors import DataError

D = 16


class Body(nn.Module):
    """A Transformer over vectors, with a table of positions if it has places."""

    def __init__(self, places: int = 0) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(D, 2, 32, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.places = nn.Parameter(torch.randn(1, places, D)) if places else None

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D) -> (B, T, D)
        return self.layers(x if self.places is None else x + self.places)  # type: ignore[no-any-return]


class Patches(nn.Module):
    """Its patches are cut out and mapped; only its table tells how large a picture is."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Linear(3 * 4 * 4, D), Body(36), nn.Linear(D, 5)

    def forward(self, img: Tensor) -> Tensor:
        B, C, _, _ = img.shape
        patches = img.unfold(2, 4, 4).unfold(3, 4, 4).reshape(B, C, 36, 16)
        return self.head(self.body(self.embed(patches.transpose(1, 2).flatten(2))).mean(1))  # type: ignore[no-any-return]


class Diffusion(nn.Module):
    """A picture, its time and its class; it gives a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.time, self.label = nn.Conv2d(1, D, 4, 4), nn.Linear(1, D), nn.Embedding(10, D)
        self.body, self.join = Body(49), nn.Linear(D, 16)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        B = len(x)
        known = self.time(t.view(B, 1).float()) + self.label(y)
        return self.join(self.body(self.cut(x).flatten(2).mT + known[:, None])).reshape(B, 1, 28, 28)  # type: ignore[no-any-return]


class Series(nn.Module):
    """Seven channels, always 24 steps; it gives the next six."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Linear(7, D), Body(24), nn.Linear(24 * D, 6)

    def forward(self, series: Tensor) -> Tensor:
        return self.head(self.body(self.embed(series)).flatten(1))[..., None]  # type: ignore[no-any-return]


class Columns(nn.Module):
    """Categories of unlike counts, and numbers, in the columns of one table."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(count, D) for count in (20, 5, 9))
        self.number, self.body, self.head = nn.Linear(1, D), Body(), nn.Linear(D, 2)

    def forward(self, X: Tensor) -> Tensor:
        columns = [table(X[:, i].long()) for i, table in enumerate(self.tables)]
        columns.append(self.number(X[:, 3:4]))
        return self.head(self.body(torch.stack(columns, 1)).mean(1))  # type: ignore[no-any-return]


class Named(nn.Module):
    """One dict of tensors, of which one holds numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.number, self.body, self.head = nn.Embedding(9, D), nn.Linear(3, D), Body(), nn.Linear(D, 4)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self.head(self.body(self.table(batch["events"]) + self.number(batch["values"])))  # type: ignore[no-any-return]


class Speech(nn.Module):
    """Two dicts, of which one may hold a mask; it returns its loss alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.table, self.head = nn.Linear(7, D), nn.Embedding(30, D), nn.Linear(D, 30)
        self.body, self.places = nn.Transformer(D, 2, 1, 1, 32, 0.0, batch_first=True), nn.Embedding(64, D)

    def forward(self, inputs: Mapping[str, Tensor], goals: Mapping[str, Tensor]) -> Tensor:
        x, ids, kept = inputs["inputs"], goals["targets"], inputs.get("mask")
        x = self.embed(x) + self.places(torch.arange(x.shape[1]))
        y = self.table(ids) + self.places(torch.arange(ids.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        drops = None if kept is None else ~kept
        y = self.body(x, y, tgt_mask=mask, src_key_padding_mask=drops, memory_key_padding_mask=drops)
        losses = cross_entropy(self.head(y).transpose(1, 2), ids, reduction="none")
        weight = goals["target_mask"].float()
        return (losses * weight).sum() / weight.sum()


class Typed(nn.Module):
    """A dict in which two kinds of rows may be told apart, under a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.kinds, self.places = nn.Embedding(30, D), nn.Embedding(2, D), nn.Embedding(64, D)
        self.body, self.head = Body(), nn.Linear(D, 30)

    def forward(self, record: Mapping[str, Tensor]) -> Tensor:
        ids, kinds = record["sentences"], record.get("sentence_kind")
        x = self.table(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(self.body(x if kinds is None else x + self.kinds(kinds)))  # type: ignore[no-any-return]


class OneRow(nn.Module):
    """It has a buffer for one row, and wants to know the positions."""

    kept: Tensor
    places: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table, self.body, self.head = nn.Embedding(32, D), Body(), nn.Linear(D, 32)
        self.register_buffer("kept", torch.zeros(1, 64, D))
        self.register_buffer("places", torch.randn(64, D))

    def forward(self, idx: Tensor, input_pos: Tensor) -> Tensor:
        self.kept.index_copy_(1, input_pos, self.table(idx))
        return self.head(self.body(self.kept[:, : len(input_pos)] + self.places[: len(input_pos)]))  # type: ignore[no-any-return]


class OneToken(nn.Module):
    """One token at a time, with its number."""

    kept: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(32, D), nn.Linear(D, 32)
        self.register_buffer("kept", torch.zeros(8, 64, D))

    def forward(self, tokens: Tensor, start_pos: int) -> Tensor:
        assert tokens.shape[1] == 1, "one token at a time"
        self.kept[: len(tokens), start_pos : start_pos + 1] = self.table(tokens)
        return self.head(self.kept[: len(tokens), : start_pos + 1].mean(1, keepdim=True))  # type: ignore[no-any-return]


class Translator(nn.Module):
    """No forward at all."""

    places: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(30, D) for _ in range(2))
        self.register_buffer("places", torch.randn(64, D))
        self.transformer, self.last = nn.Transformer(D, 2, 1, 1, 32, 0.0, batch_first=True), nn.Linear(D, 30)

    def encode(self, src: Tensor) -> Tensor:
        return self.transformer.encoder(self.tables[0](src) + self.places[: src.shape[1]])  # type: ignore[no-any-return]

    def decode(self, memory: Tensor, tgt: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1])
        return self.transformer.decoder(self.tables[1](tgt) + self.places[: tgt.shape[1]], memory, mask)  # type: ignore[no-any-return]

    def project(self, x: Tensor) -> Tensor:
        return self.last(x)  # type: ignore[no-any-return]


class Frames(nn.Module):
    """It shortens frames of 20 numbers by convolutions; only the error of its map tells how wide they are."""

    def __init__(self) -> None:
        super().__init__()
        self.shorten = nn.Sequential(nn.Conv2d(1, D, 3, 2), nn.ReLU(), nn.Conv2d(D, D, 3, 2))
        self.embed, self.body, self.head = nn.Linear(4 * D, D), Body(), nn.Linear(D, 9)

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        assert len(lengths) == len(frames)
        x = self.shorten(frames[:, None]).transpose(1, 2).flatten(2)  # (B, 1, T, 20) -> (B, T / 4, 4 D)
        return self.head(self.body(self.embed(x)))  # type: ignore[no-any-return]


class Recording(nn.Module):
    """22 channels of 1000 samples, which a convolution sees all at once."""

    def __init__(self) -> None:
        super().__init__()
        self.along, self.across = nn.Conv2d(1, D, (1, 25), (1, 25)), nn.Conv2d(D, D, (22, 1))
        self.body, self.head = Body(), nn.Linear(40 * D, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.across(self.along(x)).squeeze(2).transpose(1, 2)  # (B, 40, D)
        return self.head(self.body(x).flatten(1))  # type: ignore[no-any-return]


class Placed(nn.Module):
    """Each token comes with its position."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.body, self.head = nn.Embedding(64, D), Body(), nn.Linear(D, 32)

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[-1] == 2
        return self.head(self.body(self.table(x).sum(2)))  # type: ignore[no-any-return]


class Arrays(nn.Module):
    """It reads an array of numpy."""

    places: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table, self.body, self.head = nn.Embedding(32, D), Body(), nn.Linear(D, 32)
        self.register_buffer("places", torch.randn(64, D))

    def forward(self, log_seqs: Any) -> Tensor:
        ids = torch.from_numpy(log_seqs.astype("int64"))
        return self.head(self.body(self.table(ids) + self.places[: ids.shape[1]]))  # type: ignore[no-any-return]


class Alone(nn.Module):
    """One row, without an axis for rows."""

    places: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table, self.body, self.head = nn.Embedding(32, D), Body(), nn.Linear(D, 32)
        self.register_buffer("places", torch.randn(64, D))

    def forward(self, ids: Tensor) -> Tensor:
        (T,) = ids.shape
        return self.head(self.body((self.table(ids) + self.places[:T])[None])[0])  # type: ignore[no-any-return]


class Passing(nn.Module):
    """Its forward names nothing; what it calls does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Diffusion()

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.inner(*inputs)  # type: ignore[no-any-return]


class Read(Series):
    """It asks for its numbers politely."""

    def forward(self, data: Mapping[str, Tensor]) -> Tensor:  # type: ignore[override]
        return super().forward(data.get("imu"))  # type: ignore[arg-type]


class Story(nn.Module):
    """Sentences of words, and a question of no more than eleven words; one answer to both."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.body, self.head = nn.Embedding(32, D), Body(), nn.Linear(D, 32)
        self.weights = nn.Parameter(torch.ones(11, D))

    def forward(self, story: Tensor, query: Tensor) -> Tensor:
        sentences = (self.table(story) * self.weights[: story.size(2)]).sum(2)  # (B, T, D)
        question = (self.table(query)[:, None] * self.weights[: query.size(1)]).sum(2)  # (B, 1, D)
        return self.head(self.body(torch.cat([sentences, question], 1)).mean(1))  # type: ignore[no-any-return]


class Forecast(nn.Module):
    """Seven channels and four features of the time, twice, always 24 steps; whole channels tell the scale."""

    def __init__(self) -> None:
        super().__init__()
        self.in_len = 24
        self.scale, self.embed, self.mark = nn.Conv1d(24, 1, 3, padding=1), nn.Linear(7, D), nn.Linear(4, D)
        self.body, self.head = Body(24), nn.Linear(D, 7)

    def forward(self, x_enc: Tensor, x_mark_enc: Tensor, x_dec: Tensor, x_mark_dec: Tensor) -> Tensor:
        scaled = x_enc * self.scale(x_enc)
        source = self.body(self.embed(scaled) + self.mark(x_mark_enc))
        return self.head(source + self.embed(x_dec) + self.mark(x_mark_dec))  # type: ignore[no-any-return]


class Codes(nn.Module):
    """Codes in rows and columns, and a class of which some are dropped."""

    places: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table, self.classes = nn.Embedding(32, D), nn.Embedding(11, D)
        self.register_buffer("places", torch.randn(64, D))
        self.body, self.head = Body(), nn.Linear(D, 32)

    def forward(self, x: Tensor, y: Tensor, drop_label: Tensor) -> Tensor:
        B, H, W = x.shape
        y = torch.where(drop_label, torch.full_like(y, 10), y)
        x = self.table(x.reshape(B, H * W)) + self.places[: H * W]
        return self.head(self.body(x + self.classes(y)[:, None]))  # type: ignore[no-any-return]


class Graph(nn.Module):
    """Nodes, and which of them are neighbors; it writes into that."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(6, D), nn.Linear(D, 4)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        adjacency &= ~torch.eye(adjacency.shape[-1]).bool()
        x = self.embed(x)
        scores = (x @ x.mT).masked_fill(~adjacency.bool(), -1e9)
        return self.head(x + scores.softmax(-1) @ x)  # type: ignore[no-any-return]


class Long(nn.Module):
    """No row is too long for it, and it tells a length that is its width as well."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 32
        self.embed, self.head = nn.Linear(7, 32), nn.Linear(32, 5)

    def forward(self, frames: Tensor) -> Tensor:
        assert frames.shape[1] > 20, "too short"
        x = self.embed(frames)
        return self.head(x + x.softmax(1).mean(1, keepdim=True))  # type: ignore[no-any-return]


class Ahead(nn.Module):
    """Two series of unlike widths, time first: torch's translator takes them in batches of one size only."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.onto, self.head = nn.Linear(3, D), nn.Linear(2, D), nn.Linear(D, 2)
        self.places = nn.Parameter(torch.randn(64, 1, D))
        self.body = nn.Transformer(D, 2, 1, 1, 2 * D)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        src, tgt = (x + self.places[: len(x)] for x in (self.into(src), self.onto(tgt)))
        return self.head(self.body(src, tgt))  # type: ignore[no-any-return]


WAYS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "patches": (Patches, "img=ids as 3 x 24 x 24 pixels"),
    "diffusion": (Diffusion, "x=ids as 1 x 28 x 28 pixels, t=zeros (B), y=zeros (B)"),
    "series": (Series, "series=ids as 7 numbers"),
    "columns": (Columns, "X=ids as 0 whole numbers"),
    "named": (Named, "{...}"),
    "read": (Read, "{...}"),
    "loss of two dicts": (Speech, "the output of head in model({...}, {...})"),
    "of two kinds": (Typed, "{...}"),
    "forecast": (
        Forecast,
        "x_enc=ids as 7 numbers, x_mark_enc=ids as 4 numbers, x_dec=ids as 7 numbers, x_mark_dec=ids as 4 numbers",
    ),
    "codes": (Codes, "model(x=ids as 1 ids, y=zeros (B), drop_label=False (B))"),
    "ahead": (Ahead, "model(src=source as 3 numbers, tgt=ids as 2 numbers) with time first"),
    "story": (Story, "model(story=ids as 1 ids, ids), one output for each row"),
    "one row": (OneRow, "1 at a time"),
    "one token": (OneToken, "one token at a time"),
    "translator": (Translator, "model(source, ids)"),
    "frames": (Frames, "model(frames=ids as 20 numbers, lengths=keep: lengths)"),
    "recording": (Recording, "x=ids as 1 x 22 x 10"),
    "placed": (Placed, "x=ids as (B, T, 2) with positions"),
    "arrays": (Arrays, "log_seqs=ids as an array"),
    "alone": (Alone, "model(ids), 1 at a time"),
    "passing": (Passing, "x=ids as 1 x 28 x 28 pixels, t=zeros (B), y=zeros (B)"),
}


@pytest.mark.sampled(6)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("way", WAYS)
def test_what_it_reads_is_learned_and_nobody_healthy_is_accused(way: str) -> None:
    make, call = WAYS[way]
    torch.manual_seed(0)
    model = make()
    known = find_convention(perturbed(model, 0), Spec())
    assert call in known.convention.sentence
    assert known.convention.logits(perturbed(model, 0), known.inputs).shape[:2] == known.inputs.ids.shape
    report = check(model)
    assert not [finding for finding in report.findings if finding.status == "fail"]


def test_the_classes_of_the_person_are_left_as_they_are() -> None:
    model = Translator()
    check(model)
    assert type(model) is Translator
    assert not hasattr(Translator.forward, "__signature__")


class Config(dict[str, Any]):
    __getattr__ = dict.__getitem__


def test_a_config_that_has_no_copy_is_shared() -> None:
    model = Patches()
    model.config = Config(width=D)  # type: ignore[assignment]
    assert check(model).kind == "bidirectional"


class Blind(nn.Module):
    """Nothing that it is given moves what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head(torch.ones(len(x), 3, device=x.device))  # type: ignore[no-any-return]


def test_a_call_that_reads_nothing_is_none() -> None:
    assert not list(climbed(perturbed(Blind(), 0), Convention(()), [13, 11], []))


def test_rows_are_not_as_long_as_vectors_are_wide_where_they_need_not_be() -> None:
    assert find_convention(perturbed(Long(), 0), Spec()).T == 33


def test_what_holds_no_tokens_is_not_taken_for_them() -> None:
    assert "adjacency=True (B, T, T)" in find_convention(perturbed(Graph(), 0), Spec()).convention.sentence


def test_what_may_be_absent_takes_nothing_from_the_vocabulary() -> None:
    assert find_convention(perturbed(Typed(), 0), Spec()).vocab_size == 30


class LossOfNothing(Blind):
    """It returns a loss that what it is given moves, and the last module reads nothing of it."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head(torch.ones(*x.shape, 3)).mean() + x.float().mean()  # type: ignore[no-any-return]


def test_a_module_that_reads_nothing_gives_no_logits_beside_a_loss() -> None:
    with pytest.raises(DataError, match="no way was found"):
        find_convention(perturbed(LossOfNothing(), 0), Spec())


def test_what_a_model_looks_up_is_asked_where_it_takes_no_such_rows() -> None:
    convention = Convention((("img", "ids as 3 x 24 x 24 pixels"),), dicts=("batch",))
    rows = Inputs(torch.arange(2 * 13).view(2, 13) % 11)  # a picture has sixteen parts
    assert convention.requested(Patches(), rows) == {}
