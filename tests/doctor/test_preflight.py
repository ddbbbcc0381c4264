import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.config import ModelConfig
from clearhead.doctor import PreflightReport, Spec, preflight
from clearhead.doctor.examination import chosen
from clearhead.doctor.training.preflight import EXAMINED, EXAMINED_BY_GRADIENT, Forward
from clearhead.models import LanguageModel, build_model

VOCAB, T, D = 13, 10, 8


def batch(rows: int = 6, length: int = T, seed: int = 0) -> tuple[Tensor, Tensor]:
    ids = torch.randint(VOCAB, (rows, length + 1), generator=torch.Generator().manual_seed(seed))
    return ids[:, :-1], ids[:, 1:]


FRESH, TRAINED = Spec(kind="causal", fresh=True), Spec(kind="causal", fresh=False)


def examine(
    model: nn.Module, *, spec: Spec = FRESH, moved: Sequence[Tensor] | None = None, forward: Forward | None = None
) -> PreflightReport:
    moved = list(model.parameters()) if moved is None else moved
    return preflight(model, *batch(), moved, spec=spec, forward=forward)


def ids_of(report: PreflightReport) -> list[str]:
    return [finding.id for finding in report.findings]


def healthy(**options: Any) -> LanguageModel:
    shape = {"vocab_size": VOCAB, "block_size": T, "n_layers": 2, "n_heads": 2, "d_model": D}
    return build_model(ModelConfig.read(shape, options), seed=3)


class Plain(nn.Module):
    """A small Transformer in one piece, whose every seam a test can break."""

    def __init__(self, *, n_layers: int = 2, scale: float = 0.02) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = nn.Embedding(VOCAB, D)
        self.maps = nn.ModuleList(nn.Linear(D, 3 * D, bias=False) for _ in range(n_layers))
        self.outputs = nn.ModuleList(nn.Linear(D, D, bias=False) for _ in range(n_layers))
        self.head = nn.Linear(D, VOCAB, bias=False)
        for parameter in self.parameters():
            nn.init.normal_(parameter, 0, scale, generator=generator)

    def embed(self, ids: Tensor) -> Tensor:
        return self.table(ids)  # type: ignore[no-any-return]

    def mask(self, layer: int) -> Tensor:
        return torch.ones(T, T, dtype=torch.bool).tril()

    def mix(self, x: Tensor, layer: int) -> Tensor:
        query, key, value = self.maps[layer](x).chunk(3, dim=-1)
        return self.outputs[layer](F.scaled_dot_product_attention(query, key, value, self.mask(layer)))  # type: ignore[no-any-return]

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in range(len(self.maps)):
            x = x + self.mix(x, layer)
        return self.head(x)  # type: ignore[no-any-return]


def test_only_what_it_asks_for_is_made() -> None:
    asked = {*EXAMINED, EXAMINED_BY_GRADIENT}
    assert {one.name for one in chosen([*asked])} == asked


# --- silent on what is healthy ---

POSITIONS = ("learned", "sinusoidal", "rope", "alibi", "none")
NORMS, PLACES = ("layernorm", "rmsnorm"), ("pre", "post")
FEEDFORWARDS = ("relu", "gelu", "relu2", "swiglu")


def kinds() -> Iterator[Any]:
    """All of them; in the suite as many as show each position with each feed-forward, and each norm in each place."""
    for numbers in itertools.product(range(5), range(2), range(2), range(4)):
        position, norm, place, feedforward = numbers
        is_in_suite = (position + norm + 2 * place) % 4 == feedforward
        kind = POSITIONS[position], NORMS[norm], PLACES[place], FEEDFORWARDS[feedforward]
        yield pytest.param(*kind, marks=() if is_in_suite else pytest.mark.campaign)


