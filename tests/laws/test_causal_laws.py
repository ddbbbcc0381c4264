"""What a logit may depend on, by exact gradients: nothing later, nothing beyond the window."""

import pytest
import torch
from law_models import CHOICES, N_LAYERS, WINDOW, Choice, make_model, name, random_ids
from torch import Tensor, nn

from clearhead.models import DecoderLM

every_choice = pytest.mark.parametrize("choice", CHOICES, ids=name)


def influence(model: DecoderLM, ids: Tensor) -> Tensor:
    """(T, T): row t, column j is how much the logits at t move with the embedding of the token at j."""
    held: list[Tensor] = []

    def keep(module: nn.Module, args: object, output: Tensor) -> Tensor:
        held.append(output.detach().requires_grad_())
        return held[-1]

    handle = model.embedding.register_forward_hook(keep)
    logits = model(ids[None])[0]  # (T, V)
    handle.remove()
    rows = [torch.autograd.grad(step.square().sum(), held[0], retain_graph=True)[0] for step in logits]
    return torch.stack(rows)[:, 0].square().sum(-1)  # (T, 1, T, D) -> (T, T)


@every_choice
def test_a_logit_depends_on_no_later_token_and_on_all_in_reach(choice: Choice) -> None:
    moved = influence(make_model(**choice), random_ids(20))
    distance = torch.arange(20)[:, None] - torch.arange(20)
    reach = N_LAYERS * (WINDOW - 1) if choice["sliding_window"] else 20
    assert (moved[(distance < 0) | (distance > reach)] == 0).all()
    assert (moved[(distance >= 0) & (distance <= reach)] > 0).all()


@every_choice
@torch.inference_mode()
def test_a_later_token_never_changes_a_bit(choice: Choice) -> None:
    model, ids = make_model(**choice), random_ids(1, 20)
    other = ids.clone()
    other[0, 11:] = random_ids(9, seed=1)
    before, after = model(ids), model(other)
    assert torch.equal(before[:, :11], after[:, :11])
    assert not torch.equal(before[:, 11:], after[:, 11:])


@pytest.mark.parametrize("window", [1, 2, 7])
def test_a_window_sees_exactly_that_many_tokens(window: int) -> None:
    moved = influence(make_model(positions="rope", sliding_window=window, n_layers=1), random_ids(12))
    distance = torch.arange(12)[:, None] - torch.arange(12)
    assert torch.equal(moved > 0, (distance >= 0) & (distance < window))
