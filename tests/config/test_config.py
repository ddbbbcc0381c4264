"""Options: written once, refused in one sentence, the same after a trip through TOML."""

import inspect
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from clearhead.config import (
    OBJECTIVES,
    DataConfig,
    EngineConfig,
    FillConfig,
    GenerationConfig,
    ModelConfig,
    RunConfig,
    SamplingConfig,
    TrainConfig,
    TranslationConfig,
)
from clearhead.errors import ArgumentError, UsageError
from clearhead.options import Options, has_arguments, merge, read_toml, to_toml
from clearhead.suggestions import did_you_mean

ALL = [ModelConfig, DataConfig, TrainConfig, SamplingConfig, EngineConfig, TranslationConfig, FillConfig, RunConfig]
ALL += [GenerationConfig]
SHAPES = st.tuples(st.integers(1, 8), st.integers(1, 8), st.integers(1, 64))


def refusal(options: type[Options], *layers: dict[str, Any]) -> str:
    with pytest.raises(UsageError) as error:
        options.read(*layers)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("options", ALL)
def test_every_option_is_described_typed_and_has_a_default(options: type[Options]) -> None:
    assert options() == options.read()
    for name, field in options.model_fields.items():
        nested = isinstance(field.annotation, type) and issubclass(field.annotation, Options)
        assert nested or field.description, name
        assert not field.is_required(), name


@pytest.mark.parametrize("options", ALL)
def test_options_do_not_change(options: type[Options]) -> None:
    name = next(iter(options.model_fields))
    with pytest.raises(ValidationError):
        setattr(options(), name, getattr(options(), name))


@pytest.mark.parametrize("options", ALL)
def test_there_is_a_schema(options: type[Options]) -> None:
    assert json.dumps(options.model_json_schema())


@pytest.mark.parametrize(
    ("options", "layer", "message"),
    [
        (RunConfig, {"train": {"stpes": 5}}, "train: unknown option 'stpes'; did you mean 'steps'?"),
        (RunConfig, {"modle": {}}, "unknown option 'modle'; did you mean 'model'?"),
        (
            ModelConfig,
            {"norm": "batchnorm"},
            "norm must be 'layernorm', 'rmsnorm' or 'rmsnorm_plus_one', not 'batchnorm'",
        ),
        (ModelConfig, {"d_model": 0}, "d_model must be at least 1, not 0"),
        (ModelConfig, {"dropout": 1.0}, "dropout must be below 1, not 1.0"),
        (ModelConfig, {"d_model": 33, "n_heads": 4}, "d_model (33) is not divisible by n_heads (4); the nearest d_mo"),
        (ModelConfig, {"n_heads": 4, "n_kv_heads": 3}, "n_heads (4) is not divisible by n_kv_heads (3)"),
        (ModelConfig, {"positions": "rope", "d_model": 12, "n_heads": 4}, "choose an even width"),
        (ModelConfig, {"positions": "sinusoidal", "d_model": 33, "n_heads": 3}, "even d_model, not 33"),
        (ModelConfig, {"embedding_ngrams": 9}, "embedding_ngrams must be at most 8, not 9"),
        (ModelConfig, {"architecture": "encoder", "logit_ngrams": 2}, "n-gram tables need the architecture 'decoder'"),
        (
            ModelConfig,
            {"architecture": "bigram", "embedding_ngrams": 2},
            "n-gram tables need the architecture 'decoder'",
        ),
        (TrainConfig, {"learning_rate": math.inf}, "learning_rate must be finite, not inf"),
        (TrainConfig, {"learning_rate": math.nan}, "learning_rate"),
        (TrainConfig, {"max_grad_norm": math.nan}, "max_grad_norm"),
        (
            ModelConfig,
            {"architecture": "encoder", "sliding_window": 4},
            "sliding_window needs the architecture 'decoder'",
        ),
        (ModelConfig, {"vocab_size": 9, "pad_id": 9}, "pad_id (9) is no token of vocab_size (9)"),
        (ModelConfig, {"source_vocab_size": 5, "pad_id": 7}, "pad_id (7) is no token of source_vocab_size (5)"),
        (TranslationConfig, {"n_best": 6}, "n_best (6) is more than beam_size (5) holds"),
        (RunConfig, {"objective": "seq2seq"}, "needs the architecture encoder_decoder, not decoder"),
        (RunConfig, {"model": {"architecture": "encoder"}}, "needs the architecture decoder or bigram, not encoder"),
        (SamplingConfig, {"temperature": -0.1}, "temperature must be at least 0, not -0.1"),
        (SamplingConfig, {"temperature": math.inf}, "temperature must be finite, not inf"),
        (SamplingConfig, {"greedy": False, "temperature": 0}, "temperature 0 is greedy"),
        (SamplingConfig, {"num_samples": None}, "num_samples must be a whole number, not none"),
        (EngineConfig, {"engine": "plain"}, "must be 'auto', 'eager' or 'native', not 'plain'; did you mean 'eager'?"),
        (RunConfig, {"seed": 2**63}, "seed"),
        (RunConfig, {"train": 5}, "train must be a table of options, not 5"),
    ],
)
def test_what_cannot_be_is_one_sentence(options: type[Options], layer: dict[str, Any], message: str) -> None:
    sentence = refusal(options, layer)
    assert message in sentence
    with pytest.raises(UsageError) as error:
        options(**layer)
    assert str(error.value) == sentence


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (5, 0), (100, 10), (999, 99), (1000, 100), (20_000, 100)])
def test_the_warm_up_follows_the_steps(steps: int, warmup: int) -> None:
    assert TrainConfig(steps=steps).warmup_steps == warmup
    assert TrainConfig(steps=steps, warmup_steps=7).warmup_steps == 7


