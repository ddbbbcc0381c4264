"""Every text that ends by itself has the form that it is held to, whoever writes it, and nobody beside it differs."""

import json
import random
import re
from typing import Any
from unittest.mock import Mock

import pytest
import strangers_tokenizers
import torch
from form_checker import is_valid

from clearhead.config import EngineConfig, ModelConfig, SamplingConfig
from clearhead.data import Tokenizer
from clearhead.inference import GenerationBatch, TextOptions
from clearhead.inference.constraints import ConstraintCompiler
from clearhead.models import DecoderLM
from clearhead.native import compiler

pytest.importorskip("llguidance")
pytestmark = pytest.mark.usefixtures("compiled_code")

ASCII = [chr(code) for code in range(32, 127)]
TOKENIZERS = {
    "characters": Tokenizer.characters([*ASCII, "\n"]),  # without an end: a text ends where nothing can follow
    "characters with an end": Tokenizer.characters(ASCII, end=True),
    "bytes": Tokenizer(strangers_tokenizers.gpt2(), 0),
    "sentencepiece": Tokenizer(strangers_tokenizers.llama2(), 2),
    "sentences": Tokenizer.train_bpe(iter([strangers_tokenizers.TEXT]), 300, end=True, sentences=True),
}
NATIVE = pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")
ENGINES = [
    EngineConfig(engine="eager"),
    EngineConfig(engine="eager", draft="ngrams"),
    pytest.param(EngineConfig(engine="native"), marks=NATIVE),
    pytest.param(EngineConfig(engine="native", draft="ngrams"), marks=NATIVE),
]
FASTEST = [EngineConfig(engine="native", draft="ngrams") if compiler() else EngineConfig(engine="eager")]
REGEXES = [r"\d{3}-[a-f]{1,9}", r"(yes|no)( and (yes|no)){0,3}\.", r"[A-Z][a-z]{0,6}(, [a-z]+){0,2}!", r"a?b*c{2}[^x]"]


def model_of(tokenizer: Tokenizer) -> DecoderLM:
    """Random, and with more ids than the tokenizer has."""
    config = ModelConfig(
        n_layers=1, n_heads=2, d_model=16, block_size=256, vocab_size=tokenizer.vocab_size + 3, positions="rope"
    )
    model = DecoderLM(config, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    return model.eval()


def random_schema(draw: random.Random, depth: int = 0) -> dict[str, Any]:
    kind = draw.choice(["object", "array", "anyOf"] if depth < 2 and draw.random() < 0.6 else ["leaf"])
    if kind == "object":
        names = draw.sample(["a", "name", "x y", "n0"], draw.randint(1, 3))
        return {
            "type": "object",
            "properties": {name: random_schema(draw, depth + 1) for name in names},
            "required": draw.sample(names, draw.randint(0, len(names))),
            "additionalProperties": False,
        }
    if kind == "array":
        least = draw.randint(0, 2)
        return {"type": "array", "items": random_schema(draw, depth + 1), "minItems": least, "maxItems": least + 2}
    if kind == "anyOf":
        return {"anyOf": [random_schema(draw, depth + 1), {"type": "null"}]}
    return draw.choice(
        [
            {"type": "integer", "minimum": draw.randint(-99, 0), "maximum": draw.randint(1, 999)},
            {"type": "string", "minLength": draw.randint(0, 3), "maxLength": draw.randint(3, 9)},
            {"type": "string", "pattern": "^[a-c]{2,5}$"},
            {"type": "boolean"},
            {"enum": ["red", "blue", 7, None]},
        ]
    )


def written(batch: GenerationBatch) -> dict[int, list[int]]:
    texts = dict[int, list[int]]()
    with batch:
        while batch.live:
            for name, tokens in batch.step().items():
                texts.setdefault(name, []).extend(tokens)
    assert not batch.failed
    return texts


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("kind", "engine"),
    [("bytes", ENGINES[0]), ("bytes", ENGINES[1]), *((kind, engine) for kind in TOKENIZERS for engine in FASTEST)],
)
def test_every_text_that_ended_has_its_form(kind: str, engine: EngineConfig) -> None:
    tokenizer, draw = TOKENIZERS[kind], random.Random(kind)
    model = model_of(tokenizer)
    forms = ConstraintCompiler(tokenizer, model.config.vocab_size)
    schemas, regexes = [random_schema(draw) for _ in range(4)], draw.sample(REGEXES, 1)
    options = [TextOptions(constraint=forms.json_schema(schema)) for schema in schemas]
    options += [TextOptions(constraint=forms.regex(regex)) for regex in regexes]
    batch, names = GenerationBatch(model, engine, slots=5, prompt_tokens=8), list[int]()
    for number, own in enumerate(options):
        sampling = SamplingConfig(max_new_tokens=150, temperature=draw.choice([0.0, 1.0, 1.5]), seed=number)
        names += batch.add([[3, 5, 4]], sampling, tokenizer.end_of_document, own)
    texts = written(batch)
    ended = [batch.finish_reasons[name] == "stop" for name in names]
    assert sum(ended) > len(names) // 2, "or this shows little"
    forms_of_texts: list[dict[str, Any] | str] = [*schemas, *regexes]
    for name, has_ended, form in zip(names, ended, forms_of_texts, strict=True):
        text = tokenizer.decode([3, *texts[name]]).removeprefix(tokenizer.decode([3]))
        if has_ended and isinstance(form, str):
            assert re.fullmatch(form, text), (form, text)
        elif has_ended and isinstance(form, dict):
            assert is_valid(json.loads(text), form), (form, text)


