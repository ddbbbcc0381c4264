import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn
from training_helpers import assert_same_weights, start, tiny_batch, tiny_config, tiny_model

from clearhead.errors import ClearheadError, DataError
from clearhead.files import damage, read_manifest, write_manifest
from clearhead.models import LanguageModel
from clearhead.training import Optimizer, Stepped, TrainingState, checkpoints, fit
from clearhead.training.adamw import AdamW

FILES = {"model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"}


TORCHS = ("sgd", "Adagrad", "RMSprop", "NAdam", "RAdam", "Adamax", "Rprop", "ASGD", "Adadelta", "Adafactor", "Adam")


def trained(**options: object) -> tuple[LanguageModel, Optimizer, TrainingState]:
    config = tiny_config(**options)
    model, optimizer, state = start(config)
    list(fit(model, config, tiny_batch, seed=0, optimizer=optimizer, state=state))
    return model, optimizer, state


@pytest.fixture(scope="module")
def training() -> tuple[LanguageModel, Optimizer, TrainingState]:
    return trained(steps=2)


def save_steps(folder: Path, training: tuple[LanguageModel, Optimizer, TrainingState], *steps: int) -> list[Path]:
    model, optimizer, state = training
    return [checkpoints.save(folder, model, optimizer, replace(state, step=s), keep=len(steps)) for s in steps]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.sampled(6)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("optimizer", ["adamw", "muon", *TORCHS])
def test_what_is_loaded_is_what_was_saved(tied: bool, optimizer: str, tmp_path: Path) -> None:
    config = tiny_config(optimizer=optimizer)
    model, mover, state = start(config, tie_embeddings=tied)
    list(fit(model, config, tiny_batch, seed=0, optimizer=mover, state=state))
    path = checkpoints.save(tmp_path / "checkpoints", model, mover, state, keep=2)
    assert path.name == "step-00000012"
    assert set(names(path)) == FILES

    other, other_mover, _ = start(config, tie_embeddings=tied, seed=5)
    assert checkpoints.load(path, other, other_mover) == state
    assert_same_weights(other, model)
    assert mover.state.keys() == other_mover.state.keys()
    assert all(torch.equal(tensor, other_mover.state[name]) for name, tensor in mover.state.items())


@pytest.mark.sampled(5)
@pytest.mark.parametrize("optimizer", ["adamw", "muon", *TORCHS])
@pytest.mark.parametrize("stop", [0, 1, 5])
def test_a_resumed_training_is_the_one_that_never_stopped(optimizer: str, stop: int, tmp_path: Path) -> None:
    config = tiny_config(optimizer=optimizer, steps=8)
    model, mover, state = start(config)
    list(fit(model, config, tiny_batch, seed=0, optimizer=mover, state=state))
    first, mover, state = start(config)
    for event in fit(first, config, tiny_batch, seed=0, optimizer=mover, state=state) if stop else ():
        if isinstance(event, Stepped) and event.step == stop:
            break
    path = checkpoints.save(tmp_path, first, mover, state, keep=1)
    second, mover, _ = start(config, seed=5)
    state = checkpoints.load(path, second, mover)
    list(fit(second, config, tiny_batch, seed=0, optimizer=mover, state=state))
    assert_same_weights(second, model)


def test_a_checkpoint_before_the_first_step_can_be_saved_and_loaded(tmp_path: Path) -> None:
    model, mover, state = start(tiny_config())
    path = checkpoints.save(tmp_path, model, mover, state, keep=1)
    other, other_mover, _ = start(tiny_config(), seed=3)
    assert checkpoints.load(path, other, other_mover) == TrainingState()
    assert_same_weights(other, model)


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    table, head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
    head.weight = table.weight
    model = nn.Sequential(table, head)
    path = checkpoints.save(tmp_path, model, AdamW({}), TrainingState(), keep=1)
    with safe_open(path / "model.safetensors", framework="pt") as file:
        assert list(file.keys()) == ["0.weight"]
    expected = table.weight.detach().clone()
    nn.init.zeros_(table.weight)
    checkpoints.load(path, model)
    assert torch.equal(head.weight, expected)


def test_buffers_and_transposed_weights_survive(tmp_path: Path) -> None:
    model = nn.BatchNorm1d(3)
    model.weight = nn.Parameter(torch.arange(12.0).view(3, 4).T[:3, 0])
    model(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
    path = checkpoints.save(tmp_path, model, AdamW({}), TrainingState(), keep=1)
    other = nn.BatchNorm1d(3)
    checkpoints.load(path, other)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())


def change(path: Path, alter: Callable[[bytes], bytes]) -> None:
    path.write_bytes(alter(path.read_bytes()))


