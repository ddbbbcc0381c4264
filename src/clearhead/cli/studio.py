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
        ],
    )
    parser.add_argument("run", nargs="?", help="a folder or the name of a run under runs (default: newest)")
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
    name = _name_of(workflows.open_folder(args.run)) if getattr(args, "run", None) else None

    def show(address: str) -> None:
        console.say(f"the studio is at {address} (Ctrl-C ends it)", "bold")
        console.result({"url": address})

    return exit_code(open_studio(name, config, browser="no_browser" not in args, on_ready=show), args)


def _name_of(run: "RunFolder") -> str:
    if run.folder.resolve().parent != RUNS.resolve():
        raise UsageError(
            f"the studio shows the runs under {RUNS}, and {run.folder} is elsewhere; start it where that is"
        )
    return run.name
