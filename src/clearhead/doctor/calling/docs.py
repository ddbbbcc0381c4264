"""What a model's documentation says about its masks."""

import inspect
import re
from contextlib import suppress

from torch import nn

from clearhead.doctor.calling.names import is_of_a_library

SHORT = 90  # characters after a name that are still about it
SAID = re.compile(
    r"\b(?P<one>True|1s?|ones?|False|0s?|zeros?)\b[`'\"]*\s*"
    r"(?:(?:means?|marks?|indicates?|denotes?|for|at|on|where|is|are|if|=+|->|:)\s*)*(?:a |an |the |any )?"
    r"(?:(?P<real>real|valid|actual|non-?pad|not (?:a )?pad|tokens? that (?:is|are) (?:real|valid|not (?:masked|pad)))"
    r"|(?P<pad>pad))",
    re.I,
)


def keeps_what_is_true(model: nn.Module, name: str) -> bool | None:
    """Whether 1 or True in a mask stands for real tokens, by what the code says after its name.

    None if it says nothing about padding, or contradicts itself.
    """
    polarities: set[bool] = set()
    for text in _words(model):
        for mention in re.finditer(rf"\b{re.escape(name)}\b(.{{0,{SHORT}}})", text):
            polarity = SAID.search(re.split(r"[;.]\s", mention[1])[0])
            if polarity is not None:
                polarities.add(polarity["one"].lower().startswith(("t", "1", "o")) == (polarity["real"] is not None))
    return polarities.pop() if len(polarities) == 1 else None


def _words(model: nn.Module) -> list[str]:
    """The docstring of the model's class, and its `forward` with the comments there."""
    cls = type(model)
    if is_of_a_library(cls):
        return []
    texts = [cls.__doc__ or ""]
    with suppress(OSError, TypeError):
        texts.append(inspect.getsource(cls.forward))
    return texts
