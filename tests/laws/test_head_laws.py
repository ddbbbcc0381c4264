"""The measures of heads are those of a plain loop over queries and keys, and name heads that follow a pattern."""

import csv
import io
from typing import Any

import numpy as np
import pytest
import torch
from law_models import CHOICES, make_model, name, random_ids
from pair_models import PAD, make_encoder, make_translator, padded, some_ids
from torch import Tensor

from clearhead.errors import UsageError
from clearhead.inspection import measure_heads, record
from clearhead.inspection.heads.measures import MEASURES, repeated_tokens
from clearhead.models import BigramLM


def by_loops(attention: Any, ids: list[list[int]], pad: int | None = None) -> dict[str, float | None]:
    """One head's measures, from its attention (B, T, T)."""
    sums: dict[str, list[float]] = {measure: [] for measure in MEASURES}
    for weights, row in zip(attention, ids, strict=True):
        for query, token in enumerate(row):
            if token == pad:
                continue
            sums["entropy"].append(-sum(weight * np.log2(weight) for weight in weights[query] if weight > 0))
            keys = [key for key in range(query) if row[key] != pad]
            targets = {
                "previous_token": [key for key in keys if key == query - 1],
                "duplicate_token": [key for key in keys if row[key] == token],
                "induction": [key for key in keys if key > 0 and row[key - 1] == token],
            }
            for measure, attended in targets.items():
                if attended:
                    sums[measure].append(sum(weights[query][key] for key in attended))
    return {measure: float(np.mean(values)) if values else None for measure, values in sums.items()}


@pytest.mark.parametrize("choice", CHOICES, ids=name)
def test_the_measures_are_those_of_a_plain_loop(choice: dict[str, Any]) -> None:
    model, ids = make_model(**choice), random_ids(3, 12)
    with torch.no_grad(), record(model, "*.attention") as trace:
        model(ids)
    heads = measure_heads(model, ids).heads
    assert len(heads) == 8
    for head in heads:
        expected = by_loops(trace.attention[head.layer][:, head.head], ids.tolist())
        for measure in MEASURES:
            assert getattr(head, measure) == pytest.approx(expected[measure], abs=1e-12), (head, measure)


def test_padding_is_not_counted() -> None:
    model = make_encoder()
    ids = padded([some_ids(9), some_ids(5, seed=1)], 9, "left")
    with torch.no_grad(), record(model, "*.attention") as trace:
        model(ids)
    table = measure_heads(model, ids)
    assert table.tokens == 9 + 5
    for head in table.heads:
        expected = by_loops(trace.attention[head.layer][:, head.head], ids.tolist(), pad=PAD)
        for measure in MEASURES:
            assert getattr(head, measure) == pytest.approx(expected[measure], abs=1e-12), (head, measure)


def test_a_start_token_with_the_id_of_padding_is_counted() -> None:
    model = make_translator(decoder_start_id=PAD)
    source = padded([some_ids(6), some_ids(4, seed=1)], 6, "right")
    target = torch.tensor([[PAD, 5, 6, 5], [PAD, 8, PAD, PAD]])
    with torch.no_grad(), record(model, "*.attention") as trace:
        model(source, target)
    table = measure_heads(model, source, target)
    assert table.tokens == 6, "the start tokens and what follows, without the padding"
    for head in (head for head in table.heads if head.kind == "self"):
        weights = trace.attention[head.layer][:, head.head]
        expected = np.mean([weights[0, 1, 0], weights[0, 2, 1], weights[0, 3, 2], weights[1, 1, 0]])
        assert head.previous_token == pytest.approx(expected, abs=1e-12)


