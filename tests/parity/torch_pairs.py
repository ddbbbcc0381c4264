"""Modules of `torch.nn` and ours of one shape and with one set of weights, and the comparison of all that they compute.

A query that may attend to nothing reads zeros here; torch, by its version and its way through the code, makes NaN of
it, and one NaN spoils the gradients of a whole batch. So no such query is ever given to torch: where masks are causal,
rows are filled up on the right only. `test_torch_attention.py` tests ours alone.
"""

import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn

from clearhead.interop import from_torch
from clearhead.parts import (
    FEEDFORWARDS,
    Attention,
    Block,
    LayerNorm,
    ProjectionConfig,
    Stack,
    Sublayer,
    additive_from_allowed,
    attention_mask,
    forbidden_from_allowed,
    positions_from_lengths,
)
from clearhead.parts.masks import Mask, Positions
from clearhead.parts.sublayer import NormPosition

Form = Literal["boolean", "additive"]  # of torch's masks
Side = Literal["left", "right"] | None  # where rows are filled up with padding
Choice = tuple[NormPosition, Literal["relu", "gelu"], bool]  # norms, activation, biases

NORM_POSITIONS: tuple[NormPosition, ...] = ("pre", "post")
CHOICES: list[Choice] = [
    (norm_position, bend, bias)
    for norm_position in NORM_POSITIONS
    for bend in ("relu", "gelu")
    for bias in (True, False)
]


class TorchOptions(TypedDict):
    """What torch's layers are built of, all of them alike."""

    d_model: int
    nhead: int
    dim_feedforward: int
    dropout: float
    activation: Literal["relu", "gelu"]
    layer_norm_eps: float
    batch_first: bool
    norm_first: bool
    bias: bool
    dtype: torch.dtype


class Both:
    """Builds the same on both sides: of these choices, and of sizes drawn from the seed."""

    def __init__(self, choice: Choice = ("pre", "relu", True), seed: int = 0) -> None:
        drawn = random.Random(seed)
        self.seed = seed
        self.norm_position, self.activation, self.bias = choice
        self.n_heads = drawn.randint(1, 4)
        self.d_model = self.n_heads * drawn.randint(4, 7)
        self.d_ff = drawn.randint(5, 30)
        self.eps = drawn.choice((1e-5, 1e-3, 1e-1))
        self.B, self.T, self.T_src = drawn.randint(2, 4), drawn.randint(2, 9), drawn.randint(2, 9)
        self.torch_options: TorchOptions = {
            "d_model": self.d_model,
            "nhead": self.n_heads,
            "dim_feedforward": self.d_ff,
            "dropout": 0.0,
            "activation": self.activation,
            "layer_norm_eps": self.eps,
            "batch_first": True,
            "norm_first": self.norm_position == "pre",
            "bias": self.bias,
            "dtype": torch.float64,
        }

    def attention(self) -> Attention:
        return Attention(self.d_model, self.n_heads, projections=ProjectionConfig(self.bias)).double()

    def multihead_attention(self) -> nn.MultiheadAttention:
        return nn.MultiheadAttention(self.d_model, self.n_heads, bias=self.bias, batch_first=True, dtype=torch.float64)

    def norm(self) -> LayerNorm:
        return LayerNorm(self.d_model, self.eps).double()

    def block(self, *, cross: bool) -> Block:
        def around(part: nn.Module) -> Sublayer:
            return Sublayer(part, self.norm(), norm_position=self.norm_position).double()

        feedforward = FEEDFORWARDS[self.activation](self.d_model, self.d_ff, bias=self.bias)
        return Block(around(self.attention()), around(feedforward), around(self.attention()) if cross else None)

    def stack(self, n_layers: int, *, cross: bool, final_norm: bool) -> Stack:
        return Stack([self.block(cross=cross) for _ in range(n_layers)], self.norm() if final_norm else None)

    def encoder_layer(self) -> nn.TransformerEncoderLayer:
        return nn.TransformerEncoderLayer(**self.torch_options)

    def decoder_layer(self) -> nn.TransformerDecoderLayer:
        return nn.TransformerDecoderLayer(**self.torch_options)

    def torch_norm(self) -> nn.LayerNorm:
        return nn.LayerNorm(self.d_model, self.eps, bias=self.bias, dtype=torch.float64)

    def encoder(self, n_layers: int, *, final_norm: bool) -> nn.TransformerEncoder:
        norm = self.torch_norm() if final_norm else None
        return nn.TransformerEncoder(self.encoder_layer(), n_layers, norm, enable_nested_tensor=False)

    def decoder(self, n_layers: int, *, final_norm: bool) -> nn.TransformerDecoder:
        return nn.TransformerDecoder(self.decoder_layer(), n_layers, self.torch_norm() if final_norm else None)

    def transformer(self, n_encoder_layers: int, n_layers: int) -> nn.Transformer:
        with warnings.catch_warnings():  # it says that a short cut of its evaluation cannot be taken
            warnings.filterwarnings("ignore", message="enable_nested_tensor")
            return nn.Transformer(
                num_encoder_layers=n_encoder_layers, num_decoder_layers=n_layers, **self.torch_options
            )

    def x(self) -> Tensor:
        """(B, T, D)."""
        return numbers(self.B, self.T, self.d_model, seed=self.seed)

    def memory(self) -> Tensor:
        """(B, T_src, D)."""
        return numbers(self.B, self.T_src, self.d_model, seed=self.seed + 1)

    def positions(self, T: int, side: Side) -> Positions:
        """Of a batch whose first row is full and whose others have any length, filled up on this side."""
        if side is None:
            return range(T)
        drawn = random.Random(self.seed)
        return positions_from_lengths(torch.tensor([T, *(drawn.randint(1, T) for _ in range(self.B - 1))]), T, side)


