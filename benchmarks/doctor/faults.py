"""The planted faults: healthy hosts, and what a person could have written there instead.

    python benchmarks/doctor/faults.py FOLDER    # every mutant as a file of its own with a `build()`

`planted/HOST.toml` lists the faults of `hosts/HOST.py`. A fault is a replacement in the host's source; what is replaced
must occur there exactly once, so a host that changes cannot lose a fault in silence.
"""

import os
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Literal

from torch import nn

HERE = Path(__file__).parent
HOSTS = sorted(path.stem for path in (HERE / "hosts").glob("[!_]*.py"))

# what is examined in a process of its own finds `own_parts` here
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))

Kind = Literal["causal", "bidirectional", "seq2seq"]
Tier = Literal["exact", "heuristic"]


@dataclass(frozen=True)
class Fault:
    """One fault in one host.

    Attributes:
        host: whose source it changes.
        name: unlike those of the host's other faults.
        kind: what the host is meant to be.
        id: of the fault in the doctor's catalogue.
        also: other ids that describe this very change as well.
        modules: the guilty ones' paths, `*` for any name or number; any of them leads to the line. "" is the model
            itself.
        silence: 3 trains and looks as good or better, 2 trains but is quietly worse, 1 shows (NaN, absurd loss).
        tier: whether there is an exact check for it, or only signs.
        changes: old and new text.
    """

    host: str
    name: str
    kind: Kind
    id: str
    also: tuple[str, ...]
    modules: tuple[str, ...]
    silence: int
    tier: Tier
    changes: tuple[tuple[str, str], ...]

    @property
    def title(self) -> str:
        return f"{self.host}/{self.name}"

    @property
    def file_name(self) -> str:
        return f"{self.host}_with_{self.name.replace('-', '_')}.py"

    def source(self) -> str:
        """The mutant's source."""
        text = host_source(self.host)
        for old, new in self.changes:
            count = text.count(old)
            if count != 1:
                raise ValueError(f"{self.title}: its text must occur once in hosts/{self.host}.py, not {count} times")
            text = text.replace(old, new)
        return text


def host_source(host: str) -> str:
    return (HERE / "hosts" / f"{host}.py").read_text(encoding="utf-8")


def kind_of(host: str) -> Kind:
    """What a host is meant to be."""
    return _planted(host)["kind"]  # type: ignore[no-any-return]


def faults_of(host: str) -> Iterator[Fault]:
    """The faults that are planted in a host."""
    planted = _planted(host)
    for entry in planted["fault"]:
        old, new = (entry[side] if isinstance(entry[side], list) else [entry[side]] for side in ("old", "new"))
        yield Fault(
            host=host,
            name=entry["name"],
            kind=planted["kind"],
            id=entry["id"],
            also=tuple(entry.get("also", ())),
            modules=tuple(entry["modules"]),
            silence=entry["silence"],
            tier=entry["tier"],
            changes=tuple(zip(old, new, strict=True)),
        )


def all_faults() -> list[Fault]:
    return [fault for host in HOSTS for fault in faults_of(host)]


def write(fault: Fault, folder: Path) -> Path:
    """Write the mutant's file."""
    path = folder / fault.file_name
    path.write_text(fault.source(), encoding="utf-8")
    return path


def built(path: Path) -> nn.Module:
    """What the file's `build()` makes; the random generator decides its weights."""
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look there for the module that they stand in
    try:
        spec.loader.exec_module(module)
        model = module.build()
    finally:
        del sys.modules[path.stem]
    assert isinstance(model, nn.Module)
    return model


def _planted(host: str) -> dict:  # type: ignore[type-arg]
    return tomllib.loads((HERE / "planted" / f"{host}.toml").read_text(encoding="utf-8"))


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for fault in all_faults():
        print(f"{write(fault, folder)}  {fault.id}  {', '.join(fault.modules) or 'the model'}")


if __name__ == "__main__":
    main()
