"""The graph of an architecture says what the model does: shapes, parameters and operations, for every configuration."""

from contextlib import ExitStack
from functools import partial
from math import prod
from typing import Any

import pytest
import torch
from law_models import CHOICES, make_model, name
from pair_models import ENCODER_CHOICES, PAIR_CHOICES, make_encoder, make_translator, some_ids
from torch import Tensor

from clearhead.config import PRESETS, ModelConfig, RunConfig
from clearhead.inspection import estimate_cost, record
from clearhead.inspection.architecture import ArchitectureGraph, build_graph
from clearhead.inspection.architecture.layout import lay_out
from clearhead.inspection.architecture.measures import measure, own_parameters, shallow_model
from clearhead.models import BigramLM, LanguageModel, build_model
from clearhead.parts import Attention

MAKERS = {
    "decoder": (make_model, CHOICES),
    "encoder": (make_encoder, ENCODER_CHOICES),
    "pair": (make_translator, PAIR_CHOICES),
}
MODELS = [
    pytest.param(partial(make, **choice), id=f"{kind}-{name(choice)}")
    for kind, (make, choices) in MAKERS.items()
    for choice in choices
]
MODELS.append(pytest.param(lambda: BigramLM(ModelConfig(architecture="bigram", vocab_size=11)), id="bigram"))
BATCH, LENGTH, SOURCE_LENGTH = 2, 5, 7
# Between modules, where no hook sees them: tables and sums inside the model's own `forward`.
UNSEEN = {"plus", "learned", "sinusoidal", "embedding", "input", "dropout"}


def captured_shapes(model: LanguageModel) -> dict[str, tuple[int, ...]]:
    """The shape of every activation of one call: outputs by `record`, and inputs of modules, by hooks of this test."""
    shapes: dict[str, tuple[int, ...]] = {}
    inputs = [some_ids(BATCH, LENGTH)]
    if model.config.architecture == "encoder_decoder":
        inputs.insert(0, some_ids(BATCH, SOURCE_LENGTH, seed=1))

    def keep(path: str) -> Any:
        def hook(module: object, args: tuple[Tensor, ...], options: dict[str, Any]) -> None:
            if args:
                shapes[f"{path}:input"] = tuple(args[0].shape)
            if isinstance(options.get("bias"), Tensor):
                shapes[f"{path}:bias"] = tuple(options["bias"].shape)

        return hook

    with torch.no_grad(), ExitStack() as hooks:
        for path, module in model.named_modules():
            hooks.enter_context(module.register_forward_pre_hook(keep(path), with_kwargs=True))
        trace = hooks.enter_context(record(model))
        model(*inputs)
    return shapes | {path: trace[path].shape for path in trace.names}


def sizes_of(graph: ArchitectureGraph) -> dict[str, int]:
    return graph.sizes | {"B": BATCH, "T": LENGTH, "T_src": SOURCE_LENGTH}


@pytest.mark.parametrize("make", MODELS)
def test_every_arrow_carries_the_shape_that_hooks_capture(make: Any) -> None:
    model = make()
    graph = build_graph(model.config)
    shapes, sizes = captured_shapes(model), sizes_of(graph)
    for edge in graph.edges:
        node = graph.nodes[edge.source]
        if node.tensor:
            assert graph.shape(node.name, sizes) == shapes[node.tensor], node
        else:
            assert node.kind in UNSEEN | {"ngrams", "segments"}, node
    assert graph.shape("logits", sizes) == shapes["output"]


@pytest.mark.parametrize("make", MODELS)
def test_each_attention_gets_what_its_call_gets(make: Any) -> None:
    """Rotation, bias and memory, as the model passes them, whatever their shapes."""
    model = make()
    graph = build_graph(model.config)
    calls: dict[str, tuple[bool, bool, bool]] = {}

    def keep(path: str) -> Any:
        def hook(module: object, args: tuple[Tensor | None, ...], options: dict[str, Any]) -> None:
            has_memory = len(args) > 1 and args[1] is not None
            calls[path] = (options.get("rotate") is not None, options.get("bias") is not None, has_memory)

        return hook

    inputs = [some_ids(BATCH, SOURCE_LENGTH), some_ids(BATCH, LENGTH)]
    with torch.no_grad(), ExitStack() as hooks:
        for path, module in model.named_modules():
            if isinstance(module, Attention) and ".blocks.0." in path:
                hooks.enter_context(module.register_forward_pre_hook(keep(path), with_kwargs=True))
        model(*inputs[-1 - (model.config.architecture == "encoder_decoder") :])
    drawn = {}
    for path in calls:
        inside = [node.name for node in graph.nodes.values() if node.card == path]
        reads = {edge.role for edge in graph.edges if edge.target in inside}
        has_rotation = any(graph.nodes[node].kind == "rotate" for node in inside)
        drawn[path] = (has_rotation, "positions" in reads, "memory" in reads)
    assert drawn == calls
    assert calls.keys() == {name for name, node in graph.nodes.items() if node.kind == "attention"}


