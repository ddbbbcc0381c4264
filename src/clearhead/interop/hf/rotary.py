"""What foreign configs say of rotary positions, in the words of transformers 5 and in those of earlier versions."""

from typing import NamedTuple

from clearhead.config import ModelConfig
from clearhead.errors import DataError

Json = dict[str, object]

KNOWN = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


class RotaryKeys(NamedTuple):
    """The family's keys of earlier versions; all of them are in `rope_parameters` since. Both are written.

    Args:
        theta_key: key of the base of the wavelengths; 10,000 where a file has none.
        factor_key: key of the share of each head that is rotated.
        default_factor: that share where a file has none.
    """

    theta_key: str = "rope_theta"
    factor_key: str = "partial_rotary_factor"
    default_factor: float = 1.0

    def write(self, theta: float, factor: float) -> Json:
        """The keys and values for a config.json."""
        rope: Json = {"rope_type": "default", "rope_theta": theta}
        if factor == self.default_factor:
            return {"rope_parameters": rope, self.theta_key: theta}
        return {
            "rope_parameters": rope | {"partial_rotary_factor": factor},
            self.theta_key: theta,
            self.factor_key: factor,
        }

    def read(self, settings: Json) -> tuple[object, object]:
        """`rope_theta` and `partial_rotary_factor`, as a config.json has them.

        Raises:
            DataError: wavelengths that are stretched, which our parts do not compute.
        """
        rope = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
        if not isinstance(rope, dict) or set(rope) - KNOWN:
            raise DataError(f"rotary positions with {rope} are not supported")
        if rope.get("rope_type", rope.get("type", "default")) != "default":
            raise DataError(f"rotary positions with {rope} are not supported")
        theta = rope.get("rope_theta", settings.get(self.theta_key, 10_000.0))
        return theta, rope.get("partial_rotary_factor", settings.get(self.factor_key, self.default_factor))


def rounded_rotary_width(config: ModelConfig) -> int:
    """How many of a head's numbers transformers turns: it rounds the share down, where we take the nearest number."""
    return int(config.head_dim * config.partial_rotary_factor)
