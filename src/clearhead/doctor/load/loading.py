"""From what a person typed to a model: a file, a module, an architecture of transformers, or a folder of one.

Code that is named is imported and called, with the rights of this process; nothing here is a sandbox. Of a folder of
transformers no code is run: neither what its config names (`auto_map`) nor what a pickle would.
"""

import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import nn

from clearhead.doctor.load.naming import Target, read
from clearhead.doctor.load.unwrap import remedy
from clearhead.doctor.probes.tracing import HERE, LIBRARY
from clearhead.doctor.problems import sentence_of
from clearhead.errors import ClearheadError, DataError, UsageError, did_you_mean

NAMES = ("build", "make_model", "build_model", "get_model", "create_model", "model")


def load(target: str, settings: Mapping[str, str] | None = None) -> nn.Module:
    """The model that a target means.

    Args:
        target: 'file.py:name', 'package.module:name', 'hf:NAME' or 'hf:FOLDER'. A name is a module, or a function
            without arguments that makes one; left out of a file, the usual names are tried.
        settings: config values for 'hf:NAME', as text.

    Raises:
        UsageError: the words make no sense together.
        DataError: it cannot be imported, made or read.
    """
    named = read(target)
    if settings and named.kind != "architecture":
        raise UsageError("--set is for hf:NAME only; a factory of yours chooses its own sizes")
    if named.kind in ("architecture", "checkpoint"):
        return _from_transformers(named.location, settings or {})
    return _made(_module(named), named.name, target)


def _module(named: Target) -> object:
    return _from_file(Path(named.location)) if named.kind == "file" else _by_name(named.location)


def _from_file(path: Path) -> object:
    if not path.is_file():
        raise DataError(f"there is no file {path}; give file.py:name")
    path = path.resolve()  # its code may go to another folder
    name = re.sub(r"\W", "_", path.stem)
    name = f"_target_{name}" if name in sys.modules or importlib.util.find_spec(name) else name
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickling look there
    sys.path.insert(0, str(path.parent))  # its neighbours, as Python itself does for a script
    with _told(f"{path} cannot be imported"):
        spec.loader.exec_module(module)
    return module


def _by_name(name: str) -> object:
    sys.path.insert(0, os.getcwd())
    with _told(f"{name} cannot be imported"):
        return importlib.import_module(name)


def _made(module: object, name: str, target: str) -> nn.Module:
    if not name:
        name = next((known for known in NAMES if hasattr(module, known)), "")
        if not name:
            raise DataError(f"{target} has no build(); name what makes the model, as in {target}:my_function")
    if not hasattr(module, name):
        known = [key for key in vars(module) if not key.startswith("_")]
        raise DataError(f"{target}: there is no '{name}'{did_you_mean(name, known)}")
    value = getattr(module, name)
    if isinstance(value, type) or not isinstance(value, nn.Module):
        if not callable(value):
            raise DataError(f"{target} is a {type(value).__name__}; name an nn.Module or a function that makes one")
        _refuse_arguments(value, target)
        with _told(f"{target} cannot be called"):
            value = value()
    if isinstance(value, (tuple, list)):
        value = next((part for part in value if isinstance(part, nn.Module)), value)
    if not isinstance(value, nn.Module):
        raise DataError(f"{target} gave a {type(value).__name__}, not a torch.nn.Module; return the model")
    return value


def _refuse_arguments(function: Any, target: str) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # it does not say
        return
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in variable]
    if needed:
        raise DataError(
            f"{target} needs arguments ({', '.join(needed)}); add a function that gives them, as in "
            f"'def build(): return {getattr(function, '__name__', 'make')}(...)', and name that"
        )


class _told:  # noqa: N801 - used as a context manager
    """Whatever a stranger's code raises becomes one sentence."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: Any) -> None:
        if error is None or isinstance(error, (KeyboardInterrupt, ClearheadError)):
            return
        where = f"({sentence_of(error, 200)}{_line_of(at)})"
        raise DataError(f"{self.what} {where}; {remedy(str(error)) or 'mend that first'}") from None


def _line_of(at: TracebackType | None) -> str:
    """The innermost line that is the target's own."""
    lines = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(at)]
    own = [line for line in lines if not line[0].startswith((LIBRARY, HERE, "<"))]
    return f", at {own[-1][0]}:{own[-1][1]}" if own else ""


def _from_transformers(name: str, settings: Mapping[str, str]) -> nn.Module:
    try:
        import transformers
    except ImportError:
        raise DataError("hf: needs transformers; 'pip install clearhead[hub]'") from None
    from clearhead.doctor.load.architectures import build_architecture, class_for

    logging: Any = transformers.utils.logging
    logging.set_verbosity_error()
    if name not in transformers.CONFIG_MAPPING and Path(name).is_dir():
        with _told(f"{name} cannot be loaded"):
            data_only = {"local_files_only": True, "trust_remote_code": False}
            config = transformers.AutoConfig.from_pretrained(name, **data_only)
            model: nn.Module = class_for(config).from_pretrained(name, use_safetensors=True, **data_only)
            return model
    with _told(f"hf:{name} cannot be made from so small a config; say its sizes with --set key=value"):
        return build_architecture(name, settings)


def load_function(target: str) -> Any:
    """The function that 'file.py:name' or 'package.module:name' means.

    Raises:
        DataError: there is none.
    """
    try:
        named = read(target)
    except UsageError:
        named = None
    if named is None or not named.name:
        raise UsageError(f"'{target}' names no function; say file.py:name or package.module:name")
    module = _module(named)
    function = getattr(module, named.name, None)
    if function is None:
        known = [key for key in vars(module) if not key.startswith("_")]
        raise DataError(f"{named.location} has no '{named.name}'{did_you_mean(named.name, known)}")
    if isinstance(function, type) and issubclass(function, nn.Module):
        _refuse_arguments(function, target)
        with _told(f"{target} cannot be made"):
            function = function()
    if not callable(function):
        raise DataError(f"{target} is a {type(function).__name__}, not a function")
    return function
