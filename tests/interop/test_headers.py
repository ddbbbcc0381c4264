"""Folders of strangers: shards are read as one file is, and everything hostile is refused before a number is read."""

import json
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from clearhead.config import ModelConfig
from clearhead.errors import DataError
from clearhead.interop import SpecialTokens, checks, links, load, load_weights, read_headers, save
from clearhead.interop.headers import read_header, stored_tensors
from clearhead.models import build_model

CONFIG = ModelConfig(vocab_size=20, block_size=12, n_layers=2, n_heads=2, d_model=8)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole one."""
    new = tmp_path / "folder"
    save(new, build_model(CONFIG, seed=4), SpecialTokens(end=0))
    (new / "tokenizer.json").write_text("{}", encoding="utf-8")
    return new


def shard(folder: Path, n: int = 3) -> dict[str, str]:
    """Cut the weights into several files with an index, as large models are published; which tensor is in which."""
    tensors = list(load_file(folder / WEIGHTS).items())
    names = [f"model-{i + 1:05d}-of-{n:05d}.safetensors" for i in range(n)]
    for i, name in enumerate(names):
        save_file(dict(tensors[i::n]), folder / name)
    (folder / WEIGHTS).unlink()
    where = {tensor: names[i % n] for i, (tensor, _) in enumerate(tensors)}
    write_index(folder, where)
    return where


def write_index(folder: Path, where: object) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}), encoding="utf-8")


def refusal(folder: Path) -> str:
    """What both ways in say, and it is the same."""
    messages = []
    for read in (read_headers, load):
        with pytest.raises(DataError) as error:
            read(folder)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert "\n" not in messages[0]
    return messages[0]


def test_shards_are_read_as_one_file_is(folder: Path) -> None:
    whole = load(folder).state_dict()
    shard(folder)
    back = load(folder).state_dict()
    assert all(torch.equal(back[name], tensor) for name, tensor in whole.items())


def test_shards_are_those_of_the_index(folder: Path) -> None:
    where = shard(folder)
    first, *_, last = where
    write_index(folder, {name: file for name, file in where.items() if name != first})
    assert f"{first} is in {where[first]} alone" in refusal(folder)
    write_index(folder, where | {"stranger": where[last]})
    assert f"stranger is not in {where[last]}" in refusal(folder)
    write_index(folder, where | {first: where[list(where)[1]]})
    assert first in refusal(folder)
    write_index(folder, where | {first: "model-00009.safetensors"})
    assert "model-00009.safetensors, which is not in" in refusal(folder)


OUTSIDE = ["../model.safetensors", "/etc/model.safetensors", "a/b.safetensors", "..\\x.safetensors", "c:x.safetensors"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_path_leaves_the_folder(name: str, folder: Path) -> None:
    where = shard(folder)
    (folder / where["transformer.ln_f.bias"]).rename(folder.parent / WEIGHTS)
    write_index(folder, where | {"transformer.ln_f.bias": name})
    assert "not the plain name of a file in it" in refusal(folder)


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
@pytest.mark.parametrize("name", ["config.json", WEIGHTS, "tokenizer.json", "generation_config.json"])
def test_no_link_leaves_the_folder(name: str, folder: Path) -> None:
    (folder / name).rename(folder.parent / name)
    (folder / name).symlink_to(folder.parent / name)
    with pytest.raises(DataError, match="a link that leads out of its folder"):
        read_headers(folder)


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_the_hubs_own_cache_is_read(folder: Path, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a--b/snapshots/0123", tmp_path / "models--a--b/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in list(folder.iterdir()):
        path.rename(blobs / path.name)
        (snapshot / path.name).symlink_to(Path("../../blobs") / path.name)
    read_headers(snapshot)
    assert load(snapshot)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no such thing there")
@pytest.mark.parametrize("name", ["config.json", WEIGHTS])
def test_what_would_block_for_ever_is_not_opened(name: str, folder: Path) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert name in refusal(folder)


class Bomb:
    """Unpickling it would create a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


PICKLES = ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json", "model.pth"]


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_is_refused_by_name(name: str, folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / name).write_bytes(pickle.dumps(Bomb(folder / "ran")))
    assert f"{name} is a pickle, which can run code when read" in refusal(folder)
    with pytest.raises(DataError, match=r"pickle|is a file"):
        read_headers(folder / name)
    where = {"a": "pytorch_model.bin"}
    write_index(folder, where)
    assert "'pytorch_model.bin', which is no safetensors file" in refusal(folder)
    (folder / INDEX).unlink()
    (folder / name).rename(folder / WEIGHTS)  # under a harmless name
    assert "(a pickle)" in refusal(folder)
    assert not (folder / "ran").exists()


def header_of(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + struct.unpack("<Q", content[:8])[0]])
    assert isinstance(header, dict)
    return header


def with_header(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """The same numbers under another header."""
    content = path.read_bytes()
    header = header_of(path)
    text = change(header)
    new = text if isinstance(text, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(new)) + new + content[8 + struct.unpack("<Q", content[:8])[0] :])


