"""A stranger's model folder, judged by what can be read without torch: the config, names, types, shapes and sizes.

Everything counts as hostile. No pickle is opened, no path leaves the folder, and no size is believed that the file
does not bear out. Imports no torch, so that most refusals come within a fraction of a second.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from clearhead import files
from clearhead.errors import DataError

CONFIG, WEIGHTS, INDEX, TOKENIZER = "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
MAX_CONFIG_BYTES = 2**20
MAX_HEADER_BYTES = 2**22  # of the tensors' names and places; forty thousand of them, and little memory
MAX_TENSORS = 2**16  # in all files together
MAX_FAULTS = 20  # that one sentence lists
# Of what lies beside the weights: the largest published tokenizer_config.json has 1.2 MB. Parsed, JSON takes up to 25
# times as much memory as on the disk.
MAX_BYTES = {"tokenizer_config.json": 2**22, "special_tokens_map.json": 2**20, "generation_config.json": 2**20}
# Of a tokenizer.json: published ones have 20 to 140 bytes for each token, and rules of normalization.
TOKENIZER_BYTES, TOKENIZER_BYTES_PER_TOKEN = 2**20, 512
SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}  # bytes
SIZES |= {
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "C64": 8,
}  # which no weights of ours are
MAX_AXES = 8
MAX_SHOWN = 300  # characters of a stranger's text in a sentence of ours

Json = dict[str, object]


class Stored(NamedTuple):
    """Where a tensor is, its name there, and what the file's header says of it; `start` is the byte of the file."""

    file: Path
    name: str
    shape: tuple[int, ...]
    type: str
    start: int

    @property
    def numbers(self) -> int:
        """How many it holds."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """How much room they take in the file."""
        return self.numbers * SIZES[self.type]


def read_headers(folder: Path) -> dict[str, Stored]:
    """What can be refused in a folder to be imported before torch is loaded; its tensors by name.

    Raises:
        DataError: one sentence on the first fault.
    """
    if folder.is_file():
        what = "is a pickle, which can run code when read" if folder.suffix in PICKLES else "is a file"
        raise DataError(f"{folder} {what}; give a folder with {CONFIG}, {WEIGHTS} and {TOKENIZER}")
    read_json(inside(folder, CONFIG))
    tensors = stored_tensors(folder)
    if not inside(folder, TOKENIZER).is_file():
        save = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers writes one"
        raise DataError(f"there is no {TOKENIZER} in {folder}; {save}")
    for name, most in MAX_BYTES.items():
        path = inside(folder, name)
        if path.exists():
            refuse_large(path, most)
    return tensors


def refuse_large(path: Path, most: int) -> None:
    """What is beside the weights is a file, and no larger than such files are.

    Raises:
        DataError: it is not.
    """
    size = path.stat().st_size
    if not path.is_file() or size > most:
        what = "is no file" if not path.is_file() else f"has {size:,} bytes, and no such file has more than {most:,}"
        raise DataError(f"{path} {what}; fetch it again, or remove it")


def refuse_large_tokenizer(folder: Path, vocab_size: int) -> None:
    """No tokenizer.json is larger than the model's vocabulary bears out.

    Raises:
        DataError: it is.
    """
    refuse_large(inside(folder, TOKENIZER), TOKENIZER_BYTES + TOKENIZER_BYTES_PER_TOKEN * vocab_size)


def in_short(faults: Sequence[str]) -> str:
    """A list for a sentence, which stays one."""
    more = [f"and {len(faults) - MAX_FAULTS:,} more"] if len(faults) > MAX_FAULTS else []
    return ", ".join([*map(shorten, faults[:MAX_FAULTS]), *more])


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """Every tensor of the folder by name, from the headers of its safetensors files.

    Raises:
        DataError: there are none, a file is damaged, a pickle, or outside the folder, or the index names other tensors.
    """
    whole, index = inside(folder, WEIGHTS), inside(folder, INDEX)
    if whole.is_file():
        return read_header(whole)
    if not index.is_file():
        raise DataError(_no_weights(folder))
    weight_map = read_json(index, MAX_HEADER_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise DataError(f"{index} has no weight_map from tensors to files")
    tensors: dict[str, Stored] = {}
    for name in sorted(set(weight_map.values())):
        if Path(name).suffix != ".safetensors":
            raise DataError(f"{index} names {quote(name)}, which is no safetensors file")
        path = inside(folder, name)
        if not path.is_file():
            raise DataError(f"{index} names {name}, which is not in {folder}")
        tensors |= {
            tensor: stored for tensor, stored in read_header(path).items() if weight_map.get(tensor, name) == name
        }
        if len(tensors) > MAX_TENSORS:
            raise DataError(f"{index} names files of more than {MAX_TENSORS:,} tensors")
    lost = [f"{tensor} is not in {file}" for tensor, file in weight_map.items() if tensor not in tensors]
    extra = [
        f"{tensor} is in {stored.file.name} alone" for tensor, stored in tensors.items() if tensor not in weight_map
    ]
    if lost or extra:
        raise DataError(f"{index} does not fit its files: {in_short(lost + extra)}")
    return tensors


def read_header(path: Path) -> dict[str, Stored]:
    """The tensors of one safetensors file by name; the numbers themselves are not read.

    Raises:
        DataError: the file is cut off, or its header does not describe it to the byte.
    """
    try:
        header, base, room = _header(path)
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        if len(tensors) > MAX_TENSORS:
            raise ValueError(f"it has {len(tensors):,} tensors, and {MAX_TENSORS:,} are read at most")
        end = 0
        for name, entry in sorted(tensors.items(), key=lambda item: list(item[1]["data_offsets"])):
            start, stop = entry["data_offsets"]
            if len(entry["shape"]) > MAX_AXES:
                raise ValueError(f"{name} has {len(entry['shape'])} axes")
            size = SIZES[entry["dtype"]] * math.prod(_natural(n) for n in entry["shape"])
            if (_natural(start), _natural(stop)) != (end, end + size):
                raise ValueError(f"{name} overlaps another tensor, or leaves a gap before it")
            end = stop
        if end != room:
            fault = "it is cut off: " if room < end else ""
            raise ValueError(f"{fault}it has {room} bytes of numbers and describes {end}")
    except KeyError as error:
        raise DataError(f"{path} cannot be read as safetensors: {quote(error.args[0])} is unknown or missing") from None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as safetensors: {shorten(str(error))}") from None
    return {
        name: Stored(path, name, tuple(entry["shape"]), entry["dtype"], base + entry["data_offsets"][0])
        for name, entry in tensors.items()
    }


def read_metadata(path: Path) -> dict[str, str]:
    """What a safetensors file says of itself in words; `read_header` has found nothing wrong with it."""
    metadata = _header(path)[0].get("__metadata__")
    return {str(key): str(value) for key, value in metadata.items()} if isinstance(metadata, dict) else {}


def read_json(path: Path, most: int = MAX_CONFIG_BYTES) -> Json:
    """The JSON object in a file of at most so many bytes.

    Raises:
        DataError: there is none.
    """
    try:
        value = files.read_json(path, most)
    except FileNotFoundError:
        raise DataError(f"there is no {path.name} in {path.parent}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as JSON: {shorten(str(error))}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path} holds no JSON object")
    return value


def inside(folder: Path, name: str) -> Path:
    """The file of that name, which need not be there.

    The links of the hub's own cache, snapshots/REVISION/NAME to blobs/DIGEST, may be followed; no others out of it.

    Raises:
        DataError: the name is a path, or a link that leads out of the folder.
    """
    path = folder / name
    if not name or any(sign in name for sign in "/\\:\0") or name in (".", ".."):
        raise DataError(f"{folder} names {quote(name)}, which is not the plain name of a file in it")
    try:
        if path.is_symlink():
            home, aim = folder.resolve(), path.resolve()
            blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
            if not (aim.is_relative_to(home) or aim.is_relative_to(blobs)):
                raise DataError(f"{path} is a link that leads out of its folder; put the file itself there")
    except (OSError, RuntimeError) as error:  # a name that no system takes; links in a circle, of which older Pythons
        reason = getattr(error, "strerror", None) or "it is a link to itself"  # raise a RuntimeError
        raise DataError(f"{folder} has no file {quote(name)} that can be read: {reason}") from None
    return path


def quote(value: object) -> str:
    """A value from a stranger's file as a sentence shows it."""
    return shorten(repr(value))


