"""What is told of masks: by docstrings, by integers that stand for booleans, and by the tokens themselves."""

import torch
from torch import Tensor, nn

from clearhead.doctor import Report, check

V, D = 41, 16


class Tokens(nn.Module):
    """One attention under a mask, True where a token is seen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places, self.head = nn.Embedding(V, D, padding_idx=0), nn.Embedding(64, D), nn.Linear(D, V)
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))

    def read(self, ids: Tensor, shown: Tensor) -> Tensor:
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        scores = self.q(x) @ self.k(x).transpose(1, 2) / D**0.5
        x = x + scores.masked_fill(~shown, -torch.inf).softmax(-1) @ self.v(x)
        return self.head(x)  # type: ignore[no-any-return]


def failures(report: Report) -> set[str]:
    return {finding.id for finding in report.findings if finding.status == "fail"}


class Described(Tokens):
    """An attention that may be given a mask, as for causal attention."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.read(ids, (ids != 0)[:, None].expand(-1, ids.shape[1], -1))


class Coded(Described):
    """The mask that it makes is never used."""

    def forward(self, ids: Tensor) -> Tensor:
        ids.new_ones(2, 2).tril()
        return super().forward(ids)


def test_a_docstring_alone_means_no_mask() -> None:
    assert "M01" in failures(check(Coded(), only=["dependencies"]))
    report = check(Described(), only=["dependencies"])
    assert "M01" not in failures(report)
    (kind,) = (assumption for assumption in report.assumptions if assumption.about == "kind")
    assert "no token reaches an earlier position" not in kind.reasons, "it does under a mask of ours alone"


class Inverting(Tokens):
    """It reads two rows, whose names tell nothing, and inverts their masks, which is no inverse of integers."""

    def forward(
        self,
        input_sequence: Tensor,
        input_attention_mask: Tensor,
        output_sequence: Tensor,
        output_attention_mask: Tensor,
    ) -> Tensor:
        first = self.under(input_sequence, input_attention_mask)
        return first[:, :1] + self.under(output_sequence, output_attention_mask)

    def under(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = torch.logical_or(~mask, torch.zeros_like(ids, dtype=torch.bool))
        return self.read(ids, ~hidden[:, None].expand(-1, ids.shape[1], -1))


def test_a_mask_of_integers_that_makes_no_numbers_is_given_as_booleans() -> None:
    assert not failures(check(Inverting(), only=["finite"]))


class Twice(Tokens):
    """It knows padding by its token, and does not read what its caller says of it."""

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.read(ids, (ids != 0)[:, None].expand(-1, ids.shape[1], -1))


class Once(Tokens):
    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.read(ids, torch.ones_like(ids, dtype=torch.bool)[:, None].expand(-1, ids.shape[1], -1))


def test_a_mask_beside_a_token_that_hides_padding_may_be_unread() -> None:
    assert "M11" in failures(check(Once(), only=["paddings"]))
    assert not failures(check(Twice(), only=["paddings"]))


class Shortened(nn.Module):
    """Reads frames, every fourth of which is kept, and compares the lengths of its rows with what it kept."""

    def __init__(self, reads: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.reads = reads
        self.frames, self.head = nn.Linear(7, D), nn.Linear(D, V)
        self.attend = nn.MultiheadAttention(D, 2, batch_first=True)

    def forward(self, frames: Tensor, lengths: Tensor | None = None) -> Tensor:
        x = torch.tanh(self.frames(frames))[:, :: 1 if self.reads == "nothing" else 4]
        hidden = None
        if lengths is not None and self.reads != "nothing":
            lengths = lengths if self.reads == "whole lengths" else (lengths + 3) // 4
            hidden = torch.arange(x.shape[1]) >= lengths.clamp_min(1)[:, None]
        x = x + self.attend(x, x, x, key_padding_mask=hidden, need_weights=False)[0]
        return self.head(x[:, 0])  # type: ignore[no-any-return]


def test_lengths_that_are_compared_with_shortened_rows_are_told_by_what_was_given() -> None:
    report = check(Shortened("whole lengths"), only=["paddings"])
    assert "move no logit, though a length of 1 does: where rows are shortened" in report["M11"].evidence.witness
    report = check(Shortened("nothing"), only=["paddings"])
    assert "lengths of 1, " in report["M11"].evidence.witness
    assert report["M11"].evidence.witness.endswith("the argument is not used")
    assert not failures(check(Shortened("its lengths"), only=["paddings"]))
