"""The judged models of strangers: every entry is whole, and of what is locked nothing is told but totals."""

import subprocess
from pathlib import Path

import pytest
import stranger_files
import strangers
from stranger_files import MANIFEST, PARTS, Fault, Model, Repository, fetched, read

from clearhead.doctor.catalogue.faults import CATALOGUE

NAME, SECRET = "owner/name", "nobody_may_read_this"
WRAPPER = """
import model


def build():
    return model.Model()
"""
MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(41, 16), nn.Linear(16, 41)

    def forward(self, ids):
        return self.head(self.words(ids) + self.words(ids).mean(1, keepdim=True))
"""


@pytest.mark.parametrize("half", PARTS)
def test_every_manifest_is_whole_and_in_its_half(half: str) -> None:
    paths = sorted((MANIFEST / half).glob("*.toml"))
    assert paths or half == "reserve"
    wrong = [sentence for path in paths if (sentence := what_is_wrong(path))]
    number = len(wrong)
    assert number == 0, wrong if half == "open" else f"{number} manifests, of which nobody may know more"


def what_is_wrong(path: Path) -> str | None:
    """A sentence on a manifest that is not whole."""
    repository = read(path)
    names = [stranger.name for stranger in repository.strangers]
    faults = [fault for model in repository.models for fault in model.faults]
    faults += [bug.fault for bug in repository.bugs]
    unknown = {id for fault in faults for id in (fault.id, *fault.also)} - {*CATALOGUE, "none"}
    if repository.file != path:
        return f"{path.name} belongs to {repository.file}"
    if not names or len({*names}) < len(names):
        return f"{path.name} holds no model, or two of one name"
    return f"{path.name} has ids that the catalogue lacks: {unknown}" if unknown else None


def test_what_is_new_belongs_to_the_reserve_and_to_one_part() -> None:
    assert Repository(name="owner/new", commit="0" * 40, nature="old").file == MANIFEST / "reserve" / "owner+new.toml"
    files = [path.name for part in PARTS for path in (MANIFEST / part).glob("*.toml")]
    assert len({*files}) == len(files)


def test_a_fault_that_is_proved_needs_a_proof() -> None:
    fault = Fault(id="M01", line="model.py:1", why="it looks ahead", certainty="proved")
    with pytest.raises(ValueError, match="needs a 'proof'"):
        Model(name="model", kind="causal", wrapper=WRAPPER, faults=(fault,))


@pytest.fixture
def mirrors(tmp_path: Path) -> Path:
    """A mirror with one repository, whose model looks ahead."""
    folder = tmp_path / "mirrors" / NAME.replace("/", "+") / "repo"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
    (folder / "picture.png").write_bytes(b"none of the files that are read")
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for arguments in (("init", "--quiet"), ("add", "."), (*who, "commit", "--quiet", "-m", "model")):
        subprocess.run(["git", "-C", str(folder), *arguments], check=True, timeout=60)
    return tmp_path / "mirrors"


def commit_of(mirrors: Path) -> str:
    command = ["git", "-C", str(mirrors / NAME.replace("/", "+") / "repo"), "rev-parse", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def test_files_come_from_a_mirror_at_their_commit(
    mirrors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stranger_files, "BUILD", tmp_path / "build")
    folder = fetched(NAME, commit_of(mirrors), mirrors)
    assert folder is not None
    assert [path.name for path in folder.iterdir()] == ["model.py"]
    assert (folder / "model.py").read_text(encoding="utf-8") == MODEL


@pytest.mark.sampled(1)
@pytest.mark.parametrize("half", PARTS[1:])
def test_a_locked_model_is_counted_and_not_told(
    half: str, mirrors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stranger_files, "BUILD", tmp_path / "build")
    fault = Fault(id="M01", line="model.py:11", why="it looks ahead", certainty="read")
    model = Model(name=SECRET, kind="causal", wrapper=WRAPPER, faults=(fault,))
    repository = Repository(name=NAME, commit=commit_of(mirrors), nature="old", models=(model,))
    monkeypatch.setattr(strangers, "repositories", lambda half: iter([repository]))
    argv = ["strangers.py", "--half", half, "--mirrors", str(mirrors), "--timeout", "120"]
    monkeypatch.setattr("sys.argv", argv)
    strangers.main()
    printed = capsys.readouterr()
    assert "| models | 1 |" in printed.out
    assert "| refused or not examined | 0 of 1, 0 % |" in printed.out
    for word in (SECRET, NAME, "M01", "model.py"):
        assert word not in printed.out + printed.err


@pytest.mark.parametrize("half", PARTS[1:])
def test_single_models_are_examined_in_the_open_half_only(half: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["strangers.py", "--half", half, "--only", NAME])
    with pytest.raises(SystemExit):
        strangers.main()


def test_a_manifest_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stranger_files, "MANIFEST", tmp_path)
    monkeypatch.setattr("sys.argv", ["strangers.py", "--where", NAME])
    strangers.main()
    file = Path(capsys.readouterr().out.strip())
    assert file.parent.parent == tmp_path
    file.parent.mkdir()
    file.touch()
    with pytest.raises(SystemExit):
        strangers.main()
    assert not capsys.readouterr().out


def test_a_finding_speaks_of_a_fault_by_its_id_or_a_cause() -> None:
    fault = Fault(id="A04", also=("A05",), line="model.py:1", why="heads are mixed", certainty="read")
    causes = [{"id": "A05", "score": 0.6}, {"id": "M01", "score": 0.4}]
    assert strangers.speaks_of({"id": "M01", "status": "fail", "causes": causes}, fault)  # type: ignore[typeddict-item]
    assert not strangers.speaks_of({"id": "M01", "status": "fail", "causes": causes[1:]}, fault)  # type: ignore[typeddict-item]
