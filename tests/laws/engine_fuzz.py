"""Calls of native code with random shapes and values, right and wrong: each is what eager code computes, or refused.

python tests/laws/engine_fuzz.py --calls 10000 [--first 0] [--flag=-fsanitize=address,undefined]
"""

import argparse
import copy
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from fuzz_values import (
    BLOCK_SIZES,
    INT64,
    WIDTHS,
    Refused,
    close,
    loaded,
    outcome,
    some_ids,
    spoil_cache,
    spoiled,
    tensor_wrong,
)
from law_models import NATIVE_CHOICES, VOCAB_SIZE, make_model, slots_read
from pair_models import END, NATIVE_PAIR_CHOICES, make_translator

from clearhead.config import Dtype, EngineConfig, SamplingConfig, TranslationConfig
from clearhead.inference import Engine, GenerationBatch, beam_search
from clearhead.inference.beam_backend import EagerBeamBackend, NativeBeamBackend
from clearhead.inference.decoder_backend import EagerDecoderBackend, NativeDecoderBackend
from clearhead.inference.requests import new_requests
from clearhead.models import DecoderLM
from clearhead.models.quantization import quantize_model
from clearhead.native import building, decoder, translator
from clearhead.parts import SlotRows


@cache
def decoder_backend_of(choice: int, block_size: int, dtype: torch.dtype, weights: Dtype) -> NativeDecoderBackend:
    model = quantize_model(make_model(**NATIVE_CHOICES[choice], block_size=block_size).to(dtype), weights)
    return NativeDecoderBackend(model, weights, loaded(dtype))


@cache
def beam_backend_of(choice: int, block_size: int) -> NativeBeamBackend:
    model = make_translator(**NATIVE_PAIR_CHOICES[choice], block_size=block_size)
    return NativeBeamBackend(model, loaded(torch.float64))


def some_writer(draw: random.Random, dtype: torch.dtype | None = None) -> NativeDecoderBackend:
    choice, block_size = draw.randrange(0, len(NATIVE_CHOICES), 4), draw.choice(BLOCK_SIZES)
    weights: Any = draw.choice(WIDTHS)
    return decoder_backend_of(choice, block_size, dtype or draw.choice((torch.float64, torch.float32)), weights)


def sampling(draw: random.Random) -> SamplingConfig:
    options: dict[str, Any] = {"max_new_tokens": draw.randint(1, 14), "greedy": draw.random() < 0.5, "seed": 1}
    options |= {"repetition_penalty": draw.choice((1.0, 1.0, 3.0)), "temperature": draw.choice((1.0, 2.0))}
    options |= {
        "top_k": draw.choice((None, 1, 3, 1000)),
        "top_p": draw.choice((None, 0.6)),
        "min_p": draw.choice((None, 0.2)),
    }
    return SamplingConfig.read(options)


def texts_of_batch(draw: random.Random) -> None:
    """Texts join and leave a batch, with and without guesses; the engine is the one that was kept."""
    twin = some_writer(draw, torch.float64)
    visits = []
    for _ in range(draw.randint(1, 3)):
        prompts = [some_ids(draw, draw.randint(1, 16)) for _ in range(draw.randint(1, 4))]
        visits.append((prompts, sampling(draw), spoiled(draw, prompts, VOCAB_SIZE)))
    guesses = draw.choice((None, "ngrams"))

    def write(how: str) -> list[tuple[int, list[int]]]:
        engine = Engine(twin.model, EngineConfig.read({"engine": how} | ({"draft": guesses} if guesses else {})))
        if how == "native":
            engine._native = twin
        texts: dict[int, list[int]] = {}
        with GenerationBatch(twin.model, engine) as batch:
            for prompts, config, wrong in visits:
                names = outcome(lambda p=prompts, c=config: batch.add(p, c, VOCAB_SIZE - 1))  # type: ignore[misc]
                assert isinstance(names, Refused) == wrong, (names, prompts)
                for name, tokens in batch.step().items() if batch.live else ():
                    texts.setdefault(name, []).extend(tokens)
            while batch.live:
                for name, tokens in batch.step().items():
                    texts.setdefault(name, []).extend(tokens)
        return sorted(texts.items())

    written, expected = write("native"), write("eager")
    assert written == expected, (written, expected)


def half_read(draw: random.Random, model: DecoderLM, rows: int, columns: int) -> SlotRows:
    """Rows of which each holds something, in slots of which some may hold nothing."""
    room = model.config.block_size
    lengths = [draw.randint(1, max(1, room - columns)) for _ in range(rows)]
    ids = torch.tensor([some_ids(draw, max(lengths)) for _ in lengths])
    cache, slots = slots_read(model, ids, lengths, max(lengths) + columns + draw.randint(0, 3))
    if draw.random() < 0.5:
        cache.reserve(rows + draw.randint(1, 3), 0)
    draw.shuffle(slots)
    return cache.rows(slots)


