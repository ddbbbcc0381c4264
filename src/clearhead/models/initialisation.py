"""How a fresh model's numbers are drawn: one function, one table."""

import math

import torch
from torch import nn

from clearhead.config import ModelConfig

SCALE = 0.02  # GPT-2's (Radford et al. 2019)


def initialise(model: nn.Module, config: ModelConfig, seed: int) -> None:
    """Draw every parameter anew. All tokens then have nearly the same odds: the fresh loss is ln(V) within 2 %.

    | tensor                             | distribution                   | why                                       |
    |------------------------------------|--------------------------------|-------------------------------------------|
    | matrices                           | N(0, 0.02)                     | a small sublayer: the model starts plain  |
    | `output` and `down` of every block | N(0, 0.02 / sqrt(2 n_layers))  | so many of them sum in the residual       |
    | `embedding`, tied to the head      | N(0, at most 0.02)             | see `_tied_scale`                         |
    | learned positions                  | as the embedding               | so that neither drowns the other          |
    | `unembedding`, the untied head     | N(0, min(0.02, 0.2 / sqrt(D))) | the logits' spread starts below 0.2       |
    | vectors of norms                   | 1, their biases 0              | plain normalisation (their constructor)   |
    | biases of linear maps              | 0                              |                                           |

    Numbers are drawn on the CPU in float32 whatever the model's device, so a seed gives one model everywhere; none
    are drawn for the meta device, where only shapes are wanted.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.is_meta:
                continue
            if parameter.dim() >= 2:
                numbers = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(numbers * _scale(name, config))
            elif name.endswith(".bias"):
                parameter.zero_()


def _scale(name: str, config: ModelConfig) -> float:
    if name.endswith((".output.weight", ".down.weight")):
        return SCALE / math.sqrt(2 * config.n_layers)
    if name == "unembedding.weight":
        return min(SCALE, 0.2 / math.sqrt(config.d_model))
    if name in ("embedding.weight", "positions.weight") and config.architecture == "decoder" and config.tied:
        return _tied_scale(config)
    return SCALE


def _tied_scale(config: ModelConfig) -> float:
    """0.02, or less where a token would otherwise predict itself.

    The fresh stack hands the embedding on, normalised, so a tied head gives a token's own logit about x = scale * D.
    That costs ln(1 + (e^x - 1) / V) nats, which this holds below 1 % of ln(V).
    """
    V = config.vocab_size
    return min(SCALE, math.log(1 + 0.01 * V * math.log(V)) / config.d_model)
