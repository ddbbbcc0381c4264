"""One plain function per verb. The command calls these, and so may you."""

from clearhead.workflows.certificate import Certificate
from clearhead.workflows.describing import Listing, describe, list_all
from clearhead.workflows.evaluating import LengthScore, Score, TranslationScore, evaluate
from clearhead.workflows.events import Finished, Observer, Passed, Said, Sampled, Started, WorkflowEvent, command
from clearhead.workflows.examples import Step, WorkedExample, worked_example
from clearhead.workflows.exporting import Exported, export
from clearhead.workflows.filling import fill
from clearhead.workflows.generating import generate
from clearhead.workflows.importing import after_import, import_model
from clearhead.workflows.origin import Origin, open_origin
from clearhead.workflows.planning import Plan, as_toml, gather, plan
from clearhead.workflows.recording import summary
from clearhead.workflows.run import Run
from clearhead.workflows.runs import RUNS, all_runs, open_run, run_and_text
from clearhead.workflows.training import resume, train
from clearhead.workflows.translating import Translated, translate

__all__ = [
    "RUNS",
    "Certificate",
    "Exported",
    "Finished",
    "LengthScore",
    "Listing",
    "Observer",
    "Origin",
    "Passed",
    "Plan",
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
    "describe",
    "evaluate",
    "export",
    "fill",
    "gather",
    "generate",
    "import_model",
    "list_all",
    "open_origin",
    "open_run",
    "plan",
    "resume",
    "run_and_text",
    "summary",
    "train",
    "translate",
    "worked_example",
]
