"""The type of what an observer is told names every event that there is."""

from dataclasses import is_dataclass
from typing import get_args

from clearhead.training import Evaluated, Notice, Stepped
from clearhead.workflows import events


def test_a_workflow_event_is_any_of_the_events() -> None:
    own = {kind for kind in vars(events).values() if is_dataclass(kind) and kind.__module__ == events.__name__}
    assert set(get_args(events.WorkflowEvent)) == own | {Stepped, Evaluated, Notice}
