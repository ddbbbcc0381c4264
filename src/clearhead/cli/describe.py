"""clearhead describe"""

import argparse

from clearhead.cli.arguments import Parser, settings_of
from clearhead.cli.console import Console
from clearhead.cli.environment import load_workflow
from clearhead.cli.implied_run import implied_run
from clearhead.config import RunConfig
from clearhead.wording import counted

UNITS = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB"))


def parser() -> Parser:
    """What `clearhead describe` understands."""
    parser = Parser(
        "describe",
        "Count a model's parameters by part, its FLOPs per token, and the memory for training and generation.",
        [
            ("clearhead describe --preset gpt2", "a preset"),
            ("clearhead describe --model.n_layers 12 --model.d_model 768", "any shape"),
        ],
    )
    parser.add_argument(
        "run", nargs="?", help="a run's folder or name (default: the newest run, if no option is given)"
    )
    parser.add_argument("--preset", metavar="NAME", help="describe a preset instead of a run")
    parser.add_options(RunConfig, "run options")
    return parser


def run(args: argparse.Namespace) -> None:
    """Print the account."""
    load_workflow("describe")
    from clearhead import workflows

    which, preset, options = getattr(args, "run", None), getattr(args, "preset", None), settings_of(args, RunConfig)
    if preset is None and not options:
        which = implied_run(which)
    costs = workflows.describe(which, preset=preset, options=options)
    console = Console(json=args.json)
    width = max(map(len, costs.parts))
    for part, count in costs.parts.items():
        console.say(f"{part:<{width}} {count:>14,}  {count / max(costs.parameters, 1):6.1%}")
    console.say(f"{'parameters':<{width}} {costs.parameters:>14,}", "bold")
    console.say("")
    console.say(f"FLOPs per token      {costs.flops_per_token:,} forward, {3 * costs.flops_per_token:,} to train")
    for use in ("training", "generation"):
        console.say(f"memory, {use:<12} {_size(costs.bytes[use])}")
    console.result(costs.as_dict())


def _size(n_bytes: int) -> str:
    for unit, name in UNITS:
        if n_bytes >= unit:
            return f"{n_bytes / unit:.1f} {name}"
    return f"{counted(n_bytes, 'byte')}"
