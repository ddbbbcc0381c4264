"""Numbers that were printed elsewhere: a worked decoder layer, and how many parameters shapes have."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from published_numbers import WORKED_EXAMPLE
from torch import Tensor, nn

from clearhead import reference
from clearhead.config import ModelConfig
from clearhead.models import build_model, make_block
from clearhead.parts import Attention, Block, FeedForward, LayerNorm, Sublayer


def worked_example() -> dict[str, Tensor]:
    """One post-norm decoder layer of width 8 with two heads, its numbers drawn in the published order."""
    random = np.random.RandomState(0)
    x, memory = (torch.from_numpy(random.randn(1, n, 8) * 0.3) for n in (3, 4))
    matrices = [random.randn(*shape) / shape[0] ** 0.5 for shape in [(8, 8)] * 8 + [(8, 16), (16, 8)]]
    weights = [torch.from_numpy(matrix.T.copy()) for matrix in matrices]  # (in, out) -> torch's (out, in)
    first, second, feedforward = Attention(8, 2), Attention(8, 2), FeedForward(F.relu, 8, 16)
    block = Block(
        *(Sublayer(part, LayerNorm(8), norm_position="post") for part in (first, feedforward, second))
    ).double()
    linears: list[nn.Linear] = [
        linear for part in (first, second) for linear in (part.query, part.key, part.value, part.output)
    ]
    for linear, weight in zip([*linears, feedforward.up, feedforward.down], weights, strict=True):
        linear.load_state_dict({"weight": weight})
    intermediates: dict[str, Tensor] = {}

    def watch(name: str, module: nn.Module) -> None:
        module.register_forward_hook(lambda module, args, output: intermediates.__setitem__(name, output[0].detach()))

    watch("self-attention", first)
    watch("x1", block.self_attention)
    watch("cross-attention", second)
    watch("x2", block.get_submodule("cross_attention"))
    watch("ffn", feedforward)
    watch("out", block)
    block(x, memory, mask="causal")
    return intermediates


@pytest.mark.parametrize("row", WORKED_EXAMPLE)
def test_the_worked_example(row: str) -> None:
    name, token = row.split(", token ")
    vector = worked_example()[name][int(token)]
    torch.testing.assert_close(vector, torch.tensor(WORKED_EXAMPLE[row], dtype=torch.float64), rtol=0, atol=5.1e-5)


@pytest.mark.parametrize("row", WORKED_EXAMPLE)
def test_the_twins_worked_example(row: str) -> None:
    name, token = row.split(", token ")
    vector = {step.name: step.values for step in reference.worked_example().intermediates}[name][0, int(token)]
    assert [f"{number:.4f}" for number in vector] == [f"{number:.4f}" for number in WORKED_EXAMPLE[row]]


def test_the_twins_worked_example_is_its_block() -> None:
    """The steps that are shown are those that every other test of the twin holds against torch."""
    for norm_position in ("post", "pre"):
        config, weights, steps = reference.worked_example(norm_position)
        x, memory = steps[0].values, steps[1].values
        positions, source_positions = np.arange(3)[np.newaxis], np.arange(4)[np.newaxis]
        causal = reference.may_attend(positions, positions, causal=True)
        source_memory = reference.SourceMemory(memory, reference.may_attend(positions, source_positions, causal=False))
        out = reference.block(x, weights, config, reference.AttentionInputs(causal), source_memory)
        assert steps[-1].name == "out"
        np.testing.assert_array_equal(steps[-1].values, out)


def count(module: nn.Module | None) -> int:
    assert module is not None
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_parameters_of_a_decoder_layer() -> None:
    config = ModelConfig(n_heads=8, d_model=512, d_ff=2048, bias=True, norm_position="post", feedforward="relu")
    block = make_block(config, cross=True)
    assert count(block) == 4_204_032
    assert block.cross_attention is not None
    assert count(block.self_attention.part) == count(block.cross_attention.part) == 1_050_624
    assert count(block.feedforward.part) == 2_099_712
    assert sum(count(module) for module in block.modules() if isinstance(module, LayerNorm)) == 3_072


def test_the_parameters_of_the_tutorial_model() -> None:
    config = ModelConfig(
        vocab_size=65, block_size=128, n_layers=4, n_heads=4, d_model=128, d_ff=512, feedforward="relu", dropout=0.1
    )
    assert count(build_model(config)) == 813_440


def test_the_parameters_of_gpt2() -> None:
    with torch.device("meta"):
        block = make_block(ModelConfig(n_heads=12, d_model=768, bias=True))
    assert 12 * count(block) + (50_257 + 1_024) * 768 + 2 * 768 == 124_439_808
