"""What is chosen for the person fits the text, is said, and never overrules what the person gave."""

import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pair_helpers import write_pairs
from workflow_helpers import tiny, trained, write_text

from clearhead.config import DataConfig, RunConfig
from clearhead.config.presets import DEFAULT_MINUTES, DEFAULTS, FOR_LONG_TEXTS, PRESETS, preset
from clearhead.data import training_batch
from clearhead.errors import DataError, UsageError
from clearhead.options import merge
from clearhead.workflows import budget, describe, hardware, planning, resume, start, train, training
from clearhead.workflows.tasks import CausalTask, MaskedTask, Task, TranslationTask

SIZES = [200, 300, 1000, 5000, 40_000]


TEXTS = [name for name, entry in PRESETS.items() if entry.objective != "seq2seq"]


def plan(settings: dict[str, Any], preset_name: str | None, minutes: float | None, task: Task) -> planning.Plan:
    return planning.plan(planning.choose_start(settings, preset_name, minutes), task)


def steps_of(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose steps take so long, whatever the model."""
    monkeypatch.setattr(budget, "operations_per_second", lambda config: math.inf)
    monkeypatch.setattr(budget, "seconds_per_step", lambda config, task, patience: seconds)


def prepared(characters: int, kind: type[CausalTask] = CausalTask, **options: Any) -> CausalTask:
    source = write_text(characters, f"text{characters}.txt")
    return kind.open(DataConfig.read({"tokenizer": "char"}, options, {"source": str(source)}))


def planned(characters: int, preset_name: str | None = None, options: dict[str, Any] | None = None) -> RunConfig:
    text = prepared(characters, **preset(preset_name or "small").data)
    return plan(merge({"train": {"steps": 30}}, options or {}), preset_name, None, text).config


@pytest.mark.sampled
@pytest.mark.parametrize("characters", SIZES)
@pytest.mark.parametrize("name", TEXTS)
def test_every_preset_fits_every_text(name: str, characters: int) -> None:
    task = prepared(characters, MaskedTask if preset(name).objective == "masked" else CausalTask, **preset(name).data)
    text = task.prepared
    planned_run = plan({}, name, None, task)
    model, steps = planned_run.config.model, planned_run.config.train
    assert model.vocab_size == text.tokenizer.vocab_size
    assert 1 <= model.block_size <= preset(name).model["block_size"]
    assert model.sliding_window is None or model.sliding_window <= model.block_size
    assert 4 * model.block_size <= max(4, len(text.train)), "the text is not several windows long"
    assert model.block_size < max(2, len(text.val)), "the held-out text is not a window long"
    assert 1 <= steps.batch_size <= preset(name).train.get("batch_size", 32)
    assert steps.warmup_steps < steps.steps
    assert steps.eval_every <= steps.steps
    assert steps.save_every <= steps.steps
    sizes = {"block_size": model.block_size, "batch_size": steps.batch_size}
    assert training_batch(text.train, **sizes, seed=0, step=0).inputs.shape == (steps.batch_size, model.block_size)
    shrunk = sizes != {"block_size": preset(name).model["block_size"], "batch_size": preset(name).train["batch_size"]}
    reasons = [reason for reason in planned_run.reasons if "short" in reason]
    assert bool(reasons) == shrunk
    assert not reasons or f"block_size {model.block_size}, batch_size {steps.batch_size}" in reasons[0]


@pytest.mark.parametrize("count", [12, 40, 3000])
@pytest.mark.parametrize("name", [name for name in PRESETS if name not in TEXTS])
def test_every_translator_fits_any_number_of_pairs(name: str, count: int) -> None:
    path = str(write_pairs(count))
    task = TranslationTask.open(DataConfig.read(preset(name).data, {"source": path, "bpe_vocab_size": 300}))
    planned_run = plan({}, name, None, task)
    assert planned_run.config.model.vocab_size == task.tokenizer.vocab_size
    assert planned_run.config.model.pad_id == task.tokenizer.pad
    assert 1 <= planned_run.config.train.batch_size <= preset(name).train["batch_size"]
    shrunk = planned_run.config.train.batch_size < preset(name).train["batch_size"]
    assert any("the pairs are few" in reason for reason in planned_run.reasons) == shrunk
    assert any("of it padding" in reason for reason in planned_run.reasons)
    _, inputs, targets = task.batches(planned_run.config)(0)
    assert inputs.shape == targets.shape


def test_a_longer_text_gets_no_smaller_window_or_batch() -> None:
    configs = [planned(characters) for characters in SIZES]
    windows = [config.model.block_size for config in configs]
    assert windows == sorted(windows)
    assert windows[-1] == preset("small").model["block_size"]
    assert windows[0] < windows[-1]


@pytest.mark.parametrize("name", ["small", "bigram", "tutorial", "llama"])
def test_two_hundred_characters_are_enough(name: str) -> None:
    write_text(200)
    small = {} if name == "bigram" else {"n_layers": 1, "d_model": 16}
    run = train("my.txt", preset=name, options={"model": small, "train": {"steps": 2, "threads": 1}})
    assert run.evaluate().loss > 0
    assert run.generate("the", max_new_tokens=3).startswith("the")


GIVEN = {
    "model": {
        "block_size": st.integers(1, 150),
        "n_layers": st.integers(1, 3),
        "dropout": st.floats(0, 0.9),
        "sliding_window": st.integers(1, 100),
        "vocab_size": st.integers(100, 200),
    },
    "train": {
        "batch_size": st.integers(1, 64),
        "steps": st.integers(1, 500),
        "warmup_steps": st.integers(0, 600),
        "eval_every": st.integers(1, 1000),
        "save_every": st.integers(1, 1000),
        "learning_rate": st.floats(1e-6, 1),
    },
}
LAYERS = st.fixed_dictionaries({room: st.fixed_dictionaries({}, optional=options) for room, options in GIVEN.items()})


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layer=LAYERS, name=st.sampled_from(["small", "tutorial", "nanogpt-baby"]))
def test_what_was_given_always_wins(layer: dict[str, dict[str, Any]], name: str) -> None:
    config = plan(layer, name, None, prepared(300)).config.model_dump()
    for room, options in layer.items():
        for option, value in options.items():
            assert config[room][option] == value, option


def test_checkpoints_go_with_the_evaluations() -> None:
    """Also where a person says how often to evaluate, but not with each of many, and with none that never comes.

    The option's own number is the most steps without one.
    """
    apart = preset("small").options["train"].get("save_every", RunConfig.read({}).train.save_every)
    assert planned(300).train.save_every == planned(300).train.eval_every == 4, "of 30 steps"
    for every, saved in {1: 4, 3: 6, 4: 4, 7: 7, 30: 30, 31: 4, 10**6: 4}.items():
        assert planned(300, options={"train": {"eval_every": every}}).train.save_every == saved
    assert planned(300, options={"train": {"steps": 26, "eval_every": 26}}).train.save_every == 26, "once, at the end"
    long = {"train": {"steps": 20 * apart, "eval_every": 10 * apart}}
    assert planned(300, options=long).train.save_every == apart
    for steps, every in product(range(1, 7), repeat=2):
        assert planned(300, options={"train": {"steps": steps, "eval_every": every}}).train.save_every <= steps


def test_a_given_window_as_long_as_the_text_is_refused() -> None:
    longest = len(prepared(300).prepared.train) - 1
    assert planned(300, options={"model": {"block_size": longest}}).model.block_size == longest
    with pytest.raises(UsageError, match=f"`model.block_size` {longest + 1} is longer than the training text"):
        planned(300, options={"model": {"block_size": longest + 1}})


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused() -> None:
    with pytest.raises(UsageError, match="too small for the tokenizer"):
        planned(300, options={"model": {"vocab_size": 3}})


def test_one_character_again_and_again_is_no_text() -> None:
    write_text().write_text("a" * 500, encoding="utf-8")
    with pytest.raises(DataError, match="nothing to learn"):
        trained()


@pytest.mark.parametrize("minutes", [0, -1, float("nan"), float("inf")])
def test_an_impossible_time_is_refused_before_anything_is_done(minutes: float) -> None:
    with pytest.raises(UsageError, match="`minutes` must be above 0 and finite"):
        train("no such file", minutes=minutes)


def test_time_and_steps_cannot_both_be_given() -> None:
    with pytest.raises(UsageError, match="both say how long"):
        train("no such file", minutes=1, options={"train": {"steps": 3}})


def test_more_time_is_more_steps_until_the_text_is_learnt_by_heart(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_of(0.05, monkeypatch)
    text = prepared(200_000)
    plans = [plan({}, None, minutes, text) for minutes in (0.2, 1, 3, 10, 1000, 2000)]
    steps = [planned_run.config.train.steps for planned_run in plans]
    assert steps == sorted(steps)
    assert steps[0] < steps[1] < steps[2]
    assert steps[-1] == steps[-2], "no more than so many passes"
    assert any("passes over the data" in reason for reason in plans[-1].reasons)
    for planned_run, minutes in zip(plans, (0.2, 1, 3, 10), strict=False):
        assert 0.05 * planned_run.config.train.steps <= 60 * minutes
    assert plan({}, None, None, text).config == plan({}, None, DEFAULT_MINUTES, text).config


def test_a_default_model_is_trained_on_the_slowest_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_of(5.0, monkeypatch)
    text = prepared(200_000)
    small: tuple[tuple[dict[str, Any], str | None], ...] = (
        ({}, None),
        ({}, "tiny"),
        ({"model": {"n_layers": 2}}, None),
        ({"train": {"batch_size": 8}}, None),
    )
    for own, name in small:  # what a person chose as small as that is no worse
        slow = plan(own, name, 0.5, text)
        assert 1 <= slow.config.train.steps < budget.MIN_STEPS
        assert any("so slow" in reason for reason in slow.reasons)
    for own, name in (({}, "small"), ({"model": {"n_layers": 5}}, None), ({"train": {"batch_size": 99}}, None)):
        with pytest.raises(UsageError, match="fewer than 100 steps"):
            plan(own, name, 0.5, text)


def test_evaluations_take_little_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward pass is a third of a step, so a tenth of the time buys 0.3 evaluated tokens for each trained one."""
    steps_of(0.01, monkeypatch)
    text = prepared(500_000)
    assert text.held_out_tokens > planning.TOKENS_OF_AN_EVALUATION
    wholes = []
    for minutes in (0.05, 0.2, 0.5, 1, 3, 5):
        train = plan({}, "small", minutes, text).config.train
        tokens = train.steps * train.batch_size * PRESETS["small"].model["block_size"]
        tokens_of_one = train.eval_tokens or text.held_out_tokens
        count = -(-train.steps // train.eval_every)
        assert 3 <= count <= 8
        assert count * tokens_of_one <= max(0.3 * tokens, count * planning.TOKENS_OF_AN_EVALUATION)
        wholes.append(train.eval_tokens is None)
    assert wholes == sorted(wholes), "with more time, evaluations are on all that is held out"
    assert {True, False} == set(wholes)
    assert plan({"train": {"eval_tokens": 77, "eval_every": 2}}, "small", 0.2, text).config.train.eval_tokens == 77


def test_a_corpus_from_a_grammar_is_as_long_as_the_time_can_use() -> None:
    """By more than one pass nothing new is learned, so more minutes make more of it, unless its length was given."""
    lengths = [planning.choose_start({}, None, minutes).config.data.corpus_characters for minutes in (0.1, 1, 3, 600)]
    assert lengths == [1_000_000, 4_000_000, 12_000_000, 40_000_000]
    assert planning.choose_start({}).config.data.corpus_characters == lengths[2], "three minutes, if nothing is said"
    own = {"data": {"corpus_characters": 77_000}}
    assert planning.choose_start(own, None, 3).config.data.corpus_characters == 77_000
    assert planning.choose_start({"train": {"steps": 5}}).config.data.corpus_characters is None
    assert planning.choose_start({}, "tutorial").config.data.corpus_characters is None
    text = {"data": {"source": str(write_text(300))}}
    assert planning.choose_start(text, None, 3).config.data.corpus_characters is None


@pytest.mark.parametrize("objective", DEFAULTS)
def test_time_picks_the_preset(objective: str) -> None:
    text = None if objective == "seq2seq" else write_text(300)
    named = []
    for minutes in (0.1, 0.5, 3, 15, 600):
        data = {"source": "pairs" if text is None else str(text)}
        start = planning.choose_start({"objective": objective, "data": data}, None, minutes)
        named.append(start.description.split("'")[1])
    assert list(dict.fromkeys(named)) == [name for _, name in DEFAULTS[objective]]


@pytest.mark.parametrize("name", FOR_LONG_TEXTS)
def test_a_text_too_long_to_be_read_twice_gets_a_shallower_model(name: str) -> None:
    def described(source: str, **data: object) -> str:
        return planning.choose_start({"data": {"source": source, **data}}, None, minutes).description

    minutes = next(most for most, default in DEFAULTS["causal"] if default == name)
    enough = math.ceil(planning.CHARACTERS_PER_MINUTE * minutes / 2)
    Path("long.txt").write_bytes(b"a" * enough)
    Path("short.txt").write_bytes(b"a" * (enough - 1))
    for source in ("long.txt", "stories", ".", "*.txt"):
        assert f"'{FOR_LONG_TEXTS[name]}'" in described(source)
    for source in ("short.txt", "shakespeare", "s*.txt", "nowhere.txt", "-"):
        assert f"'{name}'" in described(source)
    assert f"'{name}'" in described("stories", corpus_characters=10_000)  # as much as the person wants, read often


def test_a_text_that_is_read_often_gets_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_of(0.01, monkeypatch)
    dropouts = [plan({}, None, 0.5, prepared(n)).config.model.dropout for n in (5_000_000, 500_000, 100_000, 20_000)]
    assert dropouts == sorted(dropouts)
    assert (dropouts[0], dropouts[-1]) == (0.0, planning.DROPOUTS[-1][1])
    short = prepared(20_000)
    chosen = plan({}, None, 0.5, short)
    assert any("dropout" in reason for reason in chosen.reasons)
    own = {"model": {"dropout": 0.05}}
    assert plan(own, None, 0.5, short).config.model.dropout == 0.05
    assert plan({}, "small", 0.5, short).config.model.dropout == PRESETS["small"].model.get("dropout", 0.0)
    assert plan({"train": {"steps": 5000}}, None, None, short).config.model.dropout == 0.0, "so many were asked for"
    masked = prepared(20_000, MaskedTask, tokenizer="auto")
    default = RunConfig.read(PRESETS["masked"].options).model.dropout
    assert plan({"objective": "masked"}, None, 0.5, masked).config.model.dropout == default


def test_a_preset_says_how_long_unless_time_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_of(0.05, monkeypatch)
    text = prepared(5000)
    assert plan({}, "tutorial", None, text).config.train.steps == preset("tutorial").train["steps"]
    assert plan({}, "tutorial", 1, text).config.train.steps < preset("tutorial").train["steps"]


def test_a_minute_said_now_wins_over_steps_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    write_text().with_name("my.toml").write_text("[train]\nsteps = 100000\nthreads = 1\n", encoding="utf-8")
    steps_of(0.01, monkeypatch)
    run = train("my.txt", config="my.toml", minutes=0.1, options={"model": tiny()["model"]})
    assert run.config.train.steps < 100_000


def test_a_memory_that_may_be_too_small_is_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    text = prepared(5000)
    needed = describe(options=plan({"train": {"steps": 9}}, None, None, text).config.model_dump()).bytes["training"]
    for there, warned in ((None, False), (3 * needed, False), (needed, True)):
        monkeypatch.setattr(planning, "memory", lambda device, there=there: there)
        reasons = plan({"train": {"steps": 9}}, None, None, text).reasons
        assert any("lower `train.batch_size`" in reason for reason in reasons) == warned
    assert (hardware.memory(torch.device("cpu")) or 2**30) > 2**28


def test_a_model_that_no_memory_holds_is_refused_before_it_is_begun() -> None:
    options = {"train": {"steps": 9}}
    for name in ("n_layers", "d_model", "vocab_size"):
        with pytest.raises(UsageError, match=r"parameters, which alone take [0-9.,]+ GB, and this machine has"):
            plan(merge(options, {"model": {name: 2**50}}), None, None, prepared(5000))


def test_what_a_training_starts_from_is_decided_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, decide, complete = list[str](), planning.choose_start, planning.plan
    for name, function in (("choose_start", decide), ("plan", complete)):

        def counted(*arguments: Any, name: str = name, function: Any = function, **more: Any) -> Any:
            calls.append(name)
            return function(*arguments, **more)

        monkeypatch.setattr(planning, name, counted)
        monkeypatch.setattr(start if name == "choose_start" else training, name, counted)
    write_text(300)
    train("my.txt", options={"train": {"steps": 1, "batch_size": 2}}, preset="tutorial", check=False)
    assert calls == ["choose_start", "plan"]


@pytest.mark.parametrize(
    ("optimizer", "sentence"),
    [("adamww", "there is no optimizer 'adamww'; did you mean 'adamw'"), ("lbfgs", "LBFGS cannot train this model")],
)
def test_an_optimizer_that_cannot_be_is_refused_before_the_data_is_read(optimizer: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        train("no-such-text.txt", options=tiny(optimizer=optimizer))
    run = trained(options={"train": {"steps": 2}})
    Path("my.txt").unlink()
    with pytest.raises(UsageError, match=sentence):
        resume(run, options={"train": {"optimizer": optimizer}})
