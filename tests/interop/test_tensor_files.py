"""Safetensors files are read and written as the format's own library does, one tensor at a time."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from clearhead.config import ModelConfig
from clearhead.errors import DataError
from clearhead.interop import FAMILIES, links, load, memory, save
from clearhead.interop.headers import read_header
from clearhead.interop.tensor_files import TYPES, Writable, read_tensor, write_tensors
from clearhead.models import build_model

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
tensors = st.dictionaries(st.text('abé."\\', min_size=1, max_size=6), st.tuples(shapes, st.sampled_from(sorted(TYPES))))
LLAMA = {"norm": "rmsnorm", "feedforward": "swiglu", "positions": "rope"}
CONFIG = ModelConfig.read({"vocab_size": 50, "block_size": 16, "n_layers": 2, "n_heads": 2, "d_model": 16, **LLAMA})


@settings(max_examples=60, deadline=None)
@given(drawn=tensors, seed=st.integers(0, 2**20))
def test_files_are_the_librarys_byte_for_byte(
    drawn: dict[str, tuple[tuple[int, ...], str]], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("files")
    generator = torch.Generator().manual_seed(seed)
    expected = {
        name: torch.randint(0, 2, shape, generator=generator).to(TYPES[type_]) for name, (shape, type_) in drawn.items()
    }
    save_file(expected, folder / "theirs", metadata={"format": "pt"})
    ours = {name: Writable(tuple(t.shape), t.dtype, lambda t=t: t) for name, t in expected.items()}  # type: ignore[misc]
    write_tensors(folder / "ours", ours, {"format": "pt"})
    assert (folder / "ours").read_bytes() == (folder / "theirs").read_bytes()
    stored = read_header(folder / "ours")
    for name, tensor in load_file(folder / "theirs").items():
        assert torch.equal(read_tensor(stored[name]), tensor)


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(100)}, tmp_path / "f")
    stored = read_header(tmp_path / "f")["a"]
    with (tmp_path / "f").open("r+b") as file:
        file.truncate(300)
    with pytest.raises(OSError, match="cut off in a"):
        read_tensor(stored)


def test_a_model_larger_than_the_memory_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, build_model(CONFIG, seed=1))
    monkeypatch.setattr(memory, "free_memory", lambda: 10_000)
    with pytest.raises(DataError, match=r"takes 0\.0 GB of memory, and 0\.0 GB are free") as error:
        load(tmp_path)
    assert str(tmp_path / "model.safetensors") in str(error.value)
    monkeypatch.setattr(memory, "free_memory", lambda: None)  # a system that does not tell
    load(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="files of holes")
@pytest.mark.parametrize("files", [1, 3])
def test_a_sparse_file_of_terabytes_is_refused_without_torch(files: int, tmp_path: Path) -> None:
    sparse(tmp_path, n_layers=3, width=2**17, files=files)
    program = (
        "import sys, pathlib, clearhead.interop as e, clearhead.errors as errors\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "try:\n    e.read_headers(folder); e.check(folder)\n"
        "except errors.DataError as error:\n    sys.exit(0 if 'GB are free' in str(error) else str(error))\n"
        "sys.exit('believed')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "torch" not in done.stderr


@pytest.mark.campaign
@pytest.mark.skipif(sys.platform != "linux", reason="what a process took at most is told otherwise elsewhere")
def test_importing_takes_the_memory_of_the_model_and_little_more(tmp_path: Path) -> None:
    """A model of 134 MB in tensors of at most 4 MB, loaded and saved; a copy would be twice its size."""
    size = sparse(tmp_path / "m", n_layers=8, width=512)
    program = (
        "import pathlib, resource, clearhead.interop as e\n"
        "import torch, clearhead.models\n"
        "from clearhead.interop.hf.folder import load, save\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"save(pathlib.Path({str(tmp_path / 'saved')!r}), load(pathlib.Path({str(tmp_path / 'm')!r})))\n"
        "print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1.5 * size


def sparse(folder: Path, *, n_layers: int, width: int, files: int = 1) -> int:
    """A Llama of zeros that take no room on the disk; the bytes that it has in memory."""
    folder.mkdir(exist_ok=True)
    config = CONFIG.model_copy(update={"n_layers": n_layers, "d_model": width, "d_ff": width * 4, "vocab_size": 340})
    config = ModelConfig.read(config.model_dump(exclude={"head_dim", "n_kv_heads"}))
    (folder / "config.json").write_text(json.dumps(FAMILIES["llama"].foreign_config(config)), encoding="utf-8")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    of_name = {link.foreign: link.foreign_shape for link in links(FAMILIES["llama"], config)}
    part_of = {name: f"part-{n % files}.safetensors" for n, name in enumerate(of_name)}
    total = 0
    for file in set(part_of.values()):
        header, end = {}, 0
        for name in (name for name, part in part_of.items() if part == file):
            start, end = end, end + 4 * math.prod(of_name[name])
            header[name] = {"dtype": "F32", "shape": of_name[name], "data_offsets": [start, end]}
        content = json.dumps(header).encode()
        path = folder / (file if files > 1 else "model.safetensors")
        with path.open("wb") as opened:
            opened.write(len(content).to_bytes(8, "little") + content)
            opened.truncate(8 + len(content) + end)
        total += end
    if files > 1:
        index = {"weight_map": part_of}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return total


def test_the_free_memory_is_told_or_not() -> None:
    free = memory.free_memory()
    assert free is None or free > 0


@pytest.mark.parametrize(
    ("limit", "usage", "cached"),
    [("memory.max", "memory.current", "inactive_file"), ("limit_in_bytes", "usage_in_bytes", "total_inactive_file")],
    ids=["v2", "v1"],
)
def test_what_a_container_uses_is_not_free(
    limit: str, usage: str, cached: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File cache that was not read lately is given back when somebody needs the room."""
    group = memory.Group(str(tmp_path / limit), str(tmp_path / usage), str(tmp_path / "memory.stat"), cached)
    monkeypatch.setattr(memory, "GROUPS", (group,))
    monkeypatch.setattr(memory, "_free_of_system", lambda: None)
    monkeypatch.setattr(memory, "_free_of_process", lambda: None)
    assert memory.free_memory() is None
    (tmp_path / limit).write_text("max\n", encoding="ascii")
    assert memory.free_memory() is None
    (tmp_path / limit).write_text("1000\n", encoding="ascii")
    assert memory.free_memory() == 1000  # nobody says what is used
    (tmp_path / usage).write_text("700\n", encoding="ascii")
    assert memory.free_memory() == 300
    (tmp_path / "memory.stat").write_text(f"anon 5\n{cached} 200\nactive_file 40\n", encoding="ascii")
    assert memory.free_memory() == 500
    (tmp_path / usage).write_text("1700\n", encoding="ascii")
    assert memory.free_memory() == 0
