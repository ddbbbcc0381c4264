import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training_helpers import tiny_config, tiny_model

from clearhead.config import TrainConfig
from clearhead.errors import UsageError
from clearhead.training.adamw import AdamW
from clearhead.training.muon import Muon, orthogonalize, rms_scale
from clearhead.training.optimizers import OPTIMIZERS, Optimizer, build_optimizer, hidden_matrices
from clearhead.training.torch_optimizer import torch_classes

SHAPES = [(6, 6), (4, 24), (24, 4), (16, 16), (4, 24), (1, 5), (24, 4)]


def twins(*shapes: tuple[int, ...]) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    generator = torch.Generator().manual_seed(0)
    ours = {str(i): nn.Parameter(torch.randn(shape, generator=generator)) for i, shape in enumerate(shapes)}
    return ours, {name: nn.Parameter(p.detach().clone()) for name, p in ours.items()}


def move_both(own: Optimizer, reference: torch.optim.Optimizer, reference_parameters: dict[str, nn.Parameter]) -> None:
    """Four steps on the same gradients, of very different sizes, at rates that change."""
    generator = torch.Generator().manual_seed(1)
    for step in range(4):
        for name, p in own.parameters.items():
            p.grad = torch.randn(p.shape, generator=generator) * 10.0 ** torch.randint(-4, 3, (), generator=generator)
            reference_parameters[name].grad = p.grad.clone()
        rate = 0.01 * (step + 1)
        for group in reference.param_groups:
            group["lr"] = rate
        own.step(rate)
        reference.step()


def move_with_muon(precision: torch.dtype) -> list[tuple[nn.Parameter, nn.Parameter]]:
    ours, copies = twins(*SHAPES)
    own = Muon(ours, momentum=0.9, weight_decay=0.1, precision=precision)
    reference = torch.optim.Muon(copies.values(), momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    move_both(own, reference, copies)
    return [(p, copies[name]) for name, p in ours.items()]


def test_adamw_is_torchs_with_decay_on_matrices_only() -> None:
    ours, copies = twins((3, 4), (7,), (2, 3, 4), (), (5, 1))
    own = AdamW(ours, betas=(0.8, 0.97), weight_decay=0.3)
    vectors = [p for p in copies.values() if p.ndim < 2]
    matrices = [p for p in copies.values() if p.ndim >= 2]
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": vectors, "weight_decay": 0.0}]
    move_both(own, torch.optim.AdamW(groups, betas=(0.8, 0.97), foreach=False, fused=False), copies)
    for name, p in ours.items():
        torch.testing.assert_close(p, copies[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_config_says_how_adam_counts(optimizer: str) -> None:
    config = TrainConfig.read(
        {"optimizer": optimizer, "beta1": 0.7, "beta2": 0.6, "adam_eps": 1e-3, "weight_decay": 0.2}
    )
    built = build_optimizer(tiny_model(), config)
    members = [member for member in getattr(built, "members", (built,)) if isinstance(member, AdamW)]
    assert [(member.betas, member.eps, member.weight_decay) for member in members] == [((0.7, 0.6), 1e-3, 0.2)]


@pytest.mark.parametrize("make", [AdamW, Muon])
def test_a_parameter_without_a_gradient_stays_as_it_is(make: type[AdamW] | type[Muon]) -> None:
    ours, copies = twins((3, 4), (3, 4))
    optimizer = make(ours)
    optimizer.step(0.1)
    ours["0"].grad = torch.ones(3, 4)
    optimizer.step(0.1)
    assert not torch.equal(ours["0"], copies["0"])
    assert torch.equal(ours["1"], copies["1"])


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_muon_is_torchs_within_bfloat16(precision: torch.dtype) -> None:
    for p, q in move_with_muon(precision):
        distance = (0.01 + 0.02 + 0.03 + 0.04) * rms_scale(
            tuple(p.shape)
        )  # moved in four steps, at most about this far
        torch.testing.assert_close(p, q, rtol=0, atol=0.05 * distance)


def newton_schulz(matrix: Tensor) -> Tensor:
    """The iteration as its authors print it, on one matrix and in float64."""
    x: Tensor = matrix.double() / torch.linalg.matrix_norm(matrix.double())
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


def test_muon_is_torchs_but_for_the_type_of_the_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    def exact(gradient: Tensor, *_: object) -> Tensor:
        return newton_schulz(gradient).float()

    monkeypatch.setattr("torch.optim._muon._zeropower_via_newtonschulz", exact)
    for p, q in move_with_muon(torch.float32):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 5), (4, 4), (6, 30), (32, 33)])
def test_orthogonalizing_together_is_orthogonalizing_one_by_one(shape: tuple[int, int]) -> None:
    matrices = torch.randn(5, *shape, generator=torch.Generator().manual_seed(1))
    together = orthogonalize(matrices)
    for matrix, result in zip(matrices, together, strict=True):
        torch.testing.assert_close(result.double(), newton_schulz(matrix), rtol=0, atol=2e-5)


def test_orthogonalizing_moves_every_direction_about_equally_far() -> None:
    matrices = torch.randn(3, 16, 48, generator=torch.Generator().manual_seed(2))
    matrices *= torch.logspace(-6, 3, 3)[:, None, None]
    singular = torch.linalg.svdvals(orthogonalize(matrices))
    assert singular.min() > 0.6
    assert singular.max() < 1.3


