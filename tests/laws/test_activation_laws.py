"""A step that bears the name of an activation returned just that activation, to the last bit, in every model."""

from typing import Any

import numpy as np
import pytest
import torch
from law_models import CHOICES, make_model, name, random_ids
from pair_models import ENCODER_CHOICES, PAIR_CHOICES, make_encoder, make_translator, some_ids

from clearhead.doctor.probes.tracing import recorded_ops
from clearhead.inspection import record
from clearhead.inspection.capture.vectors import token_vectors
from clearhead.inspection.steps.activations import activations_of_steps
from clearhead.inspection.steps.recording import record_steps
from clearhead.models import LanguageModel

B, T, T_SRC = 1, 9, 8
# What every block has a step for, whatever its options are.
EVERYWHERE = ("part.query", "part.key", "part.value", "part.output", "part.q", "part.v", "part.mixed", "part.hidden")


def assert_law(model: LanguageModel, *inputs: torch.Tensor) -> None:
    steps = record_steps(model, lambda: model(*inputs))
    with torch.no_grad(), recorded_ops() as ops:
        model(*inputs)
    outputs = [output for call in ops.calls if call.module is not None for output in call.outputs]
    floats = [index for index, step in enumerate(steps) if step.dtype.startswith("float")]  # no others are copied
    assert [tuple(output.shape) for output in outputs] == [steps[index].shape for index in floats]
    with torch.no_grad(), record(model) as trace:
        model(*inputs)
    names = activations_of_steps(model, steps, {key: trace[key].shape for key in trace.names})
    for index, output in zip(floats, outputs, strict=True):
        activation = names[index]
        assert activation is None or torch.equal(trace.tensor(activation), output), activation
    named = [activation for activation in names if activation]
    assert len(named) == len(set(named))
    for activation in trace.names:
        if activation.endswith(EVERYWHERE) and not is_as_normalized(model, activation):
            assert activation in named


def is_as_normalized(model: LanguageModel, activation: str) -> bool:
    """Whether queries are what their norm returned, which is a step of another name, since nothing rotates them."""
    is_rotated = model.config.positions == "rope" and "cross" not in activation
    return activation.endswith("part.q") and model.config.qk_norm and not is_rotated


def assert_vectors(model: LanguageModel, *inputs: torch.Tensor) -> None:
    """Where nothing else is added or normalized, the vectors' sum is what the first block reads."""
    config = model.config
    with torch.no_grad(), record(model) as trace:
        model(*inputs)
    for vectors in token_vectors(model, *inputs):
        stack = {"source": "encoder", "target": "decoder", "text": "stack"}[vectors.side]
        if vectors.side != "source":
            assert np.array_equal(vectors.embedding, trace["embedding"][0])
        assert (vectors.positions is not None) == (config.positions in ("learned", "sinusoidal"))
        if not config.embedding_norm and config.embedding_ngrams == 1 and not config.n_token_types:
            total = vectors.embedding + (0 if vectors.positions is None else vectors.positions)
            assert np.array_equal(total, trace[f"{stack}.input"][0])


@pytest.mark.parametrize("choice", CHOICES[::3], ids=name)
def test_decoders(choice: dict[str, Any]) -> None:
    model, ids = make_model(**choice), random_ids(B, T)
    assert_law(model, ids)
    assert_vectors(model, ids)


@pytest.mark.parametrize("choice", PAIR_CHOICES[::3], ids=name)
def test_translators(choice: dict[str, Any]) -> None:
    model, inputs = make_translator(**choice), (some_ids(B, T_SRC), some_ids(B, T, seed=1))
    assert_law(model, *inputs)
    assert_vectors(model, *inputs)


@pytest.mark.parametrize("choice", ENCODER_CHOICES[::3], ids=name)
def test_encoders(choice: dict[str, Any]) -> None:
    model, ids = make_encoder(**choice), some_ids(B, T)
    assert_law(model, ids)
    assert_vectors(model, ids)
