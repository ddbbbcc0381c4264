"""What a model can be given, and every form in which people's models want it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from clearhead.doctor.calling.numbers import as_numbers


@dataclass(frozen=True)
class Inputs:
    """Token ids (B, T) and, for models that read one, a source (B, S); which tokens are real (True) and not padding.

    `labels`: targets (B, T) for models that compute their own loss.
    """

    ids: Tensor
    source: Tensor | None = None
    keep: Tensor | None = None
    source_keep: Tensor | None = None
    labels: Tensor | None = None

    def kept(self, source: bool = False) -> Tensor:
        """(B, T), or (B, S) of the source: True for real tokens."""
        keep = self.source_keep if source else self.keep
        return torch.ones_like(self.tokens(source), dtype=torch.bool) if keep is None else keep

    @property
    def longer(self) -> Self:
        """The same with one token more behind each row of ids."""
        rows = {"ids": self.ids, "keep": self.keep, "labels": self.labels}
        return replace(self, **{name: torch.cat([t, t[:, -1:]], 1) for name, t in rows.items() if t is not None})

    @property
    def unpadded(self) -> Self:
        """The same where every token is real."""
        return replace(self, keep=None, source_keep=None)

    def tokens(self, source: bool) -> Tensor:
        """The source (B, S), or the ids (B, T)."""
        tokens = self.source if source else self.ids
        assert tokens is not None
        return tokens

    def with_tokens(self, source: bool, tokens: Tensor) -> Self:
        """The same with another source, or with other ids."""
        return replace(self, source=tokens) if source else replace(self, ids=tokens)

    def padded(self, source: bool, counts: Sequence[int], *, front: bool = False) -> Self:
        """The same with so many tokens of each row as padding, at its end or in front of it; no more for later rows."""
        keep = torch.ones_like(self.tokens(source), dtype=torch.bool)
        for row, count in zip(keep, counts, strict=False):
            row[slice(count) if front else slice(len(row) - count, None)] = False
        return replace(self, source_keep=keep) if source else replace(self, keep=keep)

    def rows(self, rows: Tensor) -> Self:
        """These rows, in this order."""
        chosen = {name: tensor[rows] for name, tensor in vars(self).items() if isinstance(tensor, Tensor)}
        return replace(self, **chosen)


def drawn_rows(pool: Tensor, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Random rows (B, T) of ids from a pool, without repeats within a row if the pool is large enough."""
    rows, T = shape
    if len(pool) < T:
        return pool[torch.randint(len(pool), shape, generator=generator)]
    return torch.stack([pool[torch.randperm(len(pool), generator=generator)[:T]] for _ in range(rows)])


Run = Callable[[Inputs], Tensor]  # inputs -> logits (B, T, V)
Filler = Callable[[Inputs, bool], Any]  # (inputs batch first, whether the model is time first) -> the argument


def _turned(tensor: Tensor | None, time_first: bool) -> Tensor | None:
    return tensor.transpose(0, 1).contiguous() if time_first and tensor is not None else tensor  # a view may be of it


def _additive(allowed: Tensor) -> Tensor:
    return torch.zeros(allowed.shape).masked_fill(~allowed, float("-inf"))


def _triangle(inputs: Inputs) -> Tensor:
    T = inputs.ids.shape[1]
    return torch.ones(T, T, dtype=torch.bool).tril()


# Which tokens are real, (B, T) or (B, S) True where real -> the argument. `drop`: the opposite polarity.
KEEP_FORMS: dict[str, Callable[[Tensor], object]] = {
    "1 keeps": lambda keep: keep.long(),
    "True keeps": lambda keep: keep,
    "True drops": lambda keep: ~keep,
    "True keeps, (B, 1, 1, T)": lambda keep: keep[:, None, None, :],
    "True drops, (B, 1, 1, T)": lambda keep: ~keep[:, None, None, :],
    "True keeps, (B, 1, T)": lambda keep: keep[:, None, :],
    "True drops, (B, 1, T)": lambda keep: ~keep[:, None, :],
    "1.0 keeps": lambda keep: keep.float(),
    "lengths": lambda keep: keep.sum(1),
    "added, (B, 1, 1, T)": lambda keep: _additive(keep[:, None, None, :]),
}

# Who may see whom, given from outside by the training loop.
CAUSAL_FORMS: dict[str, Callable[[Inputs], object]] = {
    "True sees, (T, T)": _triangle,
    "True is hidden, (T, T)": lambda inputs: ~_triangle(inputs),
    "added, (T, T)": lambda inputs: _additive(_triangle(inputs)),
    "True sees, (B, 1, T, T)": lambda inputs: _triangle(inputs)[None, None] & inputs.kept()[:, None, None, :],
    "True sees, (B, T, T)": lambda inputs: _triangle(inputs)[None] & inputs.kept()[:, None, :],
    "True is hidden, (B, 1, T, T)": lambda inputs: ~(_triangle(inputs)[None, None] & inputs.kept()[:, None, None, :]),
    "True is hidden, (B, T, T)": lambda inputs: ~(_triangle(inputs)[None] & inputs.kept()[:, None, :]),
    "True sees, (T, T, 1)": lambda inputs: _triangle(inputs)[..., None],
}

