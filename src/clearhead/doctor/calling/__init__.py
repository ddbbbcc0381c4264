"""How a stranger's model is called: inputs, outputs, order of axes. Inferred by behavior, never guessed."""

from clearhead.doctor.calling.convention import Convention
from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.calling.search import find_convention

__all__ = ["Convention", "Inputs", "find_convention"]
