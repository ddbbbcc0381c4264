"""One plain function per verb. The command calls these, and so may you.

Importing this loads no torch; a name that needs it loads it when it is first touched.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors see; below is the same, loaded when it is touched
    from clearhead.workflows.certificate import Certificate
    from clearhead.workflows.describing import Listing, describe, list_all
    from clearhead.workflows.evaluating import LengthScore, Score, TranslationScore, evaluate
    from clearhead.workflows.events import Finished, Observer, Passed, Said, Sampled, Started, WorkflowEvent, command
    from clearhead.workflows.examining import TIMEOUT, Request, compare_models, diagnose, examine, examine_loss
    from clearhead.workflows.examples import Step, WorkedExample, worked_example
    from clearhead.workflows.exporting import Exported, export
    from clearhead.workflows.filling import fill
    from clearhead.workflows.folders import RUNS
    from clearhead.workflows.generating import generate
    from clearhead.workflows.importing import after_import, import_model
    from clearhead.workflows.origin import Origin, open_origin
    from clearhead.workflows.planning import Plan, as_toml, gather, plan
    from clearhead.workflows.recording import summary
    from clearhead.workflows.run import Run
    from clearhead.workflows.runs import all_runs, load, run_and_text
    from clearhead.workflows.training import resume, train
    from clearhead.workflows.translating import Translated, translate

_HOME_OF = {
    "RUNS": "folders",
    "TIMEOUT": "examining",
    "Certificate": "certificate",
    "Exported": "exporting",
    "Finished": "events",
    "LengthScore": "evaluating",
    "Listing": "describing",
    "Observer": "events",
    "Origin": "origin",
    "Passed": "events",
    "Plan": "planning",
    "Request": "examining",
    "Run": "run",
    "Said": "events",
    "Sampled": "events",
    "Score": "evaluating",
    "Started": "events",
    "Step": "examples",
    "Translated": "translating",
    "TranslationScore": "evaluating",
    "WorkedExample": "examples",
    "WorkflowEvent": "events",
    "after_import": "importing",
    "all_runs": "runs",
    "as_toml": "planning",
    "command": "events",
    "describe": "describing",
    "evaluate": "evaluating",
    "compare_models": "examining",
    "diagnose": "examining",
    "examine": "examining",
    "examine_loss": "examining",
    "export": "exporting",
    "fill": "filling",
    "gather": "planning",
    "generate": "generating",
    "import_model": "importing",
    "list_all": "describing",
    "open_origin": "origin",
    "load": "runs",
    "plan": "planning",
    "resume": "training",
    "run_and_text": "runs",
    "summary": "recording",
    "train": "training",
    "translate": "translating",
    "worked_example": "examples",
}

__all__ = [
    "RUNS",
    "TIMEOUT",
    "Certificate",
    "Exported",
    "Finished",
    "LengthScore",
    "Listing",
    "Observer",
    "Origin",
    "Passed",
    "Plan",
    "Request",
    "Run",
    "Said",
    "Sampled",
    "Score",
    "Started",
    "Step",
    "Translated",
    "TranslationScore",
    "WorkedExample",
    "WorkflowEvent",
    "after_import",
    "all_runs",
    "as_toml",
    "command",
    "compare_models",
    "describe",
    "diagnose",
    "evaluate",
    "examine",
    "examine_loss",
    "export",
    "fill",
    "gather",
    "generate",
    "import_model",
    "list_all",
    "load",
    "open_origin",
    "plan",
    "resume",
    "run_and_text",
    "summary",
    "train",
    "translate",
    "worked_example",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(f"clearhead.workflows.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module 'clearhead.workflows' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
