"""The logit lens: what the head would say of the residual stream after each block (nostalgebraist 2020)."""

from collections.abc import Iterator

from torch import Tensor

from clearhead.errors import UsageError
from clearhead.inspection.capture.sites import StackSite, main_stack, path
from clearhead.inspection.capture.trace import Trace
from clearhead.models import LanguageModel

NGRAMS = "logit_ngrams"  # the module whose vectors a model may add before its head


def lens_names(model: LanguageModel) -> list[str]:
    """What `record` must keep for `lens_logits`.

    Raises:
        UsageError: the model has no residual stream.
    """
    stack = _stack(model)
    names = [path(stack.name, "input"), *(block.name for block in stack.blocks)]
    return names + [NGRAMS] * (getattr(model, NGRAMS, None) is not None)


def lens_logits(model: LanguageModel, trace: Trace) -> Iterator[Tensor]:
    """Logits (B, T, V) from the residual stream before the first block, then after each: n_layers + 1 of them.

    The stream goes through the model's own final norm (a post-norm model has none) and its head; no lens is trained.
    Vectors of n-grams that the model adds before its head are added in every layer. So the last are the model's own
    logits.

    Args:
        model: in evaluation mode.
        trace: of this model, with the activations that `lens_names` names.

    Raises:
        UsageError: the model has no residual stream.
        NotRecordedError: the trace is without one of them.
    """
    stack, device = _stack(model), model.device
    ngrams = trace.tensor(NGRAMS).to(device) if getattr(model, NGRAMS, None) is not None else None
    for name in trace.residual.names:
        hidden = stack.module.norm(trace.tensor(name).to(device))  # (B, T, D)
        yield model.head(hidden if ngrams is None else hidden + ngrams)


def has_final_norm(model: LanguageModel) -> bool:
    """Whether a norm stands between the last block and the head."""
    return model.config.norm_position == "pre"


def _stack(model: LanguageModel) -> StackSite:
    stack = main_stack(model)
    if stack is None:
        raise UsageError("this model has no layers to look between, only a table of logits; leave out `lens`")
    return stack
