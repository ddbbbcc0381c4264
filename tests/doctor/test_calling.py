"""However a stranger's model is called, the doctor calls it so, and says when it cannot."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor import Report, Spec, check
from clearhead.doctor.calling import find_convention
from clearhead.doctor.state_guard import perturbed
from clearhead.errors import DataError

V, D = 29, 16


class Core(nn.Module):
    """One causal layer with learned positions, batch first; with a source it cross-attends."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(40, D)
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))
        self.head = nn.Linear(D, V)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.1)

    def embed(self, ids: Tensor) -> Tensor:
        return self.tokens(ids) + self.places.weight[: ids.shape[1]]  # type: ignore[no-any-return]

    def logits(self, ids: Tensor, mask: Tensor | None = None, source: Tensor | None = None) -> Tensor:
        x = self.embed(ids)
        T = ids.shape[1]
        seen = torch.ones(T, T, dtype=torch.bool).tril() if mask is None else mask
        x = x + F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), attn_mask=seen)
        if source is not None:
            memory = self.embed(source)
            memory = memory + F.scaled_dot_product_attention(self.q(memory), self.k(memory), self.v(memory))
            x = x + F.scaled_dot_product_attention(self.q(x), self.k(memory), self.v(memory))
        return self.head(x)  # type: ignore[no-any-return]


class Plain(Core):
    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(ids)


class WithMask(Core):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.logits(x, mask)


class WithHiddenMask(Core):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.logits(x, ~mask.bool())


class WithAdditiveMask(Core):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        assert mask.is_floating_point()
        return self.logits(x, mask)


class FromDict(Core):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.logits(batch["input_ids"])


class Translator(Core):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits(tgt, source=src)


class TargetFirst(Core):
    def forward(self, tgt: Tensor, src: Tensor) -> Tensor:
        return self.logits(tgt, source=src)


class FromDictOfTwo(Core):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.logits(batch["tgt"], source=batch["src"])


class Tuple(Core):
    def forward(self, ids: Tensor) -> tuple[None, Tensor, Tensor]:
        logits = self.logits(ids)
        return None, logits.softmax(-1)[..., :4], logits


class Dictionary(Core):
    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        return {"hidden": self.embed(ids), "logits": self.logits(ids)}


class Object(Core):
    def forward(self, ids: Tensor) -> SimpleNamespace:
        return SimpleNamespace(hidden=self.embed(ids), logits=self.logits(ids))


class ChannelsFirst(Core):
    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(ids).transpose(1, 2)


class Flat(Core):
    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(ids).flatten(0, 1)


class TimeFirst(Core):
    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(ids.t()).transpose(0, 1)


class TranslatorTimeFirst(Core):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits(tgt.t(), source=src.t()).transpose(0, 1)


class TimeFirstMasked(Core):
    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor | None, tgt_mask: Tensor | None) -> Tensor:
        T = len(tgt)
        seen = torch.ones(T, T, 1, dtype=torch.bool) if tgt_mask is None else tgt_mask
        assert seen.shape == (T, T, 1)
        return self.logits(tgt.t(), mask=seen.squeeze(2), source=src.t()).transpose(0, 1)


class StartPosition(Core):
    def forward(self, tokens: Tensor, start_pos: int) -> Tensor:
        assert start_pos == 0
        return self.logits(tokens)


class Positioned(Core):
    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return self.logits(tokens) + 0 * positions.float().sum()


class OneLength(Core):
    def forward(self, ids: Tensor) -> Tensor:
        assert ids.shape[1] == 8, "always eight"
        return self.logits(ids)


class ShortTable(Core):
    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(6, D)


class ShortForward(ShortTable):
    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(ids)


class OneHot(Core):
    def forward(self, ids: Tensor) -> Tensor:
        x = F.one_hot(ids, V).float() @ self.tokens.weight
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        return self.head(F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), attn_mask=mask))  # type: ignore[no-any-return]


class Hidden:
    """A mask in a class of its own, as some libraries want it."""

    def __init__(self, kept: Tensor) -> None:
        self.kept = kept[:, None, None, :]


class WithTypedMask(Core):
    def forward(self, ids: Tensor, attention_mask: Hidden) -> Tensor:
        T = ids.shape[1]
        seen = attention_mask.kept & torch.ones(T, T, dtype=torch.bool).tril()
        return self.logits(ids, mask=seen.squeeze(1))


