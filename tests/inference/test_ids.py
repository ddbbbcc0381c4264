"""What is no list of token ids is called what it is, wherever prompts or sources come in."""

import re

import pytest
import torch
from test_generate_ids import small

from clearhead.config import SamplingConfig
from clearhead.errors import InputError
from clearhead.inference import GenerationBatch
from clearhead.inference.ids import known_ids

LIST = "each text is a list of token ids, such as [5, 17], and text 1 "
WRONG = {
    "a tensor of rows": (torch.ones(1, 9).long(), LIST + "has the shape (1, 9); give its rows, one to a text"),
    "an id": (7, LIST + "is 7; put the ids of a text into a list of their own"),
    "a tensor that is an id": (torch.tensor(7), LIST + "is tensor(7); put the ids of a text into a list of their own"),
    "a string": ("abc", LIST + "is a string; encode it with the model's tokenizer"),
    "lists": ([[2, 3]], LIST + "is a list of lists; give them one to a text"),
    "fractions": ([2.0, 3.0], "token ids must be whole numbers; text 1 holds others: [2.0, 3.0]"),
    "a tensor of fractions": (torch.ones(2), "token ids must be whole numbers; text 1 holds others: tensor([1., 1.])"),
    "nothing": ([], "text 1 has no token ids; give at least one"),
    "none": (None, LIST + "is none; put the ids of a text into a list of their own"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_list_of_ids_is_named(kind: str) -> None:
    row, sentence = WRONG[kind]
    with pytest.raises(InputError, match=f"^{re.escape(sentence)}$"):
        known_ids([[2], row], 11)  # type: ignore[list-item]


def test_a_server_is_told_what_a_prompt_is_and_goes_on() -> None:
    with GenerationBatch(small()) as batch:
        ids = torch.tensor([[2, 3, 4], [5, 6, 7]])
        with pytest.raises(InputError, match=re.escape("text 0 has the shape (2, 3); give its rows")):
            batch.add([ids], SamplingConfig())  # type: ignore[list-item]
        assert batch.add(ids, SamplingConfig(max_new_tokens=1)) == [0, 1]  # type: ignore[arg-type]
        assert batch.live == {0, 1}
