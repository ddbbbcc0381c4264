"""Forms of texts: what is refused and in how much time, whatever strangers send; what tokens write; how texts end."""

import json
import subprocess
from functools import reduce
from typing import Any
from unittest.mock import Mock

import pytest
import strangers_tokenizers
import torch

from clearhead.config import GenerationConfig, ModelConfig
from clearhead.data import Tokenizer
from clearhead.errors import DataError, UsageError
from clearhead.inference import GenerationBatch, TextOptions, constraints, generate, generate_ids, grammars
from clearhead.inference import constraint_trial as program
from clearhead.inference.constraints import ConstraintCompiler
from clearhead.inference.generation import stream_ids
from clearhead.inference.grammars import ConstraintError, UntriedError, trial_fault
from clearhead.models import DecoderLM

pytest.importorskip("llguidance")

ASCII = Tokenizer.characters([chr(code) for code in range(32, 127)], end=True)
LETTERS = Tokenizer.characters('{}":, abc', end=True)


def model_of(tokenizer: Tokenizer) -> DecoderLM:
    config = ModelConfig(
        n_layers=1, n_heads=2, d_model=8, block_size=64, vocab_size=tokenizer.vocab_size, positions="rope"
    )
    return DecoderLM(config, seed=1).eval()


def nested(depth: int) -> dict[str, Any]:
    return reduce(lambda inner, _: {"type": "array", "items": inner}, range(depth), {"type": "integer"})


HOSTILE: dict[str, dict[str, Any]] = {
    "deep": nested(2000),
    "deeper than Python": {"enum": [reduce(lambda inner, _: [inner], range(5000), list[Any]())]},
    "refers to itself": {"$ref": "#"},
    "a circle": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "a multiple that has a million states": {"type": "integer", "multipleOf": 999_983},
    "alternatives of alternatives": {
        "allOf": [{"anyOf": [{"properties": {f"a{i}_{k}": {"type": "integer"}}} for k in range(4)]} for i in range(12)]
    },
    "long": {"enum": ["x" * 70_000]},
    "another place": {"$ref": "https://example.com/schema.json"},
    "a file": {"$ref": "file:///etc/passwd"},
    "no type": {"type": "wish"},
    "nothing": {"anyOf": []},
    "not implemented": {"type": "array", "uniqueItems": True},
    "options of the library": {"type": "object", "x-guidance": {"lenient": True}},
    "not finite": {"type": "number", "minimum": float("nan")},
    "looks around": {"type": "string", "pattern": "(?=a)b"},
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("schema", HOSTILE.values(), ids=HOSTILE)
def test_a_schema_that_cannot_be_kept_to_is_refused_within_bounds(schema: dict[str, Any]) -> None:
    with pytest.raises(ConstraintError) as refused:
        ConstraintCompiler(ASCII, ASCII.vocab_size).json_schema(schema)
    assert len(str(refused.value)) < 400
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "regex", ["(" * 20_000 + "a" + ")" * 20_000, "a" + "*" * 20_000, "(a", r"(a)\1", r"\bx", "a" * 70_000, "\ud800"]
)
def test_a_regex_that_cannot_be_kept_to_is_refused_within_bounds(regex: str) -> None:
    with pytest.raises(ConstraintError):
        ConstraintCompiler(ASCII, ASCII.vocab_size).regex(regex)


@pytest.mark.parametrize(
    "regex", ["(a+)+b", "(a|b)*a(a|b){30}", "((a{1000}){1000}){1000}", "(a{0,1000}){0,1000}", "(.*a.{20}b)|(.*b.{20}a)"]
)
def test_a_catastrophic_regex_costs_each_token_a_bounded_time(regex: str) -> None:
    constraint = ConstraintCompiler(ASCII, ASCII.vocab_size).regex(regex)
    batch = GenerationBatch(model_of(ASCII))
    config = GenerationConfig(max_new_tokens=60, seed=1)
    [name] = batch.add([[5]], config, ASCII.end_of_document, TextOptions(constraint=constraint))
    with batch:
        while batch.live:
            batch.step()
    assert batch.finish_reasons[name] in ("stop", "length", "error")
    assert all(isinstance(error, ConstraintError) for error in batch.failed.values())