class Masks:
    """Who attends to whom among the tokens at these positions, as ours are told and as torch's are told."""

    def __init__(self, positions: Positions, *, causal: bool, form: Form = "boolean") -> None:
        self.positions = positions
        self.T = len(positions) if isinstance(positions, range) else positions.shape[1]
        self.ours: Mask = attention_mask(positions, positions, causal=causal)
        square = torch.ones(self.T, self.T, dtype=torch.bool)
        self.future = in_torch(square.tril(), form) if causal else None  # (T, T)
        self.padding = None if isinstance(positions, range) else in_torch(positions >= 0, form)  # (B, T)

    @property
    def real(self) -> Tensor:
        """(1, T) or (B, T): where there is no padding."""
        positions = self.positions
        return torch.ones(1, self.T, dtype=torch.bool) if isinstance(positions, range) else positions >= 0

    def for_memory(self, T: int) -> Mask:
        """What T targets may see of these tokens."""
        return attention_mask(range(T), self.positions, causal=False)


def in_torch(allowed: Tensor, form: Form) -> Tensor:
    """A mask as torch's layers take it, by our converters."""
    return forbidden_from_allowed(allowed) if form == "boolean" else additive_from_allowed(allowed, torch.float64)


def numbers(*shape: int, seed: int) -> Tensor:
    """Of a normal distribution, in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randomize(module: nn.Module, seed: int = 0) -> None:
    """Weights that leave numbers about as large as they were, with biases and norms that matter."""
    with torch.no_grad():
        for index, parameter in enumerate(module.parameters()):
            noise = numbers(*parameter.shape, seed=1000 * seed + index)
            parameter.copy_(noise / parameter.shape[1] ** 0.5 if parameter.dim() == 2 else parameter + 0.3 * noise)


def share_weights(ours: nn.Module, reference: nn.Module, seed: int = 0) -> None:
    """Torch's module gets random weights, and ours the same ones, by the table."""
    randomize(reference, seed)
    ours.load_state_dict(from_torch(reference.state_dict()))


Compute = Callable[..., Tensor]


def assert_same(
    ours: nn.Module,
    reference: nn.Module,
    compute_ours: Compute,
    compute_reference: Compute,
    inputs: Sequence[Tensor],
    real: Tensor | None = None,
) -> None:
    """Equal outputs, and equal gradients of every parameter and of the inputs.

    Args:
        compute_ours, compute_reference: from the inputs to (B, T, D).
        real: (B, T), broadcastable: the outputs that count.
    """
    output, input_gradients, weight_gradients = _outputs_and_gradients(ours, compute_ours, inputs, real)
    expected, expected_inputs, reference_gradients = _outputs_and_gradients(reference, compute_reference, inputs, real)
    _close(output, expected, "outputs")
    for index, (mine, its) in enumerate(zip(input_gradients, expected_inputs, strict=True)):
        _close(mine, its, f"gradients of input {index}")
    expected_weights = from_torch(reference_gradients)
    assert weight_gradients.keys() == expected_weights.keys()
    biased = any(name.endswith("bias") for name in reference_gradients)
    for name, gradient in weight_gradients.items():
        if biased or not name.endswith("norm.bias"):  # which torch does not have there
            _close(gradient, expected_weights[name], f"gradients of {name}")
            unused = name.endswith("key.bias")  # adds the same to every score of a query
            assert unused or gradient.abs().max() > 1e-9, f"{name} takes no part"


def _close(actual: Tensor, expected: Tensor, what: str) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12, msg=lambda message: f"{what}: {message}")


def _outputs_and_gradients(
    module: nn.Module, compute: Compute, inputs: Sequence[Tensor], real: Tensor | None
) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
    """Outputs that count (n, D), and how a random sum of them moves with the inputs and with every parameter."""
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    output = compute(*leaves)  # (B, T, D)
    counted = output.flatten(0, 1) if real is None else output[real.expand(output.shape[:2])]  # (n, D)
    score = (counted * numbers(*counted.shape, seed=7)).sum() / len(counted)
    parameters: dict[str, Any] = dict(module.named_parameters())
    gradients = torch.autograd.grad(score, [*leaves, *parameters.values()])
    by_name = dict(zip(parameters, gradients[len(leaves) :], strict=True))
    return counted.detach(), list(gradients[: len(leaves)]), by_name
