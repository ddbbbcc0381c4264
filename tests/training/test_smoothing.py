"""Label smoothing: both definitions against their formulas, written out, and against each other."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.config import TrainConfig
from clearhead.data import IGNORED
from clearhead.training.loss import NO_SMOOTHING, SMOOTHINGS, Smoothing, backward, make_loss_fn
from clearhead.training.loss import token_loss_sum as both_sums

V = 11


def logits_and_targets(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(4, 6, V, generator=generator)
    targets = torch.randint(V, (4, 6), generator=generator)
    targets[1, 3:] = IGNORED
    targets[3] = IGNORED
    return logits, targets


def token_loss_sum(logits: Tensor, targets: Tensor, smoothing: Smoothing = NO_SMOOTHING) -> Tensor:
    return both_sums(logits, targets, smoothing)[0]


def by_hand(logits: Tensor, targets: Tensor, right: float, wrong: float) -> float:
    """The cross entropy with a distribution that gives the right token `right` and each other one `wrong`."""
    total = 0.0
    for row, target in zip(logits.flatten(0, 1).double(), targets.flatten().tolist(), strict=True):
        if target != IGNORED:
            distribution = torch.full((V,), wrong, dtype=torch.float64)
            distribution[target] = right
            total -= float((distribution * row.log_softmax(-1)).sum())
    return total


@pytest.mark.parametrize("share", [0.0, 0.1, 0.37])
def test_over_all_is_torchs_definition(share: float) -> None:
    logits, targets = logits_and_targets()
    loss = float(token_loss_sum(logits, targets, Smoothing(share, "all")))
    assert loss == pytest.approx(by_hand(logits, targets, 1 - share + share / V, share / V), rel=1e-5)
    expected = F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum", label_smoothing=share
    )
    assert loss == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.37])
def test_over_others_leaves_the_right_token_all_that_was_not_taken(share: float) -> None:
    logits, targets = logits_and_targets()
    loss = float(token_loss_sum(logits, targets, Smoothing(share, "others")))
    assert loss == pytest.approx(by_hand(logits, targets, 1 - share, share / (V - 1)), rel=1e-5)


def test_over_others_is_kullback_leibler_up_to_the_targets_entropy() -> None:
    """The form in which the other definition is mostly written: nn.KLDivLoss against a matrix of smoothed targets."""
    logits, targets = logits_and_targets()
    counted = targets != IGNORED
    smoothed = torch.full((*targets.shape, V), 0.1 / (V - 1))
    smoothed.scatter_(-1, targets.clamp(min=0)[..., None], 0.9)
    divergence = F.kl_div(logits.log_softmax(-1)[counted], smoothed[counted], reduction="sum")
    entropy = -(smoothed[counted] * smoothed[counted].log()).sum()
    loss = token_loss_sum(logits, targets, Smoothing(0.1, "others"))
    assert float(loss) == pytest.approx(float(divergence + entropy), rel=1e-5)


def test_the_definitions_differ_and_meet_at_a_larger_share() -> None:
    logits, targets = logits_and_targets()
    of_all, of_others = (float(token_loss_sum(logits, targets, Smoothing(0.1, over))) for over in ("all", "others"))
    assert abs(of_all - of_others) > 0.05
    larger = float(token_loss_sum(logits, targets, Smoothing(0.1 * V / (V - 1), "all")))
    assert of_others == pytest.approx(larger, rel=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_gradient_is_torchs(share: float, dtype: torch.dtype) -> None:
    logits, targets = logits_and_targets()
    own_logits, copied_logits = (logits.to(dtype, copy=True).requires_grad_() for _ in range(2))
    (gradient,) = torch.autograd.grad(token_loss_sum(own_logits, targets, Smoothing(share)) / 7, own_logits)
    expected = F.cross_entropy(
        copied_logits.flatten(0, 1).float(),
        targets.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=share,
    )
    (expected_gradient,) = torch.autograd.grad(expected / 7, copied_logits)
    assert gradient.dtype == dtype
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5 if dtype != torch.bfloat16 else 1e-2, atol=1e-7)
    assert not gradient[targets == IGNORED].any()


def test_what_is_not_counted_has_no_say() -> None:
    logits, targets = logits_and_targets()
    spoilt = logits.clone()
    spoilt[targets == IGNORED] = 1e4
    for over in SMOOTHINGS:
        smoothing = Smoothing(0.2, over)
        assert torch.equal(token_loss_sum(logits, targets, smoothing), token_loss_sum(spoilt, targets, smoothing))


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_accumulation_gives_the_whole_batchs_gradient(parts: int) -> None:
    """Rows count unequal numbers of tokens, so a mean of means would not."""
    logits, targets = logits_and_targets()
    smoothing, tokens = Smoothing(0.1), int((targets != IGNORED).sum())
    gradients = []
    for split in (1, parts):
        leaf = logits.clone().requires_grad_()
        backward(make_loss_fn(lambda x: x, smoothing), (leaf, targets), tokens=tokens, parts=split)
        assert leaf.grad is not None
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("over", list(SMOOTHINGS))
def test_what_is_told_is_the_loss_without_smoothing(over: str) -> None:
    """So that a training loss can be laid beside the held-out one."""
    logits, targets = logits_and_targets()
    _, plain = both_sums(logits, targets, Smoothing(0.3, over))
    assert float(plain) == pytest.approx(float(token_loss_sum(logits, targets)), rel=1e-6)
    losses = make_loss_fn(lambda x: x, Smoothing(0.3, over))
    reported = backward(losses, (logits.requires_grad_(), targets), tokens=5)
    assert float(reported) == pytest.approx(float(plain) / 5, rel=1e-6)


def test_a_token_that_cannot_be_spoils_no_other() -> None:
    """A logit of minus infinity, where nothing is smoothed, has no say."""
    logits = torch.tensor([[[0.0, 1.0, -torch.inf]]], requires_grad=True)
    loss = token_loss_sum(logits, torch.tensor([[1]]))
    assert float(loss.detach()) == pytest.approx(float(F.cross_entropy(logits[0, :, :2].detach(), torch.tensor([1]))))
    assert torch.autograd.grad(loss, logits)[0].isfinite().all()


def test_every_choice_of_the_config_has_a_definition() -> None:
    field = TrainConfig.model_fields["smoothing_over"]
    assert set(field.annotation.__args__) == set(SMOOTHINGS)  # type: ignore[union-attr]
