"""A compiled training step is one graph, made once; and it trains as the uncompiled one does."""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from clearhead.config import RunConfig
from clearhead.config.presets import DEFAULTS, PRESETS
from clearhead.models import Evaluation, build_model
from clearhead.options import Settings
from clearhead.training import Notice, Stepped, fit
from clearhead.training.loss import SMOOTHINGS, Smoothing, token_loss_sum

VOCAB, PAD, STEPS = 65, 0, 5
GPU = "nanogpt-baby"  # the shape for one GPU

Graphs = list[torch.fx.GraphModule]


def tiny(name: str, model: Settings | None = None, **train: Any) -> RunConfig:
    """The preset with every kind of part that it has, once, and small."""
    options = PRESETS[name].options
    pad = None if options["objective"] == "next" else PAD
    shape = {"n_layers": 1, "n_heads": 4, "d_model": 32, "d_ff": 32, "block_size": 64, "vocab_size": VOCAB}
    few = {"steps": STEPS, "batch_size": 8, "micro_batches": 2, "eval_every": 2, "device": "cpu"}
    return RunConfig.read(options, {"model": {**shape, "pad_id": pad, **(model or {})}, "train": {**few, **train}})


BY_DEFAULT = list({tiny(name).model: name for presets in DEFAULTS.values() for _, name in presets}.values())


def batch_of(config: RunConfig, sizes: int, step: int) -> tuple[Tensor, ...]:
    """Rows with some targets that do not count, of so many sizes in turn; of pairs, filled up."""
    draw = torch.Generator().manual_seed(step)
    pieces = 1 + step % sizes
    rows, long = 8 * pieces, 48 // pieces
    ids = torch.randint(1, VOCAB, (rows, long + 1), generator=draw)
    targets = ids[:, 1:].masked_fill(torch.rand(rows, long, generator=draw) < 0.1, -100)
    if config.objective != "seq2seq":
        return ids[:, :-1], targets
    source = torch.randint(1, VOCAB, (rows, long + 5 * pieces), generator=draw)
    source[0, 7:] = PAD
    return source, ids[:, :-1], targets


def train(config: RunConfig, sizes: int = 1) -> list[float]:
    """The losses of a training with evaluations in between, while the rate changes."""
    model = build_model(config.model)

    def evaluate() -> Evaluation:
        *inputs, _ = batch_of(config, sizes, STEPS)
        with torch.inference_mode():
            return Evaluation(float(model(*inputs).logsumexp(-1).mean()), 1)

    events = list(fit(model, config.train, partial(batch_of, config, sizes), seed=1, evaluate=evaluate))
    steps = [event for event in events if isinstance(event, Stepped)]
    assert len({step.learning_rate for step in steps}) > STEPS / 2
    assert not [event.text for event in events if isinstance(event, Notice)], "it fell back"
    return [step.loss for step in steps]


@pytest.fixture
def graphs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Graphs]:
    """What is compiled from now on: whole or not at all; computed as it was traced, which takes no compiler."""
    with warnings.catch_warnings():  # of what torch's compiler imports
        warnings.simplefilter("ignore")
        from torch._dynamo.backends.debugging import aot_eager, eager
    compiled: Graphs = []
    backend = aot_eager if getattr(request, "param", None) else eager  # which traces the gradient too, or does not

    def keep(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        compiled.append(graph)
        return backend(graph, inputs)

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=keep, fullgraph=True))
    yield compiled
    torch._dynamo.reset()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [*BY_DEFAULT, GPU])
def test_a_step_is_one_graph_and_is_made_once(name: str, graphs: Graphs) -> None:
    """From inputs to loss, of torch's own operations: compiling is also what turns our ways of dropout and loss off."""
    config = tiny(name, compile="on", precision="bfloat16")
    train(config)
    train(config)  # another model of this shape needs no other
    assert len(graphs) == 1
    nodes = [node for node in graphs[0].graph.nodes if node.op == "call_function"]
    called = {getattr(node.target, "__name__", "") for node in nodes}
    expected = {"cross_entropy": True, "dropout": config.model.dropout, "rms_norm": config.model.norm == "rmsnorm"}
    assert {name for name, there in expected.items() if there} <= called
    assert not [node for node in nodes if "autograd" in str(node.target)]


@pytest.mark.campaign
def test_where_sizes_differ_a_second_graph_is_for_all_of_them(graphs: Graphs) -> None:
    train(tiny("masked", compile="on", precision="bfloat16"), sizes=3)
    assert len(graphs) == 2


@pytest.mark.campaign
@pytest.mark.parametrize("graphs", [True], indirect=True)
@pytest.mark.parametrize("name", PRESETS)
def test_so_it_is_with_every_preset_and_its_gradient(name: str, graphs: Graphs) -> None:
    model = PRESETS[name].model
    train_options = {"schedule": "linear", "compile": "on", "precision": "bfloat16"}  # the rate changes in each preset
    config = tiny(name, {"n_layers": min(2, model.get("n_layers", 1))}, **train_options)
    sizes = 1 if config.objective == "causal" else 3
    train(config, sizes)
    assert len(graphs) == min(2, sizes)


@pytest.mark.campaign
@pytest.mark.parametrize("graphs", [True], indirect=True)
def test_it_trains_as_without_a_compiler(graphs: Graphs) -> None:
    exact: dict[str, Any] = {"precision": "float32", "optimizer": "adamw", "learning_rate": 0.01}
    compiled, eager = (train(tiny("small", compile=choice, **exact)) for choice in ("on", "off"))
    assert len(graphs) == 1
    assert compiled == pytest.approx(eager, rel=1e-5)


@pytest.mark.parametrize("over", SMOOTHINGS)
@pytest.mark.parametrize("share", [0.0, 0.2])
def test_a_compiled_loss_is_the_loss(share: float, over: str, graphs: Graphs) -> None:
    """In the graph it is torch's own cross entropy; elsewhere ours."""
    draw = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(4, 6, VOCAB, generator=draw, dtype=torch.float64)
    targets = torch.randint(VOCAB, (4, 6), generator=draw).masked_fill(torch.rand(4, 6, generator=draw) < 0.3, -100)
    losses_and_gradients = []
    for function in (token_loss_sum, torch.compile(token_loss_sum)):
        leaf = logits.clone().requires_grad_()
        smoothed, plain = function(leaf, targets, Smoothing(share, over))
        assert not plain.requires_grad
        losses_and_gradients.append((smoothed, plain, *torch.autograd.grad(smoothed, leaf)))
    assert len(graphs) == 1
    torch.testing.assert_close(losses_and_gradients[1], losses_and_gradients[0], rtol=0, atol=1e-10)
