"""Evaluation: token-weighted, so the same however the tokens are batched."""

import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.data import IGNORED, document_numbers, evaluation_batches
from clearhead.errors import DataError
from clearhead.inference import Evaluation, evaluate
from clearhead.models import build_model, language_model

MODEL = build_model(ModelConfig(vocab_size=11, block_size=8, n_layers=1, n_heads=2, d_model=16, dropout=0.5))
TOKENS = np.random.default_rng(0).integers(0, 11, 203).astype(np.uint16)


def test_the_batch_size_does_not_matter() -> None:
    results = [evaluate(MODEL, evaluation_batches(TOKENS, block_size=8, batch_size=n)) for n in (1, 3, 8, 100)]
    assert {result.tokens for result in results} == {202}
    for result in results:
        assert result.loss == pytest.approx(results[0].loss, rel=1e-6)


def test_it_is_the_mean_over_all_counted_tokens() -> None:
    losses: list[Tensor] = []
    model = MODEL.eval()
    for start in range(0, 202, 8):
        window = torch.from_numpy(TOKENS[start : start + 9].astype(np.int64))
        losses.append(F.cross_entropy(model(window[None, :-1])[0], window[1:], reduction="none").detach())
    evaluation = evaluate(model, evaluation_batches(TOKENS, block_size=8, batch_size=4))
    assert evaluation.loss == pytest.approx(torch.cat(losses).double().mean().item(), rel=1e-6)


def test_a_large_vocabulary_is_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = evaluate(MODEL, evaluation_batches(TOKENS, block_size=8, batch_size=4))
    monkeypatch.setattr(language_model, "IN_CACHE", 55)  # five tokens
    assert evaluate(MODEL, evaluation_batches(TOKENS, block_size=8, batch_size=4)).loss == pytest.approx(whole.loss)


def test_isolated_documents_are_evaluated_as_if_alone() -> None:
    model = build_model(ModelConfig(vocab_size=11, block_size=8, n_layers=1, n_heads=2, d_model=16, positions="rope"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(20)
    first, second, ignored = torch.tensor([[1, 2, 0]]), torch.tensor([[3, 4, 5]]), torch.tensor([[IGNORED]])
    packed = torch.cat((first, second), dim=1)
    targets = torch.tensor([[2, 0, IGNORED, 4, 5, 6]])
    alone = [
        evaluate(model, [(first, torch.cat((first[:, 1:], ignored), dim=1))]),
        evaluate(model, [(second, torch.tensor([[4, 5, 6]]))]),
    ]
    apart = partial(model.body, documents=document_numbers(packed, 0))
    together = evaluate(model, [(packed, targets)], body=apart)
    assert together.loss == pytest.approx(sum(document.loss * document.tokens for document in alone) / 5, rel=1e-5)
    assert together.loss != pytest.approx(evaluate(model, [(packed, targets)]).loss, rel=1e-3)


def test_the_mode_is_restored_and_no_gradient_is_kept() -> None:
    model = MODEL.train()
    batches = list(evaluation_batches(TOKENS, block_size=8, batch_size=4))
    assert evaluate(model, batches) == evaluate(model, batches)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_nothing_to_predict_is_said() -> None:
    nothing = [(torch.zeros(1, 4, dtype=torch.long), torch.full((1, 4), IGNORED))]
    for batches in ([], nothing):
        with pytest.raises(DataError, match="nothing to evaluate"):
            evaluate(MODEL, batches)


def test_units() -> None:
    even = Evaluation(loss=math.log(256), tokens=10)  # one token per byte, all bytes equally likely
    assert even.perplexity == pytest.approx(256)
    assert even.bits_per_byte(10) == pytest.approx(8)
    assert even.bits_per_byte(20) == pytest.approx(4)
    assert Evaluation(loss=1e4, tokens=1).perplexity == math.inf