@pytest.mark.sampled
@pytest.mark.parametrize(("positions", "norm", "norm_position", "feedforward"), [*kinds()])
def test_healthy_models_of_every_kind_pass(positions: str, norm: str, norm_position: str, feedforward: str) -> None:
    options = {"positions": positions, "norm": norm, "norm_position": norm_position, "feedforward": feedforward}
    report = examine(healthy(**options))
    assert report.passed, report.line()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "options",
    [
        {"architecture": "bigram"},
        {"tie_embeddings": False},
        {"bias": True},
        {"qk_norm": True, "positions": "rope"},
        {"n_kv_heads": 1},
        {"sliding_window": 1},
        {"sliding_window": 3, "positions": "rope"},
        {"dropout": 0.5, "attention_dropout": 0.5, "feedforward_dropout": 0.5},
        {"n_layers": 1, "n_heads": 1, "d_model": 2},
        {"embedding_ngrams": 3, "logit_ngrams": 2, "ngram_rows": 400},
    ],
)
@pytest.mark.parametrize("place", ["pre", "post"])
def test_healthy_models_with_every_option_pass(options: dict[str, Any], place: str) -> None:
    model = healthy(**{"norm_position": place} | options)
    report = examine(model, spec=Spec(kind="causal", window=options.get("sliding_window"), fresh=True))
    assert report.passed, report.line()
    assert report.line() == (
        "preflight passed: no future leak, rows are independent, every parameter receives gradient, "
        f"{report.shown[3]}, all {len(list(model.parameters()))} in the optimizer, targets are the next tokens"
    )
    assert report.shown[3].startswith("fresh loss 2.5")
    assert report.shown[3].endswith("near ln 13 = 2.565")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("rows", [1, 2, 40])
@pytest.mark.parametrize("length", [1, 2, 3, T])
def test_batches_of_every_shape_pass(rows: int, length: int) -> None:
    model = healthy()
    report = preflight(model, *batch(rows, length), list(model.parameters()), spec=FRESH)
    assert report.passed, report.line()


def test_a_batch_of_one_token_only_passes() -> None:
    model = healthy()
    ids = torch.zeros(2, T, dtype=torch.long)
    assert preflight(model, ids, ids, list(model.parameters()), spec=FRESH).passed


def test_a_trained_model_may_have_any_loss() -> None:
    report = examine(Plain(scale=1.0), spec=TRAINED)
    assert report.passed, report.line()


def test_plain_and_zero_initialised_models_pass() -> None:
    model = Plain()
    assert examine(model).passed
    for output in model.outputs.parameters():
        nn.init.zeros_(output)
    assert examine(model).passed


# --- 1. the future ---


class Unmasked(Plain):
    def mask(self, layer: int) -> Tensor:
        return torch.ones(T, T, dtype=torch.bool)


class UnmaskedLastLayer(Plain):
    def mask(self, layer: int) -> Tensor:
        return torch.ones(T, T, dtype=torch.bool) if layer == 1 else super().mask(layer)


class OneTooMany(Plain):
    def mask(self, layer: int) -> Tensor:
        return torch.ones(T, T, dtype=torch.bool).tril(1)


class WrongPolarity(Plain):
    def mask(self, layer: int) -> Tensor:
        return torch.ones(T, T, dtype=torch.bool).triu()


class LeakAtOneCell(Plain):
    def mask(self, layer: int) -> Tensor:
        mask = super().mask(layer)
        mask[4, 5] = True
        return mask


class UnmaskedInTraining(Plain):
    def mask(self, layer: int) -> Tensor:
        return torch.ones(T, T, dtype=torch.bool) if self.training else super().mask(layer)


class UnmaskedInEvaluation(Plain):
    def mask(self, layer: int) -> Tensor:
        return super().mask(layer) if self.training else torch.ones(T, T, dtype=torch.bool)


class HiddenByZeros(Unmasked):
    def __init__(self) -> None:
        super().__init__()
        for output in self.outputs.parameters():
            nn.init.zeros_(output)


class NormOverTime(Plain):
    def mix(self, x: Tensor, layer: int) -> Tensor:
        return (x - x.mean(1, keepdim=True)) / (1 + x.std(1, keepdim=True))


class NextTokenTable(Plain):
    """The leak is in the ids, where no gradient flows."""

    def embed(self, ids: Tensor) -> Tensor:
        pairs = (ids + 3 * ids.roll(-1, 1)) % VOCAB
        return self.table(ids) + self.table(pairs).detach()  # type: ignore[no-any-return]


class OneHot(Unmasked):
    """No nn.Embedding consumes the ids."""

    def embed(self, ids: Tensor) -> Tensor:
        return F.one_hot(ids, VOCAB).float() @ self.table.weight


