"""How native code is made and kept: by whatever compiler, in bounded time; what was damaged is made anew."""

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from clearhead.config import EngineConfig, ModelConfig, SamplingConfig
from clearhead.inference import stream_ids
from clearhead.models import DecoderLM
from clearhead.native import building, structures

needs_compiler = pytest.mark.skipif(building.compiler() is None, reason="there is no C++ compiler")
PROGRAM = "import test_building; test_building.write()"  # in a process of its own: a damaged library would end it
QUICKLY = "-O0"  # compiled


def write(engine: str = "native") -> None:
    """Print a text, and what was said."""
    building.FLAGS = (*building.FLAGS, QUICKLY)
    model = DecoderLM(ModelConfig(vocab_size=11, block_size=16, n_layers=1, n_heads=2, d_model=8, d_ff=8))
    config, notices = SamplingConfig(greedy=True, max_new_tokens=6), list[str]()
    columns = list(
        stream_ids(model, [[1, 2]], config, engine=EngineConfig.read({"engine": engine}), on_notice=notices.append)
    )
    print([column[0] for column in columns], *notices, sep="\n")


def start(cache: Path, **environment: str) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    known = os.environ | {"CLEARHEAD_CACHE": str(cache), "PYTHONPATH": paths} | environment
    return subprocess.Popen([sys.executable, "-c", PROGRAM], env=known, stdout=subprocess.PIPE, text=True)


def lines(process: subprocess.Popen[str]) -> list[str]:
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, f"it ended with {process.returncode}"
    return output.splitlines()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES: list[tuple[Callable[[Path], None], str]] = [
    (cut, building.FILE),
    (flip, building.FILE),
    (empty, building.FILE),
    (flip, "manifest.json"),
    (Path.unlink, "manifest.json"),
    (Path.unlink, building.FILE),
]


@pytest.mark.campaign
@needs_compiler
def test_what_was_damaged_is_made_anew(kept: Path) -> None:
    """Two processes at once make it; what is then damaged, in whatever way, is noticed and made again."""
    first, second = (lines(process) for process in [start(kept), start(kept)])
    assert first[0] == second[0]
    [folder] = (kept / "steps").iterdir()
    assert not any("native engine not used" in line for line in first + second)
    assert building.is_built(folder)
    for damage, name in DAMAGES:
        whole = (folder / name).read_bytes()
        damage(folder / name)
        assert not building.is_built(folder), (damage, name)
        (folder / name).write_bytes(whole)
        (folder / name).chmod(0o600)
        assert building.is_built(folder)
    cut(folder / building.FILE)
    assert lines(start(kept)) == (first if len(first) > 1 else second), "made anew"
    assert building.is_built(folder)
    assert list((kept / "steps").iterdir()) == [folder]


@needs_compiler
@pytest.mark.usefixtures("compiled_code")
def test_structures_of_another_version_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if (library := building.library(torch.float32, build=True, on_notice=print)) is None:
        pytest.fail("it is built")
    structures.refuse_other_structures(library)

    class Longer(structures.Call):
        _fields_ = [("one_more", ctypes.c_int64)]  # noqa: RUF012

    for planted in (Longer, structures.SamplingParams):
        changed = tuple(planted if structure is structures.Call else structure for structure in structures.STRUCTURES)
        with monkeypatch.context() as patch:
            patch.setattr(structures, "STRUCTURES", changed)
            with pytest.raises(RuntimeError, match="compiled struct layout"):
                structures.refuse_other_structures(library)
    monkeypatch.setattr(structures, "LAYOUT", structures.LAYOUT + 1)
    with pytest.raises(RuntimeError, match="compiled struct layout"):
        structures.refuse_other_structures(library)
    with pytest.raises(RuntimeError, match="compiled struct layout"):
        structures.refuse_other_structures(ctypes.CDLL(None))


def test_every_structure_of_the_header_is_filled_in() -> None:
    assert [structure.__name__ for structure in structures.STRUCTURES] == list(structures.DECLARED)
    for structure in structures.STRUCTURES:
        assert [name for name, *_ in structure._fields_] == [
            name for name, _ in structures.DECLARED[structure.__name__]
        ]
        assert ctypes.sizeof(structure) % 8 == 0


