"""What positions of each kind do to a whole model: order matters, and for some only distance does."""

import pytest
import torch
from law_models import BLOCK_SIZE, assert_same, make_model, random_ids

from clearhead.parts import POSITIONS

RELATIVE = ("rope", "alibi", "relative", "none")


@pytest.mark.parametrize("kind", POSITIONS)
@torch.inference_mode()
def test_order_matters_to_one_layer_unless_there_are_no_positions(kind: str) -> None:
    model, ids = make_model(positions=kind, n_layers=1), random_ids(1, 9)
    turned = torch.cat((ids[:, :-1].flip(1), ids[:, -1:]), dim=1)
    before, after = model(ids)[0, -1], model(turned)[0, -1]
    if kind == "none":
        assert_same(after, before)
    else:
        assert (after - before).abs().max() > 1e-3


@pytest.mark.parametrize("kind", POSITIONS)
@torch.inference_mode()
def test_relative_positions_know_distances_alone(kind: str) -> None:
    model, ids = make_model(positions=kind), random_ids(1, 9)
    shifted = model(ids, positions=torch.arange(BLOCK_SIZE - 9, BLOCK_SIZE)[None])
    moved = (shifted - model(ids)).abs().max()
    if kind in RELATIVE:
        assert moved < 1e-5  # angles are float32
    else:
        assert moved > 1e-3
