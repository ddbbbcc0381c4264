"""Small training scripts as a stranger writes them, and the same with one thing broken."""

import sys
from pathlib import Path
from typing import Any

import changed_hosts

from clearhead.doctor import Report, watch

HOSTS = Path(__file__).with_name("hosts")
NAMES = sorted(path.stem for path in HOSTS.glob("*.py") if path.stem not in ("tiny_models", "styles"))


def written(folder: Path, host: str, *changes: tuple[str, str]) -> Path:
    """The changed script as a file of its own, beside the models that it imports."""
    (folder / "tiny_models.py").write_text((HOSTS / "tiny_models.py").read_text(encoding="utf-8"), encoding="utf-8")
    return changed_hosts.write_changed(folder, HOSTS / f"{host}.py", *changes)


def loaded(path: Path) -> Any:
    """The script as a module: what it defines, without running it."""
    if str(HOSTS) not in sys.path:
        sys.path.insert(0, str(HOSTS))
    return changed_hosts.loaded(path)


def watched(path: Path) -> Report:
    """What the doctor says of the script's training, with nothing named to it."""
    module = loaded(path)
    with watch() as seen:
        module.train()
    return seen.report()
