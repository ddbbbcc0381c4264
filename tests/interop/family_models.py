"""Random tiny models of every family, and the same folder as transformers opens it."""

import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.interop import FAMILIES, SpecialTokens, save
from clearhead.interop.hf import folder as folder_module
from clearhead.models import LanguageModel, build_model

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers", reason="parity is measured against transformers: pip install it")
transformers.utils.logging.disable_progress_bar()

Foreign = Any  # a transformers model
AUTO = {
    "decoder": transformers.AutoModelForCausalLM,
    "encoder": transformers.AutoModelForMaskedLM,
    "encoder_decoder": transformers.AutoModelForSeq2SeqLM,
}
SEEDS = range(3)
END = 2
DECODERS = [name for name, family in FAMILIES.items() if family.needs["architecture"] == "decoder"]
ENCODERS = [name for name, family in FAMILIES.items() if family.needs["architecture"] == "encoder"]
TRANSLATORS = [name for name, family in FAMILIES.items() if family.needs["architecture"] == "encoder_decoder"]


def random_config(family: str, seed: int) -> ModelConfig:
    """A tiny model that fits in the family, every other option drawn; the last token is padding."""
    draw = random.Random(f"{family} {seed}")
    needs, choices = FAMILIES[family].needs, FAMILIES[family].choices
    n_kv_heads = draw.choice([1, 2])
    n_heads = n_kv_heads * draw.choice([1, 3])
    options: dict[str, Any] = {
        "vocab_size": draw.randint(30, 70),
        "block_size": draw.randint(36, 50),
        "n_layers": draw.randint(1, 3),
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads if FAMILIES[family].grouped else n_heads,
        "d_model": n_heads * 2 * draw.randint(2, 5),
        "d_ff": draw.randint(5, 40),
        "norm_eps": draw.choice([1e-6, 1e-5, 1e-3]),
        "feedforward": draw.choice(sorted(FAMILIES[family].activations)),
        "rope_theta": draw.choice([100.0, 10_000.0]),
        "tie_embeddings": draw.random() < 0.5,
        "dropout": draw.choice([0.0, 0.1]),
        "bias": draw.random() < 0.5,
        "attention_softcap": draw.choice([1.5, 5.0]),
    }
    if "sliding_window" in FAMILIES[family].options.values():
        options["sliding_window"] = draw.randint(2, 12)  # with 1, transformers' own cache differs from no cache
    if "head_dim" in FAMILIES[family].options:
        options["head_dim"] = draw.choice([options["d_model"] // n_heads, 2 * draw.randint(1, 6)])
    if family in ENCODERS + TRANSLATORS:
        options["pad_id"] = options["vocab_size"] - 1
    if family in ENCODERS:
        options["n_token_types"] = draw.randint(1, 3)
    options |= {option: sorted(choice.values)[seed % len(choice.values)] for option, choice in choices.items()}
    if needs["positions"] == "rope" and "partial_rotary_factor" not in needs:
        head_dim = options["d_model"] // n_heads
        options["partial_rotary_factor"] = draw.choice(range(4, head_dim + 1, 2)) / head_dim
    if family in TRANSLATORS:
        options["n_encoder_layers"] = draw.randint(1, 3)
        options["scale_embedding"] = draw.random() < 0.5
        options["decoder_start_id"] = draw.choice([None, options["pad_id"], 4])
        options["scale_logits"] = options["tie_embeddings"]
    if "relative_buckets" in FAMILIES[family].options:
        options["relative_buckets"] = draw.choice([4, 8, 11])
        options["relative_max_distance"] = draw.choice([6, 20])
    if "head_bias" in FAMILIES[family].always:
        options["head_bias"] = draw.random() < 0.5
    known = {option: value for option, value in options.items() if option in FAMILIES[family].supported_options}
    return ModelConfig.read(known, needs)


def random_model(config: ModelConfig, seed: int) -> LanguageModel:
    """No weight keeps its initial value, so that one that is lost, swapped or left alone is seen."""
    model = build_model(config, seed=seed).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def random_foreign(name: str, config: ModelConfig, end: int = END) -> Foreign:
    """A model of the family as transformers builds it from its own config, every weight drawn."""
    family = FAMILIES[name]
    settings = family.foreign_config(config) | {"eos_token_id": end, "pad_token_id": config.pad_id}
    if family.translates:
        settings["decoder_start_token_id"] = config.first_token(end)
    foreign_config = transformers.AutoConfig.for_model(**{k: v for k, v in settings.items() if k != "architectures"})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        foreign = AUTO[config.architecture].from_config(foreign_config).eval()
        if not config.tie_embeddings:
            foreign.lm_head.weight = torch.nn.Parameter(torch.empty_like(foreign.lm_head.weight))  # T5 ties it anyway
        for parameter in foreign.parameters():
            if parameter.requires_grad:  # not a table of waves
                torch.nn.init.normal_(parameter, std=0.3)
        if hasattr(foreign, "final_logits_bias"):
            foreign.final_logits_bias.normal_(std=0.3)
    return foreign


def save_as(name: str, folder: Path, model: LanguageModel, tokens: SpecialTokens) -> None:
    """Write the model as one of the family, even where it fits in another that is taken first."""
    assert not FAMILIES[name].obstacles(model.config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_module, "family_of", lambda config: FAMILIES[name])
        save(folder, model, tokens)


def random_ids(config: ModelConfig, rows: int, columns: int, seed: int = 5) -> Tensor:
    """Tokens (rows, columns), none of them padding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.vocab_size - 1, (rows, columns), generator=generator)


def random_inputs(config: ModelConfig, rows: int, columns: int) -> tuple[Tensor, ...]:
    """What the model reads: a text; or a source, and a target of another length."""
    ids = random_ids(config, rows, columns)
    return (random_ids(config, rows, columns - 7, seed=6), ids) if config.architecture == "encoder_decoder" else (ids,)


def opened(folder: Path, architecture: str) -> Foreign:
    """The folder as transformers opens it, with no key missing, left over or mismatched."""
    model, loading_info = AUTO[architecture].from_pretrained(folder, output_loading_info=True)
    assert not any(loading_info.values()), loading_info
    return model.eval()


def logits_of(foreign: Foreign, inputs: tuple[Tensor, ...], pad_id: int | None = None) -> Tensor:
    """Their logits of the same inputs; a target begins with a token, whatever that is."""
    masks = [None if pad_id is None else (ids != pad_id).long() for ids in inputs]
    if masks[-1] is not None and len(inputs) == 2:
        masks[-1][:, 0] = 1
    if len(inputs) == 1:
        return torch.as_tensor(foreign(inputs[0], attention_mask=masks[0]).logits)
    (source, target), (mask, target_mask) = inputs, masks
    output = foreign(source, attention_mask=mask, decoder_input_ids=target, decoder_attention_mask=target_mask)
    return torch.as_tensor(output.logits)
