"""The heaviest parts of a decoder's step as machine code, made once for a machine."""

from clearhead.inference.compiled.building import CPP_TYPES, compiler, library
from clearhead.inference.compiled.layout import UnknownPartError
from clearhead.inference.compiled.stack import with_compiled_code

__all__ = ["CPP_TYPES", "UnknownPartError", "compiler", "library", "with_compiled_code"]