def shorten(text: str) -> str:
    """Text from a stranger's file, no longer than belongs into a sentence."""
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text):,} characters)"


def _header(path: Path) -> tuple[dict[str, Any], int, int]:
    """The header of a safetensors file, where it ends, and how many bytes follow it.

    Its entries are of any type: `read_header` finds out by indexing them, and catches what that raises.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > size - 8:
            raise ValueError(f"it is cut off after {size} bytes, or something else" + _guess(start))
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"its header has {length} bytes, and {MAX_HEADER_BYTES} are read at most")
        header = files.parse_json(file.read(length), pairs=_once)
    if not isinstance(header, dict):
        raise ValueError("its header holds no JSON object")
    return header, 8 + length, size - 8 - length


def _guess(start: bytes) -> str:
    """A pickle and a zip of pickles betray themselves, whatever their name."""
    return " (a pickle)" if start.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK")) else ""


def _once(pairs: list[tuple[str, object]]) -> Json:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ValueError("its header repeats a name")
    return mapping


def _natural(n: object) -> int:
    if not isinstance(n, int) or isinstance(n, bool) or not 0 <= n < 2**63:
        raise ValueError(f"{quote(n)} is not a size")
    return n


def _no_weights(folder: Path) -> str:
    pickles = sorted(path.name for path in _files(folder) if path.suffix in PICKLES or ".bin.index" in path.name)
    if pickles:
        return f"{folder / pickles[0]} is a pickle, which can run code when read; convert it to {WEIGHTS}"
    return f"there is no {WEIGHTS} in {folder}"


def _files(folder: Path) -> Iterator[Path]:
    try:
        yield from folder.iterdir()
    except OSError:
        return