LEAKS = {"M01", "M02", "M03", "M04", "M05", "M06", "M08", "M10", "M18", "M19", "M20", "N01"}
LEAKY = [
    Unmasked,
    UnmaskedLastLayer,
    OneTooMany,
    WrongPolarity,
    LeakAtOneCell,
    UnmaskedInTraining,
    UnmaskedInEvaluation,
    HiddenByZeros,
    NormOverTime,
    NextTokenTable,
    OneHot,
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("leaky", LEAKY)
def test_every_leak_is_found(leaky: Callable[[], Plain]) -> None:
    report = examine(leaky(), spec=TRAINED)
    assert {*ids_of(report)} & LEAKS, report.line()
    assert "no future leak" not in report.shown


def test_a_leak_is_told_with_its_place() -> None:
    report = examine(LeakAtOneCell())
    first = report.findings[0]
    assert "changing token 5" in first.evidence.witness
    assert "moves logits 4" in first.evidence.witness
    assert report.line().startswith(f"preflight failed: {first.sentence}")


def test_a_leak_by_one_part_in_ten_million_is_found() -> None:
    class Whisper(Plain):
        def mix(self, x: Tensor, layer: int) -> Tensor:
            return super().mix(x, layer) + 1e-7 * x.roll(-1, 1)

    assert {*ids_of(examine(Whisper()))} <= LEAKS
    assert ids_of(examine(Whisper()))


def test_models_without_an_embedding_are_examined_too() -> None:
    class Healthy(OneHot):
        def mask(self, layer: int) -> Tensor:
            return Plain.mask(self, layer)

    report = examine(Healthy())
    assert report.passed
    assert "no future leak" in report.shown


def test_a_model_that_ignores_its_input_is_not_called_causal() -> None:
    class Deaf(Plain):
        def embed(self, ids: Tensor) -> Tensor:
            return 0 * self.table(ids) + 1  # type: ignore[no-any-return]

    assert "A12" in ids_of(examine(Deaf()))


def test_logits_that_are_not_finite_are_told() -> None:
    class Empty(Plain):
        def embed(self, ids: Tensor) -> Tensor:
            return super().embed(ids) / 0

    assert {"M14", "R01"} & {*ids_of(examine(Empty(), spec=TRAINED))}


# --- 2. the fresh loss ---


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_an_initialisation_that_is_too_large_is_found(scale: float) -> None:
    model = Plain(scale=scale)
    inputs, targets = batch(rows=200)
    report = preflight(model, inputs, targets, list(model.parameters()), spec=FRESH)
    assert ids_of(report) == ["E04"], report.line()
    assert "ln 13 = 2.565" in report.line()


def test_a_loss_that_is_too_good_is_found() -> None:
    class Oracle(Plain):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) + 3 * F.one_hot(ids.roll(-1, 1), VOCAB)

    inputs, targets = batch(rows=200)
    model = Oracle()
    assert "E04" in ids_of(preflight(model, inputs, targets, list(model.parameters()), spec=FRESH))


# --- 3. the parameters ---


def test_a_frozen_parameter_is_found() -> None:
    model = Plain()
    model.maps[1].requires_grad_(False)
    report = examine(model)
    assert ids_of(report) == ["O11"]
    assert "maps.1.weight" in report.findings[0].evidence.witness


def test_an_unused_parameter_is_found() -> None:
    model = Plain()
    model.extra = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
    report = examine(model)
    assert ids_of(report) == ["A13"]
    assert "extra.0.weight, extra.0.bias, extra.1.weight and 1 more" in report.findings[0].evidence.witness


def test_a_detached_layer_is_found() -> None:
    class Detached(Plain):
        def mix(self, x: Tensor, layer: int) -> Tensor:
            mixed = super().mix(x, layer)
            return mixed.detach() if layer == 0 else mixed

    report = examine(Detached())
    assert ids_of(report) == ["I06"]
    assert "0.weight" in report.findings[0].evidence.witness


def test_a_parameter_that_no_optimizer_moves_is_found() -> None:
    model = Plain()
    moved = [p for name, p in model.named_parameters() if name != "outputs.1.weight"]
    report = examine(model, moved=moved)
    assert ids_of(report) == ["O01"]
    assert "outputs.1.weight" in report.findings[0].evidence.witness


def test_a_parameter_that_is_moved_twice_is_found() -> None:
    model = Plain()
    report = examine(model, moved=[*model.parameters(), model.table.weight])
    assert ids_of(report) == ["O04"]
    assert "table.weight" in report.findings[0].evidence.witness


def test_an_optimizer_of_another_model_is_found() -> None:
    report = examine(Plain(), moved=list(Plain().parameters()))
    assert ids_of(report) == ["O01", "O02"]


# --- 4. the targets ---