class EvenLength(Core):
    """Its line for other lengths was never run."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(ids) if ids.shape[1] % 2 == 0 else pad_up(self, ids)  # type: ignore[name-defined]  # noqa: F821


class LayersListed(Core):
    """What every layer made is listed, the embedding first."""

    def forward(self, ids: Tensor) -> SimpleNamespace:
        return SimpleNamespace(states=[self.head(self.embed(ids)), self.logits(ids)])


class LastPlaceAlone(Core):
    """Without targets it makes the logits of the last place only."""

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits = self.logits(idx)
        if targets is None:
            return logits[:, [-1]], None
        return logits, F.cross_entropy(logits.view(-1, V), targets.view(-1), ignore_index=-1)


class Anything(Core):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.logits(*args, **kwargs)


CAUSAL: list[Callable[[], nn.Module]] = [
    Plain, WithMask, WithHiddenMask, WithAdditiveMask, FromDict, Tuple, Dictionary, Object, ChannelsFirst, Flat,
    TimeFirst, StartPosition, Positioned, OneLength, ShortForward, OneHot, WithTypedMask, EvenLength, LayersListed,
    LastPlaceAlone, Anything,
]  # fmt: skip
SEQ2SEQ: list[Callable[[], nn.Module]] = [
    Translator, TargetFirst, FromDictOfTwo, TranslatorTimeFirst, TimeFirstMasked,
]  # fmt: skip


def examined(model: nn.Module, **spec: Any) -> Report:
    return check(model, Spec(**spec), only=["M01"])


@pytest.mark.parametrize("make", CAUSAL)
def test_it_is_called_as_it_wants(make: Callable[[], nn.Module]) -> None:
    report = examined(make())
    assert report.kind == "causal", str(report)
    assert report.verdict == "partial", str(report)
    assert next(c for c in report.checks if c.name == "dependencies").status == "pass"


def test_targets_that_it_must_be_given_are_looked_at_too() -> None:
    class Unshifted(LastPlaceAlone):
        """targets (B, T): the tokens that follow."""

        def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
            logits, loss = super().forward(idx, targets)
            if targets is not None:
                loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten(), ignore_index=-1)
            return logits, loss

    assert not check(LastPlaceAlone(), only=["D02"]).findings
    assert "D02" in check(Unshifted(), only=["D02"])


@pytest.mark.parametrize("make", SEQ2SEQ)
def test_a_source_is_told_from_a_target(make: Callable[[], nn.Module]) -> None:
    report = check(make(), only=["S02", "M01"])
    assert report.kind == "seq2seq"
    assert report.verdict == "partial", str(report)


@pytest.mark.parametrize("make", [Plain, Tuple, TimeFirst, FromDict])
def test_a_leak_is_seen_through_every_convention(make: Callable[[], Core]) -> None:
    class Leaking(make):  # type: ignore[misc, valid-type]
        def logits(self, ids: Tensor, mask: Tensor | None = None, source: Tensor | None = None) -> Tensor:
            T = ids.shape[1]
            return super().logits(ids, torch.ones(T, T, dtype=torch.bool))  # type: ignore[no-any-return]

    report = check(Leaking(), Spec(kind="causal"))
    assert any(finding.status == "fail" and finding.id in ("M01", "M03") for finding in report.findings), str(report)


def test_time_first_is_told_as_an_assumption() -> None:
    assert [a.value for a in examined(TimeFirst()).assumptions if a.about == "axes"] == ["time first, (T, B)"]


def test_what_cannot_be_called_is_asked_for_by_an_adapter() -> None:
    class Strange(nn.Module):
        def forward(self, picture: Tensor) -> Tensor:
            return picture.reshape(3, 224, 224)

    with pytest.raises(DataError, match="no way was found to call Strange") as told:
        check(Strange())
    assert "class Adapted(torch.nn.Module)" in str(told.value)


@pytest.mark.parametrize("value", [None, "text", 3.0, torch.zeros(())])
def test_what_returns_nothing_usable_is_refused(value: Any) -> None:
    class Nothing(Core):
        def forward(self, ids: Tensor) -> Any:
            return value

    with pytest.raises(DataError, match="no way was found"):
        check(Nothing())


def test_the_adapter_that_it_proposes_works() -> None:
    class Odd(Core):
        def forward(self, *, picture: Any, scale: float) -> Tensor:
            assert scale == 1.5
            return self.logits(picture.ids)

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Odd()

        def forward(self, ids: Tensor) -> Tensor:
            return self.model(picture=SimpleNamespace(ids=ids), scale=1.5)  # type: ignore[no-any-return]

    with pytest.raises(DataError):
        check(Odd())
    assert examined(Adapted()).verdict == "partial"


def barely_hidden(T: int) -> Tensor:
    return -torch.ones(T, T).triu(1)


class Story(Core):
    """Its mask is made by a function beside it, and hides next to nothing; its head is called as people call heads."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = self.head

    def forward(self, ids: Tensor) -> Tensor:
        return self.classifier(self.mixed(ids, barely_hidden(ids.shape[1])))  # type: ignore[no-any-return]

    def mixed(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(ids)
        return x + F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), attn_mask=mask)


def test_what_a_model_calls_tells_its_kind_as_well() -> None:
    report = check(Story(), only=["M20"])
    assert report.kind == "causal", str(report)
    assert report.findings, str(report)


class FewPlaces(Core):
    """Ten places, more than there are rows in a batch: taken for time first, longer rows would fit."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(10, D)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return self.logits(x, torch.ones(x.shape[1], x.shape[1], dtype=torch.bool))
        assert mask.shape == x.shape
        return self.logits(x, (mask != 0)[:, None, :].expand(-1, x.shape[1], -1))


def test_rows_that_are_too_long_do_not_make_it_time_first() -> None:
    known = find_convention(perturbed(FewPlaces(), 0), Spec())
    assert not known.convention.time_first
    assert dict(known.convention.call)["mask"].startswith("keep: ")
