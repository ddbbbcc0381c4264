"""The native engine: a decoder's and a translator's next tokens in C++, compiled once for a machine.

docs/generation.md, "Why an engine of our own", says why it stays beside `torch.compile` and AOTInductor.
"""

from clearhead.native.building import CPP_TYPES, compiler, library
from clearhead.native.decoder import Draws, NativeDecoder
from clearhead.native.facade import CALL, bytes_of_weights, code_for, refuse_difference
from clearhead.native.structures import UnknownPartError
from clearhead.native.translator import NativeTranslator

__all__ = [
    "CALL",
    "CPP_TYPES",
    "Draws",
    "NativeDecoder",
    "NativeTranslator",
    "UnknownPartError",
    "bytes_of_weights",
    "code_for",
    "compiler",
    "library",
    "refuse_difference",
]
