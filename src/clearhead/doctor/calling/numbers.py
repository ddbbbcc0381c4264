"""Models that read numbers instead of token ids: every id stands for a fixed vector, or for a part of a picture."""

import re
from collections.abc import Iterator
from functools import lru_cache
from math import isqrt

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.settings import settings_of

WORDS = 64  # ids that there are numbers for
SIDE = 4  # parts of a picture in a row and in a column
PLACES = SIDE * SIDE
WIDTHS = 4  # of inputs that are tried
SIZES = (32, 64, 28, 16, 48, 96, 224)  # of pictures, in pixels, where the model tells none
SIZE_NAMES = re.compile(r"^(image|img|input|in)_?(size|res|resolution|dim)$|^resolution$|^size$")
FORM = re.compile(
    r" as (?:(?P<width>\d+) numbers(?P<turned> in rows)?|(?P<channels>\d+) x (?P<height>\d+) x (?P<across>\d+) pixels)$"
)


def holds_numbers(filler: str) -> bool:
    """Whether it stands for numbers that were put in the place of ids."""
    return FORM.search(filler) is not None


def is_picture(filler: str) -> bool:
    """Whether it stands for pictures; they have `PLACES` parts, and no other number of them."""
    return filler.endswith(" pixels")


def as_numbers(ids: Tensor, filler: str) -> Tensor:
    """What a model is given for ids (B, T): (B, T), (B, T, width), (B, width, T) or a picture (B, C, height, width).

    Raises:
        ValueError: a picture has another number of parts.
    """
    form = FORM.search(filler)
    assert form is not None
    if form["width"]:
        numbers = _table((int(form["width"]) or 1,))[ids]
        if form["width"] == "0":
            return numbers[..., 0]
        return numbers.transpose(-1, -2) if form["turned"] else numbers
    if ids.shape[1] != PLACES:
        raise ValueError(f"a picture has {PLACES} parts")
    channels, height, across = (int(form[name]) for name in ("channels", "height", "across"))
    parts = _table((channels, height // SIDE, across // SIDE))
    lines = [torch.cat([parts[ids[:, SIDE * y + x]] for x in range(SIDE)], -1) for y in range(SIDE)]
    return torch.cat(lines, -2)


@lru_cache(64)
def _table(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(WORDS, *shape, generator=torch.Generator().manual_seed(len(shape)))


def forms_of(model: nn.Module) -> list[str]:
    """What its first layers could read, the likeliest first."""
    pictures: list[str] = []
    rows: list[str] = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            pictures += _pictures(model, module)
        elif isinstance(module, nn.Conv1d):
            rows += [f" as {module.in_channels} numbers", f" as {module.in_channels} numbers in rows"]
        elif isinstance(module, nn.Linear):
            rows.append(f" as {module.in_features} numbers")
    rows = list(dict.fromkeys(rows))[: 2 * WIDTHS]
    return [*dict.fromkeys(pictures), *rows, " as 0 numbers"]


def _pictures(model: nn.Module, conv: nn.Conv2d) -> Iterator[str]:
    """Sizes that the model tells, those that fit a table of positions, and the usual ones."""
    declared = [value for name, value in _settings(model) if SIZE_NAMES.search(name)]
    sizes = [tuple(size) if isinstance(size, (tuple, list)) else (size, size) for size in declared]
    stride = conv.stride[0]
    for tensor in (*model.parameters(), *model.buffers()):
        for extra in (0, 1, 2):
            places = tensor.shape[-2] - extra if tensor.dim() > 1 else 0
            if 1 < places <= 4096 and isqrt(places) ** 2 == places:
                sizes.append((stride * isqrt(places),) * 2)
    for size in (*sizes, *((size, size) for size in SIZES)):
        if len(size) == 2 and all(isinstance(part, int) and 0 < part <= 512 and not part % SIDE for part in size):
            yield f" as {conv.in_channels} x {size[0]} x {size[1]} pixels"


def _settings(model: nn.Module) -> Iterator[tuple[str, object]]:
    for module in model.modules():
        yield from vars(module).items()
        yield from settings_of(module).items()
