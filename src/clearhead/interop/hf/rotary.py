"""What foreign configs say of rotary positions, in the words of transformers 5 and in those of earlier versions."""

from typing import NamedTuple

from clearhead.config import ModelConfig
from clearhead.errors import DataError

Json = dict[str, object]

KNOWN = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


class RotaryWords(NamedTuple):
    """The family's keys of earlier versions; all of them are in `rope_parameters` since. Both are written.

    Args:
        base: key of the base of the wavelengths; 10,000 where a file has none.
        fraction: key of the share of each head that is turned.
        usual: that share where a file has none.
    """

    base: str = "rope_theta"
    fraction: str = "partial_rotary_factor"
    usual: float = 1.0

    def write(self, base: float, fraction: float) -> Json:
        """The keys and values for a config.json."""
        rope: Json = {"rope_type": "default", "rope_theta": base}
        if fraction == self.usual:
            return {"rope_parameters": rope, self.base: base}
        return {"rope_parameters": rope | {"partial_rotary_factor": fraction}, self.base: base, self.fraction: fraction}

    def read(self, settings: Json) -> tuple[object, object]:
        """Base and fraction, as a config.json has them.

        Raises:
            DataError: wavelengths that are stretched, which our parts do not compute.
        """
        rope = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
        if not isinstance(rope, dict) or set(rope) - KNOWN:
            raise DataError(f"rotary positions with {rope} have no equal here")
        if rope.get("rope_type", rope.get("type", "default")) != "default":
            raise DataError(f"rotary positions with {rope} have no equal here")
        base = rope.get("rope_theta", settings.get(self.base, 10_000.0))
        return base, rope.get("partial_rotary_factor", settings.get(self.fraction, self.usual))


def turned_width(config: ModelConfig) -> int:
    """How many of a head's numbers transformers turns: it rounds the share down, where we take the nearest number."""
    return int(config.head_dim * config.partial_rotary_factor)
