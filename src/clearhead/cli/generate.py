"""clearhead generate"""

import argparse
from typing import TYPE_CHECKING

from clearhead.cli.arguments import Parser, settings_of
from clearhead.cli.console import Console
from clearhead.cli.environment import load_workflow
from clearhead.cli.implied_run import implied_run
from clearhead.cli.output import notice, standard_output
from clearhead.cli.run_and_text import add_run_and_text, run_and_text
from clearhead.config import EngineConfig, SamplingConfig
from clearhead.errors import UsageError

if TYPE_CHECKING:
    from clearhead.inference import Piece


def parser() -> Parser:
    """What `clearhead generate` understands."""
    parser = Parser(
        "generate",
        "Generate text from a prompt. The text appears as it is generated.",
        [
            ('clearhead generate "Once upon a time"', "continue this prompt with the newest run"),
            (
                'clearhead generate runs/a "ROMEO:" --temperature 0.7 --num-samples 3 --seed 1',
                "three texts, the same every time",
            ),
        ],
    )
    about = "the beginning of the text, or - for standard input (default: what is piped in, else empty)"
    add_run_and_text(parser, "prompt", about)
    parser.add_argument("--device", help="auto, cpu, cuda, mps")
    parser.add_options(SamplingConfig, "sampling, in the order in which it is applied")
    parser.add_options(EngineConfig, "speed")
    return parser


def run(args: argparse.Namespace) -> None:
    """Generate, streaming when there is one text to show."""
    load_workflow("generate")
    from clearhead import workflows

    which, text = run_and_text(args, "generate", "prompt")
    prompt = text or ""
    options = settings_of(args, SamplingConfig)
    if options.get("greedy") and float(str(options.get("temperature", 0))) > 0:
        raise UsageError(
            f"--greedy takes the likeliest token every time, whatever the --temperature ({options['temperature']}); "
            "leave one of them out"
        )
    options["stop"] = [_unescaped(stop) for stop in options.get("stop", [])]
    console = Console(json=args.json)
    single = SamplingConfig.read(options).num_samples == 1 and not args.json

    notices: list[str] = []  # said before the text or after it, not in the middle
    unsaid = [prompt]  # it is shown with the first piece: before that, something may be wrong

    def show(piece: "Piece") -> None:
        standard_output().text("".join(unsaid) + piece.text)
        unsaid.clear()

    written: str | list[str] = workflows.generate(
        implied_run(which),
        prompt,
        **options,
        **settings_of(args, EngineConfig),
        device=getattr(args, "device", "auto"),
        on_text=show if single else None,
        on_notice=lambda sentence: notice(sentence) if unsaid else notices.append(sentence),
    )
    texts = [written] if isinstance(written, str) else written
    if single:
        standard_output().text("".join(unsaid) + "\n")
    elif not args.json:
        for number, text in enumerate(texts, start=1):
            console.say(f"--- {number} ---", "bold")
            console.text(text)
    for sentence in notices:
        notice(sentence)
    console.result({"prompt": prompt, "texts": texts})


def _unescaped(text: str) -> str:
    r"""The two characters \n, which is all that a shell can easily say, as a line break; \t as a tab."""
    return text.replace(r"\n", "\n").replace(r"\t", "\t")
