"""Batch equals single, padding changes nothing, documents do not see each other."""

import pytest
import torch
from law_models import CHOICES, VOCAB_SIZE, Choice, assert_same, make_model, name, random_ids

from clearhead.parts import positions_from_lengths

every_choice = pytest.mark.parametrize("choice", CHOICES, ids=name)
LENGTHS, WIDTH = [9, 4, 1, 12], 12


@every_choice
@torch.inference_mode()
def test_batch_equals_single(choice: Choice) -> None:
    model, ids = make_model(**choice), random_ids(5, 16)
    single = torch.cat([model(row[None]) for row in ids])
    assert_same(model(ids), single)


@every_choice
@pytest.mark.parametrize("side", ["left", "right"])
@torch.inference_mode()
def test_padding_on_either_side_equals_none(choice: Choice, side: str) -> None:
    model = make_model(**choice)
    texts = [random_ids(length, seed=length) for length in LENGTHS]
    positions = positions_from_lengths(torch.tensor(LENGTHS), WIDTH, side="left" if side == "left" else "right")
    ids = torch.full((len(LENGTHS), WIDTH), VOCAB_SIZE - 1)
    ids[positions >= 0] = torch.cat(texts)
    logits = model(ids, positions=positions)
    assert logits.isfinite().all()
    for row, text in enumerate(texts):
        assert_same(logits[row, positions[row] >= 0], model(text[None])[0])


@every_choice
@pytest.mark.parametrize("side", ["left", "right"])
@torch.inference_mode()
def test_padded_content_never_changes_a_bit(choice: Choice, side: str) -> None:
    model = make_model(**choice)
    positions = positions_from_lengths(torch.tensor(LENGTHS), WIDTH, side="left" if side == "left" else "right")
    real, ids = positions >= 0, random_ids(len(LENGTHS), WIDTH)
    other = ids.where(real, random_ids(len(LENGTHS), WIDTH, seed=1))
    assert not torch.equal(ids, other)
    assert torch.equal(model(ids, positions=positions)[real], model(other, positions=positions)[real])


@every_choice
def test_gradients_are_finite_where_rows_are_padded(choice: Choice) -> None:
    model = make_model(**choice)
    positions = positions_from_lengths(torch.tensor(LENGTHS), WIDTH, side="left")
    model(random_ids(len(LENGTHS), WIDTH), positions=positions)[positions >= 0].square().sum().backward()
    for label, parameter in model.named_parameters():
        assert parameter.grad is not None, label
        assert parameter.grad.isfinite().all(), label


@every_choice
@torch.inference_mode()
def test_documents_in_one_window_equal_documents_alone(choice: Choice) -> None:
    model = make_model(**choice)
    texts = [random_ids(1, length, seed=length) for length in (7, 1, 10)]
    positions = torch.cat([torch.arange(text.shape[1]) for text in texts])[None]
    documents = torch.cat([torch.full((text.shape[1],), n) for n, text in enumerate(texts)])[None]
    packed = model(torch.cat(texts, dim=1), positions=positions, documents=documents)
    assert_same(packed, torch.cat([model(text) for text in texts], dim=1))


@every_choice
@torch.inference_mode()
def test_another_document_never_changes_a_bit(choice: Choice) -> None:
    model, ids = make_model(**choice), random_ids(2, 14)
    documents = torch.tensor([[0] * 6 + [1] * 8, [3] * 13 + [7]])
    other = ids.clone()
    other[0, :6] = (ids[0, :6] + 1) % VOCAB_SIZE
    other[1, :13] = (ids[1, :13] + 1) % VOCAB_SIZE
    before, after = model(ids, documents=documents), model(other, documents=documents)
    assert torch.equal(before[0, 6:], after[0, 6:])
    assert torch.equal(before[1, 13:], after[1, 13:])
    assert not torch.equal(model(ids)[0, 6:], model(other)[0, 6:])
