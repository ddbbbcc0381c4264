"""Text from a run."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from clearhead import inference
from clearhead.config import EngineConfig, SamplingConfig
from clearhead.errors import UsageError
from clearhead.inference import Piece
from clearhead.models import CausalLM
from clearhead.workflows.hardware import choose_device, enough_memory, threads
from clearhead.workflows.runs.find import open_folder
from clearhead.workflows.runs.folder import RunFolder

SMALL = 5_000_000  # parameters; a smaller model is faster on one thread than on two


def generate(
    run: str | Path | RunFolder | None = None,
    prompts: Sequence[str] = ("",),
    options: Mapping[str, object] | None = None,
    *,
    engine: Mapping[str, object] | None = None,
    device: str = "auto",
    on_text: Callable[[Piece], None] | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> list[list[str]]:
    """What the run's model makes of each prompt: `num_samples` texts that begin with it.

    Args:
        run: a folder, a name, or None for the newest.
        prompts: an empty one starts a new text.
        options: as in `SamplingConfig`.
        engine: as in `EngineConfig`.
        device: where to compute.
        on_text: called with each new piece of text as it is written.
        on_notice: called with sentences to show the user.

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    sampling, how = SamplingConfig.read(options or {}), EngineConfig.read(engine or {})
    opened = open_folder(run)
    tokenizer, model = opened.tokenizer, _writer(opened, device)
    draft = None if how.draft in (None, "ngrams") else _draft(open_folder(how.draft), opened, device)
    n_parameters = sum(p.numel() for p in model.parameters())
    few = len(prompts) * sampling.num_samples == 1 and n_parameters < SMALL
    with threads(1 if few else None), enough_memory("lower --num-samples or --max-new-tokens"):
        written = inference.generate(
            model, tokenizer, prompts, sampling, engine=how, draft=draft, on_text=on_text, on_notice=on_notice
        )
    return [[prompt + text for text in texts] for prompt, texts in zip(prompts, written, strict=True)]


def _writer(run: RunFolder, device: str) -> CausalLM:
    model = run.model().to(choose_device(device))
    if not isinstance(model, CausalLM):
        raise UsageError(f"{run.folder} cannot continue a text; use translate or fill, which it was trained for")
    return model


def _draft(run: RunFolder, writer: RunFolder, device: str) -> CausalLM:
    """The draft model of speculative decoding."""
    model = _writer(run, device)
    same = run.config.model.vocab_size == writer.config.model.vocab_size
    if not same or run.tokenizer.fingerprint != writer.tokenizer.fingerprint:
        raise UsageError(
            f"draft: the tokenizer of {run.folder} is not that of {writer.folder}, so it cannot guess its tokens; "
            "train the smaller run on the same text with --data.tokenizer " + str(writer.folder / "tokenizer.json")
        )
    return model
