"""Describe a model's costs; list runs, presets and corpora."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from clearhead.config import ModelConfig, RunConfig
from clearhead.config.presets import PRESETS, default_preset
from clearhead.config.presets import preset as find_preset
from clearhead.data import CORPORA, PAIR_CORPORA
from clearhead.errors import DataError, UsageError
from clearhead.inspection import CostEstimate, WeightTable, estimate_cost, weigh
from clearhead.inspection.cost.weights import By
from clearhead.models import LanguageModel
from clearhead.options import Settings, has_arguments
from clearhead.training import checkpoints
from clearhead.wording import call, counted
from clearhead.workflows.runs.find import all_runs, open_folder
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.runs.history import History

if TYPE_CHECKING:
    from clearhead.inspection.architecture import ArchitectureReport

MOST_DEVICES = 1_000_000
Which = str | Path | RunFolder | LanguageModel | ModelConfig | RunConfig | None


@has_arguments(RunConfig)
def describe(
    run: Which = None,
    *,
    preset: str | None = None,
    options: Mapping[str, object] | None = None,
    devices: int | None = None,
    tflops: float | None = None,
) -> CostEstimate:
    """Parameters by part, FLOPs per token, and bytes to train and to generate, on paper.

    Args:
        run: a folder or a name, a model, or a config; with no run, no preset and no options, the newest run.
        preset: a preset instead of a run.
        options: nested options on top.
        devices: that share the training, for what each of them holds and computes.
        tflops: 10^12 floating-point operations per second that one of them really does, for the time.

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    if devices is not None and not (isinstance(devices, int) and 1 <= devices <= MOST_DEVICES):
        raise UsageError(f"`devices` is a whole number from 1 to {MOST_DEVICES:,}, not {devices}")
    if tflops is not None and (devices is None or not 0 < tflops < math.inf):
        raise UsageError("`tflops` is what one of several `devices` does, a number above 0; give both")
    if isinstance(run, LanguageModel):
        run = run.config
    rate = None if tflops is None else 1e12 * tflops
    if isinstance(run, ModelConfig) and preset is None and not options:
        return estimate_cost(run, devices=devices, rate=rate)
    config = described_config(run, preset=preset, options=options)
    return estimate_cost(config.model, config.train, devices=devices, rate=rate)


def describe_weights(
    run: Which = None,
    *,
    by: By = "weight",
    preset: str | None = None,
    options: Mapping[str, object] | None = None,
) -> WeightTable:
    """Parameters, FLOPs and bytes of every weight or of every sublayer; the other arguments are those of `describe`.

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    if by not in get_args(By):
        raise UsageError(f"`by` is 'weight' or 'sublayer', not '{by}'")
    return weigh(described_config(run, preset=preset, options=options).model, by=by)


def describe_architecture(
    run: Which = None, *, preset: str | None = None, options: Mapping[str, object] | None = None
) -> "ArchitectureReport":
    """The interactive picture of a model, which `html()` writes as one page; arguments as in `describe`.

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    from clearhead.inspection.architecture import ArchitectureReport  # it needs torch

    config = described_config(run, preset=preset, options=options).model
    name = open_folder(run).name if isinstance(run, str | Path | RunFolder) else preset or ""
    return ArchitectureReport(config, name)


def described_config(
    run: Which = None, *, preset: str | None = None, options: Mapping[str, object] | None = None
) -> RunConfig:
    """The options of what is described; arguments as in `describe`.

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    if isinstance(run, LanguageModel):
        run = run.config
    if run is not None and preset is not None:
        raise UsageError("describe takes a run or a preset, not both")
    if isinstance(run, ModelConfig | RunConfig):
        if options:
            raise UsageError("a config says everything; put the options into it")
        return RunConfig(model=run) if isinstance(run, ModelConfig) else run
    if preset is None and (run is not None or not options):
        return RunConfig.read(_explicit_options(open_folder(run).config), options or {})
    return RunConfig.read(find_preset(preset or default_preset()).options, options or {})


def _explicit_options(config: RunConfig) -> Settings:
    """The options as a layer for others to lie upon: what merely follows from other options is left out."""
    layer = config.model_dump()
    for name in ("n_kv_heads", "d_ff", "n_encoder_layers", "head_dim", "qkv_bias"):
        rest = {key: value for key, value in layer["model"].items() if key != name}
        if getattr(ModelConfig.read(rest), name) == layer["model"][name]:
            layer["model"] = rest
    return layer


@dataclass(frozen=True)
class Listing:
    """What there is to work with; every entry has a name and a line about it."""

    runs: dict[str, str]
    presets: dict[str, str]
    corpora: dict[str, str]


def list_all() -> Listing:
    """Runs, the newest first, presets and corpora."""
    return Listing(
        {str(run.folder): _about(run) for run in all_runs()},
        {name: entry.about for name, entry in PRESETS.items()},
        {name: corpus.about for name, corpus in (CORPORA | PAIR_CORPORA).items()},
    )


def _about(run: RunFolder) -> str:
    try:
        planned, pretrained = run.config.train.steps, run.imported_from
    except DataError as error:
        return str(error)
    if pretrained is not None:
        return f"imported from {pretrained}"
    history = History.of(run.records())
    best = "" if history.best_val_loss is None else f", validation loss {history.best_val_loss:.4f}"
    best += "" if history.bits_per_byte is None else f" ({history.bits_per_byte:.4f} bits per byte)"
    steps = f"{history.last_step:,} of {counted(planned, 'step')}{best}"
    if run.is_training:
        return f"in training: {steps}"
    saved = checkpoints.last_step(run.checkpoints) or 0
    if saved == history.last_step == planned:
        return steps
    where = "" if saved == history.last_step else f" from step {saved:,}" if saved else " from the beginning"
    return f"interrupted after {steps}; {call('resume', run.folder)} goes on{where}"
