"""clearhead train"""

import argparse
import time
import tomllib

from clearhead.cli.arguments import Parser, number, one_of, settings_of
from clearhead.cli.console import Console
from clearhead.cli.environment import load_workflow
from clearhead.cli.output import json_line, standard_output
from clearhead.config import DataConfig, RunConfig
from clearhead.config.presets import DEFAULT_MINUTES
from clearhead.errors import UsageError
from clearhead.options import Settings, merge
from clearhead.wording import counted

YOUR_OWN = "for your own text: clearhead train my.txt"


def parser() -> Parser:
    """What `clearhead train` understands."""
    parser = Parser(
        "train",
        "Train a model on a text or on sentence pairs. "
        "Clearhead picks what you leave out from the data, the time and the machine, and says what it picked.",
        [
            ("clearhead train my.txt --minutes 3", "Clearhead picks the settings and says why"),
            ("clearhead train shakespeare --preset tutorial --train.steps 2000", "a preset and a number of steps"),
            ("clearhead train pairs.tsv", "a translator; for two files: --source a.de --target a.en"),
            ("clearhead train my.txt --objective masked", "an encoder, for 'clearhead fill'"),
            ("clearhead train my.txt --from runs/a", "fine-tune a run; shows samples before and after"),
        ],
    )
    parser.add_argument(
        "source",
        nargs="?",
        help="a file, a folder of .txt or .md, a .jsonl, - for standard input, or a corpus name; "
        "sentence pairs: a .tsv of two columns, or a .jsonl with 'source' and 'target'",
    )
    parser.add_argument(
        "--source",
        dest="source_file",
        metavar="FILE",
        help="the sentences to translate, line by line; needs --target, but for a file of both sides",
    )
    parser.add_argument("--target", metavar="FILE", help="their translations, line by line")
    parser.add_argument(
        "--from",
        dest="start_from",
        metavar="RUN",
        help="fine-tune this run, or the model in this Hugging Face folder; "
        "keeps its options and tokenizer, at a tenth of the learning rate",
    )
    parser.add_argument(
        "--preset", metavar="NAME", help="a named set of options to start from; 'clearhead list' shows them"
    )
    parser.add_argument("--minutes", type=number, metavar="X", help="total time for the command, in minutes")
    parser.add_argument("--out", metavar="FOLDER", help="the run's folder (default: a new one under runs)")
    parser.add_argument("--config", metavar="FILE", help="a TOML file of options; flags override it")
    parser.add_argument("--print-config", action="store_true", help="print all options as TOML and exit")
    parser.add_argument("--no-preflight", action="store_true", help="skip the checks before the first step")
    parser.add_options(RunConfig, "run options")
    return parser


def run(args: argparse.Namespace) -> None:
    """Train, telling how it goes."""
    start_time = time.perf_counter()  # torch is not loaded yet, which takes seconds
    options = settings_of(args, RunConfig)
    if "target" in args:
        options = merge(options, {"data": {"target": args.target}})
    source = one_of(args, "source", "source_file")
    load_workflow("train")
    if "source_file" in args:
        _refuse_one_side(args, options)
    from clearhead import workflows

    preset, minutes = getattr(args, "preset", None), getattr(args, "minutes", None)
    gathered = workflows.collect_settings(source, getattr(args, "config", None), options, timed=minutes is not None)
    if "print_config" in args:
        pretrained = workflows.open_pretrained(args.start_from) if "start_from" in args else None
        toml = workflows.dump_toml(workflows.choose_start(gathered, preset, minutes, pretrained))
        standard_output().text(json_line(tomllib.loads(toml)) if args.json else toml)
        return
    with Console(json=args.json) as console:
        if "source" not in gathered.get("data", {}) and "start_from" not in args:
            console.on_event(workflows.Notice(without_a_text(gathered, preset, minutes)))
        done = workflows.train(
            source,
            start_from=getattr(args, "start_from", None),
            preset=preset,
            minutes=minutes,
            out=getattr(args, "out", None),
            config=getattr(args, "config", None),
            options=options,
            check="no_preflight" not in args,
            on_event=console.on_event,
            start_time=start_time,
        )
    if args.json:  # a long log is not read again for nothing
        console.result(workflows.summary(done))


def without_a_text(gathered: Settings, preset: str | None, minutes: float | None) -> str:
    """What is trained on where nobody named a text, and for how long."""
    from clearhead import workflows

    corpus = workflows.choose_start(gathered, preset, minutes).config.data.source
    if minutes is None and preset is None and "steps" not in gathered.get("train", {}):
        minutes = DEFAULT_MINUTES
    length = "" if minutes is None else f" for {counted(minutes, 'minute')}"
    return f"no text is named: training{length} on '{corpus}', which ships with Clearhead; {YOUR_OWN}"


def _refuse_one_side(args: argparse.Namespace, options: Settings) -> None:
    """Refuse --source without --target: a text would be learned where a translator was meant."""
    from clearhead import workflows
    from clearhead.data import is_pairs

    file = args.source_file
    settings = workflows.collect_settings(file, getattr(args, "config", None), options)
    if not is_pairs(DataConfig.read(settings["data"])):
        raise UsageError(
            f"--source {file} is one side of sentence pairs; name the other with --target, or, to train on it as a "
            f"text, leave --source out: clearhead train {file}"
        )
