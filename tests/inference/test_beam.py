"""Beam search against all sequences, against the rule written out, and where the answer is known."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from small_translators import END, PAD, TableTranslator, random_translator, sources, table

from clearhead.config import TranslationConfig
from clearhead.errors import ClearheadError
from clearhead.inference import beam, beam_backend
from clearhead.inference.beam import Hypothesis, beam_search, length_penalty
from clearhead.models import EncoderDecoder
from clearhead.parts import SelfAttentionCache

A, B, C, D = 2, 3, 4, 5
# A is the likeliest beginning, and B END the likeliest text: 0.4 * 0.9 = 0.36, against A C END: 0.5 * 0.36 = 0.18
TRAP = table(6, {END: {A: 0.5, B: 0.4, C: 0.1}, A: {C: 0.36, D: 0.34, END: 0.3}, B: {END: 0.9, C: 0.1}, C: {END: 1}, D: {END: 1}})  # fmt: skip  # noqa: E501


def config(**options: Any) -> TranslationConfig:
    return TranslationConfig.read(options)


@torch.inference_mode()
def log_chances(model: EncoderDecoder, source: Sequence[int], texts: Sequence[Sequence[int]]) -> torch.Tensor:
    """log p of every token at every place of texts (N, T) of one length, by a forward over all: (N, T + 1, V)."""
    start = END if model.config.decoder_start_id is None else model.config.decoder_start_id
    target = torch.tensor([[start, *ids] for ids in texts])
    logits: torch.Tensor = model(torch.tensor([source] * len(texts)), target)
    return logits.log_softmax(-1)


def assert_same(actual: Sequence[Hypothesis], expected: Sequence[Hypothesis]) -> None:
    assert [hypothesis.ids for hypothesis in actual] == [hypothesis.ids for hypothesis in expected]
    assert [h.score for h in actual] == pytest.approx([h.score for h in expected], rel=1e-9)


def by_rule(model: EncoderDecoder, source: Sequence[int], config: TranslationConfig, longest: int) -> list[Hypothesis]:
    """The rule, one sentence at a time, one hypothesis at a time, without a cache."""
    k, finished = config.beam_size, list[Hypothesis]()
    living: list[tuple[list[int], float]] = [([], 0.0)]
    for length in range(1, longest + 1):
        penalty = ((5 + length) / 6) ** config.length_penalty
        candidates: list[tuple[list[int], float]] = []
        all_chances = log_chances(model, source, [ids for ids, _ in living])[:, -1].tolist()
        for (ids, score), chances in zip(living, all_chances, strict=True):
            candidates += [([*ids, token], score + chances[token]) for token in range(len(chances)) if token != PAD]
        candidates = sorted(candidates, key=lambda candidate: -candidate[1])[: 2 * k]
        ended = [candidate for candidate in candidates[:k] if candidate[0][-1] == END]
        finished += [Hypothesis(ids[:-1], score / penalty) for ids, score in ended]
        if len(finished) >= k:
            return sorted(finished[:k], key=lambda hypothesis: -hypothesis.score)[: config.n_best]
        living = [candidate for candidate in candidates if candidate[0][-1] != END][:k]
    rest = [Hypothesis(ids, score / penalty) for ids, score in living]
    return (sorted(finished, key=lambda hypothesis: -hypothesis.score) + rest)[: config.n_best]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.5])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_beam_that_holds_everything_is_exhaustive_search(alpha: float, seed: int) -> None:
    model, texts, longest = random_translator(5, seed), sources(3, 6, vocab_size=5), 4
    everything = config(beam_size=130, n_best=130, length_penalty=alpha, max_new_tokens=longest)
    for source, hypotheses in zip(texts, beam_search(model, texts, everything, end=END), strict=True):
        finished, cut = list[Hypothesis](), list[Hypothesis]()
        for length in range(longest + 1):
            written = [*itertools.product(range(END + 1, 5), repeat=length)]
            for ids, chances in zip(written, log_chances(model, source, written).tolist(), strict=True):
                score = sum(chances[position][token] for position, token in enumerate(ids))
                if length < longest:
                    finished.append(Hypothesis([*ids], (score + chances[-1][END]) / length_penalty(length + 1, alpha)))
                else:
                    cut.append(Hypothesis([*ids], score / length_penalty(length, alpha)))
        assert len(finished) == 40
        assert_same(hypotheses, [h for part in (finished, cut) for h in sorted(part, key=lambda h: -h.score)])


@pytest.mark.sampled
@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("vocab_size", [4, 7])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_the_search_follows_the_rule(k: int, vocab_size: int, alpha: float) -> None:
    for seed in range(2):
        model, texts = random_translator(vocab_size, seed), sources(2, 9, vocab_size=vocab_size)
        for n_best in {1, k - k // 3, k}:  # fewer than the beam are sure before the beam is done
            options = config(beam_size=k, n_best=n_best, length_penalty=alpha, max_new_tokens=9)
            for source, hypotheses in zip(texts, beam_search(model, texts, options, end=END), strict=True):
                assert_same(hypotheses, by_rule(model, source, options, longest=9))


@pytest.mark.parametrize(("alpha", "limit", "steps"), [(0.0, 20, 2), (1.0, 20, 4), (1.0, 12, 3), (9.0, 20, 20)])
def test_a_sentence_is_done_when_nothing_can_be_better(alpha: float, limit: int, steps: int) -> None:
    """A END is found in the second step; B C C C ... loses log 0.5 with each token, and may gain by its length."""
    half = {PAD: 0.5, C: 0.5}
    chances = table(5, {END: {A: 0.51, B: 0.49}, A: {END: 1}, B: half, C: half})
    chances[2:, END] = chances[2:, END].where(chances[2:, END] > 0.5, 1e-30)
    model = TableTranslator(chances, positions="rope")
    options = config(beam_size=2, length_penalty=alpha, max_new_tokens=limit)
    [[hypothesis]] = beam_search(model, [[A, END]], options, end=END)
    assert hypothesis.ids == [A]
    assert len(model.rows_read) == steps


@pytest.mark.parametrize("size", [3, 319, 320, 352, 1001])
@pytest.mark.parametrize("n", [1, 10])
def test_the_greatest_are_those_of_topk(size: int, n: int) -> None:
    numbers = torch.randn(7, size, generator=torch.Generator().manual_seed(size))
    numbers[:, ::5] = -math.inf
    expected = numbers.topk(min(n, size))
    largest = beam_backend.chunked_topk(numbers, min(n, size))
    assert all(map(torch.equal, largest, expected))


@pytest.mark.parametrize("positions", ["learned", "rope"])
def test_a_beam_of_one_is_greedy(positions: str) -> None:
    model, texts = random_translator(7, seed=4, positions=positions), sources(*range(1, 12), vocab_size=7)
    translations = beam_search(model, texts, config(beam_size=1, length_penalty=1.0), end=END)
    ended = 0
    for source, [hypothesis] in zip(texts, translations, strict=True):
        limit = min(24, 2 * len(source) + 10) if positions == "learned" else 2 * len(source) + 10
        ids, score = list[int](), 0.0
        while len(ids) < limit and END not in ids:
            best = log_chances(model, source, [ids])[0, -1].index_fill(0, torch.tensor(PAD), -math.inf).max(0)
            ids.append(int(best.indices))
            score += float(best.values)
        assert_same([hypothesis], [Hypothesis([i for i in ids if i != END], score / length_penalty(len(ids), 1.0))])
        ended += END in ids
    assert 0 < ended < len(texts), "some are cut off, some are not"


def test_a_beam_finds_what_greedy_decoding_misses() -> None:
    model, text = TableTranslator(TRAP), [[A, END]]
    greedy = beam_search(model, text, config(beam_size=1, length_penalty=0), end=END)[0]
    assert_same(greedy, [Hypothesis([A, C], math.log(0.5 * 0.36))])
    hypotheses = beam_search(model, text, config(beam_size=2, n_best=2, length_penalty=0), end=END)[0]
    assert_same(hypotheses, [Hypothesis([B], math.log(0.36)), Hypothesis([A, C], math.log(0.18))])


def test_a_length_penalty_prefers_longer_ones() -> None:
    hypotheses = beam_search(
        TableTranslator(TRAP), [[A, END]], config(beam_size=2, n_best=2, length_penalty=6), end=END
    )[0]
    longer, shorter = math.log(0.18) / (8 / 6) ** 6, math.log(0.36) / (7 / 6) ** 6  # ends are counted
    assert longer > shorter
    assert_same(hypotheses, [Hypothesis([A, C], longer), Hypothesis([B], shorter)])


def test_an_end_that_ranks_behind_the_beam_is_not_taken() -> None:
    chances = table(5, {END: {A: 0.5, B: 0.4, END: 0.1}, A: {END: 1}, B: {END: 1}})
    hypotheses = beam_search(
        TableTranslator(chances), [[A, END]], config(beam_size=2, n_best=2, length_penalty=0), end=END
    )[0]
    assert_same(hypotheses, [Hypothesis([A], math.log(0.5)), Hypothesis([B], math.log(0.4))])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("positions", "seed"), [("sinusoidal", 5), ("rope", 6), ("alibi", 1)])
def test_a_translation_depends_on_no_neighbor(positions: str, seed: int) -> None:
    model = random_translator(7, seed=seed, positions=positions, n_kv_heads=1)
    texts = sources(*(1 + 5 * n % 13 for n in range(24)), vocab_size=7)
    options = config(beam_size=3, n_best=3)
    together = beam_search(model, texts, options, end=END)
    for size in (1, 7):
        batches = [texts[start : start + size] for start in range(0, 24, size)]
        apart = [hypotheses for batch in batches for hypotheses in beam_search(model, batch, options, end=END)]
        for batched, alone in zip(together, apart, strict=True):
            assert_same(batched, alone)
    assert len({len(hypotheses[0].ids) for hypotheses in together}) > 5, "equal lengths would show little"


@pytest.mark.parametrize("n_best", [1, 4])
def test_hypotheses_are_sorted_and_distinct(n_best: int) -> None:
    for seed in range(5):
        draw = torch.Generator().manual_seed(seed)
        model = TableTranslator((2 * torch.randn(9, 9, generator=draw)).softmax(-1), positions="rope")
        [hypotheses] = beam_search(model, [[A, END]], config(beam_size=4, n_best=n_best, max_new_tokens=200), end=END)
        assert len(hypotheses) == n_best
        assert len({tuple(hypothesis.ids) for hypothesis in hypotheses}) == n_best
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert all(END not in hypothesis.ids and PAD not in hypothesis.ids for hypothesis in hypotheses)


def test_padding_is_never_written_however_likely() -> None:
    chances = table(5, {last: {PAD: 0.98, A: 0.01, END: 0.01} for last in (END, A, B)})
    model = TableTranslator(chances, positions="rope")
    for k in (1, 3, 20):
        hypotheses = beam_search(model, [[A, END]], config(beam_size=k, n_best=k, max_new_tokens=5), end=END)[0]
        assert hypotheses
        assert not any(PAD in hypothesis.ids for hypothesis in hypotheses)
        assert all(math.isfinite(hypothesis.score) for hypothesis in hypotheses)


def test_the_greatest_length() -> None:
    endless = table(5, {last: {A: 0.6, B: 0.4} for last in (END, A, B)}, elsewhere=1e-30)
    texts, options = sources(3, 9, 5, vocab_size=5), {"beam_size": 2, "n_best": 2}
    for positions, max_new_tokens, expected in (
        ("rope", 7, [7, 7, 7]),
        ("rope", 30, [30, 30, 30]),
        ("rope", None, [16, 28, 20]),
        ("learned", None, [16, 24, 20]),
        ("sinusoidal", 30, [24, 24, 24]),
    ):
        model = TableTranslator(endless, positions=positions)
        translations = beam_search(model, texts, config(**options, max_new_tokens=max_new_tokens), end=END)
        assert [[len(hypothesis.ids) for hypothesis in two] for two in translations] == [[n, n] for n in expected]


def test_the_last_position_can_be_written_from() -> None:
    model = random_translator(5, positions="learned", block_size=3)
    for hypotheses in beam_search(model, sources(3, 1, vocab_size=5), config(beam_size=40, n_best=40), end=END):
        assert max(len(hypothesis.ids) for hypothesis in hypotheses) == 3


def test_done_sentences_leave_the_batch() -> None:
    model = random_translator(11, positions="rope")
    texts, rows = sources(*[n * 3 // 4 + 1 for n in range(32)], vocab_size=11), list[int]()
    model.decoder.register_forward_pre_hook(lambda _, args: rows.append(args[0].shape[0] * args[0].shape[1]))
    translations = beam_search(model, texts, config(beam_size=2, n_best=2), end=END)
    assert rows[:2] == [32, 64], "one hypothesis at first, then as many as the beam holds"
    assert rows[-1] < 8
    live = [sum(max(len(h.ids) for h in two) >= step for two in translations) for step in range(len(rows))]
    assert all(read <= 4 * max(1, alive) for read, alive in zip(rows, live, strict=True)), "two thirds of the work"


def test_nothing_is_moved_where_nothing_changes_places(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    monkeypatch.setattr(SelfAttentionCache, "reorder", lambda self, rows: moved.append(len(rows)))
    beam_search(random_translator(11), sources(4, vocab_size=11), config(beam_size=1), end=END)
    assert len(moved) <= 2, "when the sentence is done"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_output_that_is_not_finite_is_refused(bad: float) -> None:
    model = random_translator(7)
    with torch.no_grad():
        model.embedding.weight[4, 3] = bad
    with pytest.raises(ClearheadError, match="not finite"):
        beam_search(model, sources(3, vocab_size=4), config(), end=END)


def test_the_mode_is_borrowed_and_dropout_is_off() -> None:
    plain, texts = random_translator(9), sources(3, 6, vocab_size=9)
    model = random_translator(9, dropout=0.5, attention_dropout=0.5).train()
    model.encoder.eval()
    translations = beam_search(model, texts, config(), end=END)
    assert translations == beam_search(plain, texts, config(), end=END)
    assert model.training
    assert model.decoder.training
    assert not model.encoder.training


@pytest.mark.parametrize("decoder_start_id", [PAD, END, A])
def test_a_translation_begins_with_the_token_that_the_config_names(decoder_start_id: int) -> None:
    plain, model = random_translator(9), random_translator(9, decoder_start_id=decoder_start_id)
    options, texts = config(beam_size=3, n_best=3, max_new_tokens=8), sources(3, 6, vocab_size=9)
    translations = beam_search(model, texts, options, end=END)
    for source, hypotheses in zip(texts, translations, strict=True):
        assert_same(hypotheses, by_rule(model, source, options, 8))
    assert (translations == beam_search(plain, texts, options, end=END)) == (decoder_start_id == END)


def test_no_sentences_and_no_gradients() -> None:
    model = random_translator(7)
    assert beam_search(model, [], config(), end=END) == []
    beam_search(model, sources(3, vocab_size=7), config(), end=END)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_the_published_length_penalty(alpha: float) -> None:
    assert beam.length_penalty(1, alpha) == 1
    assert beam.length_penalty(7, alpha) == pytest.approx(2**alpha)
