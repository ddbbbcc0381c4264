"""The process that `examine_isolated` starts: it reads a request from one file, and writes the result to another."""

import gc
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from clearhead.doctor.isolated import again
from clearhead.errors import ClearheadError, DataError

SMALL = 5_000_000  # parameters
OF_THE_MEMORY = 0.75  # of the machine, or of the group of processes, for this one
OF_THE_TIMEOUT = 0.8  # after which no further check is begun, so that there is time to report


def main() -> None:
    """Answer one request; the file of the result appears whole or not at all."""
    question, answer = map(Path, sys.argv[1:])
    request = json.loads(question.read_text(encoding="utf-8"))
    process = os.getpid()
    with suppress(OSError):  # if memory runs out, the system kills this process first
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
    document = answer_to(request | {"answer": str(answer)})
    if os.getpid() != process:
        os._exit(0)  # the target forked, and this is its child: one result is enough
    _leave(answer, document)


def _leave(answer: Path, document: dict[str, object]) -> None:
    unfinished = answer.with_suffix(".new")
    unfinished.write_text(json.dumps(document), encoding="utf-8")
    unfinished.replace(answer)
    os._exit(0)  # without waiting for threads and exit handlers of the target


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """The result, or the sentence on why there is none."""
    try:
        with _without_collection():
            import torch
        torch.manual_seed(request["seed"])
        return _task(request["task"])(request)
    except ClearheadError as error:
        sentence = str(error).removesuffix(error.below)
        return {"error": sentence, "below": error.below, "exit_code": error.exit_code}
    except RecursionError:
        message = "calls itself without end"
    except MemoryError:
        message = "needs more memory than there is"
    except SystemExit as stop:
        message = f"calls sys.exit({'' if stop.code is None else repr(stop.code)}) where it should continue"
    return {"error": f"{request['target']} {message}", "exit_code": DataError.exit_code}


@contextmanager
def _without_collection() -> Iterator[None]:
    """What is imported here is never garbage, and searching it for garbage takes a fifth of the time of an import."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _examine_loss(request: dict[str, Any]) -> dict[str, Any]:
    from clearhead.doctor.load.loading import load_function
    from clearhead.doctor.loss_examination import examine_loss

    return examine_loss(load_function(request["target"]), request["target"], request["pad_id"]).as_json()


def _train(request: dict[str, Any]) -> dict[str, Any]:
    from clearhead.doctor.training.script import examine_script

    finish = partial(_leave, Path(request["answer"]))
    return examine_script(request["target"], request["arguments"], request["allow"], finish)


def _check(request: dict[str, Any]) -> dict[str, Any]:
    import torch

    from clearhead.doctor import Spec, check
    from clearhead.doctor.calling.batches import load_batch
    from clearhead.doctor.load.naming import read

    batch = load_batch(request["batch"]) if request["batch"] else None
    model = _model(request)
    if request["device"] == "cpu":
        _limit_memory()
    if isinstance(model, torch.nn.Module) and sum(parameter.numel() for parameter in model.parameters()) < SMALL:
        torch.set_num_threads(1)  # on small matrices a second thread makes the examination a sixth longer
    origin = "run" if request["factory"] else read(request["target"]).kind
    fresh = {"run": False, "checkpoint": False, "architecture": True}.get(origin)  # unknown of a person's code
    report = check(
        model,
        Spec(kind=request["kind"], pad_id=request["pad_id"], fresh=fresh, allow=request["allow"]),
        level=request["level"],
        only=request["only"],
        seed=request["seed"],
        batch=batch,
        device=request["device"],
        seconds=OF_THE_TIMEOUT * request["timeout"],
    )
    findings = tuple(replace(finding, repro=again(request, finding.id)) for finding in report.findings)
    return replace(report, target=request["target"], findings=findings).as_json()


def _limit_memory() -> None:
    """Let a call that takes too much memory raise an error: another can be tried, and the system kills no process."""
    with suppress(ImportError, OSError, ValueError):  # Windows has no such limits
        import resource

        most = int(OF_THE_MEMORY * min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), _of_the_group()))
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _of_the_group() -> float:
    """How much memory the processes of this container may take together; infinite if nothing says so."""
    with suppress(OSError, ValueError):
        return int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="utf-8"))
    return float("inf")


def _compare(request: dict[str, Any]) -> dict[str, Any]:
    from clearhead.doctor import compare

    names = request["target"], request["other"]
    a, b = _model(request), _model(request | {"target": request["other"], "factory": request["other_factory"]})
    return compare(a, b, kind=request["kind"], seed=request["seed"], names=names).as_json()


def _model(request: dict[str, Any]) -> Any:
    """What the target or its factory makes. The settings are for architectures only."""
    from clearhead.doctor.load.loading import load
    from clearhead.doctor.load.naming import read

    libraries = list(sys.path)
    if request["factory"]:
        home, argument = request["factory"]
        module, _, name = home.partition(":")
        model = getattr(importlib.import_module(module), name)(argument)
    else:
        kind = read(request["target"]).kind
        with _without_collection() if kind in ("architecture", "checkpoint") else nullcontext():
            model = load(request["target"], request["settings"] if kind == "architecture" else None)
    sys.path.extend(path for path in libraries if path not in sys.path)  # in case the target removed some
    return model


def _task(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """One of ours, or 'module:function' of a higher floor, which is called with the model and the request."""
    if name in TASKS:
        return TASKS[name]
    module, _, function = name.partition(":")
    look = getattr(importlib.import_module(module), function)
    return lambda request: look(_model(request), request)


TASKS = {"check": _check, "loss": _examine_loss, "compare": _compare, "train": _train}


if __name__ == "__main__":
    main()
