"""The twin and the torch models give the same logits from the same weights, whatever the configuration."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, get_args

import numpy as np
import pytest
from model_options import listed_choices
from twin_cases import NUMBERS, Case, draw_case, uncovered

from clearhead import reference
from clearhead.config import ModelConfig
from clearhead.reference import Array, Ids, Weights, attention, models, ngrams
from clearhead.reference.positions import alibi, sinusoidal

N_CASES, TOLERANCE = 320, 1e-10


@cache
def case_of(seed: int) -> Case:
    return draw_case(seed)


@pytest.mark.parametrize("seed", range(N_CASES))
def test_the_twin_and_torch_agree(seed: int) -> None:
    case = case_of(seed)
    difference = case.difference()
    assert difference <= TOLERANCE, f"the logits differ by up to {difference:.1e} with {case.config!r}"


@pytest.mark.parametrize("seed", range(N_CASES))
def test_every_weight_is_known_by_name_and_shape(seed: int) -> None:
    case = case_of(seed)
    built = {name: tuple(tensor.shape) for name, tensor in case.model.state_dict().items()}
    assert reference.weight_shapes(case.config) == built


def test_every_choice_of_the_model_config_is_covered() -> None:
    missing = uncovered(case_of(seed).config for seed in range(N_CASES))
    assert not missing, f"no case has {sorted(map(str, missing))}"


def test_every_other_option_is_varied() -> None:
    configs = [case_of(seed).config for seed in range(N_CASES)]
    assert listed_choices().keys() | NUMBERS.keys() == ModelConfig.model_fields.keys()
    for name in ModelConfig.model_fields:
        assert len({getattr(config, name) for config in configs if config.architecture != "bigram"}) > 1, name


def test_a_choice_that_no_case_has_would_be_missed() -> None:
    configs = [case_of(seed).config for seed in range(N_CASES)]
    for name, values in listed_choices().items():
        for value in values:
            assert (name, value) in uncovered(config for config in configs if getattr(config, name) != value)


def test_the_twins_choices_are_the_configs() -> None:
    kinds: dict[str, set[str]] = {
        "architecture": set(reference.FORWARDS),
        "norm": set(reference.NORMS),
        "feedforward": set(reference.FEEDFORWARDS),
        "positions": {*reference.ADDED, *reference.ROTATED, *reference.BIASED, "none"},
    }
    for name, known in kinds.items():
        assert known == set(get_args(ModelConfig.model_fields[name].annotation)), name


# Faults that implementations have had: each stands in for a function of the twin, and some case must tell.


def divides_by_one_less(x: Array, weights: Weights, eps: float) -> Array:
    centred: Array = x - x.mean(-1, keepdims=True)
    spread: Array = np.sqrt(x.var(-1, keepdims=True, ddof=1) + eps)
    return centred / spread * weights["weight"] + weights["bias"]


def epsilon_outside_the_root(x: Array, weights: Weights, eps: float) -> Array:
    root: Array = np.sqrt((x**2).mean(-1, keepdims=True))
    return x / (root + eps) * weights["weight"]


def rotated_by_neighbors(x: Array, angles: Array) -> Array:
    first, rest = np.split(x, [2 * angles.shape[-1]], axis=-1)
    turned = (first[..., 0::2] + 1j * first[..., 1::2]) * np.exp(1j * angles[:, np.newaxis])
    return np.concatenate((np.stack((turned.real, turned.imag), axis=-1).reshape(first.shape), rest), axis=-1)


def one_key_too_many(query: Ids, key: Ids, **options: Any) -> Any:
    window = options.pop("window", None)
    return reference.may_attend(query, key, window=None if window is None else window + 1, **options)


def sees_the_future(query: Ids, key: Ids, **options: Any) -> Any:
    return reference.may_attend(query, key, **{**options, "causal": False})


def sees_padding(query: Ids, key: Ids, **options: Any) -> Any:
    return reference.may_attend(query, np.abs(key), **options)


def sees_other_documents(query: Ids, key: Ids, **options: Any) -> Any:
    return reference.may_attend(query, key, **{**options, "documents": None})


def biased_the_other_way(query: Ids, key: Ids, weights: Weights, config: ModelConfig, *, causal: bool) -> Array:
    return -alibi(query, key, weights, config, causal=causal)


def shifted(positions: Ids, weights: Weights, config: ModelConfig) -> Array:
    return sinusoidal(positions + 1, weights, config)


def served_in_turns(heads: Array, n_heads: int) -> Array:
    return np.concatenate([heads] * (n_heads // heads.shape[1]), axis=1)


def with_padding(ids: Ids, positions: Ids, *rest: Any) -> Array:
    return reference.ngram_vectors(ids, np.abs(positions), *rest)


def across_documents(ids: Ids, positions: Ids, documents: Ids | None, *rest: Any) -> Array:
    return reference.ngram_vectors(ids, positions, None, *rest)


def read_backwards(gram: list[int], config: ModelConfig) -> int:
    return reference.ngram_row(gram[::-1], config)


def replace_norm(patch: pytest.MonkeyPatch, kind: str, forward: Callable[[Array, Weights, float], Array]) -> None:
    patch.setitem(reference.NORMS, kind, reference.NORMS[kind]._replace(forward=forward))


FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "variance over D - 1": lambda patch: replace_norm(patch, "layernorm", divides_by_one_less),
    "epsilon outside the root": lambda patch: replace_norm(patch, "rmsnorm", epsilon_outside_the_root),
    "neighbors are turned": lambda patch: patch.setattr(attention, "apply_rotary", rotated_by_neighbors),
    "heads in the wrong order": lambda patch: patch.setattr(attention, "repeat_kv", served_in_turns),
    "a window one too wide": lambda patch: patch.setattr(models, "may_attend", one_key_too_many),
    "the future is seen": lambda patch: patch.setattr(models, "may_attend", sees_the_future),
    "padding is seen": lambda patch: patch.setattr(models, "may_attend", sees_padding),
    "documents are one": lambda patch: patch.setattr(models, "may_attend", sees_other_documents),
    "n-grams with padding": lambda patch: patch.setattr(models, "ngram_vectors", with_padding),
    "n-grams across documents": lambda patch: patch.setattr(models, "ngram_vectors", across_documents),
    "n-grams read backwards": lambda patch: patch.setattr(ngrams, "ngram_row", read_backwards),
    "distance is a gain": lambda patch: patch.setitem(reference.BIASED, "alibi", biased_the_other_way),
    "places counted from 1": lambda patch: patch.setitem(reference.ADDED, "sinusoidal", shifted),
}


for kind in reference.FEEDFORWARDS:
    other = "relu" if kind != "relu" else "relu2"
    taken = reference.FEEDFORWARDS[kind]._replace(activation=reference.FEEDFORWARDS[other].activation)
    FAULTS[f"{kind} bends like {other}"] = partial(
        lambda patch, kind, taken: patch.setitem(reference.FEEDFORWARDS, kind, taken), kind=kind, taken=taken
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[fault](monkeypatch)
    assert any(case_of(seed).difference() > TOLERANCE for seed in range(N_CASES)), "no case tells"
