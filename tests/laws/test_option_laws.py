"""The options of `forward` go together or are refused: none is ignored beside another."""

import itertools
from inspect import signature

import pytest
import torch
from law_models import CHOICES, Choice, assert_same, make_model, name, random_ids
from torch import Tensor

from clearhead.errors import UsageError
from clearhead.models import CausalLM
from clearhead.parts import positions_from_lengths

T = 12
OPTIONS = {
    "positions": positions_from_lengths(torch.tensor([T, 7]), T, side="left"),
    "documents": torch.tensor([[0] * 4 + [1] * (T - 4), [0] * 8 + [1] * (T - 8)]),
}
COMBINATIONS = [two for size in range(len(OPTIONS) + 1) for two in itertools.combinations(OPTIONS, size)]


def test_every_option_of_forward_is_tried() -> None:
    assert signature(CausalLM.forward).parameters.keys() - {"self", "ids"} == OPTIONS.keys() | {"cache"}


@pytest.mark.parametrize("choice", CHOICES, ids=name)
@pytest.mark.parametrize("used", COMBINATIONS, ids="-".join)
@pytest.mark.parametrize("columns", [1, 5, T])
@torch.inference_mode()
def test_with_a_cache_they_mean_the_same_or_are_refused(choice: Choice, used: tuple[str, ...], columns: int) -> None:
    model, ids = make_model(**choice), random_ids(2, T)
    options = {option: OPTIONS[option] for option in used}
    cache, logits = model.new_cache(2, T), list[Tensor]()
    for start in range(0, T, columns):
        now = slice(start, start + columns)
        try:
            logits.append(model(ids[:, now], cache=cache, **{key: value[:, now] for key, value in options.items()}))
        except UsageError:
            assert used
            assert cache.length == start
            return
    real = OPTIONS["positions"] >= 0 if "positions" in used else slice(None)
    assert_same(torch.cat(logits, dim=1)[real], model(ids, **options)[real])