def test_every_architecture_has_an_objective_and_every_objective_an_architecture() -> None:
    architectures = get_args(ModelConfig.model_fields["architecture"].annotation)
    assert sorted(name for able in OBJECTIVES.values() for name in able) == sorted(architectures)
    assert set(OBJECTIVES) == set(get_args(RunConfig.model_fields["objective"].annotation))


def test_no_clipping_is_a_choice() -> None:
    assert TrainConfig.read({"max_grad_norm": "inf"}).max_grad_norm == math.inf


@given(heads=st.integers(1, 12), d_model=st.integers(1, 200))
def test_the_width_that_is_proposed_is_possible_and_nearest(heads: int, d_model: int) -> None:
    if d_model % heads == 0:
        assert ModelConfig(d_model=d_model, n_heads=heads).head_dim == d_model // heads
        return
    message = refusal(ModelConfig, {"d_model": d_model, "n_heads": heads})
    proposed = int(message.rsplit(" ", 1)[1])
    assert ModelConfig(d_model=proposed, n_heads=heads).d_model == proposed
    possible = [width for width in range(1, 2 * d_model + heads + 1) if width % heads == 0]
    assert abs(proposed - d_model) == min(abs(width - d_model) for width in possible)


def test_heads_of_a_stated_width_need_not_divide_the_model() -> None:
    assert ModelConfig(d_model=100, n_heads=3, head_dim=33).head_dim == 33
    assert "not divisible" in refusal(ModelConfig, {"d_model": 100, "n_heads": 3})


@given(n_heads=st.integers(1, 8), width=st.integers(1, 16))
def test_what_follows_from_other_options(n_heads: int, width: int) -> None:
    config = ModelConfig(n_heads=n_heads, d_model=n_heads * width)
    assert (config.n_kv_heads, config.d_ff) == (n_heads, 4 * n_heads * width)
    gated = ModelConfig(n_heads=n_heads, d_model=n_heads * width, feedforward="swiglu").d_ff
    assert gated % 8 == 0
    assert 0 <= gated - 8 / 3 * n_heads * width < 8


SOME = {
    "seed": st.integers(0, 2**63 - 1),
    "model": st.fixed_dictionaries(
        {},
        optional={
            "n_layers": st.integers(1, 99),
            "dropout": st.floats(0, 1, exclude_max=True),
            "positions": st.sampled_from(get_args(ModelConfig.model_fields["positions"].annotation)),
            "sliding_window": st.none() | st.integers(1, 99),
            "tie_embeddings": st.booleans(),
            "rope_theta": st.floats(1, 1e300, exclude_min=True),
        },
    ),
    "data": st.fixed_dictionaries({}, optional={"source": st.text()}),
    "train": st.fixed_dictionaries(
        {},
        optional={
            "max_grad_norm": st.floats(0, exclude_min=True),
            "learning_rate": st.floats(1e-300, 1e300),
            "threads": st.none() | st.integers(1, 9),
        },
    ),
}


