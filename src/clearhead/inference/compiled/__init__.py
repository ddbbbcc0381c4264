"""The heaviest parts of a decoder's step as machine code, made once for a machine."""

from clearhead.inference.compiled.building import NUMBERS, compiler, library
from clearhead.inference.compiled.layout import UnknownPartError
from clearhead.inference.compiled.stack import with_compiled_code

__all__ = ["NUMBERS", "UnknownPartError", "compiler", "library", "with_compiled_code"]