def test_a_text_whose_form_outgrows_the_librarys_limits_ends_with_its_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    forms = ConstraintCompiler(ASCII, ASCII.vocab_size)
    monkeypatch.setitem(program.LIMITS, "max_lexer_states", 20)
    state = forms.regex("(.*a.{20}b)|(.*b.{20}a)").begin([5])

    def write() -> None:
        for token in ASCII.encode("abcab" * 12):
            state.masks([], 1, ())
            state.accept(int(token))

    with pytest.raises(ConstraintError, match="cannot be continued in its form: too many states: 20 >= 20"):
        write()


def test_what_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "SECONDS", 0.3)
    assert trial_fault(grammars.grammar_of_schema({"type": "integer", "multipleOf": 99_991_003})) == (
        "it takes too much time or memory"
    )


def test_what_could_not_be_tried_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    forms, run = ConstraintCompiler(ASCII, ASCII.vocab_size), subprocess.run
    killed = subprocess.CompletedProcess[bytes]([], -9, b"")
    failures: list[Any] = [OSError(11, "no process is left"), subprocess.TimeoutExpired("python", 20), killed]
    for failure in failures:
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "run", Mock(side_effect=[failure]))
            with pytest.raises(UntriedError, match="try again"):
                forms.regex("ab")
    counted = Mock(side_effect=run)
    monkeypatch.setattr(subprocess, "run", counted)
    for _ in range(2):
        forms.regex("ab")
        with pytest.raises(ConstraintError, match="unclosed group"):
            forms.regex("(a")
    assert counted.call_count == 2, "what the trial said is remembered"


def test_a_tokenizer_without_the_characters_is_refused() -> None:
    forms = ConstraintCompiler(LETTERS, LETTERS.vocab_size)
    with pytest.raises(ConstraintError, match="no tokens for such a text"):
        forms.json_schema({"type": "object", "properties": {"zebra": {"enum": ["a"]}}, "required": ["zebra"]})
    with pytest.raises(ConstraintError, match="no tokens for such a text"):
        forms.regex("a{40}z")
    forms.regex("a{40}")


def test_no_token_is_taken_after_which_no_token_leads_on() -> None:
    """z is no token, so that the text must not begin with b, nor go on with a comma."""
    forms = ConstraintCompiler(LETTERS, LETTERS.vocab_size)
    config = GenerationConfig(max_new_tokens=30, temperature=1.5, num_samples=12)
    for seed in range(3):
        [texts] = generate(
            model_of(LETTERS), LETTERS, ["a"], config.model_copy(update={"seed": seed, "regex": "a|bz|cabz|cac"})
        )
        assert {*texts} <= {"a", "cac"}
    assert forms.choice(["a", "zoo"]) is not None


@pytest.mark.parametrize(
    "make",
    [strangers_tokenizers.gpt2, strangers_tokenizers.llama3, strangers_tokenizers.llama2, strangers_tokenizers.gemma,
     strangers_tokenizers.own_bpe, strangers_tokenizers.own_characters],
)  # fmt: skip
def test_what_tokens_write_is_what_the_decoder_says(make: Any) -> None:
    library = make()
    tokenizer = library if isinstance(library, Tokenizer) else Tokenizer(library)
    table = tokenizer.token_bytes()
    assert len(table) == tokenizer.vocab_size
    text = "a king goes home"
    ids = [int(token) for token in tokenizer.encode(text)]
    assert b"".join(table[token] or b"" for token in ids).decode().strip() == text


def test_a_tokenizer_whose_tokens_depend_on_their_neighbors_is_refused() -> None:
    with pytest.raises(DataError, match="depends on their neighbors"):
        Tokenizer(strangers_tokenizers.bert()).token_bytes()


def test_a_space_that_the_decoder_leaves_out_does_not_begin_a_text() -> None:
    tokenizer = Tokenizer(strangers_tokenizers.llama2(), 2)
    config = GenerationConfig(max_new_tokens=20, temperature=1.5, num_samples=8, seed=1, regex=" ?(the|cat)")
    forms = ConstraintCompiler(tokenizer, tokenizer.vocab_size)
    state = forms.regex(" ?(the|cat)").begin([1])
    [mask] = state.masks([], 1, {2})
    table = tokenizer.token_bytes()
    assert not any((table[token] or b"").startswith(b" ") for token in mask.nonzero().flatten().tolist())
    [texts] = generate(model_of(tokenizer), tokenizer, ["cat"], config)
    assert {text.strip() for text in texts} <= {"the", "cat"}


