"""clearhead studio"""

import argparse
from typing import TYPE_CHECKING

from clearhead.cli.arguments import Parser
from clearhead.cli.console import Console
from clearhead.cli.environment import load_workflow
from clearhead.cli.serving import exit_code, server_config
from clearhead.config.serving import ServerConfig
from clearhead.errors import UsageError
from clearhead.workflows.runs.paths import RUNS

if TYPE_CHECKING:
    from clearhead.workflows.runs.folder import RunFolder


def parser() -> Parser:
    """What `clearhead studio` understands."""
    parser = Parser(
        "studio",
        "Open the runs here in a browser: train, look inside, write. "
        "Unless --host says otherwise, only this machine can reach it. Ctrl-C ends it.",
        [
            ("clearhead studio", "the newest run"),
            ("clearhead studio my-1 --no-browser", "print the address only"),
            ("clearhead studio model.py:build", "with what the doctor says of a model of your own"),
        ],
    )
    parser.add_argument(
        "run",
        nargs="?",
        help="the name of a run under runs (default: newest), or a model for the doctor, as in model.py:build",
    )
    parser.add_argument("--no-browser", action="store_true", help="print the address without opening a browser")
    parser.add_options(ServerConfig, "address, speed and limits")
    return parser


def run(args: argparse.Namespace) -> int:
    """Show the studio, until a signal comes."""
    config = server_config(args)
    load_workflow("newest_run")
    from clearhead import workflows
    from clearhead.server import open_studio

    console = Console(json=args.json)
    typed = getattr(args, "run", None)
    code = typed if typed and _is_code(typed) else None
    name = _name_of(workflows.open_folder(typed)) if typed and not code else None

    def show(address: str) -> None:
        console.say(f"the studio is at {address} (Ctrl-C ends it)", "bold")
        console.result({"url": address})

    return exit_code(open_studio(name, config, code=code, browser="no_browser" not in args, on_ready=show), args)


def _is_code(typed: str) -> bool:
    """Whether a model is named that is no run; what names nothing at all is taken for a run, which is then missed."""
    from clearhead import workflows

    try:
        return workflows.resolve(typed).kind != "run"
    except UsageError:
        return False


def _name_of(run: "RunFolder") -> str:
    if run.folder.resolve().parent != RUNS.resolve():
        raise UsageError(
            f"the studio shows the runs under {RUNS}, and {run.folder} is elsewhere; start it where that is"
        )
    return run.name
