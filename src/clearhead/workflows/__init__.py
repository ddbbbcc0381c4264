"""One plain function per verb. The command calls these, and so may you.

Importing this loads no torch; a name that needs it loads it when it is first touched.
"""

from clearhead.lazy import attach

TYPE_CHECKING = False  # as `typing` has it, which takes a while to load
if TYPE_CHECKING:  # what type checkers and editors see; below is the same, loaded when it is first touched
    from clearhead.workflows.ablating import ablate as ablate
    from clearhead.workflows.attending import attend as attend
    from clearhead.workflows.certificate import Certificate as Certificate
    from clearhead.workflows.chatting import Chat as Chat
    from clearhead.workflows.chatting import chat as chat
    from clearhead.workflows.comparing import RunComparison as RunComparison
    from clearhead.workflows.comparing import compare_runs as compare_runs
    from clearhead.workflows.describing import Listing as Listing
    from clearhead.workflows.describing import describe as describe
    from clearhead.workflows.describing import describe_architecture as describe_architecture
    from clearhead.workflows.describing import describe_weights as describe_weights
    from clearhead.workflows.describing import described_config as described_config
    from clearhead.workflows.describing import list_all as list_all
    from clearhead.workflows.evaluating import LengthScore as LengthScore
    from clearhead.workflows.evaluating import Score as Score
    from clearhead.workflows.evaluating import TranslationScore as TranslationScore
    from clearhead.workflows.evaluating import evaluate as evaluate
    from clearhead.workflows.events import CheckPassed as CheckPassed
    from clearhead.workflows.events import Finished as Finished
    from clearhead.workflows.events import Notice as Notice
    from clearhead.workflows.events import Observer as Observer
    from clearhead.workflows.events import Preparing as Preparing
    from clearhead.workflows.events import Read as Read
    from clearhead.workflows.events import Replanned as Replanned
    from clearhead.workflows.events import Sampled as Sampled
    from clearhead.workflows.events import Started as Started
    from clearhead.workflows.events import WeightsAveraged as WeightsAveraged
    from clearhead.workflows.events import WorkflowEvent as WorkflowEvent
    from clearhead.workflows.events import command as command
    from clearhead.workflows.examining import TIMEOUT as TIMEOUT
    from clearhead.workflows.examining import Request as Request
    from clearhead.workflows.examining import check_model as check_model
    from clearhead.workflows.examining import compare_models as compare_models
    from clearhead.workflows.examining import diagnose as diagnose
    from clearhead.workflows.examining import examine_loss as examine_loss
    from clearhead.workflows.examining import resolve as resolve
    from clearhead.workflows.example_layer import Step as Step
    from clearhead.workflows.example_layer import WorkedExample as WorkedExample
    from clearhead.workflows.example_layer import worked_example as worked_example
    from clearhead.workflows.exporting import Exported as Exported
    from clearhead.workflows.exporting import export as export
    from clearhead.workflows.filling import fill as fill
    from clearhead.workflows.generating import generate as generate
    from clearhead.workflows.importing import after_import as after_import
    from clearhead.workflows.importing import import_model as import_model
    from clearhead.workflows.memorizing import memorization as memorization
    from clearhead.workflows.planning import Plan as Plan
    from clearhead.workflows.planning import Start as Start
    from clearhead.workflows.planning import choose_start as choose_start
    from clearhead.workflows.planning import collect_settings as collect_settings
    from clearhead.workflows.planning import dump_toml as dump_toml
    from clearhead.workflows.planning import plan as plan
    from clearhead.workflows.predicting import predict as predict
    from clearhead.workflows.pretrained import Pretrained as Pretrained
    from clearhead.workflows.pretrained import open_pretrained as open_pretrained
    from clearhead.workflows.run import Run as Run
    from clearhead.workflows.run import load as load
    from clearhead.workflows.runs.find import all_runs as all_runs
    from clearhead.workflows.runs.find import newest_run as newest_run
    from clearhead.workflows.runs.find import open_folder as open_folder
    from clearhead.workflows.runs.find import run_and_text as run_and_text
    from clearhead.workflows.runs.paths import RUNS as RUNS
    from clearhead.workflows.runs.report import summary as summary
    from clearhead.workflows.tracing import target_and_text as target_and_text
    from clearhead.workflows.tracing import trace as trace
    from clearhead.workflows.training import resume as resume
    from clearhead.workflows.training import train as train
    from clearhead.workflows.translating import Translated as Translated
    from clearhead.workflows.translating import translate as translate

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "attending": ("attend",),
        "ablating": ("ablate",),
        "certificate": ("Certificate",),
        "chatting": ("Chat", "chat"),
        "comparing": ("RunComparison", "compare_runs"),
        "describing": (
            "Listing",
            "describe",
            "describe_architecture",
            "describe_weights",
            "described_config",
            "list_all",
        ),
        "evaluating": ("LengthScore", "Score", "TranslationScore", "evaluate"),
        "events": (
            "WeightsAveraged",
            "Finished",
            "Observer",
            "CheckPassed",
            "Notice",
            "Preparing",
            "Read",
            "Sampled",
            "Replanned",
            "Started",
            "WorkflowEvent",
            "command",
        ),
        "examining": ("Request", "TIMEOUT", "check_model", "compare_models", "diagnose", "examine_loss", "resolve"),
        "example_layer": ("Step", "WorkedExample", "worked_example"),
        "exporting": ("Exported", "export"),
        "filling": ("fill",),
        "generating": ("generate",),
        "importing": ("after_import", "import_model"),
        "memorizing": ("memorization",),
        "planning": ("Plan", "Start", "dump_toml", "choose_start", "collect_settings", "plan"),
        "predicting": ("predict",),
        "pretrained": ("Pretrained", "open_pretrained"),
        "run": ("Run", "load"),
        "runs.find": ("all_runs", "newest_run", "open_folder", "run_and_text"),
        "runs.paths": ("RUNS",),
        "runs.report": ("summary",),
        "tracing": ("target_and_text", "trace"),
        "training": ("resume", "train"),
        "translating": ("Translated", "translate"),
    },
)
