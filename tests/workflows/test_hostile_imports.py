"""Folders of strangers that are wrong in thousands of ways: each is refused in one sentence, or imported and used."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hostile_mutations import is_locked, mutated
from hostile_tokenizers import NAMED, as_text
from import_trial import trial, write
from strangers_tokenizers import KINDS, model_folder, state_of

from clearhead.errors import DataError
from clearhead.workflows import generate, import_model

IN_SUITE, IN_CAMPAIGN, BY_COMMAND = 20, 10_000, 300

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A healthy folder's files, but for its tokenizer."""
    folder = model_folder(tmp_path_factory.mktemp("healthy") / "m")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def one_thread() -> Iterator[None]:
    """So that the process can be forked."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def faults(seeds: list[int], base: dict[str, bytes], directory: Path) -> list[str]:
    """What is against the law, with the seed that shows it."""
    reports = []
    for seed in seeds:
        hostile = mutated(seed, base)
        fault = trial(hostile, directory).fault
        if fault:
            reports.append(f"seed {seed}, {hostile.kind}, {', '.join(hostile.mutations)}: {fault}")
    return reports


@pytest.mark.usefixtures("one_thread")
def test_some_mutations(base: dict[str, bytes], tmp_path: Path) -> None:
    seeds = [seed for seed in range(3 * IN_SUITE) if not is_locked(seed)][:IN_SUITE]
    assert not faults(seeds, base, tmp_path)


@pytest.mark.campaign
@pytest.mark.timeout(10_800)
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("locked", [False, True])
def test_ten_thousand_mutations(locked: bool, base: dict[str, bytes], tmp_path: Path) -> None:
    seeds = [seed for seed in range(IN_CAMPAIGN) if is_locked(seed) == locked]
    assert not faults(seeds, base, tmp_path)


@pytest.mark.campaign
@pytest.mark.timeout(7_200)
def test_mutations_by_the_command(base: dict[str, bytes], tmp_path: Path) -> None:
    """Whole processes."""
    for seed in range(IN_CAMPAIGN, IN_CAMPAIGN + BY_COMMAND):
        hostile, folder = mutated(seed, base), tmp_path / f"{seed}"
        write(folder, hostile)
        done = command("import", str(folder), "--out", str(tmp_path / f"run-{seed}"))
        what = f"seed {seed}, {hostile.mutations}: {done.stderr}"
        assert done.returncode in (0, 3), what
        assert "Traceback" not in done.stderr, what
        assert "panicked" not in done.stderr, what
        if done.returncode:
            assert done.stderr.count("\n") == 1, what
            assert done.stderr.startswith("clearhead: "), what


def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "clearhead", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_healthy_folder_of_each_kind_is_imported_and_writes(
    kind: str, base: dict[str, bytes], tmp_path: Path
) -> None:
    folder = healthy(base, tmp_path, kind)
    run = import_model(folder, out=tmp_path / "r")
    assert generate(run, "the cat", max_new_tokens=4, seed=1, engine="eager").startswith("the cat")


def healthy(base: dict[str, bytes], directory: Path, kind: str = "gpt2") -> Path:
    folder = directory / "m"
    folder.mkdir()
    for name, content in base.items():
        (folder / name).write_bytes(content)
    (folder / "tokenizer.json").write_text(as_text(state_of(kind)), encoding="utf-8")
    return folder


def refusal(folder: Path, directory: Path) -> str:
    with pytest.raises(DataError) as error:
        import_model(folder, out=directory / "r")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 2_000
    assert not (directory / "r").exists()
    return str(error.value)


LARGE = {"tokenizer.json": 60, "tokenizer_config.json": 120, "special_tokens_map.json": 120, "config.json": 2}


@pytest.mark.parametrize("name", [*LARGE, "generation_config.json"])
def test_a_file_larger_than_any_such_is_refused_unread(name: str, base: dict[str, bytes], tmp_path: Path) -> None:
    folder = healthy(base, tmp_path)
    with (folder / name).open("wb") as file:
        file.truncate(LARGE.get(name, 2) << 20)
    assert name in refusal(folder, tmp_path)


def test_a_vocabulary_far_beyond_the_models_is_refused_unread(base: dict[str, bytes], tmp_path: Path) -> None:
    folder = healthy(base, tmp_path)
    tokens = ",".join(f'{{"id":{n},"content":"a{n}","special":false}}' for n in range(300, 60_000))
    (folder / "tokenizer.json").write_text(f'{{"added_tokens":[{tokens}]}}', encoding="utf-8")
    assert "and no such file has more than" in refusal(folder, tmp_path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json"])
def test_a_file_linked_to_itself_is_refused(name: str, base: dict[str, bytes], tmp_path: Path) -> None:
    folder = healthy(base, tmp_path)
    (folder / name).unlink()
    (folder / name).symlink_to(name)
    assert name in refusal(folder, tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_an_integer_of_many_digits_is_refused(name: str, base: dict[str, bytes], tmp_path: Path) -> None:
    folder = healthy(base, tmp_path)
    content = b'{"a": ' + b"9" * 5_000 + b"}"
    if name == "model.safetensors":
        content = len(content).to_bytes(8, "little") + content
    (folder / name).write_bytes(content)
    assert "too many digits" in refusal(folder, tmp_path)


def test_an_index_that_names_a_file_of_5000_characters_is_refused(base: dict[str, bytes], tmp_path: Path) -> None:
    folder = healthy(base, tmp_path)
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"a": "b" * 5_000 + ".safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert "b" * 50 in refusal(folder, tmp_path)


def test_torch_is_not_loaded_for_a_hostile_tokenizer(base: dict[str, bytes], tmp_path: Path) -> None:
    folder = healthy(base, tmp_path)
    (folder / "tokenizer.json").write_text(as_text(NAMED["a catastrophic Split"]()), encoding="utf-8")
    program = (
        "import sys, clearhead.cli as cli\n"
        f"code = cli.run(['import', {str(folder)!r}])\n"
        "sys.exit(code if 'torch' not in sys.modules else 99)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith("clearhead: ")
    assert done.stderr.count("\n") == 1
