"""A decoder's next tokens by machine code, made once for a machine."""

from clearhead.inference.compiled.building import CPP_TYPES, compiler, library
from clearhead.inference.compiled.decoder import CompiledDecoder
from clearhead.inference.compiled.layout import UnknownPartError

__all__ = ["CPP_TYPES", "CompiledDecoder", "UnknownPartError", "compiler", "library"]