NAME = "transformer.ln_f.weight"
LIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a larger shape": lambda header: header[NAME].update(shape=[2**40]),
    "a negative shape": lambda header: header[NAME].update(shape=[-8]),
    "a shape of booleans": lambda header: header[NAME].update(shape=[True] * 8),
    "a shape that is none": lambda header: header[NAME].update(shape="8"),
    "an unknown type": lambda header: header[NAME].update(dtype="F3"),
    "a type of another size": lambda header: header[NAME].update(dtype="F64"),
    "another's place": lambda header: header[NAME].update(data_offsets=header["transformer.ln_f.bias"]["data_offsets"]),
    "a place before the file": lambda header: header[NAME].update(data_offsets=[-32, 0]),
    "a place behind the file": lambda header: header[NAME].update(data_offsets=[2**40, 2**40 + 32]),
    "half a place": lambda header: header[NAME].update(data_offsets=[0]),
    "no place": lambda header: header[NAME].pop("data_offsets"),
    "a number for a tensor": lambda header: header.update({NAME: 5}),
    "a tensor too few": lambda header: header.pop(NAME),
    "a list": lambda header: b"[]",
    "no JSON": lambda header: b"{",
    "depth": lambda header: b'{"a":' + b"[" * 100_000,
    "a name twice": lambda header: (
        b"{" + b'"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},' * 2 + json.dumps(header).encode()[1:]
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_refused(lie: str, folder: Path) -> None:
    with_header(folder / WEIGHTS, LIES[lie])
    assert f"{WEIGHTS} cannot be read as safetensors: " in refusal(folder)


def test_a_header_larger_than_any_is_not_read(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", 2**30))
    with (folder / WEIGHTS).open("r+b") as file:
        file.truncate(2**31)  # a file of holes
    assert "its header has 1073741824 bytes" in refusal(folder)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_our_reading_of_headers_is_the_librarys(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever the bytes: what the library refuses is refused, and what is accepted has the library's shapes."""
    path = tmp_path_factory.mktemp("some") / WEIGHTS
    save_file({"a": torch.zeros(2, 3), "b": torch.zeros(4, dtype=torch.float16)}, path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(0, 2))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    try:
        tensors = read_header(path)
    except DataError:
        return
    assert {name: tuple(tensor.shape) for name, tensor in load_file(path).items()} == {
        name: stored.shape for name, stored in tensors.items()
    }


def test_every_weight_is_written_from_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is built without a number in it, and one that no file fills is an error, not a random one."""
    assert all(tensor.isnan().all() for tensor in load_weights._blank(CONFIG).parameters())
    table = links
    monkeypatch.setattr(checks, "links", lambda *arguments: table(*arguments)[:-1])
    monkeypatch.setattr(checks, "refuse_differences", lambda *arguments: None)
    with pytest.raises(AssertionError, match="no file told of"):
        load(folder)


def test_building_without_drawing_leaves_the_generator_alone(folder: Path) -> None:
    before = torch.random.get_rng_state()
    load(folder)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no config\.json"):
        read_headers(tmp_path)
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match=r"there is no model\.safetensors"):
        read_headers(tmp_path)
    save_file({"a": torch.zeros(1)}, tmp_path / WEIGHTS)
    assert list(stored_tensors(tmp_path)) == ["a"]
    with pytest.raises(DataError, match=r"there is no tokenizer\.json"):
        read_headers(tmp_path)
    with pytest.raises(DataError, match="is a file; give a folder"):
        read_headers(tmp_path / WEIGHTS)


def test_headers_are_judged_without_torch(folder: Path) -> None:
    program = (
        "import sys\nfrom clearhead.interop import read_headers\nfrom pathlib import Path\n"
        f"read_headers(Path({str(folder)!r}))\nassert not {{'torch', 'numpy', 'safetensors'}} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_a_shape_of_a_million_axes_is_refused_at_once(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [9] * 1_000_000, "data_offsets": [0, 4]}}).encode()
    path = tmp_path / WEIGHTS
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"0000")
    with pytest.raises(DataError, match="a has 1000000 axes"):
        read_header(path)


@pytest.mark.parametrize("size", [2**63, 10**4000])
def test_a_size_beyond_all_files_is_refused(tmp_path: Path, size: int) -> None:
    header = f'{{"a": {{"dtype": "F32", "shape": [{size}], "data_offsets": [0, 4]}}}}'.encode()
    path = tmp_path / WEIGHTS
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"0000")
    with pytest.raises(DataError, match="cannot be read as safetensors"):
        read_header(path)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.float8_e4m3fn])
def test_numbers_that_are_no_weights_are_called_so(folder: Path, dtype: torch.dtype) -> None:
    tensors = load_file(folder / WEIGHTS)
    name = next(iter(tensors))
    save_file(tensors | {name: torch.zeros(tensors[name].shape, dtype=dtype)}, folder / WEIGHTS)
    with pytest.raises(DataError, match="which no weights are"):
        load(folder)
