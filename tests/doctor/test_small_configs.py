"""Small configs of transformers, by configs written for the purpose."""

from typing import Any

from clearhead.doctor.load.small_configs import Shrinking, small_config


class ListedHeads:
    """Says for each layer which kind it is, and how many heads it has."""

    def __init__(
        self,
        num_hidden_layers: int = 40,
        layer_types: tuple[str, ...] = (*["sliding_attention"] * 3, "full_attention") * 10,
        num_attention_heads_per_layer: tuple[int, ...] = (48, 64) * 20,
        no_rope_layers: tuple[int, ...] = (1, 1, 1, 0) * 10,
        mlp_only_layers: tuple[int, ...] = (0, 1, 39),
        moe_layers: tuple[int, ...] = tuple(range(40)),
    ) -> None:
        self.__dict__ |= {name: value for name, value in vars().items() if name != "self"}


def test_what_is_said_for_each_layer_is_kept_for_as_many_as_there_are() -> None:
    config: Any = small_config(ListedHeads, Shrinking(), {})
    assert config.num_hidden_layers == 2
    assert config.layer_types == ("sliding_attention", "full_attention")
    assert config.num_attention_heads_per_layer == (4, 4)
    assert config.no_rope_layers == (1, 0)
    assert (config.mlp_only_layers, config.moe_layers) == ((0, 1), (0, 1)), "these are numbers of layers"
