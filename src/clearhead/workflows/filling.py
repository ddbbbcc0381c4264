"""What is masked in a text, filled in by a run."""

from collections.abc import Callable, Mapping
from pathlib import Path

from clearhead import inference
from clearhead.config import FillConfig
from clearhead.errors import UsageError
from clearhead.inference import Filled
from clearhead.models import EncoderLM
from clearhead.options import has_arguments, option
from clearhead.workflows.hardware import choose_device, enough_memory
from clearhead.workflows.runs.find import open_folder
from clearhead.workflows.runs.folder import RunFolder


@has_arguments()
def fill(
    run: str | Path | RunFolder | None = None,
    text: str = "",
    options: Mapping[str, object] | None = None,
    *,
    device: str = "auto",
    on_notice: Callable[[str], None] | None = None,
) -> Filled:
    """Fill in every [MASK] of the text with the run's model.

    Args:
        run: a folder, a name, or None for the newest.
        text: with at least one [MASK].
        options: as in `FillConfig`.
        device: where to compute.
        on_notice: called with sentences to show the user.

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    config = FillConfig.read(options or {})
    opened = open_folder(run)
    objective = opened.config.objective
    if objective != "masked":
        verb = {"causal": "generate", "seq2seq": "translate"}[objective]
        raise UsageError(
            f"fill needs a run trained with {option('objective', 'masked')}; for {opened.folder} use {verb}"
        )
    tokenizer = opened.tokenizer
    with enough_memory("give a shorter text"):
        model = opened.model().to(choose_device(device))
        assert isinstance(model, EncoderLM)
        return inference.fill(model, tokenizer, text, config, on_notice=on_notice)
