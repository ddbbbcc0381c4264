"""clearhead describe"""

import argparse
from typing import TYPE_CHECKING

from clearhead.cli.arguments import Parser, settings_of
from clearhead.cli.console import Console
from clearhead.cli.environment import load_workflow
from clearhead.cli.implied_run import implied_run
from clearhead.cli.views import add_view_options, write_views
from clearhead.config import RunConfig
from clearhead.errors import UsageError

if TYPE_CHECKING:
    from clearhead.inspection import CostEstimate, WeightTable


def parser() -> Parser:
    """What `clearhead describe` understands."""
    parser = Parser(
        "describe",
        "Count a model's parameters by part, its FLOPs per token, and the memory for training and generation.",
        [
            ("clearhead describe --preset gpt2", "a preset"),
            ("clearhead describe --model.n_layers 12 --model.d_model 768", "any shape"),
            (
                "clearhead describe --preset gpt2 --devices 8",
                "and what each of 8 devices holds, under DDP and FSDP",
            ),
            ("clearhead describe --by weight", "every weight of the newest run: Wq, Wk, Wv, Wo, W1, W2, norms"),
            ("clearhead describe --report model.html", "its architecture, as a picture to click through"),
        ],
    )
    parser.add_argument(
        "run", nargs="?", help="a run's folder or name (default: the newest run, if no option is given)"
    )
    parser.add_argument("--preset", metavar="NAME", help="describe a preset instead of a run")
    parser.add_argument("--by", choices=("weight", "sublayer"), help="list every weight, or the total of each sublayer")
    parser.add_argument(
        "--devices", type=int, metavar="N", help="also say what each of N devices holds that share the training"
    )
    parser.add_argument(
        "--tflops",
        type=float,
        metavar="X",
        help="and how long it takes, if each really does X times 10^12 floating-point operations per second",
    )
    add_view_options(parser, svg=False)
    parser.add_options(RunConfig, "run options")
    return parser


def run(args: argparse.Namespace) -> None:
    """Print the account."""
    load_workflow("describe")
    from clearhead import workflows

    which, preset, options = getattr(args, "run", None), getattr(args, "preset", None), settings_of(args, RunConfig)
    if preset is None and not options:
        which = implied_run(which)
    devices, tflops = getattr(args, "devices", None), getattr(args, "tflops", None)
    if "by" in args and devices is not None:
        raise UsageError("--devices says what a training holds, and --by what a model is made of; give one of them")
    console = Console(json=args.json)
    weights = workflows.describe_weights(which, by=getattr(args, "by", "weight"), preset=preset, options=options)
    if "by" in args:
        _show_weights(weights, console)
    else:
        costs = workflows.describe(which, preset=preset, options=options, devices=devices, tflops=tflops)
        _show_costs(costs, console)
    page = "report" in args and "by" not in args
    view = workflows.describe_architecture(which, preset=preset, options=options) if page else weights
    write_views(args, view, console)


def _show_weights(weights: "WeightTable", console: Console) -> None:
    from clearhead.inspection.cost.weights import Total

    rows = [(("", "", "shape", "parameters", "FLOPs per token", "bytes", "times"), False)]
    for entry in weights.entries():
        name, shape = f"{entry.stack} {entry.name}".strip(), " x ".join(map(str, entry.shape))
        parameters, flops, n_bytes = (
            f"{number:,}" for number in (entry.parameters, entry.flops_per_token, entry.n_bytes)
        )
        times = f"{entry.count:,}" if entry.count > 1 else ""
        rows.append(((name, entry.symbol, shape, parameters, flops, n_bytes, times), isinstance(entry, Total)))
    widths = [max(len(cells[column]) for cells, _ in rows) for column in range(len(rows[0][0]))]
    for (name, symbol, *numbers), is_total in rows:
        cells = "  ".join(f"{cell:>{width}}" for cell, width in zip(numbers, widths[2:], strict=True))
        line = f"{name:<{widths[0]}}  {symbol:<{widths[1]}}  {cells}"
        console.say(line.rstrip(), "bold" if is_total else "")
    console.say("")
    console.say(weights.verdict, "bold")
    console.result(weights.as_dict())


def _show_costs(costs: "CostEstimate", console: Console) -> None:
    for line in str(costs).splitlines():
        console.say(line, "bold" if line.startswith(("parameters", "on each of")) else "")
    console.result(costs.as_dict())