def test_a_translator_has_heads_in_three_attentions_and_patterns_in_two() -> None:
    model = make_translator(source_vocab_size=13)
    source, target = some_ids(2, 8), some_ids(2, 6, seed=1)
    with torch.no_grad(), record(model, "*.attention") as trace:
        model(source, target)
    by_kind = {"self": (trace.attention, target), "encoder": (trace.encoder_attention, source)}
    table = measure_heads(model, source, target)
    for head in table.heads:
        if head.kind == "cross":
            weights = trace.cross_attention[head.layer][:, head.head]
            assert head.entropy == pytest.approx(-(weights * np.log2(weights)).sum(-1).mean())
            assert head.induction is head.previous_token is head.duplicate_token is None
        else:
            layers, ids = by_kind[head.kind]
            expected = by_loops(layers[head.layer][:, head.head], ids.tolist())
            assert head.induction == pytest.approx(expected["induction"], abs=1e-12)
    assert {head.kind for head in table.heads} == {"self", "cross", "encoder"}
    assert {head.kind for head in table.strongest("induction")} == {"self", "encoder"}
    assert {head.kind for head in measure_heads(model).heads} == {"self", "cross", "encoder"}


def test_random_tokens_are_different_then_repeated_and_never_padding() -> None:
    ids = repeated_tokens(11, 10, rows=20, pad_id=3)
    assert torch.equal(ids[:, :10], ids[:, 10:])
    assert all(sorted(row) == [0, 1, 2, *range(4, 11)] for row in ids[:, :10].tolist())
    assert torch.equal(ids, repeated_tokens(11, 10, rows=20, pad_id=3))
    assert not torch.equal(ids, repeated_tokens(11, 10, rows=20, pad_id=3, seed=1))
    assert not torch.equal(ids[0], ids[1])


class Pattern(torch.nn.Module):
    """Instead of scores between -inf and inf: a bias that lets a head see one distance back."""

    def __init__(self, distances: list[int]) -> None:
        super().__init__()
        self.distances = distances

    def bias(self, query: range, key: range, device: object) -> Tensor:
        """(H, T_q, T_k)."""
        T = len(query)
        at = torch.arange(T)
        return torch.stack([1000.0 * (at[:, None] - at == distance).double() for distance in self.distances])


def test_heads_that_look_back_by_a_distance_are_named() -> None:
    """On tokens that repeat after 5: one step back is the previous token, 5 the duplicate, 4 induction, 0 the token."""
    model = make_model(n_layers=1, vocab_size=6, block_size=10, positions="none")
    pattern = Pattern([5, 0, 4, 1])
    model.positions.bias = pattern.bias  # type: ignore[assignment]
    table = measure_heads(model)
    assert [table.strongest(measure)[0].head for measure in MEASURES[1:]] == [3, 0, 2]
    for measure, head in zip(MEASURES[1:], (3, 0, 2), strict=True):
        scores = [getattr(entry, measure) for entry in table.heads]
        assert scores[head] == pytest.approx(1)
        assert table.tokens == 80
    assert "induction 1.00 in layer 0 head 2" in table.verdict


def test_what_has_no_heads_or_no_room_is_one_sentence() -> None:
    config = make_model().config
    with pytest.raises(UsageError, match="no attention"):
        measure_heads(BigramLM(config))
    short = make_model(block_size=3, positions="none")
    with pytest.raises(UsageError, match="too short to repeat"):
        measure_heads(short)
    assert measure_heads(short, random_ids(1, 3)).tokens == 3


def test_the_views_hold_the_numbers() -> None:
    model = make_translator()
    model.train()
    table = measure_heads(model)
    assert model.training
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    assert len(rows) == len(table.heads) == 24
    assert float(rows[0]["entropy"]) == table.heads[0].entropy
    assert rows[-1]["induction"] == ""
    picture = table.svg()
    assert picture.count("<rect") == 16, "cross-attention has no induction"
    assert table.svg("entropy").count("<rect") == 24
    assert "cross-attention layer 1" in picture
    assert table.html().count("<svg") == 4
    assert len(table.as_dict()["heads"]) == 24  # type: ignore[arg-type]
