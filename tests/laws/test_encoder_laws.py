"""What an encoder's logits depend on: every token of the row, no padding, no neighbor."""

import pytest
import torch
from law_models import Choice, assert_same, name
from pair_models import ENCODER_CHOICES, PAD, Side, influence, make_encoder, padded, some_ids

from clearhead.parts import positions_from_lengths

every_choice = pytest.mark.parametrize("choice", ENCODER_CHOICES, ids=name)
every_side = pytest.mark.parametrize("side", ["left", "right"])
LENGTHS, WIDTH = [9, 4, 1, 12], 12


@every_choice
def test_every_token_sees_every_other(choice: Choice) -> None:
    model = make_encoder(**choice)
    assert (influence(model, model.embedding, (some_ids(1, 12),)) > 0).all()


@every_choice
@every_side
@torch.inference_mode()
def test_padding_on_either_side_equals_none(choice: Choice, side: Side) -> None:
    model, rows = make_encoder(**choice), [some_ids(length, seed=length) for length in LENGTHS]
    ids = padded(rows, WIDTH, side)
    logits = model(ids)
    assert logits.isfinite().all()
    for row, alone in enumerate(rows):
        assert_same(logits[row, ids[row] != PAD], model(alone[None])[0])


@every_choice
@every_side
@torch.inference_mode()
def test_padded_content_never_changes_a_bit(choice: Choice, side: Side) -> None:
    model, positions = make_encoder(**choice), positions_from_lengths(torch.tensor(LENGTHS), WIDTH, side=side)
    ids = some_ids(len(LENGTHS), WIDTH)
    other = some_ids(len(LENGTHS), WIDTH, seed=1).where(positions < 0, ids)
    assert not torch.equal(ids, other)
    before, after = model(ids, positions=positions), model(other, positions=positions)
    assert torch.equal(before[positions >= 0], after[positions >= 0])


@every_choice
@torch.inference_mode()
def test_order_matters_unless_there_are_no_positions(choice: Choice) -> None:
    model = make_encoder(**choice)
    before, after = (model(torch.tensor([ids]))[0, 0] for ids in ([2, 3, 4, 5, 6], [2, 5, 4, 3, 6]))
    if choice["positions"] == "none":
        assert_same(after, before)
    else:
        assert (after - before).abs().max() > 1e-6
