"""clearhead serve"""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from clearhead.cli.arguments import Parser
from clearhead.cli.console import Console
from clearhead.cli.environment import load_workflow
from clearhead.cli.implied_run import implied_run
from clearhead.cli.serving import exit_code, server_config
from clearhead.config.serving import ServerConfig
from clearhead.server.first_calls import TOKEN_VARIABLE

if TYPE_CHECKING:
    from clearhead.server import Listening


def parser() -> Parser:
    """What `clearhead serve` understands."""
    parser = Parser(
        "serve",
        "Serve runs over HTTP, as OpenAI's clients expect it, with a page to try them at the address that it prints. "
        "Ctrl-C ends it.",
        [
            ("clearhead serve", "the newest run, on this machine only"),
            ("clearhead serve runs/a runs/b --port 8080", "several runs; requests name them"),
        ],
    )
    parser.add_argument("runs", nargs="*", help="folders or names of runs; the first is the default (default: newest)")
    parser.add_options(ServerConfig, "address, speed and limits")
    return parser


def run(args: argparse.Namespace) -> int:
    """Serve, until a signal comes."""
    config = server_config(args)
    load_workflow("newest_run")
    from clearhead import workflows
    from clearhead.server import serve

    console = Console(json=args.json)
    runs = [workflows.open_folder(name) for name in getattr(args, "runs", None) or [implied_run(None)]]

    def show(listening: "Listening") -> None:
        console.say(f"serving {', '.join(listening.models)} at {listening.url} (Ctrl-C ends it)", "bold")
        if listening.needs_token:
            console.say(f"Each request needs the token; below, it is in the environment variable {TOKEN_VARIABLE}.")
        for lines in ((listening.curl,), listening.openai):
            console.say("")
            for line in lines:
                console.say(line)
        console.result(asdict(listening))

    return exit_code(serve(runs, config, on_ready=show), args)
