"""clearhead resume"""

import argparse

from clearhead.cli.arguments import Parser, settings_of
from clearhead.cli.console import Console
from clearhead.cli.environment import load_workflow
from clearhead.cli.implied_run import implied_run
from clearhead.config import RunConfig

FIXED = ("seed", "objective", "model", "data", "train.optimizer")  # what a run began with; the workflow refuses others


def parser() -> Parser:
    """What `clearhead resume` understands."""
    parser = Parser(
        "resume",
        "Continue an interrupted run as if it had never stopped, even after a crash, or make a finished run longer. "
        "Options that you leave out stay as they are in the run.",
        [
            ("clearhead resume", "the newest run"),
            ("clearhead resume runs/a --train.steps 4000", "make a finished run longer"),
        ],
    )
    parser.add_argument("run", nargs="?", help="a run's folder or name (default: the newest)")
    parser.add_options(RunConfig, "run options", hidden=FIXED, show_defaults=False)
    return parser


def run(args: argparse.Namespace) -> None:
    """Resume, telling how it goes."""
    load_workflow("resume")
    from clearhead import workflows

    with Console(json=args.json) as console:
        options = settings_of(args, RunConfig)
        which = implied_run(getattr(args, "run", None), to_resume=True)
        done = workflows.resume(which, options=options, on_event=console.on_event)
    if args.json:  # a long log is not read again for nothing
        console.result(workflows.summary(done))