def logits_of_read(draw: random.Random) -> None:
    """Tokens that are read into a cache, ragged or not; what is wrong may be ids, the cache, its rows or numbers."""
    twin = some_writer(draw)
    model, rows = twin.model, draw.randint(1, 9)
    columns = draw.randint(1, min(3, model.config.block_size - 1))
    held = half_read(draw, model, rows, columns)
    ids = torch.tensor([some_ids(draw, columns) for _ in range(rows)])
    logits_to_keep = draw.randint(0, columns)
    if draw.random() < 0.5:
        held.counts = [draw.randint(0, columns) for _ in range(rows)]
    real = held.is_real(columns)
    wrong = draw.randrange(12)
    if wrong == 0:
        tensor_wrong(draw, ids, VOCAB_SIZE)
    elif wrong == 1:
        spoil_cache(draw, held, model)
    elif wrong == 2:
        name = draw.choice(("slots", "lengths", "counts"))
        numbers = [*(getattr(held, name) or [columns] * rows)]
        numbers[draw.randrange(rows)] = draw.choice((*(number for number in INT64 if number < 0), 2**40, 10**6))
        setattr(held, name, draw.choice((numbers, numbers[1:])))
    elif wrong == 3:
        ids = draw.choice((ids.int(), ids.float(), ids[:, :0], ids[0], ids[: rows - 1], torch.cat((ids, ids))))
    elif wrong == 4:
        logits_to_keep = draw.choice((-1, columns + 1, 10**6))
    elif wrong == 5:
        held.slots = [*held.slots, 0]
    other = copy.deepcopy(held)
    logits = outcome(lambda: twin.forward(ids, held, logits_to_keep=logits_to_keep))
    if isinstance(logits, Refused):
        assert wrong < 6, logits
        return
    expected = EagerDecoderBackend(model).forward(ids, other, logits_to_keep=logits_to_keep)
    close(logits, expected, real[:, columns - logits_to_keep :])


def tokens_written(draw: random.Random) -> None:
    """Tokens that native code draws; one may be wrong to begin with, or the texts are not as many."""
    twin = some_writer(draw, torch.float64)
    rows, steps = draw.randint(1, 5), draw.randint(1, 2)
    held = half_read(draw, twin.model, rows, steps)
    ids, config = torch.tensor(some_ids(draw, rows)), sampling(draw)
    texts = new_requests(0, [some_ids(draw, 3) for _ in range(rows)], config)
    wrong = draw.randrange(8)
    if wrong == 0:
        tensor_wrong(draw, ids, VOCAB_SIZE)
    elif wrong == 1:
        texts = texts[1:]
    elif wrong == 2:
        steps = draw.choice((0, -1, 10**6))
    elif wrong == 3:
        spoil_cache(draw, held, twin.model)
    other, again = copy.deepcopy(held), copy.deepcopy(texts)
    written = outcome(lambda: twin.decode(ids, held, texts, steps))
    if isinstance(written, Refused):
        assert wrong < 4, written
        return
    plain, last = EagerDecoderBackend(twin.model), ids
    for step in range(steps):
        drawn = plain.decode(last, other, again, 1)
        assert [row[step] for row in written] == [token for [token] in drawn]
        for text, tokens in zip(again, drawn, strict=True):
            text.remaining += 1
            text.append(tokens)
        last = torch.tensor(drawn)[:, 0]


def translations(draw: random.Random) -> None:
    """A whole search; a source may have what is no token, or the end may be none."""
    backend = beam_backend_of(draw.randrange(0, len(NATIVE_PAIR_CHOICES), 3), draw.choice(BLOCK_SIZES[1:]))
    vocab_size = backend.model.config.source_vocab_size or VOCAB_SIZE
    longest = min(9, backend.model.config.block_size)
    sources = [some_ids(draw, draw.randint(1, longest), vocab_size) for _ in range(draw.randint(1, 4))]
    sources = [[token or 1 for token in source] for source in sources]  # no padding
    wrong, end = spoiled(draw, sources, vocab_size), END
    if draw.random() < 0.05:
        wrong, end = True, draw.choice(INT64)
    beam = draw.randint(1, 5)
    options = TranslationConfig(beam_size=beam, n_best=draw.randint(1, beam), max_new_tokens=draw.randint(1, 8))
    searches = [
        outcome(lambda r=r: beam_search(backend.model, sources, options, end=end, backend=r))  # type: ignore[misc]
        for r in (backend, EagerBeamBackend(backend.model))
    ]
    assert [isinstance(hypotheses, Refused) for hypotheses in searches] == [wrong, wrong], (searches, sources, end)
    if not wrong:
        native, eager = ([[h.ids for h in best] for best in hypotheses] for hypotheses in searches)
        assert native == eager


