"""The account on paper is the account of the built model: parameters, operations, bytes."""

import random
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from model_options import listed_choices
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from clearhead.config import ModelConfig, TrainConfig
from clearhead.inspection import estimate_cost, flops_per_token, parameters
from clearhead.inspection.cost.architectures import COSTS
from clearhead.models import MODELS, CausalLM, EncoderDecoder, LanguageModel, build_model
from clearhead.training.optimizers import OPTIMIZERS, build_optimizer
from clearhead.training.torch_optimizer import torch_classes

PIECES = {"attention": ".self_attention.part.", "feedforward": ".feedforward.part.", "norms": "norm."}
Places = dict[str, tuple[tuple[str, ...], str]]
ONE_STACK: Places = {  # where each part lives in the model: beginnings of its parameters' names, and a piece of them
    "embedding": (("embedding.", "segments.", "embedding_norm."), ""),
    "positions": (("positions.",), ""),
    **{part: (("stack.",), piece) for part, piece in PIECES.items()},
    "head": (("lm_head.",), ""),
}
TWO_STACKS: Places = {
    "embedding": (("embedding.", "embedding_norm."), ""),
    "source_embedding": (("source_embedding.", "source_embedding_norm."), ""),
    "positions": (("positions.", "source_positions."), ""),
    **{f"encoder_{part}": (("encoder.",), piece) for part, piece in PIECES.items()},
    **{f"decoder_{part}": (("decoder.",), piece) for part, piece in PIECES.items()},
    "decoder_cross_attention": (("decoder.",), ".cross_attention.part."),
    "head": (("lm_head.",), ""),
}
TABLES: Places = {"ngram_tables": (("embedding_ngrams.", "logit_ngrams."), "")}
PARTS = {"decoder": ONE_STACK | TABLES, "encoder": ONE_STACK, "encoder_decoder": TWO_STACKS}
TRANSFORMERS = list(PARTS)


def random_config(seed: int, architecture: str = "decoder") -> ModelConfig:
    draw = random.Random(seed)
    n_kv_heads = draw.choice([1, 2, 3])
    n_heads = n_kv_heads * draw.choice([1, 2])
    options: dict[str, Any] = {
        "architecture": architecture,
        "vocab_size": draw.randint(2, 60),
        "block_size": draw.randint(1, 24),
        "n_layers": draw.randint(1, 3),
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads,
        "d_model": n_heads * 2 * draw.randint(1, 5),
        **{name: draw.choice(values) for name, values in listed_choices("architecture").items()},
    }
    options["parallel_residual"] &= options["norm_position"] == "pre" and architecture != "encoder_decoder"
    if draw.random() < 0.3:
        options["head_dim"] = 2 * draw.randint(1, 5)
    if architecture == "decoder":
        options |= {"embedding_ngrams": draw.choice([1, 1, 3]), "logit_ngrams": draw.choice([1, 2])}
        options["ngram_rows"] = draw.choice([9, 500])
    if architecture == "encoder":
        options["n_token_types"] = draw.choice([0, 2])
    if draw.random() < 0.5:
        options["d_ff"] = draw.randint(1, 40)
    if architecture == "encoder_decoder":
        options["n_encoder_layers"] = draw.randint(1, 3)
        options["source_vocab_size"] = draw.choice([None, 17, 70])
    return ModelConfig(**options)


def part_of(name: str, architecture: str) -> str:
    """The part that a parameter belongs to; a norm inside attention (QK-norm) is a norm."""
    parts = [
        part
        for part, (starts, piece) in PARTS[architecture].items()
        if name.startswith(starts) and piece in name and (not piece or ("norm." in name) == (piece == "norm."))
    ]
    assert len(parts) == 1, name
    return parts[0]


def inputs(model: LanguageModel, rows: int) -> tuple[Tensor, ...]:
    """Full rows: of the target, and of the source where there is one."""
    ids = torch.zeros(rows, model.config.block_size, dtype=torch.int64)
    return (ids, ids) if isinstance(model, EncoderDecoder) else (ids,)


def test_every_architecture_has_its_costs() -> None:
    assert set(COSTS) == set(MODELS) == set(get_args(ModelConfig.model_fields["architecture"].annotation))


