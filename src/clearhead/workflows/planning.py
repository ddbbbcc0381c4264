"""Choose the options that are not set, from the data's size, the time and the machine, with a reason for each."""

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clearhead.config import DataConfig, RunConfig
from clearhead.config.presets import DEFAULT_MINUTES, DEFAULTS, PRESETS, default_preset, preset
from clearhead.data import CORPORA, is_pairs, text_bytes
from clearhead.errors import ArgumentError, DataError, UsageError
from clearhead.inspection import estimate_cost
from clearhead.options import Settings, merge, read_toml, to_toml
from clearhead.training import check_optimizer
from clearhead.wording import counted, with_article
from clearhead.workflows.budget import PASSES_OF_A_STEP, Budget, measure_pace
from clearhead.workflows.hardware import choose_device, memory
from clearhead.workflows.pretrained import Pretrained
from clearhead.workflows.tasks import Task

CHARACTERS_PER_MINUTE = 4_000_000  # of a corpus made to measure: about what two cores read once
CORPUS_CHARACTERS = 1_000_000, 40_000_000  # the fewest and the most that are made unasked
EVALUATIONS = (3, 8)  # along one training, at least and at most
SHARE_FOR_EVALUATIONS = 0.1  # of the time of the steps
TOKENS_OF_AN_EVALUATION = 2**14  # fewer save nothing that counts, and say too little
BYTES_OF_A_WEIGHT = 4  # float32
DROPOUTS = (5, 0.0), (7, 0.1), (10, 0.2), (math.inf, 0.3)  # by the most passes: benchmarks/results/passes.md
SHARE_OF_MEMORY = 0.5  # what is taken on paper, above which it may be too small in fact


@dataclass(frozen=True)
class Start:
    """What a training starts from, decided before its data is read.

    Attributes:
        settings: the person's own options, which always win.
        below: the options of the preset, or of the pretrained model in its place, where the person leaves them open.
        config: both together; the data still decides the vocabulary.
        description: where `below` comes from, for a person to read.
        preset: the one that the person named.
        minutes: how long training may take as a whole, or None.
        pretrained: the trained model that is to learn more.
        start_time: when the minutes began to count, in seconds of `time.perf_counter`.
    """

    settings: Settings
    below: Settings
    config: RunConfig
    description: str
    preset: str | None = None
    minutes: float | None = None
    pretrained: Pretrained | None = None
    start_time: float = field(default_factory=time.perf_counter)


@dataclass(frozen=True)
class Plan:
    """The whole configuration, what was chosen and why, and the time to keep to, if it is time that decides."""

    config: RunConfig
    reasons: tuple[str, ...]
    budget: Budget | None = None


def collect_settings(
    source: str | Path | None,
    config: str | Path | None,
    options: Mapping[str, object] | None,
    *,
    timed: bool = False,
) -> Settings:
    """What a person gave, in one layer: the file, over it the options, over these the source.

    Args:
        timed: a time was given as well; said now, it wins over a number of steps in the file.
    """
    if config and not isinstance(config, str | os.PathLike):
        held = type(config).__name__
        raise ArgumentError(
            f"`config` is the path of a TOML file, not {with_article(held)}; for options take `options`"
        )
    file = read_toml(Path(config)) if config else {}
    if timed and isinstance(file.get("train"), dict):
        file["train"].pop("steps", None)
    return merge(file, options or {}, {"data": {"source": str(source)}} if source is not None else {})


def choose_start(
    settings: Settings,
    preset_name: str | None = None,
    minutes: float | None = None,
    pretrained: Pretrained | None = None,
    *,
    start_time: float | None = None,
) -> Start:
    """The pretrained model, else the named preset, else the default for the objective and the time; `settings` over it.

    Args:
        settings: the person's own options.
        preset_name: the preset that they named.
        minutes: how long training may take as a whole.
        pretrained: the trained model that is to learn more; its options stand in place of a preset's.
        start_time: when the minutes began to count, in seconds of `time.perf_counter`; now by default.

    Raises:
        UsageError: options that cannot be, that cannot be together, or that do not suit the data.
    """
    if minutes is not None and not isinstance(minutes, int | float):
        raise ArgumentError(f"`minutes` must be a number, not {with_article(type(minutes).__name__)}")
    if minutes is not None and not 0 < minutes < math.inf:
        raise UsageError(f"`minutes` must be above 0 and finite, not {minutes:g}")
    if pretrained is not None:
        pretrained.refuse_contradictions(settings, preset_name)
        below, description = pretrained.options, f"from {pretrained.source}"
    else:
        below, description = _preset_for(settings, preset_name, minutes)
    config = RunConfig.read(below, settings)
    check_optimizer(config.train)
    if pretrained is None:
        if characters := _corpus_characters(config, settings, preset_name, minutes):
            below = merge(below, {"data": {"corpus_characters": characters}})
            config = RunConfig.read(below, settings)
        _refuse_other_data(config)
    if minutes is not None and "steps" in settings.get("train", {}):
        raise UsageError("`minutes` and `train.steps` both say how long to train; give one of them")
    start_time = time.perf_counter() if start_time is None else start_time
    return Start(settings, below, config, description, preset_name, minutes, pretrained, start_time)


