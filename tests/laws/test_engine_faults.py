"""Faults planted in native code: the laws that hold it equal to the model's call must find each of them."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import test_beam_backend_laws as searches
import test_engine_laws as laws
from law_models import NATIVE_CHOICES as CHOICES
from pair_models import NATIVE_PAIR_CHOICES as PAIR_CHOICES

from clearhead.errors import ClearheadError
from clearhead.native import building, compiler

pytestmark = [pytest.mark.campaign, pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")]

FAULTS = [
    ("stack.h", "call.length + at.column + 1", "call.length + at.column"),
    ("stack.h", "call.length + at.column + 1", "T"),
    ("stack.h", "(head * P + at.column) * T", "head * P * T"),
    ("stack.h", "* T + start;\n        if (call.mask)", "* T;\n        if (call.mask)"),
    ("stack.h", "std::max(first, end - call.window)", "std::max(first, end - call.window - 1)"),
    ("stack.h", "call.starts ? std::min(call.starts[text], end) : 0", "0"),
    ("checks.h", "starts[text] = column;", "starts[text] = 0;"),
    ("attention.h", "sums[0][i] += sums[turn][i]", "sums[0][i] = sums[turn][i]"),
    ("attention.h", "t + turn < length; turn++) add(t + turn, turn)", "turn < 0; turn++) add(t + turn, turn)"),
    ("stack.h", "second * c[j] + first * s[j]", "second * c[j] + x[i] * s[j]"),
    ("stack.h", "call.rotary_stride + at.column * 2 * call.rotary_half", "call.rotary_stride"),
    ("stack.h", "head / group", "head % stack.n_kv_heads"),
    ("stack.h", "mean /= width;", ""),
    ("stack.h", "call.length + at.column) * K", "call.length) * K"),
    ("stack.h", "place_one(stack, call, layer.query_norm, at, query);", ""),
    ("linear.h", "if (matrix.bias) lanes += read(matrix.bias + output);", ""),
    ("stack.h", "i / step.count % H, row", "i % H, row"),
    ("stack.h", "step.count / H * step.count + i % step.count", "step.count / H * step.count"),
    ("places.h", "first + row % count", "first"),
    ("places.h", "first(step)", "first(0)"),
    ("bytes.h", "128 * (65536 + 256 + 1)", "128 * (65536 + 256)"),
    ("bytes.h", "0x0d090501, 0x0c080400", "0x0c080400, 0x0d090501"),
    ("bytes.h", "std::min(k + i, inputs - 1)", "std::min(k + i, inputs - 2)"),
    ("decoder.cpp", "own[i] = embedding[i] * number(decoder.embedding_scale)", "own[i] = embedding[i]"),
    ("decoder.cpp", "row = last[1 - n]", "row = last[2 - n]"),
    ("decoder.cpp", "step.count - call.logits_to_keep + i % call.logits_to_keep", "i % call.logits_to_keep"),
    ("decoder.cpp", "at.text * call.added_stride + at.column * call.added_column", "at.text * call.added_stride"),
    ("decoder.cpp", "read[i] *= number(decoder.head_scale)", "read[i] *= 1"),
    ("decoder.cpp", "logits += first * logits_to_keep *", "logits += first *"),
    ("decoder.cpp", "token_at(call, step.of(row)), D, own", "token_at(call, step.of(i)), D, own"),
    ("decoder.cpp", "if (starts) starts += first;", ""),
    ("decoder.cpp", "samplings += first, uniforms += first * steps;", "samplings += first;"),
    ("decoder.cpp", "if (present) present[token] = 1;", ""),
    ("sampling.h", "room-- <= 0", "room-- < 0"),
    ("sampling.h", "(!place || before < p - ROUNDING)", "before < p - ROUNDING"),
    ("sampling.h", "logits[v] / penalty : logits[v] * penalty", "logits[v] / penalty : logits[v]"),
    ("sampling.h", "std::log(how.min_p) - ROUNDING", "std::log(how.min_p) / 2"),
    ("sampling.h", "number(reached) > uniform", "number(reached) >= 1 - uniform"),
    ("sampling.h", "if (place == kept && kept < V) continue;", ""),
    ("decoder.cpp", "first * stack.n_kv_heads * capacity", "first * capacity"),
    ("bytes.h", "Lanes(all) * x.scales[row + i]", "Lanes(all) * x.scales[row]"),
    ("sampling.h", "logits[v] /= number(how.temperature)", "logits[v] *= number(how.temperature)"),
]  # fmt: skip
IN_A_SEARCH = [
    ("attention.h", "scores[t] = range.mask[t] ? scores[t] : NONE", "scores[t] = range.mask[t] ? scores[t] : -3"),
    ("stack.h", "at.text * call.mask_stride + at.column * T", "at.text * call.mask_stride"),
    ("stack.h", "if (stack.post) normalize(layer.cross_norm, x, x, rows, D);", ""),
    ("stack.h", "if (!stack.post) normalize(layer.cross_norm, x, normed, rows, D);", ""),
    ("stack.h", "if (layer.cross_query_norm.weight) normalize_one(layer.cross_query_norm, query, query, K);", ""),
    ("stack.h", "call.memory_mask ? call.memory_mask + text * T : nullptr", "nullptr"),
    ("stack.h", "call.memory_mask + text * T", "call.memory_mask"),
    ("stack.h", "first = (text * H_kv + kv_head) * T * K", "first = text * H_kv * T * K"),
    ("stack.h", "linear(layer.cross_output, room.mixed", "linear(layer.cross_output, room.heads"),
    ("stack.h", "call.memories + 2 * l", "call.memories"),
    ("continuations.h", "broken += some * 0;", ""),
    ("continuations.h", "broken[0] += numbers[i] * 0;", ""),
    ("continuations.h", "std::max(number(most[0]), numbers[i])", "most[0]"),
    ("continuations.h", "sums[i] += rest[i]", "sums[i] += 2 * rest[i]"),
    ("continuations.h", "|| v == call.padding", ""),
    ("continuations.h", "most + std::log(total(sums))", "std::log(total(sums))"),
    ("continuations.h", "exponential(read(logits + v) - most)", "exponential(read(logits + v))"),
    ("continuations.h", "- all + before > scores[n - 1]", "- all > scores[n - 1]"),
    ("continuations.h", "score = logits[v] - all + before", "score = logits[v] - all"),
    ("continuations.h", "tokens[place] = tokens[place - 1];", ""),
    ("continuations.h", "parents[place] = parents[place - 1];", ""),
    ("continuations.h", "is_finite &= std::isfinite(all);", ""),
    ("stack.h", "call.both_ways ? T : ", ""),
    ("stack.h", "(row / T * H_kv + head) * T + row % T", "(row / T * H_kv + head) * T"),
    ("stack.h", "if (layer.cross_key_norm.weight) normalize_one(layer.cross_key_norm, key, key, K);", ""),
    ("continuations.h", "std::max<int64_t>(call.padding, 0)", "1"),
]  # fmt: skip


def failing(law: Callable[..., None], *arguments: object) -> bool:
    try:
        law(*arguments)
    except (AssertionError, ClearheadError, IndexError, pytest.fail.Exception):  # or what was written are no tokens
        return True
    return False


def is_caught(monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a law of native code fails for some choice."""
    return (
        any(failing(laws.test_compiled_code_is_the_models_call, choice) for choice in CHOICES)
        or failing(laws.test_embeddings_are_scaled)
        or any(failing(laws.test_tokens_read_together_are_those_read_one_by_one, choice) for choice in CHOICES)
        or any(failing(laws.test_padding_is_passed_over, choice) for choice in CHOICES)
        or any(failing(laws.test_float32_of_any_width_is_as_near_as_the_models_own, 16, how) for how in laws.WIDTHS)
        or any(failing(laws.test_rounded_matrices_are_the_same_in_both_engines, CHOICES[0], how) for how in laws.WIDTHS)
        or any(failing(laws.test_both_engines_write_the_same_text, choice) for choice in CHOICES[::4])
        or any(failing(laws.test_tokens_are_drawn_as_elsewhere, options) for options in laws.DRAWINGS)
        or any(failing(laws.test_tokens_are_drawn_from_many_as_elsewhere, options) for options in laws.DRAWINGS)
        or any(failing(law, choice, monkeypatch) for law in laws.AMONG_OTHERS for choice in CHOICES[::5])
    )


