"""The logit lens: each row is what the model would say if it ended there."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from law_models import CHOICES, Choice, make_model, name
from pair_models import ENCODER_CHOICES, PAIR_CHOICES, make_encoder, make_translator, some_ids
from torch import Tensor, nn

from clearhead.config import ModelConfig
from clearhead.errors import UsageError
from clearhead.inspection import lens_logits, lens_names, record
from clearhead.inspection.capture.sites import main_stack
from clearhead.inspection.capture.trace import NotRecordedError
from clearhead.models import BigramLM, LanguageModel

MAKERS: dict[str, tuple[Callable[..., LanguageModel], list[Choice]]] = {
    "decoder": (make_model, CHOICES),
    "encoder": (make_encoder, ENCODER_CHOICES),
    "pair": (make_translator, PAIR_CHOICES),
}
MODELS = [
    pytest.param(partial(make, **choice), 2 if kind == "pair" else 1, id=f"{kind}-{name(choice)}")
    for kind, (make, choices) in MAKERS.items()
    for choice in choices
]


@pytest.mark.parametrize(("make", "n_inputs"), MODELS)
@torch.no_grad()
def test_each_row_is_what_the_model_says_without_the_blocks_behind_it(
    make: Callable[[], LanguageModel], n_inputs: int
) -> None:
    model, inputs = make(), (some_ids(2, 7), some_ids(2, 5, seed=1))[-n_inputs:]
    with record(model, lens_names(model)) as trace:
        logits = model(*inputs)
    rows: list[Tensor] = list(lens_logits(model, trace))
    torch.testing.assert_close(rows[-1], logits, rtol=0, atol=1e-10)
    stack = main_stack(model)
    assert stack is not None
    blocks = stack.module.blocks
    assert len(rows) == len(blocks) + 1
    for count, row in enumerate(rows):
        stack.module.blocks = nn.ModuleList(list(blocks)[:count])
        torch.testing.assert_close(row, model(*inputs), rtol=0, atol=1e-10)


def test_what_is_needed_must_have_been_recorded() -> None:
    model = make_model(logit_ngrams=2)
    names = lens_names(model)
    assert "logit_ngrams" in names
    with torch.no_grad(), record(model, names[:-1]) as trace:
        model(some_ids(1, 3))
    with pytest.raises(NotRecordedError, match="logit_ngrams"):
        next(lens_logits(model, trace))


def test_a_table_of_odds_has_no_layers() -> None:
    model = BigramLM(ModelConfig(architecture="bigram", vocab_size=11))
    with pytest.raises(UsageError, match="no layers"):
        lens_names(model)
