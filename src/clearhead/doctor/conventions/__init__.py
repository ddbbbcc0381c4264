"""How a stranger's model is called: inputs, outputs, order of axes. Inferred by behaviour, never guessed."""

from clearhead.doctor.conventions.calling import Convention
from clearhead.doctor.conventions.inputs import Inputs
from clearhead.doctor.conventions.search import find_convention

__all__ = ["Convention", "Inputs", "find_convention"]
