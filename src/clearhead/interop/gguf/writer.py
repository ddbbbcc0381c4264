"""The writer of the package `gguf`, which has to be there before this is imported."""

from collections.abc import Sequence
from typing import Any

from gguf import GGUFValueType, GGUFWriter, Keys


class Writer(GGUFWriter):
    """Writes an empty list as well: characters have no merges, and llama.cpp asks for the list all the same."""

    def add_token_merges(self, merges: Sequence[str] | Sequence[bytes] | Sequence[bytearray]) -> None:
        self.add_key_value(Keys.Tokenizer.MERGES, merges, GGUFValueType.ARRAY)

    # `val` is of any type in the base class as well.
    def _pack_val(
        self, val: Any, vtype: GGUFValueType, add_vtype: bool, sub_type: GGUFValueType | None = None
    ) -> bytes:
        if vtype == GGUFValueType.ARRAY and not val:
            return self._pack("I", vtype) + self._pack("I", GGUFValueType.STRING) + self._pack("Q", 0)
        return super()._pack_val(val, vtype, add_vtype, sub_type)
