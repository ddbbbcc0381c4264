"""The hosts are what they are called: healthy. Checked by plain arithmetic, one property at a time."""

import math

import pytest
import torch
from calls import CALLS, ROWS, TIME, ids
from faults import HERE, HOSTS, built, kind_of
from torch import Tensor, nn

SMALLEST = 23  # ids below this are in every vocabulary
SMALL = ids(SMALLEST)
SOURCE = ids(SMALLEST, time=11, seed=1)
CAUSAL, SEQ2SEQ = ([host for host in HOSTS if kind_of(host) == kind] for kind in ("causal", "seq2seq"))


def healthy(host: str) -> nn.Module:
    """With weights whose zeros and ones hide nothing."""
    torch.manual_seed(3)
    model = built(HERE / "hosts" / f"{host}.py").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def logits(host: str, model: nn.Module, tokens: Tensor) -> Tensor:
    """(B, T) -> (B, T, V), however the host wants to be called."""
    if kind_of(host) == "seq2seq":
        output = model(SOURCE[: len(tokens)], tokens)
    else:
        output = model(tokens.T) if host == "time_first" else model(tokens)
    output = output[0] if isinstance(output, tuple) else output["logits"] if isinstance(output, dict) else output
    output = getattr(output, "logits", output)
    assert isinstance(output, Tensor)
    return output.detach().transpose(0, 1) if host == "time_first" else output.detach()


def other(tokens: Tensor) -> Tensor:
    return (tokens - 2) % (SMALLEST - 3) + 3


@pytest.mark.sampled
@pytest.mark.parametrize("host", CAUSAL + SEQ2SEQ)
def test_a_later_token_moves_no_earlier_output_and_every_output_depends_on_its_own(host: str) -> None:
    model = healthy(host)
    before = logits(host, model, SMALL)
    for position in range(TIME):
        changed = SMALL.clone()
        changed[:, position] = other(changed[:, position])
        moved = (logits(host, model, changed) - before).abs().amax(dim=(0, 2))
        assert not moved[:position].any()
        assert moved[position] > 1e-4


@pytest.mark.parametrize("host", [host for host in HOSTS if kind_of(host) == "bidirectional"])
def test_every_output_sees_every_token(host: str) -> None:
    model = healthy(host)
    before = logits(host, model, SMALL)
    for position in range(TIME):
        changed = SMALL.clone()
        changed[:, position] = other(changed[:, position])
        assert (logits(host, model, changed) - before).abs().amax(dim=(0, 2)).min() > 1e-5


@pytest.mark.sampled
@pytest.mark.parametrize("host", HOSTS)
def test_a_row_does_not_depend_on_its_neighbors(host: str) -> None:
    model = healthy(host)
    changed = SMALL.clone()
    changed[1:] = other(changed[1:])
    torch.testing.assert_close(logits(host, model, changed)[0], logits(host, model, SMALL)[0], rtol=0, atol=0)


@pytest.mark.parametrize("host", SEQ2SEQ)
def test_padding_of_either_side_changes_nothing(host: str) -> None:
    model, zeros = healthy(host), torch.zeros(ROWS, 4, dtype=torch.long)
    alone = model(SOURCE, SMALL)
    padded = model(torch.cat((SOURCE, zeros), dim=1), torch.cat((SMALL, zeros), dim=1))[:, :TIME]
    torch.testing.assert_close(padded, alone, rtol=1e-4, atol=1e-4)


def test_padding_changes_nothing_in_the_masked_language_model() -> None:
    model = healthy("bert")
    wide = torch.cat((SMALL, torch.zeros_like(SMALL)), dim=1)
    kept = torch.cat((torch.ones_like(SMALL), torch.zeros_like(SMALL)), dim=1)
    padded = model(wide, attention_mask=kept)["logits"][:, :TIME]
    torch.testing.assert_close(padded, model(SMALL)["logits"], rtol=1e-4, atol=1e-4)


def test_the_cache_gives_what_the_whole_sequence_gives() -> None:
    model, calls = healthy("cached"), CALLS["cached"].calls
    torch.testing.assert_close(calls["logits in pieces"](model), calls["logits"](model), rtol=1e-4, atol=1e-4)


@pytest.mark.sampled
@pytest.mark.parametrize("host", HOSTS)
def test_a_fresh_models_loss_is_that_of_guessing(host: str) -> None:
    torch.manual_seed(3)
    model = built(HERE / "hosts" / f"{host}.py").eval()
    loss = CALLS[host].loss(model, torch.Generator().manual_seed(0)).item()
    assert abs(loss - math.log(logits(host, model, SMALL).shape[-1])) < 0.7
