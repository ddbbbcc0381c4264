"""Files that are there whole or not at all."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Through a temporary file that is flushed and renamed; safetensors would leave it readable by its owner alone."""
    temporary = path.with_name(f".unfinished-{path.name}")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        write(temporary)
        temporary.chmod(mode)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Readable JSON; a NaN in it is a programming error."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    write_whole(path, lambda temporary: temporary.write_bytes(text.encode("utf-8")))
