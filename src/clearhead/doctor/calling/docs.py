"""What a model's documentation says about its masks, and what its `forward` declares."""

import inspect
import re
from contextlib import suppress

from torch import nn

from clearhead.doctor.calling.names import is_of_a_library

SHORT = 90  # characters after a name that are still about it
OF_TOKENS = r"(?:(?:a |an |the |any |its )?(?:tokens?|positions?|entries|entry|keys?|query|places?|elements?)\s+)?"
IS = r"(?:(?:means?|marks?|indicates?|denotes?|for|at|on|where|that|which|may|can|to|is|are|be|if|=+|->|:)\s*)*"
SAID = re.compile(
    r"\b(?P<one>True|1s?|ones?|False|0s?|zeros?)\b[`'\"]*\s*"
    rf"{IS}{OF_TOKENS}{IS}(?:a |an |the |any )?"
    r"(?:(?P<real>real|valid|actual|visible|seen|kept|keep|attend|allow|non-?pad|not (?:a )?(?:pad|masked))"
    r"|(?P<pad>pad|mask|hid|ignor|block|drop|exclu|not (?:be )?(?:attend|allow|seen)))",
    re.I,
)
KEEPS = re.compile(r"attention_mask|valid|keep|(non|not)_?pad", re.I)
DROPS = re.compile(r"key_padding_mask|^is_?pad", re.I)


def keeps_what_is_true(model: nn.Module, name: str) -> bool | None:
    """Whether 1 or True in a mask stands for what may be seen, by what the code says after its name.

    None if it says nothing about that, or contradicts itself.
    """
    polarities: set[bool] = set()
    for text in _words(model):
        for mention in re.finditer(rf"\b{re.escape(name)}\b(.{{0,{SHORT}}})", text):
            polarity = SAID.search(re.split(r"[;.]\s", mention[1])[0])
            if polarity is not None:
                polarities.add(polarity["one"].lower().startswith(("t", "1", "o")) == (polarity["real"] is not None))
    return polarities.pop() if len(polarities) == 1 else None


def keeps_by_name(name: str) -> bool | None:
    """The same by the name alone; None if it fits either."""
    named = {keeps for keeps, pattern in ((True, KEEPS), (False, DROPS)) if pattern.search(name)}
    return named.pop() if len(named) == 1 else None


def makes_no_graph(model: nn.Module) -> bool:
    """Whether the `forward` of its class is declared to make no graph: a model that is meant to be used as it is."""
    with suppress(OSError, TypeError):
        return re.match(r"\s*@(torch\.)?(inference_mode|no_grad)\b", inspect.getsource(type(model).forward)) is not None
    return False


def text_of(model: nn.Module) -> str:
    """All that the model's class says of itself; nothing of a library's."""
    return "\n".join(_words(model))


def _words(model: nn.Module) -> list[str]:
    """The docstring of the model's class, and its `forward` with the comments there."""
    cls = type(model)
    if is_of_a_library(cls):
        return []
    texts = [cls.__doc__ or ""]
    with suppress(OSError, TypeError):
        texts.append(inspect.getsource(cls.forward))
    return texts
