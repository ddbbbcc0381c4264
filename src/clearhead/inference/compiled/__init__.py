"""The next tokens of texts and of translations by machine code, made once for a machine."""

from clearhead.inference.compiled.building import CPP_TYPES, compiler, library
from clearhead.inference.compiled.decoder import CompiledDecoder
from clearhead.inference.compiled.layout import UnknownPartError
from clearhead.inference.compiled.translator import CompiledReader

__all__ = ["CPP_TYPES", "CompiledDecoder", "CompiledReader", "UnknownPartError", "compiler", "library"]
