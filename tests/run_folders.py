"""Runs with random weights, written in a moment: a language model, an encoder, a translator."""

from pathlib import Path

import torch

from clearhead import interop
from clearhead.config import ModelConfig, RunConfig
from clearhead.data import Tokenizer
from clearhead.models import build_model
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.tasks import TASKS

LETTERS = "\n abcdefghijklmnopqrstuvwxyzé🙂"
SHAPE = {"n_layers": 2, "n_heads": 2, "d_model": 16, "d_ff": 32, "block_size": 64}
ARCHITECTURES = {"causal": "decoder", "masked": "encoder", "seq2seq": "encoder_decoder"}


def write_run(
    folder: Path, objective: str = "causal", tokenizer: Tokenizer | None = None, **model: object
) -> RunFolder:
    """A run folder as an import writes it, with a model of large random weights."""
    is_causal = objective == "causal"
    tokenizer = tokenizer or Tokenizer.characters(LETTERS, end=True, pad=not is_causal, mask=objective == "masked")
    sizes = {"architecture": ARCHITECTURES[objective], "vocab_size": tokenizer.vocab_size}
    shape = ModelConfig.read(SHAPE, sizes, {} if is_causal else {"pad_id": tokenizer.pad}, model)
    network = build_model(shape, seed=1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(4)
    config = RunConfig.read({"objective": objective, "model": shape.model_dump(), "data": {"source": "import:x"}})
    folder.mkdir(parents=True)
    run = RunFolder(folder)
    TASKS[config.objective].write_tokenizers(folder, (tokenizer, tokenizer))
    run.save_model(network, interop.SpecialTokens(end=tokenizer.end_of_document, pad=tokenizer.pad), step=0)
    run.write_config(config)
    return run
