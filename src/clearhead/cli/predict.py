"""clearhead predict"""

import argparse

from clearhead.cli.arguments import Parser, whole_number
from clearhead.cli.console import Console
from clearhead.cli.environment import load_workflow
from clearhead.cli.output import notice
from clearhead.cli.views import add_prompt_options, add_view_options, run_and_prompt, write_views


def parser() -> Parser:
    """What `clearhead predict` understands."""
    parser = Parser(
        "predict",
        "Show what a model expects at each position of a text, and how the text surprises it.",
        [
            ('clearhead predict "Once upon a time"', "the probabilities at each position, with the newest run"),
            ('clearhead predict runs/a "Once upon a time" --lens', "also what each layer would say"),
            ('clearhead predict runs/de-en "Ein Mann." --target "A man."', "a translation, given its source"),
        ],
    )
    add_prompt_options(parser)
    parser.add_argument("--lens", action="store_true", help="also show what the head would say after each block")
    parser.add_argument("--top-k", type=whole_number, metavar="N", help="show this many candidates (default: 10)")
    add_view_options(parser)
    return parser


def run(args: argparse.Namespace) -> None:
    """Predict, and print the text, the probabilities and the lens."""
    load_workflow("predict")
    from clearhead import workflows
    from clearhead.inspection.prediction.terminal import lines_of

    options = {name: getattr(args, name) for name in ("lens", "top_k", "target", "device") if name in args}
    view = workflows.predict(*run_and_prompt(args, "predict"), **options, on_notice=notice)
    console = Console(json=args.json)
    console.say(view.title, "bold")
    console.say(view.verdict)
    console.say("")
    for line in lines_of(view, *console.canvas):
        console.line(*line)
    write_views(args, view, console)
    console.result(view.as_dict())