def shifted(by: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(VOCAB, (3, T + 8), generator=torch.Generator().manual_seed(1))
    return ids[:, 3 : 3 + T], ids[:, 3 + by : 3 + by + T]


@pytest.mark.parametrize(
    ("by", "id", "meaning"),
    [
        (0, "D01", "they are the inputs themselves"),
        (2, "D02", "they are the inputs shifted by 2"),
        (3, "D02", "they are the inputs shifted by 3"),
        (-1, "D02", "they are the tokens before"),
    ],
)
def test_targets_that_are_shifted_wrongly_are_found(by: int, id: str, meaning: str) -> None:
    model = healthy()
    report = preflight(model, *shifted(by), list(model.parameters()), spec=TRAINED)
    assert ids_of(report) == [id]
    assert meaning in report.findings[0].evidence.witness


def test_one_wrong_target_is_found_and_placed() -> None:
    model = healthy()
    inputs, targets = batch()
    targets = targets.clone()
    targets[2, 4] = (targets[2, 4] + 1) % VOCAB
    report = preflight(model, inputs, targets, list(model.parameters()), spec=FRESH)
    assert ids_of(report) == ["D02"]
    witness = report.findings[0].evidence.witness
    assert "1 of 54 targets are not the next input, the first in row 2, position 4" in witness


def test_targets_that_are_not_counted_may_be_missing() -> None:
    model = healthy()
    inputs, targets = batch()
    targets = targets.clone()
    targets[0], targets[1, 3], targets[2, :-1] = -100, -100, -100
    assert preflight(model, inputs, targets, list(model.parameters()), spec=FRESH).passed


def test_a_batch_with_no_target_is_found() -> None:
    model = healthy()
    inputs, targets = batch()
    report = preflight(model, inputs, targets.clone().fill_(-100), list(model.parameters()), spec=FRESH)
    assert ids_of(report) == ["D15"]


# --- and nothing of it is left behind ---


class WithState(Plain):
    """Counts its calls in a buffer, and replaces another one."""

    calls: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(2), persistent=False)
        self.gate = nn.Parameter(-torch.zeros(3, 2))
        self.dropout = nn.Dropout(0.3)

    def forward(self, ids: Tensor) -> Tensor:
        self.calls += 1
        self.seen = torch.ones(5)
        return self.dropout(super().forward(ids)) * (1 + self.gate.sum())  # type: ignore[no-any-return]


def snapshot(model: nn.Module) -> dict[str, Any]:
    def bits(tensors: Iterator[tuple[str, Tensor]]) -> dict[str, tuple[int, bytes]]:
        return {name: (id(tensor), tensor.detach().numpy().tobytes()) for name, tensor in tensors}

    return {
        "parameters": bits(model.named_parameters()),
        "buffers": bits(model.named_buffers()),
        "gradients": bits((name, p.grad) for name, p in model.named_parameters() if p.grad is not None),
        "modes": [module.training for module in model.modules()],
        "hooks": [len(module._forward_hooks) for module in model.modules()],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "random": torch.get_rng_state().numpy().tobytes(),
    }


@pytest.mark.parametrize("breaks", [False, True])
def test_the_model_is_given_back_bit_for_bit(breaks: bool) -> None:
    model = WithState()
    model.maps[0].eval()
    model.table.weight.grad = torch.randn(VOCAB, D, generator=torch.Generator().manual_seed(0))
    before = snapshot(model)
    if breaks:
        answers = iter(range(2))

        def forward(ids: Tensor) -> Tensor:
            return model(ids) / [1][next(answers)]  # type: ignore[no-any-return]

        with pytest.raises(IndexError):
            examine(model, forward=forward)
    else:
        report = examine(model)
        assert report.passed, report.line()
    assert snapshot(model) == before


def test_it_works_where_gradients_are_off() -> None:
    with torch.no_grad():
        assert examine(healthy()).passed
        assert {*ids_of(examine(Unmasked()))} & LEAKS


@pytest.mark.campaign
def test_an_examination_takes_the_same_work_however_large_the_batch() -> None:
    seen: list[int] = []
    model = healthy()
    model.register_forward_hook(lambda *args: seen.append(args[1][0].numel()))
    for rows in (500, 5000):
        inputs, targets = batch(rows)
        preflight(model, inputs, targets, list(model.parameters()), spec=FRESH)
    first, second = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert first == second
    assert sum(first) <= 4 * 4096
