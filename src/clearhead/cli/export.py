"""clearhead export"""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from clearhead.cli.arguments import Parser, one_of
from clearhead.cli.console import Console
from clearhead.cli.environment import load_workflow
from clearhead.cli.implied_run import implied_run
from clearhead.errors import UsageError
from clearhead.wording import counted

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
    parser.add_argument("--out", dest="out_file", metavar="OUT", help="same as the positional out")
    parser.add_argument("--to", metavar="{hf,onnx,gguf,safetensors}", help="the format")
    return parser


def run(args: argparse.Namespace) -> None:
    """Export, and print the certificate."""
    first, second = getattr(args, "run", None), one_of(args, "out", "out_file", what="output")
    if (first, second) == (None, None) or "to" not in args:
        raise UsageError("export needs an output and a format: clearhead export RUN --to hf|onnx|gguf|safetensors OUT")
    load_workflow("export")
    from clearhead import workflows

    which, out = (first, second) if second else workflows.run_and_text(first, None)
    if out is None:
        raise UsageError(f"name the output: clearhead export {which} --to {args.to} OUT")
    done = workflows.export(implied_run(which), args.to, out)
    console = Console(json=args.json)
    _show(console, done)
    result = {**asdict(done.certificate), "out": str(done.path), "certificate": str(done.certificate_path)}
    console.result(result)


def _show(console: Console, done: "Exported") -> None:
    certificate = done.certificate
    console.say(f"{done.path}, checked with {certificate.peer}", "bold")
    for kind, difference in certificate.differences.items():
        console.say(f"  {kind:<28} largest difference of a logit {difference:.1e}")
    if certificate.greedy_equal is not None:
        console.say(f"  {'greedy text':<28} {counted(certificate.greedy_tokens, 'equal token')}")
    if certificate.tokenizer_equal is not None:
        console.say(
            f"  {'tokenizer':<28} equal ids for {counted(certificate.tokenizer_characters, 'character')} of text"
        )
    allowed = f"differences up to {certificate.tolerance:.0e} allowed; {done.certificate_path}"
    if certificate.passed:
        console.say(f"certificate: passed, {allowed}", "green")
        return
    unread = " and ".join(f"{key} = {value}" for key, value in certificate.unread.items())
    console.say(f"certificate: the file is right, but {certificate.peer} must be given {unread}:", "yellow")
    console.say(f"  {certificate.reason}")
    console.say(f"  {allowed}")