def test_fields_are_read_from_a_header_as_a_compiler_reads_them() -> None:
    header = """
    struct First {  // of two; with a comment
        const char* name;
        int64_t rows, columns;

        int64_t size() const { return rows * columns; }
    };
    struct Second {
        number* const* pages;  // one, two
        First first;
    };
    """.replace("\n    ", "\n")
    assert structures.parse_structures(header) == {
        "First": [("name", "char*"), ("rows", "int64_t"), ("columns", "int64_t")],
        "Second": [("pages", "number**"), ("first", "First")],
    }


def test_a_field_of_an_unknown_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(structures.DECLARED, "Norm", [*structures.DECLARED["Norm"], ("rank", "int32_t")])
    with pytest.raises(KeyError, match="int32_t"):
        structures.fields("Norm")


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o700)
    return path


@pytest.mark.parametrize("command", ["{0} g++", "'{0}' g++", "{0}   g++ -O1"])
@needs_compiler
def test_a_compiler_may_have_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    wrapper = script(tmp_path / "wrapper", 'exec "$@"')
    monkeypatch.setenv("CXX", command.format(wrapper))
    arguments = building.compiler()
    assert arguments is not None
    assert arguments[:2] == (str(wrapper), "g++")


def test_a_path_may_have_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(script(tmp_path / "a compiler", "true")))
    assert building.compiler() == (str(tmp_path / "a compiler"),)
    monkeypatch.setenv("CXX", "'unclosed")
    assert building.compiler() is None


def test_a_compiler_that_never_ends_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is what it has started: a wrapper's compiler, for one."""
    child = tmp_path / "child"
    monkeypatch.setenv("CXX", str(script(tmp_path / "slow", f"sleep 1000 & echo $! > '{child}'; wait")))
    monkeypatch.setenv("CLEARHEAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(building, "MAX_SECONDS", 1.0)
    model = DecoderLM(ModelConfig(vocab_size=11, block_size=16, n_layers=1, n_heads=2, d_model=8, d_ff=8))
    config, texts = SamplingConfig(greedy=True, max_new_tokens=6), list[list[dict[int, int]]]()
    notices: list[str] = []
    for engine in ("native", "eager"):
        settings = EngineConfig.read({"engine": engine})
        texts.append(list(stream_ids(model, [[1, 2]], config, engine=settings, on_notice=notices.append)))
    assert texts[0] == texts[1]
    assert len([notice for notice in notices if "did not end within 1 seconds" in notice]) == 1
    assert not any((tmp_path / "cache" / "steps").iterdir())
    pid = int(child.read_text())
    for _ in range(10_000):  # and no longer than that
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            return
        time.sleep(0.01)
    pytest.fail("what the compiler has started runs on")


def test_a_compiler_that_never_ends_is_waited_for_once_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by every new process; another compiler, also of the same name, is tried."""
    starts = tmp_path / "starts"
    compiler = script(tmp_path / "slow", f"echo started >> '{starts}'; exec sleep 1000")
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("CLEARHEAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(building, "MAX_SECONDS", 0.5)

    def notices_of_a_new_process() -> list[str]:
        building._failure.cache_clear()
        notices: list[str] = []
        with pytest.raises(RuntimeError, match=r"did not end within 0\.5 seconds"):
            building.library(torch.float32, build=True, on_notice=notices.append)
        return notices

    def tries() -> int:
        return len(starts.read_text().splitlines())

    assert len(notices_of_a_new_process()) == 1
    assert (notices_of_a_new_process(), tries()) == ([], 1)
    (note,) = (tmp_path / "cache" / "compilers").iterdir()
    os.utime(note, (time.time() - 90_000,) * 2)
    assert (len(notices_of_a_new_process()), tries()) == (1, 2)
    assert (notices_of_a_new_process(), tries()) == ([], 2)
    script(compiler, f"echo another >> '{starts}'; exec sleep 1000")
    assert (len(notices_of_a_new_process()), tries()) == (1, 3)
