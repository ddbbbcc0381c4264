"""Models that read numbers instead of token ids: every id stands for a fixed vector, or for a part of a picture."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice, product
from math import isqrt, prod

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.settings import settings_of

WORDS = 64  # ids that there are numbers for
PLACES = 16  # parts of a picture
PIXELS = 1 << 20  # of one picture, at most
WIDTHS = 8  # of inputs that are tried
SIZES = (32, 64, 28, 16, 48)  # of pictures, in pixels, where the model tells none
MANY_SIZES = 20
SIGNALS = (512, 3000)  # samples of a signal
FRAMES = (8, 4, 16)  # of a video, where the model tells none
SIZE_NAMES = re.compile(r"(^|_)(image|img|input|in|patches)_?(size|res|resolution|dim|shape|hw?)$|^resolution$|^size$")
FRAME_NAMES = re.compile(r"^(num_|n_|max_)?(frames?|clip_?len|clip_length)$|^(num|n)_?frames")
LENGTH_NAMES = re.compile(
    r"^(seq|sequence|context|window|history|input|in|src|source)_?(len|length)$|^(look_?back|window(_size)?|n?_?time_?steps)$"
)
FORM = re.compile(
    r" as (?:(?P<width>\d+) (?:(?P<whole>whole )?numbers|(?P<ids>ids))(?P<turned> in rows)?"
    r"|(?P<sizes>\d+(?: x \d+)+) pixels)$"
)


def holds_numbers(filler: str) -> bool:
    """Whether it stands for numbers that were put in the place of ids."""
    return has_sizes(filler) and not filler.endswith((" ids", " ids in rows"))


def has_sizes(filler: str) -> bool:
    """Whether it stands for numbers, or for several ids at each place."""
    return FORM.search(filler) is not None


def is_picture(filler: str) -> bool:
    """Whether it stands for pictures; they have `PLACES` parts, and no other number of them."""
    return filler.endswith(" pixels")


def as_numbers(ids: Tensor, filler: str) -> Tensor:
    """What a model is given for ids (B, T): (B, T), (B, T, width), (B, width, T) or a picture (B, ..., height, width).

    Raises:
        ValueError: a picture has another number of parts.
    """
    form = FORM.search(filler)
    assert form is not None
    if form["width"]:
        width = int(form["width"])
        copies = ids[..., None].expand(*ids.shape, width or 1)
        numbers = (
            copies.contiguous() if form["ids"] else copies.float() if form["whole"] else _table((width or 1,))[ids]
        )
        if not width:
            return numbers[..., 0]
        return numbers.transpose(-1, -2) if form["turned"] else numbers
    if ids.shape[1] != PLACES:
        raise ValueError(f"a picture has {PLACES} parts")
    *leading, height, across = (int(size) for size in form["sizes"].split(" x "))
    down = next(count for count in (4, 2, 1) if count <= height)
    tall, wide = _cut(height, down), _cut(across, PLACES // down)
    grid = ids.reshape(len(ids), down, -1)
    lines = [
        torch.cat([_part(grid[:, y, x], (*leading, rows, columns)) for x, columns in enumerate(wide)], -1)
        for y, rows in enumerate(tall)
    ]
    return torch.cat(lines, -2)


def _part(ids: Tensor, shape: tuple[int, ...]) -> Tensor:
    """For each id (B), waves in the shape of a part of a picture, (B, *shape)."""
    frequency, phase = _waves(shape)
    turns: Tensor = ids.float().view(-1, *(1 for _ in shape)) * frequency + phase
    return (turns * (2 * torch.pi)).cos() * 1.4


@lru_cache(8)
def _waves(shape: tuple[int, ...]) -> Tensor:
    return torch.rand(2, *shape, generator=torch.Generator().manual_seed(len(shape)))


def _cut(size: int, count: int) -> list[int]:
    """So many parts of a length, as equal as they can be."""
    return [size * (part + 1) // count - size * part // count for part in range(count)]


@lru_cache(64)
def _table(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(WORDS, *shape, generator=torch.Generator().manual_seed(len(shape)))


def forms_of(model: nn.Module) -> list[str]:
    """What its layers could read, the likeliest first."""
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Conv3d)]
    readers = [module for module in model.modules() if isinstance(module, nn.Conv1d | nn.Linear | nn.RNNBase)]
    widths = dict.fromkeys(width for module in readers if (width := _width(module)) <= 1024)
    rows = [f" as {width} numbers{turned}" for turned in ("", " in rows") for width in islice(widths, WIDTHS)]
    channels = dict.fromkeys(module.in_channels for module in readers if isinstance(module, nn.Conv1d))
    rows += [f" as {count} x {length} pixels" for count in islice(channels, 3) for length in SIGNALS]
    known = (form for form in _pictures(model, convolutions, list(widths)) if _pixels(form) <= PIXELS)
    pictures = list(islice(dict.fromkeys(known), 2 * MANY_SIZES))
    first = [" as 0 numbers", " as 0 whole numbers"]
    return [*pictures, *rows, *first] if convolutions else [*rows, *first, *pictures]


def _pixels(form: str) -> int:
    return prod(int(size) for size in re.findall(r"\d+", form))


def form_of_width(width: int) -> tuple[str, ...]:
    """Rows of so many numbers."""
    return f" as {width} numbers", f" as {width} numbers in rows", f" as {width} whole numbers"


def _width(module: nn.Module) -> int:
    """How many numbers a layer reads at each place."""
    return int(next(getattr(module, n) for n in ("in_features", "in_channels", "input_size") if hasattr(module, n)))


def _pictures(model: nn.Module, convolutions: Iterable[nn.Module], widths: Iterable[int]) -> Iterator[str]:
    """Sizes that the model tells, those that fit a table of positions, and the usual ones."""
    settings = list(_settings(model))
    shapes = [tuple(value) for _, value in settings if isinstance(value, (tuple, list)) and _is_shape(value)]
    frames = [value for name, value in settings if FRAME_NAMES.search(name) and isinstance(value, int) and value > 0]
    readers = [(_width(module), _stride(module), isinstance(module, nn.Conv3d)) for module in convolutions][:3]
    for width, channels in product(widths, (3, 1)) if not readers else ():  # a linear map reads whole patches
        side = isqrt(width // channels)
        readers += [(channels, side, False)] if side > 1 and channels * side * side == width else []
    readers = readers or [(3, 4, False), (1, 4, False)]
    yield from (f" as {channels} x {high} x {wide} pixels" for channels, high, wide in shapes if channels < high)
    for channels, stride, is_deep in dict.fromkeys(readers):
        sizes = list(islice(dict.fromkeys(_sizes(model, settings, stride)), MANY_SIZES))
        yield from (f" as {channels} x {depth} x {high} x {wide} pixels" for depth, high, wide in shapes if is_deep)
        if is_deep or frames:
            for high, wide in sizes[:6]:
                for count in (*frames, *(FRAMES if not frames else ())):
                    yield f" as {channels} x {count} x {high} x {wide} pixels"
                    yield f" as {count} x {channels} x {high} x {wide} pixels"
        yield from (f" as {channels} x {high} x {wide} pixels" for high, wide in sizes if not is_deep)
    if not frames:  # a video, each picture of which is cut into patches
        for (count, size), (channels, _, _) in product(((4, 16), (2, 32), (1, 32)), readers[:2]):
            yield f" as {count} x {channels} x {size} x {size} pixels"


def _sizes(model: nn.Module, settings: list[tuple[str, object]], stride: int) -> Iterator[tuple[int, int]]:
    """Heights and widths of pictures, in pixels."""
    for name, value in settings:
        if SIZE_NAMES.search(name):
            size = value if isinstance(value, (tuple, list)) else (value, value)
            if len(size) == 2 and all(isinstance(part, int) and 1 < part <= 512 for part in size):
                yield size[0], size[1]
    for tensor in (*model.parameters(), *model.buffers()):
        for extra in (0, 1, 2):
            places = tensor.shape[-2] - extra if tensor.dim() > 1 else 0
            if 1 < places <= 4096 and isqrt(places) ** 2 == places and stride * isqrt(places) <= 512:
                yield (stride * isqrt(places),) * 2
    yield from ((size, size) for size in SIZES)


def _is_shape(value: Sequence[object]) -> bool:
    return len(value) == 3 and all(type(part) is int and 0 < part <= 512 for part in value)


def _stride(convolution: nn.Module) -> int:
    """How many pixels apart it looks."""
    stride = convolution.stride
    return int(stride[-1]) if isinstance(stride, tuple) else 1


def spans_of(model: nn.Module) -> dict[int, list[int]]:
    """By axis, -2 or -1, what convolutions span along it that see one place of the other."""
    kernels = [module.kernel_size for module in model.modules() if isinstance(module, nn.Conv2d)]
    return {
        -2: [high for high, wide in kernels if high > wide == 1],
        -1: [wide for high, wide in kernels if wide > high == 1],
    }


def _settings(model: nn.Module) -> Iterator[tuple[str, object]]:
    """What it holds by name, in the order of its modules."""
    for module in model.modules():
        yield from vars(module).items()
        yield from settings_of(module).items()


def lengths_told(model: nn.Module) -> list[int]:
    """Lengths of rows that it holds by name."""
    lengths = (value for name, value in _settings(model) if LENGTH_NAMES.search(name) and type(value) is int)
    return [length for length in dict.fromkeys(lengths) if 1 < length <= 128]


def numbers_of(model: nn.Module) -> list[int]:
    """Numbers that it holds by name: lengths and widths may be among them."""
    values = (value for name, value in _settings(model) if not name.startswith("_"))
    return list(dict.fromkeys(value for value in values if type(value) is int and 1 < value <= 128))
