"""clearhead export"""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from clearhead.cli.arguments import Parser
from clearhead.cli.console import Console
from clearhead.cli.environment import load_workflow
from clearhead.errors import UsageError

if TYPE_CHECKING:
    from clearhead.workflows import Exported


def parser() -> Parser:
    """What `clearhead export` understands."""
    parser = Parser(
        "export",
        "Write a run's model for another program, open it there, and compare logits, greedy text and token ids.",
        [
            ("clearhead export runs/a --to hf somewhere", "a folder for transformers"),
            ("clearhead export --to gguf model.gguf", "the newest run, in one file"),
        ],
    )
    parser.add_argument("run", nargs="?", help="a run's folder or name (default: the newest)")
    parser.add_argument(
        "out", nargs="?", metavar="OUT", help="the folder to write; for gguf and safetensors also a file"
    )
    parser.add_argument("--to", metavar="{hf,onnx,gguf,safetensors}", help="the format")
    return parser


def run(given: argparse.Namespace) -> None:
    """Export, and print the certificate."""
    places = [getattr(given, name) for name in ("run", "out") if name in given]
    if not places or "to" not in given:
        raise UsageError("export needs an output and a format: clearhead export RUN --to hf|onnx|gguf|safetensors OUT")
    load_workflow("export")
    from clearhead import workflows

    which, out = workflows.run_and_text(*places, *[None] * (2 - len(places)))
    if out is None:
        raise UsageError(f"name the output: clearhead export {which} --to {given.to} OUT")
    done = workflows.export(which, given.to, out)
    console = Console(json=given.json)
    _show(console, done)
    told = {**asdict(done.certificate), "out": str(done.path), "certificate": str(done.certificate_path)}
    console.result(told)


def _show(console: Console, done: "Exported") -> None:
    found = done.certificate
    console.say(f"{done.path}, checked with {found.peer}", "bold")
    for kind, difference in found.differences.items():
        console.say(f"  {kind:<28} largest difference of a logit {difference:.1e}")
    if found.greedy_equal is not None:
        console.say(f"  {'greedy text':<28} {found.greedy_tokens} tokens equal")
    if found.tokenizer_equal is not None:
        console.say(f"  {'tokenizer':<28} {found.tokenizer_characters:,} characters of text, equal ids")
    console.say(
        f"certificate: passed, differences up to {found.tolerance:.0e} allowed; {done.certificate_path}", "green"
    )