@given(layer=st.fixed_dictionaries({}, optional=SOME))
def test_toml_brings_every_option_back(layer: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    config = RunConfig.read(layer)
    path = tmp_path_factory.getbasetemp() / "options.toml"
    path.write_text(to_toml(config), encoding="utf-8", newline="")
    assert RunConfig.read(read_toml(path)) == config


LAYERS = st.recursive(
    st.integers() | st.none(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
).filter(lambda value: isinstance(value, dict))


@given(first=LAYERS, second=LAYERS, third=LAYERS)
def test_merging_layers(first: Any, second: Any, third: Any) -> None:
    assert merge(first) == merge(first, {}) == merge({}, first) == merge(first, first) == first
    assert merge(first, second, third) == merge(merge(first, second), third)
    before = json.dumps([first, second])
    merged = merge(first, second)
    assert json.dumps([first, second]) == before, "no layer is changed"
    for key in first.keys() | second.keys():
        if key not in second:
            assert merged[key] == first[key]
        elif not isinstance(second[key], dict):
            assert merged[key] == second[key], "the later layer wins"


def test_did_you_mean() -> None:
    assert did_you_mean("stpes", ["steps", "source"]) == "; did you mean 'steps'?"
    assert did_you_mean("zzz", ["steps", "source"]) == ""


HUGE = [10**400, -(10**400), 2**63, "1" + "0" * 400, "1" * 5_000, int("f" * 5_000, 16)]


@pytest.mark.parametrize("options", [options for options in ALL if options is not RunConfig])
def test_a_huge_number_is_one_short_sentence(options: type[Options]) -> None:
    for name, field in options.model_fields.items():
        numbers = {int, float} & {field.annotation, *get_args(field.annotation)}
        for value in HUGE if numbers else ():
            if float in numbers and value == 2**63:
                continue  # a float may be that large
            if name == "max_grad_norm" and isinstance(value, str):
                continue  # a text is read as infinite, which is no clipping
            assert len(refusal(options, {name: value})) < 300


def test_a_file_with_a_number_of_too_many_digits_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "options.toml"
    path.write_text(f"seed = {'1' * 5_000}\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"options\.toml cannot be read as TOML: it holds an integer of too many"):
        read_toml(path)
    path.write_text(f"seed = 0x{'f' * 5_000}\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"seed must be .*thousands of digits"):
        RunConfig.read(read_toml(path))


def test_a_dotted_name_is_the_option_of_a_table() -> None:
    config = RunConfig.read({"train": {"steps": 5}, "model.d_model": 64}, {"train.steps": 7, "train.batch_size": 3})
    assert (config.train.steps, config.train.batch_size, config.model.d_model) == (7, 3, 64)
    with pytest.raises(UsageError, match=r"^train: unknown option 'stpes'; did you mean 'steps'\?$"):
        RunConfig.read({"train.stpes": 5})


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("steps", "train.steps"), ("lr", "train.learning_rate"), ("n_embd", "model.d_model"), ("seeed", "seed")],
)
def test_an_option_outside_its_table_is_recognized(typed: str, meant: str) -> None:
    with pytest.raises(UsageError, match=rf"^unknown option '{typed}'; did you mean '{meant}'\?"):
        RunConfig.read({typed: 1})


@has_arguments(RunConfig)
def learn(source: str, *, minutes: float = 1, options: Mapping[str, object] | None = None) -> str:
    return f"{source} {minutes:g} {options}"


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"minuts": 2}, "learn has no argument 'minuts'; did you mean `minutes`?"),
        ({"steps": 3}, "learn has no argument 'steps'; did you mean `options={'train.steps': 3}`?"),
        ({"tokenizer": "bpe"}, "learn has no argument 'tokenizer'; did you mean `options={'data.tokenizer': 'bpe'}`?"),
        ({"epochs": 2}, "learn has no argument 'epochs'; it has source, minutes, options"),
    ],
)
def test_an_unknown_keyword_is_a_sentence_with_what_was_meant(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TypeError) as error:
        learn("a.txt", **wrong)
    assert str(error.value) == sentence
    assert isinstance(error.value, UsageError)


def test_a_missing_argument_and_one_too_many_are_sentences() -> None:
    call: Any = learn
    with pytest.raises(ArgumentError, match=r"^learn: missing a required argument: 'source'$"):
        call()
    with pytest.raises(ArgumentError, match=r"^learn: too many positional arguments$"):
        call("a.txt", 2)


class Rest(TypedDict, total=False):
    minutes: float
    options: Mapping[str, object] | None


@has_arguments(RunConfig)
def learn_from(source: str, **rest: Unpack[Rest]) -> str:
    return f"{source} {rest}"


def test_unpacked_keywords_are_arguments_like_others() -> None:
    assert learn_from("a.txt", minutes=2) == "a.txt {'minutes': 2}"
    assert list(inspect.signature(learn_from).parameters) == list(inspect.signature(learn).parameters)
    call: Any = learn_from
    with pytest.raises(ArgumentError, match=r"^learn_from has no argument 'minuts'; did you mean `minutes`"):
        call("a.txt", minuts=2)
    with pytest.raises(ArgumentError, match=r"^learn_from has no argument 'rest'; it has source, minutes, options$"):
        call("a.txt", rest={})


def test_what_the_sentence_suggests_can_be_passed() -> None:
    assert learn("a.txt", minutes=2, options={"train.steps": 3}) == "a.txt 2 {'train.steps': 3}"
    assert list(inspect.signature(learn).parameters) == ["source", "minutes", "options"]
    assert RunConfig.read({"train.steps": 3}).train.steps == 3
