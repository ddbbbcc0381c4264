"""Small configs of transformers, by configs written for the purpose."""

from typing import Any

from clearhead.doctor.load.small_configs import Shrinking, small_config


class ListedHeads:
    """Says for each layer which kind it is, and how many heads it has."""

    def __init__(
        self,
        num_hidden_layers: int = 40,
        layer_types: tuple[str, ...] = ("full_attention", "sliding_attention") * 20,
        num_attention_heads_per_layer: tuple[int, ...] = (48, 64) * 20,
        mlp_only_layers: tuple[int, ...] = (0, 1, 39),
    ) -> None:
        self.__dict__ |= {name: value for name, value in vars().items() if name != "self"}


def test_what_is_said_for_each_layer_is_kept_for_as_many_as_there_are() -> None:
    config: Any = small_config(ListedHeads, Shrinking(), {})
    assert config.num_hidden_layers == 2
    assert config.layer_types == ("full_attention", "sliding_attention")
    assert config.num_attention_heads_per_layer == (4, 4)
    assert config.mlp_only_layers == (0, 1), "these are numbers of layers"