def test_a_zero_gradient_moves_nothing() -> None:
    p = nn.Parameter(torch.ones(3, 4))
    p.grad = torch.zeros(3, 4)
    Muon({"p": p}, weight_decay=0.0).step(0.1)
    assert torch.equal(p, torch.ones(3, 4))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("architecture", ["decoder", "bigram"])
def test_every_parameter_is_moved_by_exactly_one_optimizer(tied: bool, optimizer: str, architecture: str) -> None:
    tables = {"embedding_ngrams": 3, "logit_ngrams": 2} if architecture == "decoder" else {}
    model = tiny_model(tie_embeddings=tied, architecture=architecture, bias=True, **tables)
    moved = build_optimizer(model, tiny_config(optimizer=optimizer))
    assert moved.parameters.keys() == dict(model.named_parameters()).keys()
    assert all(moved.parameters[name] is p for name, p in model.named_parameters())
    assert {name.rpartition(".")[0] for name in moved.state} == moved.parameters.keys()


@pytest.mark.parametrize("tied", [True, False])
def test_muon_takes_the_matrices_inside_the_blocks(tied: bool) -> None:
    model = tiny_model(
        tie_embeddings=tied,
        bias=True,
        positions="learned",
        qk_norm=True,
        embedding_ngrams=3,
        logit_ngrams=2,
        ngram_rows=50,
    )
    names = list(hidden_matrices(model))
    expected = [name for name, p in model.named_parameters() if name.startswith("stack.blocks.") and p.ndim == 2]
    assert names == expected
    assert len(names) == 2 * (4 + 2), "four maps of attention and two of the feed-forward, in two blocks"


def test_training_does_not_wait_for_the_compiler_to_load() -> None:
    """Making a `torch.optim.Optimizer` imports torch._dynamo, which takes longer than a hundred small steps."""
    code = (
        "import sys; from training_helpers import *; train(tiny_config(steps=2, optimizer='muon'));"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=True, timeout=100)


TORCHS = [kind for kind in torch_classes() if kind not in {*OPTIMIZERS, "optimizer", "lbfgs", "sparseadam"}]


@pytest.mark.parametrize("name", TORCHS)
def test_any_optimizer_of_torch_moves_as_torchs_own(name: str) -> None:
    config = tiny_config(optimizer=name, weight_decay=0.3, beta1=0.8, beta2=0.97)
    model, twin = tiny_model(bias=True), tiny_model(bias=True)
    built = build_optimizer(model, config)
    kind: Any = torch_classes()[name]
    assert built.kind == kind.__name__
    known = inspect.signature(kind).parameters
    options: dict[str, Any] = {"weight_decay": 0.3, "betas": (0.8, 0.97), "momentum": 0.8, "eps": 1e-8}
    options = {key: value for key, value in options.items() if key in known and (key, name) != ("eps", "adafactor")}
    flat = {"weight_decay": 0.0} if "weight_decay" in known else {}
    matrices = {"params": [p for p in twin.parameters() if p.ndim >= 2]}
    vectors = {"params": [p for p in twin.parameters() if p.ndim < 2], **flat}
    move_both(built, kind([matrices, vectors], lr=config.learning_rate, **options), dict(twin.named_parameters()))
    for own, parameter in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(own, parameter)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "adamm",
            "there is no optimizer 'adamm'; did you mean 'adam'? `train.optimizer` takes adamw, muon or the name",
        ),
        ("???", "there is no optimizer '???'; `train.optimizer` takes"),
        ("Optimizer", "torch.optim.Optimizer cannot train this model"),
        ("lbfgs", "torch.optim.LBFGS cannot train this model"),
        ("SparseAdam", "torch.optim.SparseAdam cannot train this model"),
    ],
)
def test_an_optimizer_that_cannot_be_is_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        build_optimizer(tiny_model(bias=True), tiny_config(optimizer=name))


def test_names_are_known_however_they_are_written() -> None:
    assert build_optimizer(tiny_model(), tiny_config(optimizer="AdamW")).kind == "AdamW"
    assert build_optimizer(tiny_model(), tiny_config(optimizer="MUON")).kind == "Muon+AdamW"
    assert build_optimizer(tiny_model(), tiny_config(optimizer="rmsprop")).kind == "RMSprop"


@pytest.mark.parametrize("name", TORCHS)
def test_state_is_created_without_writing_to_a_parameter(name: str) -> None:
    """A copy of all parameters was made, to restore them after a step."""
    config = tiny_config(optimizer=name)
    moved = build_optimizer(tiny_model(bias=True), config)
    for p in moved.parameters.values():
        p.grad = torch.ones_like(p)
    moved.step(0.01)
    fresh = build_optimizer(tiny_model(bias=True), config)
    versions = [p._version for p in fresh.parameters.values()]
    fresh.init_state(moved.state)
    assert [p._version for p in fresh.parameters.values()] == versions
    assert all(p.grad is None for p in fresh.parameters.values())
    assert {key: tensor.shape for key, tensor in fresh.state.items()} == {
        key: tensor.shape for key, tensor in moved.state.items()
    }
