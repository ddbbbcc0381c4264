"""clearhead worked-example"""

import argparse
from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

from clearhead.cli.arguments import Parser
from clearhead.cli.console import Console
from clearhead.cli.environment import load_workflow

if TYPE_CHECKING:
    from clearhead.reference import Array
    from clearhead.workflows import Step

ON_A_LINE = 8  # numbers
AXES = {"H": "head", "T": "token", "T_src": "source token"}


def parser() -> Parser:
    """What `clearhead worked-example` understands."""
    parser = Parser(
        "worked-example",
        "Compute one small decoder layer in NumPy, step by step: every equation, shape and number.",
        [
            ("clearhead worked-example", "the layer of the original Transformer (post-norm)"),
            (
                "clearhead worked-example --torch --norm-position pre",
                "pre-norm, as most are today, beside the PyTorch parts",
            ),
        ],
    )
    parser.add_argument(
        "--norm-position",
        metavar="{pre,post}",
        help="normalize before each sublayer, or after each residual sum (default: post)",
    )
    parser.add_argument("--torch", action="store_true", default=False, help="also show what the PyTorch parts compute")
    return parser


def run(args: argparse.Namespace) -> None:
    """Print the layer, step by step."""
    load_workflow("worked_example")
    from clearhead import workflows

    example = workflows.worked_example(norm_position=getattr(args, "norm_position", "post"), torch=args.torch)
    console = Console(json=args.json)
    config = example.config
    console.say(f"One decoder layer, {config.norm_position}-norm, with the numbers of numpy.random.seed(0):", "bold")
    console.say(f"d_model {config.d_model}, {config.n_heads} heads, d_ff {config.d_ff}, ReLU, no biases.")
    for step in example.steps:
        console.say("")
        console.say(f"{step.name}  {tuple(step.values.shape)} {step.axes}", "bold")
        console.say(f"  = {step.equation}")
        for line in _lines(step):
            console.say(line)
        if step.difference is not None:
            console.say(f"  largest difference {step.difference:.1e}", "green")
    differences = [step.difference for step in example.steps if step.difference is not None]
    if differences:
        console.say("")
        console.say(f"NumPy and torch differ by at most {max(differences):.1e} in any number.", "bold")
        console.say("Both use the same random numbers; torch's kernel returns no attention scores.")
    console.result(example.as_dict())


def _lines(step: "Step") -> Iterator[str]:
    """A row of numbers for each token, or for each token of each head, and torch's under it."""
    names = [AXES[axis] for axis in step.axes.split()[1:-1]]
    indices = list(product(*map(range, step.values.shape[1:-1])))
    labels = [", ".join(f"{name} {number}" for name, number in zip(names, index, strict=True)) for index in indices]
    width = max(map(len, labels))
    for label, index in zip(labels, indices, strict=True):
        yield from _row(f"  {label:<{width}}", step.values[(0, *index)])
        if step.torch is not None:
            yield from _row(f"  {'torch':>{width}}", step.torch[(0, *index)])


def _row(label: str, numbers: "Array") -> Iterator[str]:
    for start in range(0, len(numbers), ON_A_LINE):
        shown = "".join(f"{number:8.4f}" for number in numbers[start : start + ON_A_LINE])
        yield (label if start == 0 else " " * len(label)) + shown
