"""Whether what is given as labels is only learnt from, or read."""

from dataclasses import replace

import torch
from torch import nn

from clearhead.doctor.calling.convention import Convention
from clearhead.doctor.calling.inputs import Inputs, role_of
from clearhead.doctor.calling.names import parameters_of


def reads_its_labels(model: nn.Module, convention: Convention, inputs: Inputs) -> bool:
    """Whether what is given as labels, and cannot be left out, moves the logits: then it is what the model reads.

    Args:
        inputs: of the tokens 0 and 1.
    """
    needed = {parameter.name for parameter in parameters_of(model) if parameter.default is parameter.empty}
    if not any(role_of(filler) == "labels" and name in needed for name, filler in convention.call):
        return False
    other = replace(inputs, labels=1 - inputs.ids)
    with torch.no_grad():
        before, again, after = (convention.logits(model, batch) for batch in (inputs, inputs, other))
    is_steady = before.shape == again.shape and torch.allclose(before, again, equal_nan=True)
    return is_steady and before.shape == after.shape and not torch.allclose(before, after, equal_nan=True)
