"""From what a person typed to a model: a file, a module, an architecture of transformers, or a folder of one.

Named code is imported and called with the rights of this process; nothing here is a sandbox. Of a folder of
transformers no code is run: neither what its config names (`auto_map`) nor what a pickle would.
"""

import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import nn

from clearhead.doctor.calling.names import arguments_of
from clearhead.doctor.load.naming import Target, read
from clearhead.doctor.load.unwrap import remedy
from clearhead.doctor.probes.tracing import HERE, LIBRARY
from clearhead.doctor.problems import sentence_of
from clearhead.errors import ClearheadError, DataError, UsageError
from clearhead.suggestions import did_you_mean
from clearhead.wording import with_article

NAMES = ("build", "make_model", "build_model", "get_model", "create_model", "model")


def load(target: str, settings: Mapping[str, str] | None = None) -> nn.Module:
    """The model that a target means.

    Args:
        target: 'file.py:name', 'package.module:name', 'hf:NAME' or 'hf:FOLDER'. The name is that of a module, or of a
            function without arguments that returns one; after a file it may be left out, and the usual ones are tried.
        settings: config values for 'hf:NAME', as text.

    Raises:
        UsageError: the words make no sense together.
        DataError: the model cannot be imported, built or read.
    """
    named = read(target)
    if settings and named.kind != "architecture":
        raise UsageError("--set is for hf:NAME only; a factory of yours chooses its own sizes")
    if named.kind in ("architecture", "checkpoint"):
        return _from_transformers(named.location, settings or {})
    module = _module(named)
    name = named.name or next((known for known in NAMES if hasattr(module, known)), "")
    if not name:
        raise DataError(f"{target} has no build(); name what makes the model, as in {target}:my_function")
    value = _attribute(module, name, target)
    if not isinstance(value, nn.Module):
        if not callable(value):
            raise DataError(
                f"{target} is {with_article(type(value).__name__)}; name an nn.Module or a function that makes one"
            )
        value = _called(value, target)
    if isinstance(value, (tuple, list)):
        value = next((part for part in value if isinstance(part, nn.Module)), value)
    if not isinstance(value, nn.Module):
        raise DataError(
            f"{target} returned {with_article(type(value).__name__)}, not a torch.nn.Module; return the model"
        )
    return value


def load_function(target: str) -> Any:
    """The function that 'file.py:name' or 'package.module:name' means; of an nn.Module's class, an instance.

    Raises:
        UsageError: the target names no function.
        DataError: there is none of that name.
    """
    try:
        named = read(target)
    except UsageError:
        named = None
    if named is None or not named.name:
        raise UsageError(f"'{target}' names no function; say file.py:name or package.module:name")
    function = _attribute(_module(named), named.name, target)
    if isinstance(function, type) and issubclass(function, nn.Module):
        function = _called(function, target)
    if not callable(function):
        raise DataError(f"{target} is {with_article(type(function).__name__)}, not a function")
    return function


def _module(named: Target) -> object:
    if named.kind == "module":
        sys.path.insert(0, os.getcwd())
        with _in_one_sentence(f"{named.location} cannot be imported"):
            return importlib.import_module(named.location)
    path = Path(named.location)
    if not path.is_file():
        raise DataError(f"there is no file {path}; name one as file.py:name")
    path = path.resolve()  # its code may change the current folder
    name = re.sub(r"\W", "_", path.stem)
    name = f"_target_{name}" if name in sys.modules or importlib.util.find_spec(name) else name
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for dataclasses and pickle
    sys.path.insert(0, str(path.parent))  # for its neighbors, as Python itself does for a script
    with _in_one_sentence(f"{path} cannot be imported"):
        spec.loader.exec_module(module)
    return module


def _attribute(module: object, name: str, target: str) -> Any:
    if not hasattr(module, name):
        known = [key for key in vars(module) if not key.startswith("_")]
        raise DataError(f"{target}: there is no '{name}'{did_you_mean(name, known)}")
    return getattr(module, name)


def _called(function: Any, target: str) -> Any:
    """What a function without arguments returns."""
    needed = [
        p.name
        for p in arguments_of(function)
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise DataError(
            f"{target} needs arguments ({', '.join(needed)}); add a function that gives them, as in "
            f"'def build(): return {getattr(function, '__name__', 'make')}(...)', and name that"
        )
    with _in_one_sentence(f"{target} cannot be called"):
        return function()


class _in_one_sentence:  # noqa: N801 - used as a context manager
    """Whatever foreign code raises becomes one sentence, with the innermost line of that code."""

    def __init__(self, problem: str) -> None:
        self.problem = problem

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, frames: TracebackType | None) -> None:
        if error is None or isinstance(error, (KeyboardInterrupt, ClearheadError)):
            return
        lines = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(frames)]
        own = [line for line in lines if not line.startswith((LIBRARY, HERE, "<"))]
        where = f"({sentence_of(error, 200)}" + (f", at {own[-1]})" if own else ")")
        raise DataError(f"{self.problem} {where}; {remedy(str(error)) or 'fix that first'}") from None


def _from_transformers(name: str, settings: Mapping[str, str]) -> nn.Module:
    try:
        import transformers
    except ImportError:
        raise DataError("hf: needs transformers; 'pip install clearhead[hub]'") from None
    from clearhead.doctor.load.architectures import build_architecture, class_for

    logging: Any = transformers.utils.logging
    logging.set_verbosity_error()
    if name not in transformers.CONFIG_MAPPING and Path(name).is_dir():
        with _in_one_sentence(f"{name} cannot be loaded"):
            data_only = {"local_files_only": True, "trust_remote_code": False}
            config = transformers.AutoConfig.from_pretrained(name, **data_only)
            model: nn.Module = class_for(config).from_pretrained(name, use_safetensors=True, **data_only)
            return model
    with _in_one_sentence(f"hf:{name} cannot be built from so small a config; choose its sizes with --set key=value"):
        return build_architecture(name, settings)