@pytest.mark.sampled
@pytest.mark.parametrize("architecture", TRANSFORMERS)
@pytest.mark.parametrize("seed", range(40))
def test_parameters_by_part_are_those_of_the_built_model(seed: int, architecture: str) -> None:
    config = random_config(seed, architecture)
    model = build_model(config)
    built = dict.fromkeys(PARTS[architecture], 0)
    for name, parameter in model.named_parameters():
        built[part_of(name, architecture)] += parameter.numel()
    assert parameters(config) == built
    assert estimate_cost(config).parameters == sum(parameter.numel() for parameter in model.parameters())


def test_the_published_decoder_layer_by_part() -> None:
    """Vaswani et al. 2017's base shape: 4,204,032 in one layer of its decoder, 3,152,384 in one of its encoder."""
    config = ModelConfig(
        architecture="encoder_decoder", vocab_size=2, n_layers=1, n_heads=8, d_model=512, d_ff=2048, bias=True,
        norm_position="post", feedforward="relu", positions="sinusoidal",
    )  # fmt: skip
    parts = parameters(config)
    decoder = {part: count for part, count in parts.items() if part.startswith("decoder_")}
    assert decoder == {
        "decoder_attention": 1_050_624,
        "decoder_cross_attention": 1_050_624,
        "decoder_feedforward": 2_099_712,
        "decoder_norms": 3_072,
    }
    assert sum(decoder.values()) == 4_204_032
    assert sum(count for part, count in parts.items() if part.startswith("encoder_")) == 3_152_384


@pytest.mark.parametrize("vocab_size", [2, 65])
def test_a_bigram_is_its_table(vocab_size: int) -> None:
    config = ModelConfig(architecture="bigram", vocab_size=vocab_size)
    assert estimate_cost(config).parameters == sum(p.numel() for p in build_model(config).parameters())


def test_the_tutorial_shape_has_813440_parameters() -> None:
    config = ModelConfig(
        vocab_size=65, block_size=128, n_layers=4, n_heads=4, d_model=128, d_ff=512, feedforward="relu"
    )
    assert estimate_cost(config).parameters == 813_440


@pytest.mark.sampled
@pytest.mark.parametrize("architecture", TRANSFORMERS)
@pytest.mark.parametrize("seed", range(20))
def test_flops_are_those_torch_counts(seed: int, architecture: str) -> None:
    config = random_config(seed, architecture).model_copy(update={"positions": "rope"})
    model = build_model(config)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model(*inputs(model, rows=2))
    assert counter.get_total_flops() == flops_per_token(config) * 2 * config.block_size


def test_a_window_shortens_attention_only() -> None:
    wide = ModelConfig(block_size=64)
    narrow = ModelConfig(block_size=64, sliding_window=16)
    assert flops_per_token(wide) - flops_per_token(narrow) == 4 * wide.n_layers * wide.d_model * (64 - 16)


UNABLE = {"lbfgs", "optimizer", "sparseadam"}  # they refuse a model's parameters or their gradients


@pytest.mark.sampled
@pytest.mark.parametrize("architecture", MODELS)
@pytest.mark.parametrize("optimizer", sorted({*OPTIMIZERS, *torch_classes()} - UNABLE))
def test_optimizer_bytes_are_those_of_its_state(optimizer: str, architecture: str) -> None:
    model_config = ModelConfig.read({"architecture": architecture, "n_layers": 2, "d_model": 32, "block_size": 16})
    train = TrainConfig.read({"optimizer": optimizer, "batch_size": 2})
    model = build_model(model_config)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer_of_model = build_optimizer(model, train)
    optimizer_of_model.step(0.0)  # torch's make their state at the first step
    moments = optimizer_of_model.state.values()
    numbers = sum(tensor.numel() for tensor in moments if tensor.dim())  # not the counters of steps
    assert estimate_cost(model_config, train).bytes["optimizer"] == 4 * numbers


@pytest.mark.sampled
@pytest.mark.parametrize("feedforward", ["relu", "gelu", "silu", "relu2", "swiglu"])
@pytest.mark.parametrize("norm", listed_choices()["norm"])
@pytest.mark.parametrize("architecture", TRANSFORMERS)
def test_activations_are_near_what_autograd_keeps(architecture: str, norm: str, feedforward: str) -> None:
    config = ModelConfig.read(
        {"vocab_size": 96, "n_layers": 3, "d_model": 64, "norm": norm, "feedforward": feedforward, "positions": "rope"},
        {"architecture": architecture, "n_encoder_layers": 2},
    )
    model = build_model(config)
    kept: dict[int, int] = {p.untyped_storage().data_ptr(): 0 for p in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())
        return tensor

    arguments = inputs(model, rows=4)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = F.cross_entropy(model(*arguments).flatten(0, 1), arguments[-1].flatten())
    assert loss.requires_grad
    logits_gradient = 4 * arguments[-1].numel() * config.vocab_size
    on_paper = estimate_cost(config, TrainConfig(batch_size=8, micro_batches=2)).bytes["activations"]
    assert on_paper == pytest.approx(sum(kept.values()) + logits_gradient, rel=0.2)


