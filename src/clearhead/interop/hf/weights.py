"""Numbers under foreign names: what a link between tensors does to them, both ways."""

from collections.abc import Mapping

import torch
from torch import Tensor

from clearhead.interop.hf.constants import halves
from clearhead.interop.hf.key_map import Link


def to_foreign(link: Link, state: Mapping[str, Tensor]) -> Tensor:
    """The foreign tensor; a bias that we do not have is zero."""
    like = next(iter(state.values()))
    own = [
        state[name] if name in state else like.new_zeros(shape)
        for name, shape in zip(link.own, link.shapes, strict=True)
    ]
    grouped = [_split_groups(tensor, link.groups) for tensor in own]
    stacked = torch.cat(grouped, dim=1).flatten(0, 1)  # (groups, sum of rows / groups, ...) -> (sum of rows, ...)
    if link.stream is not None:
        stacked = stacked.index_select(
            link.stream, torch.tensor(halves(stacked.shape[link.stream]), device=stacked.device)
        )
    if link.unread_rows:
        stacked = torch.cat((stacked.new_zeros(link.unread_rows, *stacked.shape[1:]), stacked))
    foreign = stacked.T if link.transposed else stacked
    return (foreign[None] if link.row else foreign).contiguous()


def to_own(link: Link, foreign: Tensor) -> dict[str, Tensor]:
    """The reverse of `to_foreign`."""
    read = foreign[0] if link.row else foreign
    stacked = (read.T if link.transposed else read)[link.unread_rows :]
    if link.stream is not None:
        stacked = stacked.index_select(link.stream, torch.tensor(halves(stacked.shape[link.stream])).argsort())
    parts = torch.split(_split_groups(stacked, link.groups), [shape[0] // link.groups for shape in link.shapes], dim=1)
    return {name: part.flatten(0, 1) for name, part in zip(link.own, parts, strict=True)}  # (rows, ...) each


def _split_groups(tensor: Tensor, groups: int) -> Tensor:
    return tensor.reshape(groups, -1, *tensor.shape[1:])  # (rows, ...) -> (groups, rows / groups, ...)
