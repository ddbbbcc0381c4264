"""Models that strangers wrote: where each is to be had, what it is, and what is wrong with it. Knows no doctor.

One TOML file a repository, `strangers/HALF/OWNER+NAME.toml`, holds its commit and, for each model, a wrapper of ours
that builds it and the judgement of a person who read it before the doctor was run. No code of theirs is kept here: it
is fetched, at that commit, into `build/strangers`.

The first repositories were halved by a hash of their names. One half is open: the doctor is mended with sight of it.
The other is locked: it is run to be counted, and nobody reads it in order to mend something. It has been run, and is
used up; so what is collected since goes into a reserve, which is locked until it has been run, once, and is open then.
"""

import os
import subprocess
import threading
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

HERE = Path(__file__).resolve().parent
MANIFEST = HERE / "strangers"
BUILD = Path("build") / "strangers"
FETCHING = threading.Lock()
PARTS = ("open", "locked", "reserve")
READ = (".py", ".ipynb", ".json", ".yaml", ".yml", ".toml", ".cfg", ".txt", ".md")  # the files that are fetched
COMMIT = Field(pattern="^[0-9a-f]{40}$")


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Fault(Frozen):
    """One thing that is wrong.

    Attributes:
        id: of the doctor's catalogue; "none" where it has no word for it.
        also: other ids that describe the same fault as well.
        modules: paths of the modules at fault, in which `*` is any one name; none where it is the model or a loss.
        line: `path:number` in the repository.
        certainty: "proved" by the model's `proof`, or "read".
        latent: the model gives wrong results in circumstances only, such as half precision or very long inputs, or it
            differs from what it means by what hardly matters: in all files a norm with n - 1 or epsilon in another
            place (N06), and layers that begin equal (I01).
    """

    id: str = Field(pattern="^([A-Z][0-9]{2}|none)$")
    also: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    line: str
    why: str
    certainty: Literal["proved", "read"]
    latent: bool = False


class Stranger(Frozen):
    """One model, or one loss.

    Attributes:
        ask: "model", whose wrapper has `build()`, or "loss", whose wrapper has `compute(logits, labels)`.
        folder: in the repository, from which its modules are imported.
        wrapper: Python; `ROOT` is the folder of the repository.
        proof: Python after the wrapper; it ends without an exception only if the faults that are "proved" are there.
    """

    name: str = Field(pattern="^[a-z0-9_]+$")
    ask: Literal["model", "loss"] = "model"
    kind: Literal["causal", "bidirectional", "seq2seq", "other"]
    folder: str = "."
    wrapper: str
    proof: str = ""
    note: str = ""


class Model(Stranger):
    """A model as its repository has it today; healthy without faults."""

    faults: tuple[Fault, ...] = ()

    @model_validator(mode="after")
    def _is_proved(self) -> Self:
        if any(fault.certainty == "proved" for fault in self.faults) and not self.proof:
            raise ValueError(f"{self.name}: a fault that is 'proved' needs a 'proof'")
        return self


class Bug(Stranger):
    """A published bug: the commit before it was mended and the one that mended it; the proof holds for the first only.

    Attributes:
        reference: where it was published: an issue, a pull request or the mending commit's subject.
        fixed_wrapper: where the mended version is built otherwise.
    """

    reference: str
    buggy: str = COMMIT
    fixed: str = COMMIT
    fault: Fault
    fixed_wrapper: str = ""


class Repository(Frozen):
    """One repository. `nature`: kept (a well-kept project), tutorial, course, paper, or old (or obscure)."""

    name: str = Field(pattern="^[^/ ]+/[^/ ]+$")
    commit: str = COMMIT
    nature: Literal["kept", "tutorial", "course", "paper", "old"]
    packages: tuple[str, ...] = ()
    models: tuple[Model, ...] = ()
    bugs: tuple[Bug, ...] = ()

    @property
    def strangers(self) -> "tuple[Model | Bug, ...]":
        """Everything in it that is examined."""
        return (*self.models, *self.bugs)

    @property
    def file(self) -> Path:
        """Where its manifest is, and a new one belongs: in the reserve, as nothing else is unlooked-at."""
        file = f"{self.name.replace('/', '+')}.toml"
        return next((held for part in PARTS if (held := MANIFEST / part / file).exists()), MANIFEST / "reserve" / file)


def repositories(part: str) -> Iterator[Repository]:
    """All of one part."""
    for path in sorted((MANIFEST / part).glob("*.toml")):
        yield read(path)


def read(path: Path) -> Repository:
    """One manifest."""
    return Repository(**tomllib.loads(path.read_text(encoding="utf-8")))


def fetched(name: str, commit: str, mirrors: Path | None) -> Path | None:
    """The folder with a repository's files at a commit, as far as they are read; None if it is not to be had.

    Args:
        mirrors: a folder with repositories, or bare ones, `OWNER+NAME/repo`; they are looked at before the network.
    """
    folder = BUILD.resolve() / name.replace("/", "+") / commit
    with FETCHING:  # several examinations at a time may want the same files
        return folder if folder.is_dir() else _fetch(name, commit, mirrors, folder)


def _fetch(name: str, commit: str, mirrors: Path | None, folder: Path) -> Path | None:
    for store in _stores(name, commit, mirrors):
        blobs = dict(_blobs(store, commit))
        partial = folder.with_suffix(f".{os.getpid()}")
        for path, content in _contents(store, blobs):
            (partial / path).parent.mkdir(parents=True, exist_ok=True)
            (partial / path).write_bytes(content)
        if partial.is_dir():
            partial.rename(folder)
            return folder
    return None


def _blobs(store: Path, commit: str) -> Iterator[tuple[str, str]]:
    """The hash of each file that is read, by its path."""
    listing = _git(store, "ls-tree", "-r", "-z", commit) or b""
    for line in filter(None, listing.decode(errors="replace").split("\0")):
        about, _, path = line.partition("\t")
        mode, _, blob = about.split()
        is_file = mode.startswith("100") and ".." not in PurePosixPath(path).parts
        if is_file and path.lower().endswith(READ):
            yield path, blob


def _contents(store: Path, blobs: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """The files themselves; a mirror may lack large ones."""
    output = _git(store, "cat-file", "--batch", stdin="".join(f"{blob}\n" for blob in blobs.values()).encode()) or b""
    at = 0
    for path in blobs:
        end = output.index(b"\n", at)
        head, at = output[at:end].split(), end + 1
        if head[-1] != b"missing":
            size = int(head[-1])
            yield path, output[at : at + size]
            at += size + 1


def _stores(name: str, commit: str, mirrors: Path | None) -> Iterator[Path]:
    """Git directories that may hold the commit."""
    if mirrors is not None and (mirror := mirrors / name.replace("/", "+") / "repo").is_dir():
        yield mirror
    own = BUILD.resolve() / name.replace("/", "+") / "repo"
    own.mkdir(parents=True, exist_ok=True)
    _git(own, "init", "--bare", "--quiet")
    _git(own, "fetch", "--quiet", "--depth", "1", f"https://github.com/{name}", commit)
    yield own


def _git(store: Path, *arguments: str, stdin: bytes = b"") -> bytes | None:
    """What Git prints if it reads this; None if it fails."""
    command = ["git", "-c", "safe.directory=*", "-C", str(store), *arguments]
    environment = os.environ | {"GIT_TERMINAL_PROMPT": "0"}
    done = subprocess.run(command, input=stdin, capture_output=True, env=environment, timeout=600, check=False)
    return done.stdout if done.returncode == 0 else None
