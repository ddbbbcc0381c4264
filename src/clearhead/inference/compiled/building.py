"""Compiled steps on disk: built once for a shape and a machine, found again by every later process.

Weights are no part of what is built, so models of one shape share it.
"""

import hashlib
import os
import platform
import stat
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import clearhead
from clearhead.config import Weights
from clearhead.data.cache import cache_folder, facts_of, keep
from clearhead.errors import DataError
from clearhead.inference.compiled.products import Packed
from clearhead.inference.compiled.static import Step, count_column, state_of
from clearhead.inference.rounding import matrices
from clearhead.models import CausalLM
from clearhead.parts import DecoderCache

FILE = "step.pt2"
ROOMS = ("parts", "models", "inference")  # the code that a step is made from
EXAMPLE_COLUMNS = 128  # any number would do


class CompiledStep:
    """Reads one token (B,) of each row into a cache; returns the logits (B, V) of the next."""

    def __init__(self, folder: Path, step: Step) -> None:
        """
        Args:
            folder: where it was built.
            step: what was built there; its weights are used where they are.
        """
        from torch._inductor import aoti_load_package  # seconds, for who needs it

        self._package = aoti_load_package(str(folder / FILE))
        known: dict[str, Tensor] = dict(step.named_parameters(remove_duplicate=False))
        known |= step.named_buffers(remove_duplicate=False)
        self._constants = {name: known[name].detach() for name in self._package.get_constant_fqns()}
        self._package.load_constants(self._constants, check_full_update=True, user_managed=True)  # no copies

    def __call__(self, ids: Tensor, cache: DecoderCache) -> Tensor:
        logits, *tokens = self._run(ids, cache)
        count_column(cache, *tokens)
        return logits

    def logits(self, ids: Tensor, cache: DecoderCache) -> Tensor:
        """The same, but the cache does not count the column, so that it will be written again."""
        return self._run(ids, cache)[0]

    def _run(self, ids: Tensor, cache: DecoderCache) -> list[Tensor]:
        found: list[Tensor] = self._package.loader.boxed_run([ids, *state_of(cache, len(ids))])
        return found


def step_of(model: CausalLM, weights: Weights, *, one_row: bool) -> Step:
    """The step of one row, its matrices packed for it, or of any greater number of rows."""
    names = matrices(model) if one_row else []
    return Step(model, {name: Packed(model.get_parameter(name), weights) for name in names})


def folder_of(model: CausalLM, weights: Weights, *, one_row: bool) -> Path:
    """Where the built step is kept, or would be: every step that must differ has a folder of its own."""
    told = (
        *(model.config.model_dump_json(), str(model), _sources()),
        *(weights if one_row else "full", one_row),
        *(torch.__version__, torch.get_num_threads(), torch.backends.cpu.get_cpu_capability(), _processor()),
    )
    return cache_folder() / "steps" / hashlib.blake2b(repr(told).encode(), digest_size=16).hexdigest()


def is_built(folder: Path) -> bool:
    """Whether a whole step is there that nobody else could have put there: it is run as part of this process."""
    try:
        facts_of(folder)
        return all(_is_ours(path) for path in (folder.parent, folder, folder / FILE))
    except (OSError, ValueError):
        return False


def build(folder: Path, step: Step) -> None:
    """Compile the step into the folder, which takes about a minute.

    Raises:
        DataError: others could change what is in the folder. The compiler raises what it likes.
    """

    def make(new: Path) -> dict[str, Any]:
        from torch._inductor import aoti_compile_and_package
        from torch.export import export

        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of the compiler's own code
            program = export(step, _example(step), dynamic_shapes=_any_sizes(step), strict=False)
            aoti_compile_and_package(
                program,
                package_path=str(new / FILE),
                inductor_configs={"aot_inductor.package_constants_in_so": False},
            )
        (new / FILE).chmod(0o600)
        return {"model": step.model.config.model_dump(), "torch": torch.__version__, "clearhead": clearhead.__version__}

    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not _is_ours(folder.parent):
        raise DataError(f"others can write in {folder.parent}; set CLEARHEAD_CACHE to a folder of your own")
    keep(folder, make)


def _example(step: Step) -> tuple[Tensor, ...]:
    rows = 1 if step.names else 2
    cache = step.model.new_cache(rows, EXAMPLE_COLUMNS)
    cache.extend(None, EXAMPLE_COLUMNS // 2)
    return torch.zeros(rows, dtype=torch.int64), *state_of(cache, rows)


def _any_sizes(step: Step) -> tuple[Any, ...]:
    """Which axes of `Step.forward`'s arguments may have any size."""
    from torch.export import Dim

    used, capacity = {0: Dim("used", min=2)}, {2: Dim("capacity", min=2)}
    rows = {} if step.names else {0: Dim("rows", min=2)}
    room = tuple(rows | capacity for _ in range(2 * step.model.config.n_layers))
    tokens = (rows,) if step.model.config.longest_ngram > 1 else ()
    return rows, used, rows, room + tokens


def _is_ours(path: Path) -> bool:
    if not hasattr(os, "getuid"):
        return True  # Windows: the folder is in the person's own profile
    found = path.stat()
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@cache
def _sources() -> str:
    """A digest of the code that a step is made from."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(path for room in ROOMS for path in (Path(clearhead.__file__).parent / room).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def _processor() -> str:
    """What machine code may be made for."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.processor() + platform.node()