@pytest.mark.parametrize("make", MODELS)
def test_every_arrow_points_forward_and_every_node_is_on_the_way_to_the_logits(make: Any) -> None:
    graph = build_graph(make().config)
    order = graph.order()
    assert sorted(order) == sorted(graph.nodes)
    reached = {"logits"}
    for node in reversed(order):
        if any(edge.target in reached for edge in graph.edges if edge.source == node):
            reached.add(node)
    assert reached == set(graph.nodes)


@pytest.mark.parametrize("make", MODELS)
def test_the_parameters_of_the_nodes_are_the_models(make: Any) -> None:
    model = make()
    graph = build_graph(model.config)
    own = own_parameters(graph, shallow_model(model.config))
    total = sum(node.count * own[node.name] for node in graph.nodes.values())
    assert total == sum(parameter.numel() for parameter in model.parameters())
    for node in graph.nodes.values():
        if node.module and node.module != "lm_head":
            module = model.get_submodule(node.module)
            assert own[node.name] == sum(parameter.numel() for parameter in module.parameters()), node
    measures = measure(graph, shallow_model(model.config))
    leaves = [measures[node.name] for node in graph.nodes.values() if node.card != node.name]
    costs = estimate_cost(model.config)
    assert sum(entry.parameters for entry in leaves) == costs.parameters
    assert sum(entry.n_bytes for entry in leaves) == costs.bytes["weights"]
    assert sum(entry.flops for entry in leaves) == costs.flops_per_token


@pytest.mark.parametrize("make", MODELS)
def test_nothing_in_the_picture_covers_anything_else(make: Any) -> None:
    graph = build_graph(make().config)
    layout = lay_out(graph)
    assert set(layout.boxes) == set(graph.nodes)
    assert set(layout.routes) == {edge.name for edge in graph.edges}
    boxes = {name: layout.absolute(graph, name) for name in graph.nodes}
    for first, box in boxes.items():
        assert 0 <= box.x <= box.right <= layout.width
        assert 0 <= box.y <= box.bottom <= layout.height
        for second, other in boxes.items():
            apart = box.right <= other.x or other.right <= box.x or box.bottom <= other.y or other.bottom <= box.y
            nested = second in (graph.nodes[first].card, first) or first == graph.nodes[second].card
            assert apart or nested, (first, second)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_and_their_siblings(preset: str) -> None:
    config = RunConfig.read(PRESETS[preset].options, {}).model
    positions = ("pre",) if config.architecture == "bigram" else ("pre", "post")
    for position in positions:
        sibling = config.model_copy(update={"norm_position": position})
        graph = build_graph(sibling)
        own = own_parameters(graph, shallow_model(sibling))
        assert sum(node.count * own[node.name] for node in graph.nodes.values()) == estimate_cost(sibling).parameters


def test_dropout_stands_where_the_model_drops() -> None:
    rates = {"dropout": 0.1, "attention_dropout": 0.2, "feedforward_dropout": 0.3}
    config = ModelConfig.read({"architecture": "encoder_decoder", "n_layers": 1, "d_model": 16, **rates})
    nodes = build_graph(config).nodes.values()
    drawn = sorted(node.rate for node in nodes if node.kind == "dropout")
    model = build_model(config)
    rates_of_modules = [module.p for path, module in model.named_modules() if type(module).__name__ == "Dropout"]
    rates_of_modules += [module.dropout for module in model.modules() if type(module).__name__ == "Attention"]
    rates_of_modules += [config.dropout]  # one module drops both the source's embedding and the target's
    assert drawn == sorted(rates_of_modules)


def test_a_shape_is_read_off_the_sizes() -> None:
    graph = build_graph(ModelConfig(d_model=512, n_heads=8, block_size=128))
    assert graph.shape("stack.blocks.0.self_attention.part.query") == (1, 8, 128, 64)
    assert prod(graph.shape("embedding")) == 128 * 512