def flip_middle(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (lambda path: path.unlink(), "is missing"),
    "truncated": (lambda path: change(path, lambda content: content[: len(content) // 2]), "has .* bytes instead of"),
    "emptied": (lambda path: change(path, lambda _: b""), "has 0 bytes instead of"),
    "altered": (lambda path: change(path, flip_middle), "was altered"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("file", sorted(FILES))
def test_a_damaged_newest_is_passed_over_with_a_sentence(
    kind: str, file: str, tmp_path: Path, training: tuple[LanguageModel, Optimizer, TrainingState]
) -> None:
    older, newer = save_steps(tmp_path, training, 3, 6)
    assert checkpoints.newest(tmp_path) == (newer, ())
    harm, symptom = DAMAGE[kind]
    harm(newer / file)
    checkpoint = checkpoints.newest(tmp_path)
    assert checkpoint is not None
    assert checkpoint.path == older
    [notice] = checkpoint.notices
    assert str(newer) in notice
    expected = "manifest.json is missing or was altered" if file == "manifest.json" else symptom
    assert re.search(expected, notice), notice


def test_when_all_are_damaged_nothing_is_made_up(
    tmp_path: Path, training: tuple[LanguageModel, Optimizer, TrainingState]
) -> None:
    for path in save_steps(tmp_path, training, 3, 6):
        (path / "state.json").unlink()
    with pytest.raises(DataError, match=r"every checkpoint in .* is damaged; the newest: state\.json is missing"):
        checkpoints.newest(tmp_path)


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    assert checkpoints.newest(tmp_path) is None
    assert checkpoints.newest(tmp_path / "nowhere") is None
    assert checkpoints.best(tmp_path) is None


def test_a_later_format_is_not_guessed_at(
    tmp_path: Path, training: tuple[LanguageModel, Optimizer, TrainingState]
) -> None:
    [path] = save_steps(tmp_path, training, 3)
    write_manifest(path, read_manifest(path) | {"format": 2})
    with pytest.raises(DataError, match="its format is 2, this version of Clearhead reads 1"):
        checkpoints.newest(tmp_path)


def test_the_last_ones_and_the_best_are_kept(
    tmp_path: Path, training: tuple[LanguageModel, Optimizer, TrainingState]
) -> None:
    model, optimizer, state = training
    for step in range(1, 8):
        now = replace(state, step=step, best_step=min(step, 2), best_loss=1.0)
        checkpoints.save(tmp_path, model, optimizer, now, keep=2)
    assert names(tmp_path) == ["step-00000002", "step-00000006", "step-00000007"]
    assert checkpoints.best(tmp_path) == (tmp_path / "step-00000002", ())
    (tmp_path / "step-00000002" / "state.json").unlink()
    checkpoint = checkpoints.best(tmp_path)
    assert checkpoint is not None
    assert checkpoint.path.name == "step-00000007"
    assert "step-00000002, is damaged (state.json is missing)" in checkpoint.notices[0]


def test_a_damaged_future_goes_when_the_training_has_passed_by(
    tmp_path: Path, training: tuple[LanguageModel, Optimizer, TrainingState]
) -> None:
    for path in save_steps(tmp_path, training, 3, 6, 9)[1:]:
        (path / "state.json").unlink()
    model, optimizer, state = training
    checkpoints.save(tmp_path, model, optimizer, replace(state, step=4), keep=1)
    assert names(tmp_path) == ["step-00000004"]


def test_a_damaged_checkpoint_is_replaced_by_a_whole_one_of_the_same_step(
    tmp_path: Path, training: tuple[LanguageModel, Optimizer, TrainingState]
) -> None:
    [path] = save_steps(tmp_path, training, 3)
    (path / "model.safetensors").unlink()
    save_steps(tmp_path, training, 3)
    assert checkpoints.newest(tmp_path) == (path, ())
    assert names(tmp_path) == ["step-00000003"]


class Killed(BaseException):
    """Stands for kill -9: nothing that clears up after errors may catch it."""


_countdown: list[int] = []
WATCHED = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree", "os.scandir", "os.listdir"}


def _count_down(event: str, _: object) -> None:
    if _countdown and event in WATCHED:
        _countdown[0] -= 1
        if _countdown[0] < 0:
            raise Killed


@contextmanager
def killed_before(operation: int) -> Iterator[None]:
    """Kill at the n-th time that anything is asked of the file system."""
    _countdown[:] = [operation]
    try:
        yield
    finally:
        _countdown.clear()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("before", ["older", "older and damaged", "same step", "same step, damaged"])
def test_killed_between_any_two_file_operations_the_last_whole_checkpoint_survives(
    before: str,
    tmp_path: Path,
    training: tuple[LanguageModel, Optimizer, TrainingState],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # slow, and only a power cut could tell
    if not _countdown_installed():
        sys.addaudithook(_count_down)
    model, optimizer, state = training
    paths = save_steps(tmp_path / "before", training, 3, 6)
    if "damaged" in before:
        (paths[-1] / "state.json").unlink()
    for operation in range(1000):
        folder = shutil.copytree(tmp_path / "before", tmp_path / str(operation))
        new = replace(state, step=6 if "same" in before else 9)
        whole = 3 if "damaged" in before else 6
        try:
            with killed_before(operation):
                checkpoints.save(folder, model, optimizer, new, keep=1)
        except Killed:
            checkpoint = checkpoints.newest(folder)
            assert checkpoint is not None
            reached = checkpoints.load(checkpoint.path, tiny_model(seed=9)).step
            assert reached in (whole, new.step), f"killed before operation {operation}"
            torn = [path.name for path in folder.glob("step-*") if damage(path)]
            assert "damaged" in before or not torn, f"killed before operation {operation}"
            checkpoints.save(folder, model, optimizer, replace(new, step=12), keep=1)
            assert names(folder) == ["step-00000012"], "nothing unfinished is left lying about"
        else:
            assert names(folder) == [f"step-{new.step:08d}"]
            assert operation > 15, "the kills came at no file operation"
            return
        shutil.rmtree(folder)
    pytest.fail("saving never ends")


def _countdown_installed() -> bool:
    try:
        with killed_before(0):
            os.listdir(".")
    except Killed:
        return True
    return False


def test_all_is_on_the_disk_before_it_gets_its_name_and_the_name_is_too(
    tmp_path: Path, training: tuple[LanguageModel, Optimizer, TrainingState], monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    before: list[int] = []
    renamed: list[int] = []
    rename = Path.rename

    def recording_rename(path: Path, target: Path) -> Path:
        renamed.extend(file.stat().st_ino for file in (path, *path.iterdir()))
        before.extend(flushed)
        flushed.clear()
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", recording_rename)
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.fstat(handle).st_ino))
    save_steps(tmp_path, training, 3)
    assert sorted(before) == sorted(renamed), "the folder and each of its files, once"
    if os.name != "nt":
        assert flushed == [tmp_path.stat().st_ino]


def test_no_space_on_disk_is_a_sentence_and_the_last_one_stays_whole(
    tmp_path: Path, training: tuple[LanguageModel, Optimizer, TrainingState]
) -> None:
    resource = pytest.importorskip("resource")
    [path] = save_steps(tmp_path, training, 3)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
    try:
        with pytest.raises(
            ClearheadError, match=r"the checkpoint of step 6 could not be written to .*; make room"
        ) as e:
            save_steps(tmp_path, training, 6)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "too large" in str(e.value)
    assert checkpoints.newest(tmp_path) == (path, ())
    assert names(tmp_path) == ["step-00000003"]


def test_a_folder_that_cannot_be_is_a_sentence(
    tmp_path: Path, training: tuple[LanguageModel, Optimizer, TrainingState]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClearheadError, match=r"could not be written to .*file.checkpoints \(Not a directory\)"):
        save_steps(tmp_path / "file" / "checkpoints", training, 3)


def test_another_architecture_is_refused_and_the_model_stays_as_it_is(
    tmp_path: Path, training: tuple[LanguageModel, Optimizer, TrainingState]
) -> None:
    [path] = save_steps(tmp_path, training, 3)
    cases = {
        r"embedding\.weight in .* is \[11, 8\] float32, in the model \[12, 8\] float32": tiny_model(vocab_size=12),
        r"has no tensor stack\.blocks\.2\.": tiny_model(n_layers=3),
        r"has a tensor stack\.blocks\.1\..* that the model has not": tiny_model(n_layers=1),
        r"in the model \[11, 8\] float64": tiny_model().double(),
    }
    for sentence, model in cases.items():
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with pytest.raises(DataError, match=sentence):
            checkpoints.load(path, model)
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_another_optimizer_is_refused(tmp_path: Path, training: tuple[LanguageModel, Optimizer, TrainingState]) -> None:
    [path] = save_steps(tmp_path, training, 3)
    model, optimizer, _ = start(tiny_config(optimizer="muon"))
    with pytest.raises(DataError, match=r"was trained with AdamW, the options ask for Muon\+AdamW"):
        checkpoints.load(path, model, optimizer)


def test_unreadable_files_are_sentences(
    tmp_path: Path, training: tuple[LanguageModel, Optimizer, TrainingState]
) -> None:
    for file in ("model.safetensors", "optimizer.safetensors", "state.json"):
        [path] = save_steps(tmp_path / file, training, 3)
        (path / file).write_bytes(b"nonsense")
        model, optimizer, _ = start(tiny_config())
        with pytest.raises(DataError, match=f"{file} cannot be read"):
            checkpoints.load(path, model, optimizer)
