"""The initial weights of a fresh model: one function, one table."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from clearhead.config import ModelConfig
from clearhead.parts import Stack, Sublayer

SCALE = 0.02  # GPT-2's (Radford et al. 2019)
SEES_TARGETS = {"encoder"}  # architectures whose targets may be among the inputs


def initialize(model: nn.Module, config: ModelConfig, seed: int) -> None:
    """Initialize every parameter but the weights of norms, which their constructors set.

    All tokens then have nearly the same probability: the fresh loss is ln(V) within 2 %.

    | tensor                             | distribution                   | why                                       |
    |------------------------------------|--------------------------------|-------------------------------------------|
    | matrices                           | N(0, 0.02)                     | blocks start near the identity            |
    | `output` and `down` of every block | N(0, 0.02 / sqrt(sublayers))   | so many of them sum in the stack's stream |
    | `embedding`, tied to the head      | N(0, at most 0.02)             | see `_tied_scale`                         |
    | other embeddings                   | N(0, 0.02)                     | as large as GPT-2's                       |
    | n-gram tables                      | 0                              | a fresh model is the Transformer alone    |
    | learned positions, segments        | as what they are added to      | so that neither drowns the other          |
    | relative positions                 | N(0, 0.02)                     | no distance is preferred                  |
    | `lm_head`, the untied head         | N(0, min(0.02, 0.2 / sqrt(D))) | the logits' spread starts below 0.2       |
    | vectors of norms                   | 1, their biases 0              | plain normalization (their constructor)   |
    | biases of linear maps              | 0                              |                                           |

    With `init = "xavier"` all matrices but the tables are uniform with variance 2 / (in + out), so that
    signals keep their size (Glorot & Bengio 2010, equation 16), as the first Transformer's were.

    Parameters on the meta device are skipped.
    """
    with torch.no_grad():
        for parameter, value in initial_values(model, config, seed):
            parameter.copy_(value)


def initial_values(model: nn.Module, config: ModelConfig, seed: int) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Every parameter that `initialize` fills, with its value, of the shape (...) of the parameter.

    Numbers are drawn on the CPU in float32 whatever the model's device, so that a seed gives the same model everywhere.
    """
    generator = torch.Generator().manual_seed(seed)
    draw = INITIALIZATIONS[config.init]
    tables, writers = dict(_tables(model, config)), dict(_residual_writers(model))
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            continue
        if name.endswith(".bias") or tables.get(name) == 0:
            yield parameter, torch.zeros(parameter.shape)
        elif name in tables:
            yield parameter, torch.randn(parameter.shape, generator=generator) * tables[name]
        elif parameter.dim() >= 2:
            yield parameter, draw(parameter.shape, writers.get(name, 1), generator)


def _normal(shape: torch.Size, share: int, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator) * (SCALE / math.sqrt(share))


def _xavier(shape: torch.Size, share: int, generator: torch.Generator) -> Tensor:
    return (2 * torch.rand(shape, generator=generator) - 1) * math.sqrt(6 / sum(shape))


# (shape, number of residual writers, generator) -> the matrix
INITIALIZATIONS: dict[str, Callable[[torch.Size, int, torch.Generator], Tensor]] = {
    "normal": _normal,
    "xavier": _xavier,
}


def _residual_writers(model: nn.Module) -> Iterator[tuple[str, int]]:
    """The matrices that write to a stack's residual stream, each with the number of writers in that stack."""
    for path, stack in model.named_modules():
        if isinstance(stack, Stack):
            writers = [
                f"{path}.{name}.part.{last}.weight"
                for name, sublayer in stack.named_modules()
                if isinstance(sublayer, Sublayer)
                for last in ("output", "down")
                if hasattr(sublayer.part, last)
            ]
            yield from ((name, len(writers)) for name in writers)


def _tables(model: nn.Module, config: ModelConfig) -> Iterator[tuple[str, float]]:
    """The scale of every table of vectors, whose rows are looked up and not mixed."""
    tied = config.tie_embeddings and hasattr(model, "lm_head")  # a bigram model has no head beside its table
    own = _tied_scale(config) if tied else SCALE
    source = own if config.source_vocab_size is None else SCALE
    factor = math.sqrt(config.d_model) if config.scale_embedding else 1.0  # what is added to the embedding is as large
    places = {"positions.weight": own * factor, "source_positions.weight": source * factor}
    scales = {
        "embedding.weight": own,
        "segments.weight": own * factor,
        "source_embedding.weight": SCALE,
        **(dict.fromkeys(places, SCALE) if config.positions == "relative" else places),
        "embedding_ngrams.weight": 0.0,
        "logit_ngrams.weight": 0.0,
        "lm_head.weight": min(SCALE, 0.2 / math.sqrt(config.d_model)),
    }
    yield from ((name, scales[name]) for name, _ in model.named_parameters() if name in scales)


def _tied_scale(config: ModelConfig) -> float:
    """0.02, or less where a token would otherwise predict itself.

    The fresh stack hands the embedding on, normalized, so a tied head gives a token's own logit about x = scale * D.
    That costs ln(1 + (e^x - 1) / V) nats where the token is not the target, which this holds below 1 % of ln(V).

    A tenth of an encoder's targets are tokens that it sees unmasked (Devlin et al. 2019, section 3.1). There the leak
    lowers the loss, by at most 1.5 % of ln(V).
    """
    V = config.vocab_size
    cost = math.log(1 + 0.01 * V * math.log(V))
    gain = 0.15 * math.log(V) if config.architecture in SEES_TARGETS else cost
    return min(SCALE, min(cost, gain) / config.d_model)
