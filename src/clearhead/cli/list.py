"""clearhead list"""

import argparse
from dataclasses import asdict

from clearhead.cli.arguments import Parser
from clearhead.cli.console import Console
from clearhead.cli.environment import load_workflow
from clearhead.cli.output import in_flags
from clearhead.pages import one_line


def parser() -> Parser:
    """What `clearhead list` understands."""
    return Parser(
        "list",
        "List the runs in the folder 'runs', newest first, and the presets and corpora.",
        [("clearhead list", "on the terminal"), ("clearhead list --json", "for a program")],
    )


def run(args: argparse.Namespace) -> None:
    """Print what there is."""
    load_workflow("list_all")
    from clearhead import workflows

    console = Console(json=args.json)
    listing = {
        title: {name: in_flags(about) for name, about in entries.items()}
        for title, entries in asdict(workflows.list_all()).items()
    }
    for title, entries in listing.items():
        console.say(title, "bold")
        width = max((len(one_line(name)) for name in entries), default=0)
        for name, about in entries.items():
            console.say(f"  {one_line(name):<{width}}  {about}")
        if not entries:
            console.say("  none yet; 'clearhead train' makes one")
    console.result(listing)
