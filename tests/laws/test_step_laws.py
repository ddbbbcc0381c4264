"""The axes of every step of every model have a symbol that holds for models of other sizes as well."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from law_models import CHOICES, make_model, name, random_ids
from pair_models import ENCODER_CHOICES, PAIR_CHOICES, make_encoder, make_translator, some_ids

from clearhead.inspection import TraceStep, TraceTable
from clearhead.inspection.steps.axes import size_of
from clearhead.inspection.steps.ours import trace_config, trace_model
from clearhead.inspection.steps.recording import record_steps
from clearhead.inspection.steps.twin import sizes_of
from clearhead.models import LanguageModel

B, T, T_SRC = 3, 9, 8
OTHER_B, OTHER_T, OTHER_T_SRC = 2, 10, 11
LARGER = {"vocab_size": 17, "block_size": 30, "n_heads": 8, "d_model": 48, "d_ff": 40}
AFTER_THEM = 8  # constants are smaller: lengths of n-grams, a broadcast axis
REFORMED = ("reshape", "flatten", "contiguous", "to")  # with one row, memory often lies as it must already


def larger(choice: dict[str, Any]) -> dict[str, Any]:
    """The choice in a model of other sizes."""
    heads, width = choice["n_kv_heads"], choice["head_dim"]
    return choice | LARGER | {"n_kv_heads": {4: 8, 2: 4, 1: 2}[heads], "head_dim": {4: 12, 8: 20}[width]}


def assert_law(table: TraceTable, other: LanguageModel, *inputs: torch.Tensor) -> None:
    """The symbols give the captured shapes, and with another model's sizes the shapes that it has."""
    for step in table.steps:
        assert tuple(size_of(axis, table.sizes) for axis in step.axes) == step.shape, step
        assert not [axis for axis in step.axes if axis.isdecimal() and int(axis) > AFTER_THEM], step
    (rows, length), T_src = inputs[-1].shape, inputs[0].shape[1] if len(inputs) > 1 else None
    sizes = sizes_of(other.config, rows, length, T_src)
    steps = record_steps(other, lambda: other(*inputs))
    assert len(steps) == len(table.steps)
    for step, named in zip(steps, table.steps, strict=True):
        assert tuple(size_of(axis, sizes) for axis in named.axes) == step.shape, (named, step)
        assert tuple(size_of(axis, sizes) for axis in named.score_axes) == step.score_shape, (named, step)


@pytest.mark.parametrize("choice", CHOICES, ids=name)
def test_decoders(choice: dict[str, Any]) -> None:
    table = trace_model(make_model(**choice), random_ids(B, T))
    assert_law(table, make_model(**larger(choice)), random_ids(OTHER_B, OTHER_T))


@pytest.mark.parametrize("choice", PAIR_CHOICES, ids=name)
def test_translators(choice: dict[str, Any]) -> None:
    table = trace_model(make_translator(**choice), some_ids(B, T_SRC), some_ids(B, T, seed=1))
    other = make_translator(**larger(choice) | {"decoder_start_id": None})
    assert_law(table, other, some_ids(OTHER_B, OTHER_T_SRC), some_ids(OTHER_B, OTHER_T))


@pytest.mark.parametrize("choice", ENCODER_CHOICES, ids=name)
def test_encoders(choice: dict[str, Any]) -> None:
    table = trace_model(make_encoder(**choice), some_ids(B, T))
    assert_law(table, make_encoder(**larger(choice)), some_ids(OTHER_B, OTHER_T))


@pytest.mark.parametrize("choice", CHOICES[::4], ids=name)
def test_a_model_that_is_not_built_has_the_steps_of_the_one_that_is(choice: dict[str, Any]) -> None:
    """Replayed from the config alone: shapes, types, bytes, weights and lines."""
    model = make_model(**choice).float()
    real = trace_model(model, random_ids(1, T))
    replayed = trace_config(model.config, T)
    assert replayed.parameters == real.parameters
    assert replayed.sizes == real.sizes
    assert [comparable(step) for step in replayed.steps] == [comparable(step) for step in real.steps]


def comparable(step: TraceStep) -> TraceStep:
    return replace(step, bytes=0) if step.operation in REFORMED else step


@pytest.mark.parametrize("side", ["left", "right", "start"])
def test_padding_takes_the_same_path_in_the_twin(side: str) -> None:
    source, target = some_ids(B, T_SRC), some_ids(B, T, seed=1)
    model = make_translator(**PAIR_CHOICES[0])
    if side == "start":
        target[:, 0] = 0
        model = make_translator(**PAIR_CHOICES[0] | {"decoder_start_id": 0})
    else:
        rows = slice(2) if side == "left" else slice(-2, None)
        source[1, rows], target[1, rows] = 0, 0
    table = trace_model(model, source, target)
    axes = {axis for step in table.steps for axis in (*step.axes, *step.score_axes)}
    assert {"B", "T", "T_src", "D", "V"} <= axes
    assert not [axis for axis in axes if axis.isdecimal() and int(axis) > AFTER_THEM]
