"""The process that `examine_apart` starts: a request on standard input, the answer in the file that is named."""

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clearhead.errors import ClearheadError, DataError


def main() -> None:
    """Answer one request; the file appears whole or not at all."""
    answer = Path(sys.argv[1])
    request = json.load(sys.stdin)
    process = os.getpid()
    try:
        told = _answer(request, lambda told: _leave(answer, told))
    except ClearheadError as error:
        told = {"error": str(error), "exit_code": error.exit_code}
    except RecursionError:
        told = {"error": f"{request['target']} calls itself without end", "exit_code": DataError.exit_code}
    except MemoryError:
        told = {"error": f"{request['target']} needs more memory than there is", "exit_code": DataError.exit_code}
    if os.getpid() != process:
        os._exit(0)  # the target forked, and this is its child: one answer is enough
    _leave(answer, told)


def _leave(answer: Path, told: dict[str, Any]) -> None:
    unfinished = answer.with_suffix(".new")
    unfinished.write_text(json.dumps(told), encoding="utf-8")
    unfinished.replace(answer)
    os._exit(0)  # threads and exit handlers of the target do not hold it up


def _answer(request: dict[str, Any], finish: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    import torch

    from clearhead.doctor import Spec, check
    from clearhead.doctor.targets import load

    torch.manual_seed(request["seed"])
    if request["task"] == "train":
        from clearhead.doctor.training.script import examine_script

        return examine_script(request["target"], request["words"], request["allow"], finish)
    if request["task"] == "loss":
        from clearhead.doctor.loss_examination import examine_loss
        from clearhead.doctor.targets import load_function

        return examine_loss(load_function(request["target"]), request["target"]).as_json()
    if request["factory"]:
        home, argument = request["factory"]
        module, _, name = home.partition(":")
        model = getattr(importlib.import_module(module), name)(argument)
    else:
        model = load(request["target"], request["settings"])
    fresh = not request["factory"] and not _is_folder(request["target"])
    spec = Spec(kind=request["kind"], fresh=fresh, allow=request["allow"])
    report = check(
        model, spec, level=request["level"], only=request["only"], seed=request["seed"], name=request["target"]
    )
    return report.as_json()


def _is_folder(target: str) -> bool:
    return target.startswith("hf:") and Path(target[3:]).is_dir()


if __name__ == "__main__":
    main()
