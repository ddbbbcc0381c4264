"""The step of a decoder as machine code, made once for a shape and a machine."""

from clearhead.inference.compiled.building import CompiledStep, build, folder_of, is_built, step_of
from clearhead.inference.compiled.static import Step

__all__ = ["CompiledStep", "Step", "build", "folder_of", "is_built", "step_of"]