def found_in_a_search() -> bool:
    """Whether a law of native code that reads for a beam search fails."""
    what_follows = searches.test_what_follows_each_hypothesis_is_what_the_model_says
    return (
        any(failing(what_follows, choice) for choice in PAIR_CHOICES)
        or any(failing(searches.test_the_memory_is_the_models, choice, "right") for choice in PAIR_CHOICES)
        or any(failing(searches.test_the_likeliest_continuations_are_those_of_all, *of) for of in searches.VOCABULARIES)
        or any(failing(searches.test_logits_that_are_not_finite_are_refused, *bad) for bad in searches.BAD)
    )


def named(faults: list[tuple[str, str, str]]) -> pytest.MarkDecorator:
    ids = [f"{file}: {right}" for file, right, _ in faults]
    return pytest.mark.parametrize(("file", "right", "wrong"), faults, ids=ids)


@pytest.fixture
def planted(file: str, right: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is compiled has this fault."""
    sources = tmp_path / "sources"
    shutil.copytree(building.HERE, sources)
    text = (sources / file).read_text(encoding="utf-8")
    assert text.count(right) == 1, "the fault has no place any more"
    (sources / file).write_text(text.replace(right, wrong), encoding="utf-8")
    monkeypatch.setattr(building, "HERE", sources)
    monkeypatch.setenv("CLEARHEAD_CACHE", str(tmp_path / "cache"))
    building._sources.cache_clear()
    yield
    building._sources.cache_clear()


@named(FAULTS)
@pytest.mark.usefixtures("planted")
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_caught(monkeypatch)


@named(IN_A_SEARCH)
@pytest.mark.usefixtures("planted")
def test_a_planted_fault_of_a_search_is_found() -> None:
    assert found_in_a_search()


@pytest.mark.parametrize("flag", ["-mno-avx", "-mno-avx512f", "-mno-avx512vnni", "-fno-openmp"])
def test_other_processors_and_compilers_compute_the_same(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without wide registers, without products of bytes, and without threads, as Macs have it."""
    monkeypatch.setattr(building, "FLAGS", (*building.FLAGS, flag))
    for choice in CHOICES[::4]:
        laws.test_compiled_code_is_the_models_call(choice)
    for how in laws.WIDTHS:
        laws.test_float32_of_any_width_is_as_near_as_the_models_own(40, how)
    for options in laws.DRAWINGS:
        laws.test_tokens_are_drawn_as_elsewhere(options)
    for choice in PAIR_CHOICES[::4]:
        searches.test_what_follows_each_hypothesis_is_what_the_model_says(choice)
    for vocabulary in searches.VOCABULARIES:
        searches.test_the_likeliest_continuations_are_those_of_all(*vocabulary)
