"""Every step of one forward pass: of a run, of a preset, of anybody's model."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from clearhead.config import RunConfig
from clearhead.config.presets import preset as find_preset
from clearhead.doctor.isolated import Request, examine_isolated
from clearhead.errors import UsageError
from clearhead.inspection.steps.table import TraceTable
from clearhead.workflows.examining import FOR_ARCHITECTURES, TIMEOUT, resolve
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.runs.paths import RUNS

if TYPE_CHECKING:
    from clearhead.config import ModelConfig

STRANGER = "clearhead.inspection.steps.strangers:trace_stranger"
NO_TEXT = "a text is read by runs alone, which have a tokenizer; leave it out, and the doctor's rows are traced"


def trace(
    target: str | Path | RunFolder | None = None,
    text: str | None = None,
    *,
    preset: str | None = None,
    tokens: int | None = None,
    settings: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
    on_notice: Callable[[str], None] | None = None,
) -> TraceTable:
    """Every step of one forward pass: module, operation, axes by symbols, shape, type, bytes, weights, calling line.

    Args:
        target: a run's folder or name, 'file.py:build', 'package.module:build', 'hf:NAME' or 'hf:FOLDER'; None for the
            newest run. Whatever is no run of ours is called in a process of its own.
        text: what a run reads; by default, tokens enough to fill its context.
        preset: a preset in place of a target; no model of its size is built.
        tokens: the length, where there is no text.
        settings: config values for 'hf:NAME', as text.
        timeout: in seconds, for a model that is no run.
        on_notice: called with sentences to show the user.

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    if preset is not None:
        if target is not None or text is not None:
            raise UsageError("trace takes a target or a preset, and a preset reads no text; leave one out")
        return _of_preset(preset, tokens)
    if isinstance(target, RunFolder):
        return _of_run(target, text, tokens, on_notice)
    named = resolve(None if target is None else str(target))
    if settings and named.kind != "architecture":
        raise UsageError(FOR_ARCHITECTURES)
    if named.kind == "run":
        return _of_run(RunFolder(Path(named.location)), text, tokens, on_notice)
    if text is not None:
        raise UsageError(NO_TEXT)
    if tokens is not None:
        raise UsageError("`tokens` is for runs and presets; for other models, the doctor finds the lengths they take")
    if named.kind == "architecture" and on_notice:
        on_notice(f"{target} is built small, not in its published size, and with random weights")
    request = Request(str(target), STRANGER, settings=settings or {})
    return TraceTable.from_dict(examine_isolated(request, timeout=timeout))


def target_and_text(first: str | None, second: str | None) -> tuple[str | None, str | None]:
    """Split two optional arguments into target and text. A single one that names no model is a text.

    Raises:
        DataError: a single one names a file or a folder that is no model.
    """
    if first is None or second is not None or first.startswith("hf:") or Path(first).parent == RUNS:
        return first, second
    try:
        resolve(first)
    except UsageError:
        return None, first
    return first, None


def _of_preset(name: str, tokens: int | None) -> TraceTable:
    from clearhead.inspection.steps.ours import trace_config

    config = RunConfig.read(find_preset(name).options).model
    T = _length(config, tokens)
    return trace_config(config, T, T if config.architecture == "encoder_decoder" else None, target=f"preset {name}")


def _of_run(
    run: RunFolder, text: str | None, tokens: int | None, on_notice: Callable[[str], None] | None
) -> TraceTable:
    from clearhead.inspection.steps.ours import ordinary_inputs, trace_model

    if text is None:
        model = run.model()
        return trace_model(model, *ordinary_inputs(model, _length(model.config, tokens)), target=run.name)
    if tokens is not None:
        raise UsageError("the text says how many tokens there are; leave out `tokens`")
    from clearhead.workflows.prompts import read_prompt

    prompt = read_prompt(run, text, device="cpu", on_notice=on_notice)
    return trace_model(prompt.model, *prompt.inputs, target=run.name)


def _length(config: "ModelConfig", tokens: int | None) -> int:
    """Tokens of a text that fills the context, or as many as asked for.

    Raises:
        UsageError: they are more than that, or none.
    """
    length = config.block_size if tokens is None else tokens
    if not 1 <= length <= config.block_size:
        raise UsageError(f"`tokens` must be between 1 and the model's block_size of {config.block_size}, not {tokens}")
    return length