WHOLE_FORMS = tuple(form for form in CAUSAL_FORMS if "(B, " in form)  # of padding as well


def role_of(filler: str) -> str:
    """ids, source, labels or what else it is, in whatever form."""
    return filler.partition(" as ")[0]


OF_ROW = re.compile(r"numbers \(B, (\d+)\)")
WITH_LENGTHS = "a pair with lengths"
PAIRED = ("a pair with positions", "(B, T, 2) with positions", WITH_LENGTHS)


def filler_of(name: str) -> Filler:
    """How an argument is made, by its name: one of `FILLERS`, or ids and sources in another form."""
    role, _, form = name.partition(" as ")
    if of_row := OF_ROW.fullmatch(name):  # the same for every row, which its tokens alone are to move
        numbers = torch.randn(int(of_row[1]), generator=torch.Generator().manual_seed(0))
        return lambda inputs, _: numbers.repeat(len(inputs.ids), 1)
    if not form:
        return FILLERS[name]

    def fill(inputs: Inputs, time_first: bool) -> object:
        ids = FILLERS[role](inputs, time_first)
        if not isinstance(ids, Tensor):
            return None
        if form == "an array":
            return ids.numpy()
        if form not in PAIRED:
            return as_numbers(ids, name)
        if form == WITH_LENGTHS:
            return ids, inputs.kept(role == "source").sum(1)
        positions = torch.arange(ids.shape[0 if time_first else 1]).expand(ids.shape[::-1] if time_first else ids.shape)
        pair = ids, (positions.t() if time_first else positions).clone()
        return pair if form == PAIRED[0] else torch.stack(pair, -1)

    return fill


def keep_filler(form: str, source: bool) -> Filler:
    """A padding mask in one of KEEP_FORMS."""
    return lambda inputs, time_first: KEEP_FORMS[form](inputs.kept(source))


def _positions(ids: Tensor) -> Tensor:
    return torch.arange(ids.shape[1])


FILLERS: dict[str, Filler] = {
    "ids": lambda inputs, time_first: _turned(inputs.ids, time_first),
    "source": lambda inputs, time_first: _turned(inputs.source, time_first),
    "labels": lambda inputs, time_first: _turned(inputs.ids if inputs.labels is None else inputs.labels, time_first),
    "text": lambda inputs, _: "a",
    "positions (B, T)": lambda inputs, _: _positions(inputs.ids).expand(inputs.ids.shape).clone(),
    "positions (T)": lambda inputs, _: _positions(inputs.ids),
    "source positions (B, T)": lambda i, _: _positions(i.tokens(True)).expand(i.tokens(True).shape).clone(),
    "source positions (T)": lambda inputs, _: _positions(inputs.tokens(True)),
    "0": lambda inputs, _: 0,
    "None": lambda inputs, _: None,
    "zeros like ids": lambda inputs, time_first: _turned(torch.zeros_like(inputs.ids), time_first),
    "ones like ids": lambda inputs, time_first: _turned(torch.ones_like(inputs.ids), time_first),
    "False": lambda inputs, _: False,
    "True": lambda inputs, _: True,
    **{str(number): lambda inputs, _, number=number: number for number in (1, 2, 4, 0.5, 1.0)},  # type: ignore[misc]
    "zeros (B)": lambda inputs, _: torch.zeros(len(inputs.ids), dtype=torch.long),
    "halves (B)": lambda inputs, _: torch.full((len(inputs.ids),), 0.5),
    "halves (B, 1)": lambda inputs, _: torch.full((len(inputs.ids), 1), 0.5),
    "False (B)": lambda inputs, _: torch.zeros(len(inputs.ids), dtype=torch.bool),
    "True (B, T, T)": lambda inputs, _: torch.ones(*inputs.ids.shape, inputs.ids.shape[1], dtype=torch.bool),
    "device": lambda inputs, _: inputs.ids.device,
    **{f"keep: {form}": keep_filler(form, False) for form in KEEP_FORMS},
    **{f"source keep: {form}": keep_filler(form, True) for form in KEEP_FORMS},
    **{f"causal: {form}": lambda inputs, _, make=make: make(inputs) for form, make in CAUSAL_FORMS.items()},  # type: ignore[misc]
}
PLAIN = [  # what reads no tokens
    "zeros (B)", "halves (B)", "halves (B, 1)", "False (B)", "True (B, T, T)", "0", "1", "None", "False", "device",
]  # fmt: skip
TOKENS = (
    "ids", "ids as 1 ids", "ids as 1 ids in rows", "ids as an array", "ids as a pair with positions",
    "ids as a pair with lengths", "ids as (B, T, 2) with positions",
)  # fmt: skip
