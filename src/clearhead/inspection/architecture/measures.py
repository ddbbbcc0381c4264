"""The numbers of each node: parameters, operations, bytes. Torch builds the model without its weights."""

import math
from collections import Counter
from dataclasses import dataclass

import torch

from clearhead.config import ModelConfig
from clearhead.inspection.architecture.graph import ArchitectureGraph
from clearhead.models import LanguageModel, build_model

FLOAT32 = 4  # bytes


@dataclass(frozen=True)
class Measures:
    """Of a node, or of a card with all that is in it; of all its blocks together.

    Attributes:
        parameters: numbers that are learned.
        flops: of one forward pass at full context, per token; products with matrices alone, as in `estimate_cost`.
        n_bytes: of the parameters in float32.
        activation: bytes of what it gives for one text of block_size tokens.
    """

    parameters: int
    flops: int
    n_bytes: int
    activation: int


def shallow_model(config: ModelConfig) -> LanguageModel:
    """The config's model with one block in each stack, on the meta device: no weights, no time."""
    with torch.device("meta"):
        return build_model(config.model_copy(update={"n_layers": 1, "n_encoder_layers": 1}))


def measure(graph: ArchitectureGraph, model: LanguageModel) -> dict[str, Measures]:
    """The measures of every node.

    Args:
        graph: of a config.
        model: from `shallow_model` of the same config.
    """
    own = own_parameters(graph, model)
    measures: dict[str, Measures] = {}
    for name, node in graph.nodes.items():
        parameters = node.count * own[name]
        activation = node.count * node.itemsize * math.prod(graph.shape(name))
        measures[name] = Measures(parameters, node.count * node.flops, FLOAT32 * parameters, activation)
    for card in {node.card for node in graph.nodes.values() if node.card}:
        inside = [measures[name] for name, node in graph.nodes.items() if node.card == card and name != card]
        fields = ((getattr(entry, field) for entry in inside) for field in Measures.__dataclass_fields__)
        measures[card] = Measures(*map(sum, fields))
    return measures


def own_parameters(graph: ArchitectureGraph, model: LanguageModel) -> Counter[str]:
    """The parameters of each node, of one block: a parameter belongs to the innermost module that is a node's."""
    node_of = {node.module: name for name, node in graph.nodes.items() if node.module}
    counted = Counter[str]()
    for name, parameter in model.named_parameters():
        path = name.rpartition(".")[0]
        while path and path not in node_of:
            path = path.rpartition(".")[0]
        counted[node_of[path]] += parameter.numel()  # a KeyError: a part of the model that the graph does not know
    return counted