@pytest.mark.parametrize("logprobs", [2, None])
@pytest.mark.parametrize("engine", ENGINES[2:], ids=lambda engine: str(engine.draft))
def test_a_text_without_a_form_has_the_same_bits_beside_texts_with_one(
    engine: EngineConfig, logprobs: int | None
) -> None:
    tokenizer = TOKENIZERS["characters with an end"]
    model, sampling = model_of(tokenizer), SamplingConfig(max_new_tokens=40, temperature=1.0, seed=3)
    constraint = ConstraintCompiler(tokenizer, model.config.vocab_size).regex(r"(ab|c)*d{3}")

    def text(*, beside: bool) -> tuple[list[int], object]:
        batch = GenerationBatch(model, engine, slots=4)
        [name] = batch.add([[1, 2]], sampling, options=TextOptions(logprobs=logprobs))
        if beside:
            batch.add([[1, 2], [4]], sampling, options=TextOptions(constraint=constraint))
        texts = written(batch)
        return texts[name], batch.logprobs.get(name)

    assert text(beside=True) == text(beside=False)


@pytest.mark.parametrize("kind", ["characters", "bytes"])
def test_drafts_change_no_token_of_a_form(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = TOKENIZERS[kind]
    model, sampling = model_of(tokenizer), SamplingConfig(max_new_tokens=60, temperature=1.0, seed=5)
    prompt = [int(token) for token in tokenizer.encode("abab abab x abab")]
    forms = ConstraintCompiler(tokenizer, model.config.vocab_size)

    def text(draft: str | None) -> tuple[list[int], int]:
        batch = GenerationBatch(model, EngineConfig(engine="eager", draft=draft))
        [name] = batch.add([prompt], sampling, options=TextOptions(constraint=forms.regex(r"(abab |x){9,}y")))
        steps = Mock(side_effect=batch.step)
        monkeypatch.setattr(batch, "step", steps)
        return written(batch)[name], steps.call_count

    (drafted, n_drafted), (plain, n_plain) = text("ngrams"), text(None)
    assert drafted == plain
    assert n_drafted < n_plain, "no draft was accepted, so this shows nothing"


def test_a_smaller_model_drafts_for_a_form() -> None:
    tokenizer = TOKENIZERS["characters with an end"]
    model, draft = model_of(tokenizer), model_of(tokenizer)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.mul_(0.7)
    forms = ConstraintCompiler(tokenizer, model.config.vocab_size)
    batch = GenerationBatch(model, EngineConfig(engine="eager", draft="small"), draft=draft)
    sampling = SamplingConfig(max_new_tokens=80, temperature=1.0, seed=1)
    form = r"[a-c]{3,20}-\d{2}"
    names = batch.add([[1], [2], [3]], sampling, tokenizer.end_of_document, TextOptions(constraint=forms.regex(form)))
    texts = written(batch)
    assert all(re.fullmatch(form, tokenizer.decode(texts[name])) for name in names)
