"""model.generate(ids): tensors in, tensors out, as torch, transformers and nanoGPT do it."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor
from wrong_ids import WRONG

import clearhead as ch
from clearhead.errors import InputError, UsageError
from clearhead.models import CausalLM, build_model

PROMPTS = torch.tensor([[2, 3, 4], [5, 6, 7]])


def small(**options: object) -> CausalLM:
    shape = {"vocab_size": 11, "block_size": 8, "n_layers": 1, "n_heads": 2, "d_model": 8, "d_ff": 8}
    model = build_model(ch.ModelConfig.read(shape, options))
    assert isinstance(model, CausalLM)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8)  # so that the next token is no toss-up
    return model


def by_hand(model: CausalLM, ids: Tensor, new: int) -> Tensor:
    model.eval()
    for _ in range(new):
        ids = torch.cat((ids, model(ids)[:, -1:].argmax(-1)), dim=1)
    return ids


@pytest.mark.parametrize("options", [{}, {"positions": "rope"}, {"architecture": "bigram"}])
def test_the_greedy_tokens_are_the_likeliest(options: dict[str, object]) -> None:
    model = small(**options)
    written = model.generate(PROMPTS, 5, greedy=True)
    assert model.training, "it is left as it was"
    assert torch.equal(written, by_hand(model, PROMPTS, 5))
    assert torch.equal(written, ch.generate_ids(model, PROMPTS, max_new_tokens=5, greedy=True))
    assert written.dtype == torch.int64
    assert model.generate(PROMPTS.int(), 1).dtype == torch.int32


def test_it_may_be_longer_than_the_block() -> None:
    assert small().generate(torch.full((1, 8), 2), 20).shape == (1, 28)


def test_a_seed_or_torchs_own_repeats_the_draw() -> None:
    model = small()
    assert torch.equal(model.generate(PROMPTS, 9, seed=1), model.generate(PROMPTS, 9, seed=1))
    torch.manual_seed(3)
    first, second = model.generate(PROMPTS, 9), model.generate(PROMPTS, 9)
    torch.manual_seed(3)
    assert torch.equal(model.generate(PROMPTS, 9), first)
    assert not torch.equal(first, second)


def test_every_row_is_continued_as_often_as_is_said() -> None:
    written = small().generate(PROMPTS, 9, num_samples=3, seed=1)
    assert written.shape == (6, 12)
    assert torch.equal(written[:, :3], PROMPTS.repeat_interleave(3, dim=0))
    assert len(set(map(tuple, written[:3].tolist()))) > 1


def test_rows_that_end_early_are_filled_up_with_the_end() -> None:
    model = small()
    free = model.generate(PROMPTS, 5, greedy=True)
    end = int(free[0, 4])  # the second token that the first row writes
    written = model.generate(PROMPTS, 5, greedy=True, end=end)
    lengths = [row.index(end) if end in row else 5 for row in free[:, 3:].tolist()]
    assert written.shape == (2, 3 + max(lengths))
    for row, length in enumerate(lengths):
        assert torch.equal(written[row, : 3 + length], free[row, : 3 + length])
        assert written[row, 3 + length :].eq(end).all()


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_ids_are_one_sentence(kind: str) -> None:
    ids, sentence = WRONG[kind]
    with pytest.raises(InputError, match=sentence):
        small().generate(ids)


def test_ids_have_no_text_to_stop_at() -> None:
    with pytest.raises(UsageError, match="stop: token ids have no text"):
        small().generate(PROMPTS, stop=("x",))
    with pytest.raises(UsageError, match="did you mean 'greedy'"):
        small().generate(PROMPTS, gredy=True)


def test_models_load_nothing_of_it_before_it_is_called() -> None:
    program = (
        "import sys, torch\n"
        "from clearhead.models import DecoderLM\n"
        "from clearhead.config import ModelConfig\n"
        "model = DecoderLM(ModelConfig(n_layers=1))\n"
        "assert 'clearhead.inference' not in sys.modules\n"
        "print(model.generate(torch.tensor([[1, 2]]), 3).shape[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.stdout == "5\n", done.stderr
