"""What native code computes for a text does not depend, in any bit, on the texts beside it."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from law_models import NATIVE_CHOICES, VOCAB_SIZE, Choice, make_model, name
from test_engine_laws import WIDTHS, compiled
from torch import Tensor

from clearhead.config import Dtype
from clearhead.inference import decoder_backend, prefixes
from clearhead.inference.decoder_backend import DecoderBackend, NativeDecoderBackend
from clearhead.inference.kv_context import KVContext
from clearhead.models import DecoderLM
from clearhead.models.quantization import quantize_model
from clearhead.native import compiler
from clearhead.native import decoder as native_decoder

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler"),
    pytest.mark.usefixtures("compiled_code"),
]
MAX_LENGTH, STEPS = 40, 5
WINDOWED = [
    {"positions": positions, "sliding_window": window} for positions in ("rope", "alibi", "none") for window in (5, 17)
]


def tokens(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(VOCAB_SIZE) for _ in range(count)]


def logits_of_contexts(contexts: list[KVContext], prompts: list[list[int]], seed: int) -> list[list[Tensor]]:
    """All logits of each row after its prompt and some calls, by one context for all rows or by one for each row.

    A call reads some tokens of each row, more of one than of another; some of them are then forgotten, as wrong guesses
    are.
    """
    together = len(contexts) == 1
    shared = [list(range(len(prompts)))] if together else [[row] for row in range(len(prompts))]
    logits_of_rows: list[list[Tensor]] = [[] for _ in prompts]
    for context, rows in zip(contexts, shared, strict=True):
        draws = [random.Random(f"{seed} {row}") for row in rows]  # a row's own
        logits = context.prefill([prompts[row] for row in rows], STEPS)
        for row, first in zip(rows, logits, strict=True):
            logits_of_rows[row].append(first)
        for _ in range(STEPS):
            rooms = [context.room(row) for row in range(len(rows))]
            counts = [
                draw.randint(1, 4 if room is None else min(4, room)) for draw, room in zip(draws, rooms, strict=True)
            ]
            logits = context.forward([tokens(draw, count) for draw, count in zip(draws, counts, strict=True)])
            for row, count, some in zip(rows, counts, logits, strict=True):
                logits_of_rows[row].append(some[:count])
            context.rollback([draw.randrange(count) for draw, count in zip(draws, counts, strict=True)])
    return logits_of_rows


def assert_same_bits(
    model: DecoderLM, backend: NativeDecoderBackend, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    draw = random.Random(seed)
    lengths = [draw.randint(1, MAX_LENGTH) for _ in range(draw.randint(2, 6))]
    prompts = [tokens(draw, length) for length in lengths]
    alone = logits_of_contexts([KVContext(model, backend=backend) for _ in prompts], prompts, seed)
    with monkeypatch.context() as patch:
        patch.setattr(native_decoder, "PARALLEL_MIN_MACS", 0)
        patch.setattr(torch, "get_num_threads", lambda: 3)
        beside = logits_of_contexts([KVContext(model, backend=backend)], prompts, seed)
    for mine, others in zip(alone, beside, strict=True):
        assert all(map(torch.equal, mine, others)), f"prompts of {lengths} tokens"


@pytest.mark.parametrize("choice", [*NATIVE_CHOICES[::3], *WINDOWED], ids=name)
@torch.inference_mode()
def test_a_row_has_the_same_bits_alone_and_beside_others(choice: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    for block_size in (64, 16):  # of which some outgrow the shorter
        model = make_model(**choice, block_size=block_size).float()
        for seed in range(3):
            assert_same_bits(model, compiled(model), monkeypatch, seed)


@pytest.mark.parametrize("weights", WIDTHS)
@pytest.mark.parametrize("choice", [NATIVE_CHOICES[0], NATIVE_CHOICES[7], WINDOWED[0]], ids=name)
@torch.inference_mode()
def test_rounded_matrices_have_the_same_bits(choice: Choice, weights: Dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantize_model(
        make_model(**choice | {"n_heads": 2, "d_model": 48, "head_dim": 24, "n_kv_heads": 1}, block_size=64).float(),
        weights,
    )
    for seed in range(4):
        assert_same_bits(model, compiled(model, weights), monkeypatch, seed)


@pytest.mark.parametrize("choice", [*NATIVE_CHOICES[::8], WINDOWED[1]], ids=name)
@torch.inference_mode()
def test_who_reads_a_prompt_is_chosen_by_its_own_length(choice: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_backend, "FEW", 20 * 20)  # and torch reads longer ones
    for block_size in (64, 44):  # of which a half is longer, and read again
        model = make_model(**choice, block_size=block_size).float()
        for seed in range(3):
            assert_same_bits(model, compiled(model), monkeypatch, seed)


@pytest.mark.parametrize("few", [20 * 20, decoder_backend.FEW])  # from which on torch reads prompts
@pytest.mark.parametrize("choice", [*NATIVE_CHOICES[::8], WINDOWED[1]], ids=name)
@torch.inference_mode()
def test_what_others_have_read_of_a_prompt_has_the_same_bits(
    choice: Choice, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder_backend, "FEW", few)
    monkeypatch.setattr(prefixes, "FEWEST_SHARED", 3)
    model = make_model(**choice, block_size=64).float()
    backend, draw, saved = compiled(model), random.Random(5), 0
    shared = KVContext(model, backend=backend, slots=4, prompt_tokens=8)
    texts = [tokens(draw, 40)]
    for _ in range(24):
        begin = draw.choice(texts)
        prompt = begin[: draw.randint(1, len(begin))] + tokens(draw, draw.randint(0, 12))
        alone = KVContext(model, backend=backend, slots=4, prompt_tokens=8)
        calls = [calls_of(context, prompt) for context in (alone, shared)]
        assert torch.equal(calls[0][0], calls[1][0]), f"a prompt of {len(prompt)} tokens"
        saved += calls[0][1] - calls[1][1]
        texts.append(prompt)
        last = len(shared._rows) - 1
        shared.forward([[1, 2, 3]], [last])
        shared.rollback([2], [last])
        texts.append([*prompt, 1])
        if len(shared._rows) == 4 or draw.random() < 0.5:  # some leave
            shared.reorder(sorted(draw.sample(range(last + 1), draw.randint(0, min(3, last)))))
    assert saved > 50, "tokens that were not read again"


def calls_of(context: KVContext, prompt: list[int]) -> tuple[Tensor, int]:
    """The logits after a prompt, and how many tokens were read for them."""
    count, read = 0, context._reader._read_chunk

    def counted(backend: DecoderBackend, ids: Tensor, *options: Any, **more: Any) -> Iterator[Tensor]:
        nonlocal count
        count += ids.numel()
        return read(backend, ids, *options, **more)

    context._reader._read_chunk = counted  # type: ignore[method-assign]
    try:
        return context.prefill([prompt], STEPS), count
    finally:
        context._reader._read_chunk = read  # type: ignore[method-assign]
