"""The native engine: a decoder's and a translator's next tokens in C++, compiled once for a machine.

docs/generation.md, "Why an engine of our own", says why it stays beside `torch.compile` and AOTInductor.
"""

from clearhead.native.building import CPP_TYPES, compiler, library
from clearhead.native.decoder import NativeDecoder, SamplingInputs
from clearhead.native.facade import CALL_SECONDS, library_for, refuse_difference, weight_bytes
from clearhead.native.structures import UnknownPartError
from clearhead.native.translator import NativeTranslator

__all__ = [
    "CALL_SECONDS",
    "CPP_TYPES",
    "NativeDecoder",
    "NativeTranslator",
    "SamplingInputs",
    "UnknownPartError",
    "compiler",
    "library",
    "library_for",
    "refuse_difference",
    "weight_bytes",
]