@pytest.mark.parametrize("architecture", MODELS)
def test_the_cache_on_paper_is_the_cache(architecture: str) -> None:
    config = ModelConfig.read(
        {"architecture": architecture, "n_heads": 4, "n_kv_heads": 2, "block_size": 16, "n_encoder_layers": 3}
    )
    model, held = build_model(config), 0
    if isinstance(model, EncoderDecoder):
        (source, target), cache = inputs(model, rows=1), model.new_cache(1, config.block_size)
        model.decode(target, model.encode(source), cache=cache)
        projected = [layer.held for layer in cache.memory_layers if layer.held]
        held = sum(keys.nbytes + values.nbytes for keys, values in projected)
    elif isinstance(model, CausalLM):
        cache = model.new_cache(1, config.block_size)
    else:
        assert estimate_cost(config).bytes["kv_cache"] == 0
        return
    held += sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert estimate_cost(config).bytes["kv_cache"] == held


def test_totals_are_sums_of_what_is_listed() -> None:
    cost = estimate_cost(ModelConfig()).as_dict()
    assert list(cost) == ["parameters", "parts", "flops_per_token", "bytes"]
    of = estimate_cost(ModelConfig()).bytes
    assert of["training"] == of["weights"] + of["gradients"] + of["optimizer"] + of["activations"]
    assert of["generation"] == of["weights"] + of["kv_cache"]


@pytest.mark.sampled
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("architecture", MODELS)
@pytest.mark.parametrize("devices", [1, 2, 3, 8])
def test_what_devices_hold_is_their_part_of_the_built_model(devices: int, architecture: str, optimizer: str) -> None:
    """FSDP cuts a weight as `torch.chunk` does, along its first axis; the first part is the largest."""
    config = ModelConfig(architecture=architecture, vocab_size=13, n_layers=3, d_model=20, n_heads=2, block_size=9)
    train = TrainConfig(optimizer=optimizer, batch_size=7, micro_batches=2)
    shared = estimate_cost(config, train, devices=devices).shared
    assert shared is not None
    weights = list(build_model(config).parameters())
    largest = sum(weight.chunk(devices)[0].numel() for weight in weights)
    moments = {"adamw": 2, "sgd": 1}[optimizer]
    fsdp, ddp = shared.bytes["fsdp"], shared.bytes["ddp"]
    assert (fsdp["weights"], fsdp["gradients"], fsdp["optimizer"]) == (4 * largest, 4 * largest, 4 * moments * largest)
    alone = estimate_cost(config, train).bytes
    assert [ddp[use] for use in ("weights", "gradients", "optimizer")] == [
        alone[use] for use in ("weights", "gradients", "optimizer")
    ]
    assert all(of["training"] == sum(of.values()) - of["training"] for of in (ddp, fsdp))
    rows = estimate_cost(config, TrainConfig(batch_size=-(-7 // devices), micro_batches=2)).bytes["activations"]
    assert fsdp["activations"] == ddp["activations"] == rows
    at_once = estimate_cost(config, train.model_copy(update={"micro_batches": 1}), devices=devices).shared
    assert at_once is not None
    reduced_later = fsdp["gathered"] - at_once.bytes["fsdp"]["gathered"]
    assert ddp["gathered"] == 0 <= reduced_later < ddp["gradients"], "of several parts, gradients wait for the last"
    assert (reduced_later > 0) == (devices > 1 and architecture != "bigram")


def test_a_rate_gives_the_time() -> None:
    config, train = ModelConfig(n_layers=2), TrainConfig(steps=10)
    recomputed = train.model_copy(update={"recompute": "blocks"})
    shared = estimate_cost(config, train, devices=4, rate=1e9).shared
    again = estimate_cost(config, recomputed, devices=4, rate=1e9).shared
    assert shared is not None
    assert again is not None
    tokens = train.batch_size * config.block_size
    forward = flops_per_token(config)
    assert shared.flops_per_step == 3 * forward * tokens
    assert again.flops_per_step - shared.flops_per_step == (forward - 2 * config.vocab_size * config.d_model) * tokens
    assert shared.seconds_per_step == shared.flops_per_step / 4e9