def test_a_text_that_reaches_its_length_is_not_finished() -> None:
    constraint = ConstraintCompiler(ASCII, ASCII.vocab_size).regex("a{9}")
    for length, reason in ((8, "length"), (9, "stop")):
        batch = GenerationBatch(model_of(ASCII))
        config = GenerationConfig(max_new_tokens=length, seed=1)
        [name] = batch.add([[5]], config, ASCII.end_of_document, TextOptions(constraint=constraint))
        with batch:
            while batch.live:
                batch.step()
        assert batch.finish_reasons[name] == reason


@pytest.mark.parametrize(("regex", "text"), [("a(z)?", "a"), ("a(bz)?", "a"), ("z?", ""), ("ab(cz|caz)*", "ab")])
def test_a_text_that_no_token_continues_is_finished_where_it_may_end(regex: str, text: str) -> None:
    for end in (False, True):
        tokenizer = Tokenizer.characters("abc ", end=end)
        constraint = ConstraintCompiler(tokenizer, tokenizer.vocab_size).regex(regex)
        batch = GenerationBatch(model_of(tokenizer))
        options = TextOptions(constraint=constraint)
        [name] = batch.add([[2]], GenerationConfig(seed=1), tokenizer.end_of_document, options)
        ids = list[int]()
        with batch:
            while batch.live:
                ids += batch.step()[name]
        assert not batch.failed
        assert (tokenizer.decode(ids), batch.finish_reasons[name]) == (text, "stop")


def test_an_error_says_that_no_token_continues_a_text() -> None:
    tokenizer = Tokenizer.characters("abcdefghij")
    state = ConstraintCompiler(tokenizer, tokenizer.vocab_size).regex("[a-h]z").begin([1])
    assert state.masks([], 1, ()).all(), "there is no such text, so that some token is drawn"
    with pytest.raises(ConstraintError, match="no token that continues"):
        state.accept(int(tokenizer.encode("i")[0]))


def test_a_mask_costs_no_more_than_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.characters([chr(code) for code in range(0x4E00, 0x4E00 + 1000)])
    state = ConstraintCompiler(tokenizer, tokenizer.vocab_size).regex(".{2,}").begin([1])
    after, count = constraints.ConstraintState._after, Mock()

    def counted(self: constraints.ConstraintState, token: int) -> constraints.ConstraintState:
        count()
        return after(self, token)

    monkeypatch.setattr(constraints.ConstraintState, "_after", counted)
    assert state.masks([], 1, ()).sum() >= 1000
    assert 0 < count.call_count <= constraints.MOST_STATES_EACH_STEP


def test_a_config_whose_form_nobody_compiled_is_refused() -> None:
    config = GenerationConfig(regex="a")
    with pytest.raises(UsageError, match="about texts"):
        GenerationBatch(model_of(ASCII)).add([[1]], config)
    with pytest.raises(UsageError, match="about texts"):
        next(stream_ids(model_of(ASCII), [[1]], config))


def test_token_ids_have_no_form() -> None:
    with pytest.raises(UsageError, match="about texts"):
        generate_ids(model_of(ASCII), torch.tensor([[1]]), 3, regex="a")


def test_two_forms_are_refused() -> None:
    with pytest.raises(UsageError, match="leave one of them out"):
        GenerationConfig(regex="a", json_schema="{}")


def test_a_schema_may_lie_in_a_file(tmp_path: Any) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps({"enum": ["red"]}))
    config = GenerationConfig(json_schema=str(file), max_new_tokens=20, seed=1)
    assert generate(model_of(ASCII), ASCII, ["a"], config) == [['"red"']]
    with pytest.raises(ConstraintError, match="cannot be read"):
        generate(model_of(ASCII), ASCII, ["a"], config.model_copy(update={"json_schema": str(tmp_path / "none.json")}))


def test_without_the_extra_a_sentence_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraints, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"clearhead\[grammar\]"):
        ConstraintCompiler(ASCII, ASCII.vocab_size)
