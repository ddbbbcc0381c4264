"""What is suggested for a misspelled name, and when nothing is."""

from importlib import import_module

import pytest

from clearhead.cli import VERBS, module_of
from clearhead.config import RunConfig, SamplingConfig
from clearhead.options import Options
from clearhead.suggestions import SYNONYMS, closest, did_you_mean


def flags() -> list[str]:
    """Those of train that come from the options, and some of its own."""
    tables = {name: field.annotation for name, field in RunConfig.model_fields.items()}
    return ["--help", "--json", "--source", "--preset", "--minutes", "--out", "--config"] + [
        f"--{table}.{option}"
        for table, options in tables.items()
        if isinstance(options, type) and issubclass(options, Options)
        for option in options.model_fields
    ]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--lr", "--train.learning_rate"),
        ("--clip", "--train.max_grad_norm"),
        ("--train.dtype", "--train.precision"),
        ("--grad-clip", "--train.max_grad_norm"),
        ("--max_iters", "--train.steps"),
        ("--n_embd", "--model.d_model"),
        ("--hidden-size", "--model.d_model"),
        ("--num_hidden_layers", "--model.n_layers"),
        ("--dropout", "--model.dropout"),
        ("--train.dropout", "--model.dropout"),
        ("--layers", "--model.n_layers"),
        ("--heads", "--model.n_heads"),
        ("--warmup", "--train.warmup_steps"),
        ("--data", "--source"),
        ("--device", "--train.device"),
        ("--train.learningrate", "--train.learning_rate"),
        ("--train.lerning_rate", "--train.learning_rate"),
        ("--minuts", "--minutes"),
        ("--warmpu", "--train.warmup_steps"),
        ("--output_dir", "--out"),
        ("--jsn", "--json"),
    ],
)
def test_flags(typed: str, meant: str) -> None:
    assert closest(typed, flags()) == meant


@pytest.mark.parametrize("typed", ["--x", "--verbose", "--quiet", "--size", "--epochs", "--name", "--log", "--", ""])
def test_no_suggestion_is_better_than_a_wrong_one(typed: str) -> None:
    assert closest(typed, flags()) is None
    assert did_you_mean(typed, flags()) == ""


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("generat", "generate"), ("eval", "evaluate"), ("sample", "generate"), ("ls", "list"), ("inspect", None)],
)
def test_verbs(typed: str, meant: str | None) -> None:
    assert closest(typed, VERBS) == meant


def test_equally_close_names_are_not_guessed_between() -> None:
    assert closest("run-3", ["run-1", "run-2"]) is None
    assert closest("run-3", ["run-1", "walk-3-b"]) == "run-1"


def test_a_known_name_is_itself() -> None:
    for name in [*flags(), *VERBS, *SamplingConfig.model_fields]:
        assert closest(name, [*flags(), *VERBS, *SamplingConfig.model_fields]) == name


def test_a_row_of_synonyms_holds_a_name_that_is_known() -> None:
    """Any other row could suggest nothing."""
    verbs = {verb: import_module(module_of(verb)).parser() for verb in VERBS}
    actions = [action for parser in verbs.values() for action in parser._actions]
    flags = {
        flag.rpartition(".")[2].strip("-").replace("-", "_") for action in actions for flag in action.option_strings
    }
    values = {value for parser in verbs.values() for choices in parser.values.values() for value in choices}
    described = {"char"}  # of options that also take other values
    assert not [sorted(row) for row in SYNONYMS if not row & (flags | values | verbs.keys() | described)]


@pytest.mark.parametrize(
    ("typed", "files", "meant"),
    [
        ("nofile.txt", ["o.txt", "cells.txt"], None),
        ("a.txt", ["o.txt", "b.txt"], None),
        ("shakespear.txt", ["o.txt", "shakespeare.txt"], "shakespeare.txt"),
        ("notes.txt", ["notes.md"], None),
        ("my.txt", ["my.tsv", "my.txt.gz"], "my.txt.gz"),
    ],
)
def test_that_two_files_end_alike_is_no_likeness(typed: str, files: list[str], meant: str | None) -> None:
    assert closest(typed, files) == meant
