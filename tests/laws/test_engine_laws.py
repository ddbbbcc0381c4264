"""A step over a static cache, whole and with packed matrices, equals the model's own call: over every choice."""

from pathlib import Path

import pytest
import torch
from law_models import CHOICES, VOCAB_SIZE, Choice, assert_same, make_model, name, random_ids
from torch import Tensor

from clearhead.config import EngineConfig, SamplingConfig
from clearhead.inference import context, engine, generate_ids
from clearhead.inference.compiled.static import Step, count_column, state_of
from clearhead.models import CausalLM
from clearhead.parts import DecoderCache, padded_positions

every_choice = pytest.mark.parametrize("choice", CHOICES, ids=name)
BLOCK_SIZE, NEW_TOKENS = 10, 8  # rows that are full slide at once
PROMPTS = [random_ids(length, seed=length).tolist() for length in (4, 1, 13, 10, 4)]  # two longer than a block


class Uncompiled:
    """In the place of a compiled step: the same step, computed by torch operation by operation."""

    def __init__(self, folder: Path, step: Step) -> None:
        self.step = step

    def __call__(self, ids: Tensor, cache: DecoderCache) -> Tensor:
        logits, *tokens = self.step(ids, *state_of(cache, len(ids)))
        count_column(cache, *tokens)
        return logits  # type: ignore[no-any-return]

    def logits(self, ids: Tensor, cache: DecoderCache) -> Tensor:
        return self.step(ids, *state_of(cache, len(ids)))[0]  # type: ignore[no-any-return]


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CompiledStep", Uncompiled)
    monkeypatch.setattr(engine, "is_built", lambda folder: True)
    monkeypatch.setattr(engine, "obstacle", lambda model: None)  # such as float64


def written(model: CausalLM, prompts: list[list[int]], how: dict[str, str], **options: object) -> list[list[int]]:
    texts: list[list[int]] = [[] for _ in prompts]
    notices: list[str] = []
    config = SamplingConfig.read({"max_new_tokens": NEW_TOKENS, "greedy": True}, options)
    end = VOCAB_SIZE - 1 if not config.greedy else None
    settings = EngineConfig.read(how)
    for column in generate_ids(model, prompts, config, end=end, engine=settings, on_notice=notices.append):
        for row, token in column.items():
            texts[row].append(token)
    assert not [notice for notice in notices if "compiled" in notice], "the compiled step was not used"
    return texts


@every_choice
@torch.inference_mode()
def test_a_static_step_is_the_models_call(choice: Choice) -> None:
    model, ids, lengths = make_model(**choice), random_ids(3, 12), torch.tensor([12, 3, 7])
    cache, other = model.new_cache(3, 20), model.new_cache(3, 20)
    for held in (cache, other):
        model(ids, positions=padded_positions(lengths, 12, side="left"), cache=held)
    step = Step(model, {})
    for t in range(6):
        more = random_ids(3, seed=t)
        found, *tokens = step(more, *state_of(cache, 3))
        count_column(cache, *tokens)
        assert_same(found, engine.call(model, more, other))
    for mine, theirs in zip(cache.layers, other.layers, strict=True):
        assert mine.length == theirs.length == 18
        assert_same(mine.keys, theirs.keys)
        assert_same(mine.values, theirs.values)


@every_choice
@pytest.mark.usefixtures("uncompiled")
def test_both_engines_write_the_same_text(choice: Choice) -> None:
    model = make_model(**choice, block_size=BLOCK_SIZE)
    for prompts in (PROMPTS[2:3], PROMPTS[:3]):  # one row; several, of which each slides at a time of its own
        assert written(model, prompts, {"engine": "compiled"}) == written(model, prompts, {"engine": "plain"})


@pytest.mark.parametrize("choice", CHOICES[::7], ids=name)
@pytest.mark.usefixtures("uncompiled")
def test_rows_that_end_leave_the_others_as_they_were(choice: Choice) -> None:
    model = make_model(**choice, block_size=BLOCK_SIZE)
    options = {"greedy": False, "temperature": 1.5, "seed": 3, "max_new_tokens": 14}
    compiled = written(model, PROMPTS, {"engine": "compiled"}, **options)
    assert compiled == written(model, PROMPTS, {"engine": "plain"}, **options)
    assert len(set(map(len, compiled))) > 1, "rows that end at the same time would show little"


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
@pytest.mark.parametrize("choice", CHOICES[::12], ids=name)
@pytest.mark.usefixtures("uncompiled")
def test_rounded_matrices_are_the_same_in_both_engines(choice: Choice, weights: str) -> None:
    model = make_model(**choice, block_size=BLOCK_SIZE)
    for prompts in (PROMPTS[1:2], PROMPTS[:2]):
        compiled = written(model, prompts, {"engine": "compiled", "weights": weights})
        assert compiled == written(model, prompts, {"engine": "plain", "weights": weights})


@pytest.mark.parametrize("positions", ["rope", "alibi"])
@pytest.mark.parametrize("rows", [slice(2, 3), slice(3)])
@pytest.mark.usefixtures("uncompiled")
def test_columns_that_left_the_window_make_room(monkeypatch: pytest.MonkeyPatch, positions: str, rows: slice) -> None:
    monkeypatch.setattr(context, "PREFILL_TOKENS", 6)  # and so little room
    model = make_model(positions=positions, window=5, block_size=BLOCK_SIZE)
    compiled = written(model, PROMPTS[rows], {"engine": "compiled"}, max_new_tokens=40)
    assert compiled == written(model, PROMPTS[rows], {"engine": "plain"}, max_new_tokens=40)
