"""Where a model that a person names is: a folder, or the hub, from which weights and JSON are fetched and no code."""

import os
import re
from importlib.util import find_spec
from pathlib import Path

from clearhead.errors import DataError, UsageError
from clearhead.suggestions import did_you_mean

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
FETCHED = ["*.safetensors", "*.json"]  # pickles and code stay where they are


def find_folder(name: str) -> Path:
    """The folder of that name, else that of the hub's model of that name, fetched unless it was before.

    Raises:
        UsageError: it is no folder, and the extra `hub` is not installed.
        DataError: it is neither, or it cannot be fetched.
    """
    path = Path(name).expanduser()
    if os.path.exists(path):  # pathlib's own raises for a name that no system takes
        return path
    is_local = path.parent != Path() and os.path.isdir(path.parent)
    if is_local or not HUB_NAME.fullmatch(name):
        hint = did_you_mean(path.name, [entry.name for entry in path.parent.iterdir()]) if is_local else ""
        raise DataError(f"there is no folder {name}{hint or '; give one that holds config.json and model.safetensors'}")
    if find_spec("huggingface_hub") is None:
        fetch = "to fetch the hub's model of that name: pip install 'clearhead[hub]'"
        raise UsageError(f"there is no folder {name}; {fetch}")
    return _download(name)


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    had_bars = not are_progress_bars_disabled()
    disable_progress_bars()  # they draw over their own line, which no other printed text may do
    try:
        return Path(snapshot_download(name, allow_patterns=FETCHED))
    except Exception as error:  # of many kinds: no network, no such model, no access, a bad answer
        reason = (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".")
        raise DataError(f"there is no folder {name}, and from the hub it cannot be fetched: {reason}") from None
    finally:
        if had_bars:
            enable_progress_bars()
