"""What libraries do in ways of their own, none of which is a fault."""

from typing import Any

import torch
from causal_helpers import Block, CausalModel, D
from torch import Tensor, nn

from clearhead import doctor


class Recomputed(torch.autograd.Function):
    """A part whose backward pass calls it again, as reversible layers do: it leaves gradients in `.grad` itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, part: nn.Module) -> Tensor:
        ctx.part = part
        ctx.save_for_backward(x)
        with torch.no_grad():
            return part(x)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            torch.autograd.backward(ctx.part(x), gradients)
        return x.grad, None


class Reversible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def forward(self, x: Tensor) -> Tensor:
        return Recomputed.apply(x, self.inner)  # type: ignore[no-any-return, no-untyped-call]


class Switchable(CausalModel):
    """Its parts may be causal, and are not unless they are told."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = "yes" if causal else "no"  # a bool would say by itself what it is meant to be

    def hidden(self, ids: Tensor, allowed: Tensor | None = None) -> Tensor:
        x, T = self.tokens(ids) + self.places(torch.arange(ids.shape[1])), ids.shape[1]
        seen = torch.ones(T, T, dtype=torch.bool)
        for block in self.blocks:
            x = block(x, seen.triu(0).T if self.causal == "yes" else seen)
        return self.norm(x)  # type: ignore[no-any-return]


class NextState(CausalModel):
    """Beside its logits it returns what a later call may begin with, if it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.state = nn.Linear(D, D)

    def forward(self, ids: Tensor, return_state: bool | None = None) -> Any:
        x = self.hidden(ids)
        state = self.state(x[:, -1])
        return (self.head(x), state) if return_state else self.head(x)


class FewKeysLM(CausalModel):
    """Keys and values are mixed over time, so that there are fewer of them."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(32, 5) / 5)

    def hidden(self, ids: Tensor, allowed: Tensor | None = None) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        keys = torch.einsum("btd,tk->bkd", x, self.mix[: ids.shape[1]])
        scores = torch.einsum("btd,bkd->btk", x, keys) / D**0.5
        return self.norm(x + torch.einsum("btk,bkd->btd", scores.softmax(-1), keys))  # type: ignore[no-any-return]


def test_gradients_that_a_backward_pass_leaves_behind_are_gradients() -> None:
    torch.manual_seed(0)
    report = doctor.check(CausalModel(Block(Reversible()), Block(Reversible())), only=["gradients"])
    assert not report.findings, str(report)


def test_an_option_that_is_off_makes_no_model_causal() -> None:
    torch.manual_seed(0)
    report = doctor.check(Switchable(), only=["dependencies"])
    assert report.kind == "bidirectional", str(report)


def test_what_is_returned_where_one_asks_for_it_has_an_effect() -> None:
    torch.manual_seed(0)
    report = doctor.check(NextState(), only=["gradients"])
    assert not report.findings, str(report)


def test_what_reads_no_source_has_no_fault_of_one() -> None:
    torch.manual_seed(0)
    report = doctor.check(FewKeysLM(), only=["dependencies"])
    assert [finding.id for finding in report.findings] == ["F04"], str(report)
