"""A trained model with its config and tokenizers: the result of an import, and the start of fine-tuning."""

from dataclasses import dataclass
from pathlib import Path

import torch

from clearhead import interop
from clearhead.config import OBJECTIVES, ModelConfig, RunConfig
from clearhead.data import Tokenizer, is_pairs
from clearhead.errors import DataError, UsageError
from clearhead.models import LanguageModel, build_model
from clearhead.options import Settings
from clearhead.workflows.runs.find import find_run, open_folder
from clearhead.workflows.runs.folder import IMPORTED, RunFolder

# Fine-tuning takes small steps: 2e-5 to 5e-5 where training took 1e-4 (Devlin et al. 2019, appendix A.3); nanoGPT goes
# from 6e-4 to 3e-5. A run names its own optimizer and rate: we keep the one, with fresh state, and divide the other.
SHARE_OF_RATE = 0.1
# Of the run that the model comes from, what does not carry over: it suited that training's length, or that machine.
OF_THAT_TRAINING = {"steps", "warmup_steps", "eval_every", "save_every", "device", "parallel", "threads", "tensorboard"}
FREE = {"dropout", "attention_dropout", "feedforward_dropout", "block_size"}  # a trained model may be given others
BATCH = 8  # sequences; of a model from elsewhere, whose blocks are long


@dataclass(frozen=True)
class Pretrained:
    """A trained model, wherever it comes from.

    Attributes:
        source: where it is, as a person says it.
        config: how it was trained, as far as that is known.
        model: in evaluation mode on the CPU.
        tokenizers: of what it reads and of what it writes.
    """

    source: str
    config: RunConfig
    model: LanguageModel
    tokenizers: tuple[Tokenizer, Tokenizer]

    @property
    def options(self) -> Settings:
        """What a further training goes by where the person leaves it open."""
        train = self.config.train.model_dump(exclude=OF_THAT_TRAINING)
        train["learning_rate"] *= SHARE_OF_RATE
        model = self.config.model.model_dump()
        return {"objective": self.config.objective, "model": model, "train": train}

    @property
    def reason(self) -> str:
        """Why the learning rate is what it is, where the person left it open."""
        before = self.config.train.learning_rate
        return (
            f"learning rate: {SHARE_OF_RATE * before:g}, a tenth of a first training's ({before:g}), so that the model "
            "keeps what it knows"
        )

    def refuse_contradictions(self, options: Settings, preset: str | None) -> None:
        """Options must match the source model, except dropout and a smaller block_size.

        Raises:
            UsageError: names the first option that is not.
        """
        here = self.source
        if preset is not None:
            raise UsageError(f"{here} has a model of its own, which `preset={preset!r}` would contradict; leave it out")
        relevant: Settings = {key: value for key, value in options.items() if key in ("objective", "model", "data")}
        config = RunConfig.read(self.options, relevant)
        if config.objective != self.config.objective:
            raise UsageError(f"{here} learned the objective '{self.config.objective}'; leave out `objective`")
        for option, value in config.model.model_dump().items():
            there = getattr(self.config.model, option)
            if option not in FREE and value != there:
                raise UsageError(f"`model.{option}` is {there} in {here}, not {value}; leave it out")
        longest = self.config.model.block_size
        if config.model.block_size > longest:
            raise UsageError(f"`model.block_size` {config.model.block_size} is more than the {longest} of {here}")
        if config.data.tokenizer != "auto":
            raise UsageError(f"{here} brings its tokenizer; leave out `data.tokenizer`")
        if is_pairs(config.data) != (config.objective == "seq2seq"):
            kind = "sentence pairs" if is_pairs(config.data) else "a text and no sentence pairs"
            raise UsageError(f"{config.data.source} is {kind}, but {here} learned '{config.objective}'; use other data")

    def model_for(self, config: ModelConfig) -> LanguageModel:
        """A copy of the model, with the config's dropout; of a shorter block's learned positions, the first."""
        model, state = build_model(config), self.model.state_dict()
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                tensor.copy_(state[name][: len(tensor)])
        return model


def open_pretrained(which: str | Path | RunFolder) -> Pretrained:
    """A run, or a Hugging Face folder as `import_model` reads it.

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    folder = None if isinstance(which, RunFolder) or find_run(which) else Path(which).expanduser()
    if folder is not None and folder.exists():
        return pretrained_from_folder(folder, str(which))
    run = open_folder(which)
    return Pretrained(str(run.folder), run.config, run.model(), run.tokenizers)


def pretrained_from_folder(folder: Path, source: str) -> Pretrained:
    """The model and the tokenizer of a Hugging Face folder.

    Raises:
        DataError: the folder is damaged, hostile, or of no family that is known; one sentence that names every fault.
    """
    interop.read_headers(folder)
    interop.check(folder)
    tokens = interop.read_tokens(folder)
    tokenizer = Tokenizer.load(folder, end=tokens.end, pad=tokens.pad, keep_frame=True)
    there = interop.read_config(folder)[1].vocab_size
    if tokenizer.vocab_size > there:
        raise DataError(
            f"{folder / 'tokenizer.json'} has {tokenizer.vocab_size:,} tokens and config.json says {there:,}; "
            "one of them belongs to another model"
        )
    model = interop.load(folder)
    broken = [name for name, tensor in model.named_parameters() if not tensor.isfinite().all()]
    if broken:
        raise DataError(f"{folder} holds numbers that are not finite, in {interop.in_short(broken)}; fetch it again")
    pad, end = model.config.pad_id, tokenizer.end_of_document
    if pad is not None and pad == end:
        raise DataError(f"{folder} uses token {pad} as both padding and end of text, which Clearhead does not support")
    resolved = str(folder.resolve()) if Path(source).expanduser().exists() else source
    layer = {
        "objective": next(name for name, able in OBJECTIVES.items() if model.config.architecture in able),
        "model": model.config.model_dump(),
        "data": {"source": IMPORTED + resolved},
        "train": {"batch_size": BATCH},
    }
    return Pretrained(source, RunConfig.read(layer), model, (tokenizer, tokenizer))
