"""What a training starts from, as a person names it."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from clearhead.workflows.planning import Start, choose_start, collect_settings
from clearhead.workflows.pretrained import open_pretrained
from clearhead.workflows.runs.folder import RunFolder


class StartArguments(TypedDict, total=False):
    """The arguments of `train` that decide, together, what is trained and for how long."""

    start_from: str | Path | RunFolder | None
    preset: str | None
    minutes: float | None
    config: str | Path | None
    options: Mapping[str, object] | None
    start_time: float | None


def start_of(source: str | Path | None, arguments: StartArguments) -> Start:
    """What training starts from, decided before its data is read.

    Raises:
        ClearheadError: one sentence on what cannot be, or not together.
    """
    minutes, named = arguments.get("minutes"), arguments.get("start_from")
    settings = collect_settings(source, arguments.get("config"), arguments.get("options"), timed=minutes is not None)
    pretrained = None if named is None else open_pretrained(named)
    return choose_start(settings, arguments.get("preset"), minutes, pretrained, start_time=arguments.get("start_time"))