def beams(draw: random.Random) -> None:
    """A step of a search: tokens, the memory, the cache or the columns that are seen may be wrong."""
    backend = beam_backend_of(draw.randrange(0, len(NATIVE_PAIR_CHOICES), 3), BLOCK_SIZES[-1])
    model, S, b = backend.model, draw.randint(1, 4), draw.randint(1, 4)
    size = model.config.source_vocab_size or VOCAB_SIZE
    source = torch.tensor([[1 + draw.randrange(size - 1) for _ in range(draw.randint(1, 9))]] * S)
    (memory, held), first = backend.begin(source, range(source.shape[1]), 1 + b), torch.full((S, 1), END)
    tree_mask = torch.cat((torch.ones(S, b, 1, dtype=torch.bool), torch.eye(b, dtype=torch.bool).expand(S, -1, -1)), 2)
    backend.forward(first, 0, memory, held, tree_mask[:, :1, :1])
    tokens, position, wrong = torch.tensor([some_ids(draw, b) for _ in range(S)]), 1, draw.randrange(10)
    if wrong == 0:
        tensor_wrong(draw, tokens, VOCAB_SIZE)
    elif wrong == 1:
        spoil_cache(draw, held, model)
    elif wrong == 2:
        tree_mask = draw.choice((tree_mask[:, :, 1:], tree_mask[:-1], tree_mask.float(), tree_mask[:, :-1]))
    elif wrong == 3:
        memory = model.encode(source[:, :-1] if source.shape[1] > 1 else source.repeat(1, 2))
    elif wrong == 4:
        held.memory_layers = held.memory_layers[1:]
    elif wrong == 5:
        position = draw.choice((24, 10**6, 2**40))
    other = copy.deepcopy(held)
    logits = outcome(lambda: backend.forward(tokens, position, memory, held, tree_mask))
    if isinstance(logits, Refused):
        assert wrong < 6, logits
    else:
        close(
            logits,
            EagerBeamBackend(model).forward(tokens, position, memory, other, tree_mask),
            torch.ones(S, b, dtype=torch.bool),
        )


def continuations(draw: random.Random) -> None:
    """The likeliest ways to go on, of logits of right and wrong shapes and types."""
    backend = beam_backend_of(draw.randrange(0, len(NATIVE_PAIR_CHOICES), 3), BLOCK_SIZES[-1])
    S, b, n = draw.randint(1, 4), draw.randint(1, 5), draw.choice((1, 2, 8, 8, 0, -1))
    logits = torch.randn(
        S, b, VOCAB_SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(draw.randrange(99))
    )
    before, wrong = torch.zeros(S, b, dtype=torch.float64), draw.randrange(8)
    if wrong == 0:
        logits = draw.choice((logits.float(), logits[:, :, 1:], logits[1:], logits[:, 1:]))
    likeliest = outcome(lambda: backend.top_continuations(logits, before, n))
    if isinstance(likeliest, Refused):
        assert wrong == 0 or n < 1, likeliest
        return
    n = min(n, b * VOCAB_SIZE)
    expected = EagerBeamBackend(backend.model).top_continuations(logits.clone(), before, n)
    real = expected.scores.isfinite()
    close(likeliest.scores[:, :n][:, None], expected.scores[:, None], real[:, None])
    assert torch.equal(likeliest.tokens[:, :n][real], expected.tokens[real])


KINDS: Sequence[Callable[[random.Random], None]] = (
    *(logits_of_read, logits_of_read, logits_of_read, tokens_written),
    *(texts_of_batch, translations, beams, beams, continuations),
)


@torch.inference_mode()
def call(number: int) -> None:
    """One call, of any kind.

    Raises:
        AssertionError: it is neither right nor refused.
    """
    draw = random.Random(number)
    kind = draw.choice(KINDS)
    enough, threads = (0, 3) if draw.random() < 0.3 else (4_000_000, 1)
    decoder.PARALLEL_MIN_MACS = translator.PARALLEL_MIN_MACS = enough  # type: ignore[attr-defined]
    known, torch.get_num_threads = torch.get_num_threads, lambda: threads
    try:
        kind(draw)
    except Exception as error:
        error.add_note(f"call {number}, {kind.__name__}")
        raise
    finally:
        decoder.PARALLEL_MIN_MACS = translator.PARALLEL_MIN_MACS = 4_000_000  # type: ignore[attr-defined]
        torch.get_num_threads = known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--flag", action="append", default=[])
    parser.add_argument("--sources", type=Path, default=building.HERE)
    options = parser.parse_args()
    building.HERE = options.sources
    building.FLAGS = (*building.FLAGS, *options.flag)
    building.LINKING = (*building.LINKING, *options.flag)
    for number in range(options.first, options.first + options.calls):
        call(number)
        if number % 500 == 499:
            print(f"calls up to {number}", flush=True)
    print(f"{options.calls} calls, each right or refused")


if __name__ == "__main__":
    main()