def plan(start: Start, task: Task) -> Plan:
    """Choose the options that are not set.

    Args:
        start: what the person asked for, over what they start from.
        task: what is learned, from which data.

    Raises:
        UsageError: a window longer than the text.
        DataError: a text of a single character.
    """
    settings = merge(start.settings, {"data": task.data_settings()})
    own, minutes = settings.get("train", {}), start.minutes
    decided = {} if start.pretrained else {"model": _from_data(task.model_settings(), settings)}
    config, fitted = task.fit_to_data(RunConfig.read(start.below, settings, decided), settings)
    _refuse_larger_than_machine(config)
    if minutes is None and "steps" not in own and start.preset is None:
        minutes = DEFAULT_MINUTES
    if minutes is None:
        steps, why = config.train.steps, "given" if "steps" in own else f"as the preset '{start.preset}' says"
        pace = None
    else:
        is_new = start.pretrained is None
        is_default = is_new and start.preset is None and not {"model", "train"} & start.settings.keys()
        pace = measure_pace(minutes, start.start_time, config, task, is_new=is_new, is_default=is_default)
        steps, why = pace.steps, pace.reason
    config = _fit_to_steps(config, settings, steps, task.held_out_tokens)
    reasons = [_model_reason(config, start), _length_reason(config, why)]
    if pace is not None and _chooses_dropout(start):
        config, reason = _fit_dropout(config, steps / task.steps_per_pass(config))
        reasons += reason
    if config.train.eval_tokens is not None and "eval_tokens" not in own:
        reasons.append(_evaluation_reason(config, task.held_out_tokens))
    if start.pretrained and "learning_rate" not in own:
        reasons.append(start.pretrained.reason)
    if pace is not None and start.pretrained is None:
        reasons += pace.warnings(config)
    budget = None if pace is None else pace.budget(config, task.held_out_tokens)
    return Plan(config, (*reasons, *fitted, *_memory_reason(config)), budget)


def dump_toml(start: Start) -> str:
    """Every option as `train` would begin with it; the vocabulary is the tokenizer's, unless it was given."""
    own_size = start.pretrained is not None or "vocab_size" in start.settings.get("model", {})
    return to_toml(start.config, leave_out=None if own_size else {"model": {"vocab_size"}})


def _preset_for(settings: Settings, name: str | None, minutes: float | None) -> tuple[Settings, str]:
    """The options of the preset of that name, or of the default for what is to be learned, and a description."""
    data = RunConfig.read({"data": settings.get("data", {})}).data
    implied = "seq2seq" if is_pairs(data) else "causal"
    objective = str(settings.get("objective", implied))
    if name is None:
        known = objective if objective in DEFAULTS else "causal"
        name = default_preset(known, minutes, long_text=_is_long(data, minutes))
    own = "with your own changes" if "model" in settings else preset(name).about
    return preset(name).options, f"preset '{name}', {own}"


def _is_long(data: DataConfig, minutes: float | None) -> bool:
    """Whether the time will not be enough to read the text twice, as far as is known before it is read."""
    corpus = CORPORA.get(data.source)
    if corpus is not None:
        return corpus.sized is not None and data.corpus_characters is None  # it is made as long as the time can use
    size = text_bytes(data.source)
    return size is not None and 2 * size >= CHARACTERS_PER_MINUTE * (minutes or DEFAULT_MINUTES)


def _corpus_characters(
    config: RunConfig, settings: Settings, preset_name: str | None, minutes: float | None
) -> int | None:
    """How much of a corpus that can be made in any length the time can use; None where it is not time that decides."""
    corpus = CORPORA.get(config.data.source)
    if corpus is None or corpus.sized is None or config.data.corpus_characters is not None:
        return None
    if minutes is None and (preset_name is not None or "steps" in settings.get("train", {})):
        return None
    fewest, most = CORPUS_CHARACTERS
    millions = math.ceil(CHARACTERS_PER_MINUTE * (minutes or DEFAULT_MINUTES) / 1e6)
    return min(most, max(fewest, 1_000_000 * millions))


def _refuse_other_data(config: RunConfig) -> None:
    """Refuse data that the objective cannot learn from."""
    pairs = is_pairs(config.data)
    if pairs != (config.objective == "seq2seq"):
        able = ", ".join(name for name, option in PRESETS.items() if (option.objective == "seq2seq") == pairs)
        kind, work = ("sentence pairs", "to translate") if pairs else ("a text and no sentence pairs", "such a text")
        raise UsageError(f"{config.data.source} is {kind}; presets that learn {work}: {able}")


