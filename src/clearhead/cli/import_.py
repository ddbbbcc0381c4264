"""clearhead import"""

import argparse
import os
from pathlib import Path

from clearhead.cli.arguments import Parser
from clearhead.cli.console import Console
from clearhead.cli.environment import load_workflow
from clearhead.wording import counted, with_article


def parser() -> Parser:
    """What `clearhead import` understands."""
    parser = Parser(
        "import",
        "Turn a Hugging Face model into a run, which you can generate with, evaluate, export and fine-tune. "
        "Import reads safetensors and JSON only, and executes nothing from the folder.",
        [
            ("clearhead import some/folder", "from a folder on disk"),
            ("clearhead import gpt2 --out runs/gpt2", "from the Hugging Face hub (needs the extra 'hub')"),
        ],
    )
    parser.add_argument("model", help="a Hugging Face folder; if there is none of that name, a model on the hub")
    parser.add_argument("--out", metavar="FOLDER", help="the run's folder (default: a new one under runs)")
    return parser


def run(args: argparse.Namespace) -> None:
    """Import, and say what can be done next."""
    from clearhead import interop
    from clearhead.data.tokenizers import read_safely

    if os.path.exists(args.model):  # what is wrong with bad folders is said before torch is loaded
        folder = Path(args.model)
        interop.read_headers(folder)
        interop.check(folder)
        read_safely(folder / "tokenizer.json")
    load_workflow("import_model")
    from clearhead import workflows

    console = Console(json=args.json)
    done = workflows.import_model(args.model, out=getattr(args, "out", None), on_event=console.on_event)
    costs = workflows.describe(done)
    console.say(f"model: {counted(costs.parameters, 'parameter')}, {with_article(done.config.model.architecture)}")
    console.say("")
    console.say(f"The run is in {done.folder}. What you can do next:")
    for command in workflows.after_import(done):
        console.say("  " + command)
    console.result(
        {"run": str(done.folder), "parameters": costs.parameters, "architecture": done.config.model.architecture}
    )
