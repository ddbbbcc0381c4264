"""What a run depends on is under digests: options, tokens, tokenizer, weights; records are judged one by one."""

import random
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from beside_a_reader import save_again
from workflow_helpers import STEPS, tiny, write_text

from clearhead.data import Tokenizer
from clearhead.errors import ClearheadError, DataError
from clearhead.files import damage
from clearhead.workflows import Notice, Run, resume, train
from clearhead.workflows.runs.digests import add_digest, digest_matches


def uses(run: Run) -> list[Any]:
    return [lambda: run.config, lambda: run.generate("the"), run.evaluate, lambda: resume(run)]


def test_an_edited_list_of_options_is_refused_with_what_to_do(finished: Run) -> None:
    """`0.01` became `1.01`, and a resume ended at other weights without a word."""
    path = finished.folder / "clearhead.toml"
    options = path.read_text(encoding="utf-8")
    path.write_text(options.replace("learning_rate = 0.", "learning_rate = 1."), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != options
    for use in uses(finished):
        with pytest.raises(
            DataError, match=r"clearhead\.toml is damaged \(it was changed .*restore it, or start a new"
        ):
            use()
    again = train(config=path, out="again", options={"train": {"learning_rate": 0.001}})
    assert again.config.train.steps == STEPS


def test_any_change_of_the_list_of_options_is_noticed(finished: Run) -> None:
    content, draw = (finished.folder / "clearhead.toml").read_bytes(), random.Random(0)
    assert digest_matches(content)
    for _ in range(2000):
        at = draw.randrange(len(content))
        changed = bytes([content[at] ^ 1 << draw.randrange(8)])
        assert not digest_matches(content[:at] + changed + content[at + 1 :])
        assert not digest_matches(content[:at])
    assert digest_matches(add_digest("").encode())


def test_options_of_the_training_change_with_a_resume(finished: Run) -> None:
    resume(finished, options={"train": {"steps": STEPS + 2, "learning_rate": 1e-5}})
    assert (finished.config.train.steps, finished.config.train.learning_rate) == (STEPS + 2, 1e-5)


@pytest.mark.parametrize("harm", ["gone", "empty", "other"])
def test_what_says_which_text_it_was_is_needed(harm: str, finished: Run) -> None:
    path = finished.folder / "text.json"
    path.write_text("" if harm == "empty" else '{"fingerprint": "other"}\n', encoding="utf-8")
    if harm == "gone":
        path.unlink()
    for use in (finished.evaluate, lambda: resume(finished)):
        with pytest.raises(DataError, match=r"my\.txt or the run's tokenizer\.json or text\.json is not what"):
            use()


NESTED = "[" * 100_000


def test_a_manifest_that_is_nested_without_end_is_a_damaged_one(finished: Run) -> None:
    newest = max(finished.checkpoints.iterdir())
    (newest / "manifest.json").write_text(NESTED, encoding="utf-8")
    notices: list[str] = []
    resume(finished, on_event=lambda event: notices.append(event.text) if isinstance(event, Notice) else None)
    assert any(f"{newest} is damaged" in notice for notice in notices)
    (finished.folder / "manifest.json").write_text(NESTED, encoding="utf-8")
    with pytest.raises(DataError, match=r"manifest\.json was altered or cut off"):
        finished.model()
    resume(finished)
    assert finished.generate("the", max_new_tokens=1)


def test_after_a_rate_that_was_too_high_a_lower_one_goes_on() -> None:
    write_text()
    options = tiny(optimizer="adamw", learning_rate=1000, warmup_steps=0, save_every=4, steps=20)
    with pytest.raises(ClearheadError, match="nothing was saved before: resume with `train"):
        train("my.txt", out="run", options=options)
    run = resume("run", options={"train": {"learning_rate": 1e-3}})
    records = [record for record in run.records() if record["kind"] == "step"]
    assert [record["step"] for record in records][-1] == 20
    assert not any(record["skipped"] for record in records[-15:])
    assert run.config.train.learning_rate == 1e-3
    assert run.generate("the", max_new_tokens=1)


def read_again(run: Run, is_over: Any) -> tuple[int, list[str]]:
    """Until it is over: how often the run's model was read, and what was wrong."""
    reads, faults = 0, []
    while not is_over():
        reads += 1
        try:
            run.model()
        except DataError as error:
            faults.append(str(error))
    return reads, faults


@pytest.mark.campaign
def test_a_reader_beside_a_training_is_told_of_no_damage(finished: Run) -> None:
    """113 of 2,673 reads were told that the model was altered."""
    model = finished.model()

    def save() -> None:
        for step in range(60):
            save_again(Run(finished.folder), model, step)

    writer = threading.Thread(target=save)
    writer.start()
    reads, faults = read_again(finished, lambda: not writer.is_alive())
    writer.join(timeout=60)
    assert reads > 10
    assert not faults, f"{len(faults)} of {reads}: {faults[0]}"
    assert finished.model_step == 59


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_reads_beside_another_process_that_saves(finished: Run) -> None:
    script = Path(__file__).with_name("beside_a_reader.py")
    writer = subprocess.Popen([sys.executable, str(script), str(finished.folder), "500"])
    try:
        reads, faults = read_again(finished, lambda: writer.poll() is not None)
    finally:
        writer.kill()
        writer.wait(timeout=10)
    print(f"{reads} reads, {len(faults)} false alarms")
    assert reads > 100
    assert not faults, f"{len(faults)} of {reads}: {faults[0]}"


def test_beside_a_training_true_damage_is_still_told(finished: Run) -> None:
    weights = finished.folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    manifest = finished.folder / "manifest.json"
    over = threading.Event()

    def rewrite() -> None:
        original = manifest.read_text(encoding="utf-8")
        count = 0
        while not over.is_set():
            count += 1
            manifest.write_text(original + " " * (count % 7), encoding="utf-8")

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        with pytest.raises(DataError, match=r"is damaged"):
            finished.model()
    finally:
        over.set()
        writer.join(timeout=10)


@pytest.mark.parametrize("stops_at", range(1, 7))
def test_a_crash_while_the_model_is_replaced_leaves_a_whole_one(
    stops_at: int, finished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CrashError(BaseException):
        pass

    calls, replace = 0, Path.replace

    def crashing(path: Path, target: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls == stops_at + 3:  # the first three are of the temporary folder
            raise CrashError
        return replace(path, target)

    model, before = finished.model(), finished.model_step
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", crashing)
        with suppress(CrashError):
            save_again(finished, model, 77)
    assert finished.damage() is None
    assert finished.model_step in (before, 77)


def test_an_altered_manifest_is_what_is_named(finished: Run) -> None:
    """Not the tokenizer, nor the weights, whose digests it holds."""
    for folder in (finished.folder, max(finished.checkpoints.iterdir())):
        path = folder / "manifest.json"
        whole = path.read_bytes()
        for at in [index for index, byte in enumerate(whole) if chr(byte).isalnum()][::29]:
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            if folder == finished.folder:
                with pytest.raises(DataError, match=r"is damaged: manifest\.json was altered or cut off"):
                    finished.generate("the", max_new_tokens=1)
            else:
                assert damage(folder) == "manifest.json is missing or was altered"
        path.write_bytes(whole)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(finished: Run) -> None:
    """Where no manifest tells that it is another one."""
    size = finished.config.model.vocab_size
    assert finished.tokenizer.vocab_size == size
    (finished.folder / "manifest.json").unlink()
    Tokenizer.characters([chr(code) for code in range(0x4E00, 0x4E00 + 300)]).save(finished.folder)
    with pytest.raises(DataError, match=f"run has a tokenizer of 300 tokens and a model of {size}; put the tokenizer"):
        resume(finished)