def _from_data(decided: Settings, settings: Settings) -> Settings:
    """What the data decides of the model, but for a vocabulary that the person wants larger."""
    own, requested = int(decided["vocab_size"]), settings.get("model", {}).get("vocab_size")
    if own < 2:
        raise DataError("the text is a single repeated character; there is nothing to learn from it")
    if requested is not None and int(requested) < own:
        raise UsageError(f"`model.vocab_size` {requested} is too small for the tokenizer's {own} tokens; leave it out")
    return {**decided, "vocab_size": int(requested or own)}


def _fit_to_steps(config: RunConfig, settings: Settings, steps: int, held_out: int) -> RunConfig:
    """Warm-up, evaluations and checkpoints in proportion to the run's length, unless the person said otherwise."""
    evaluations, eval_tokens = _evaluations(steps * config.train.batch_size * config.model.block_size, held_out)
    own = settings.get("train", {})
    every = max(1, -(-steps // evaluations))
    fitting = {
        "steps": steps,
        "warmup_steps": min(config.train.warmup_steps, steps // 10),
        "eval_every": every,
        "eval_tokens": eval_tokens,
        "save_every": min(_beside(int(own.get("eval_every", every)), every, steps), config.train.save_every),
    }
    return RunConfig.read(
        config.model_dump(), {"train": {key: value for key, value in fitting.items() if key not in own}}
    )


def _chooses_dropout(start: Start) -> bool:
    """Whether neither the person nor a preset that they named says how much dropout a model of one text has."""
    own = start.preset is not None or start.pretrained is not None or "dropout" in start.settings.get("model", {})
    return not own and start.config.objective == "causal" and start.config.model.architecture != "bigram"


def _fit_dropout(config: RunConfig, passes: float) -> tuple[RunConfig, list[str]]:
    """The more often a text is read, the more dropout keeps the model from learning it by heart."""
    dropout = next(dropout for most, dropout in DROPOUTS if passes <= most)
    config = RunConfig.read(config.model_dump(), {"model": {"dropout": dropout}})
    return config, [f"dropout {dropout:g}: the text is read {passes:.0f} times"] if dropout else []


def _beside(eval_every: int, planned: int, steps: int) -> int:
    """Steps between checkpoints: rounded up to a multiple of `eval_every`, if there is any evaluation."""
    return -(-planned // eval_every) * eval_every if eval_every <= steps else planned


def _evaluations(tokens: int, held_out: int) -> tuple[int, int | None]:
    """How often to evaluate, and on how many tokens at most (None: on all), where so many are trained on."""
    affordable = round(SHARE_FOR_EVALUATIONS * PASSES_OF_A_STEP * tokens)
    fewest, most = EVALUATIONS
    count = min(most, max(fewest, affordable // max(1, held_out)))
    tokens_each = max(TOKENS_OF_AN_EVALUATION, affordable // count)
    return count, None if tokens_each >= held_out else tokens_each


def _model_reason(config: RunConfig, start: Start) -> str:
    model = config.model
    parts = f"{counted(model.n_layers, 'layer')}, {counted(model.n_heads, 'head')}, d_model {model.d_model}"
    shape = "" if model.architecture == "bigram" else f" ({parts}, block_size {model.block_size})"
    return f"model: {estimate_cost(model).parameters:,} parameters{shape}; {start.description}"


def _length_reason(config: RunConfig, why: str) -> str:
    train = config.train
    return (
        f"training: {counted(train.steps, 'step')} of {train.batch_size} x {config.model.block_size} tokens "
        f"({train.optimizer}), {why}"
    )


def _evaluation_reason(config: RunConfig, held_out: int) -> str:
    train = config.train
    count = counted(-(-train.steps // train.eval_every), "evaluation")
    return f"{count} on {train.eval_tokens:,} of the {held_out:,} held-out tokens, to take little of the time"


def _refuse_larger_than_machine(config: RunConfig) -> None:
    """A model that nothing can hold is not begun: its layers would be made one by one until the memory is full."""
    parameters, memory_size = estimate_cost(config.model).parameters, memory(choose_device(config.train.device))
    if memory_size is not None and BYTES_OF_A_WEIGHT * parameters > memory_size:
        raise UsageError(
            f"the model has {parameters:,} parameters, which alone take {BYTES_OF_A_WEIGHT * parameters / 2**30:,.1f} "
            f"GB, and this machine has {memory_size / 2**30:,.1f}; lower `model.d_model`, `model.n_layers` or "
            "`model.vocab_size`"
        )


def _memory_reason(config: RunConfig) -> tuple[str, ...]:
    """A word before it is too late: a system that runs out of memory ends the process without one."""
    needed = estimate_cost(config.model, config.train).bytes["training"]
    there = memory(choose_device(config.train.device))
    if there is None or needed < SHARE_OF_MEMORY * there:
        return ()
    sizes = f"at least {needed / 2**30:,.1f} GB, this machine has {there / 2**30:,.1f}"
    return (f"memory: training needs {sizes}; raise `train.micro_batches` or lower `train.batch_size` if it is killed",)
