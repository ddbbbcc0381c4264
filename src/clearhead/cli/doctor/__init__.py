"""clearhead doctor"""

import argparse
from importlib import import_module

from clearhead.cli.arguments import Parser
from clearhead.cli.console import Console
from clearhead.cli.doctor.words import TIMEOUT
from clearhead.errors import UsageError

ACTIONS = {  # first words that are no target: the module below that knows them, and its function
    "loss": ("loss", "examine"),
    "compare": ("compare", "compare"),
    "symptoms": ("symptoms", "list_all"),
    "train": ("train", "train"),
    "list": ("catalogue", "list_all"),
    "explain": ("catalogue", "explain"),
}
LONG = ("compare", "train")  # take more words than one

FILES = {  # forms of a report beside the terminal's
    "report": "a page to look at, with pictures and the lines of code",
    "junit": "JUnit XML, a case for each check",
    "sarif": "SARIF, by which code hosts show a finding on its line",
}
OF_A_MODEL = ("batch", "device", *FILES)  # options that no action has


def parser() -> Parser:
    """What `clearhead doctor` understands."""
    parser = Parser(
        "doctor",
        "Find bugs in any PyTorch Transformer and name the faulty module. The target's code is "
        "imported and called (a script of 'train' is run), in a process of its own but with your rights: your files, "
        "your environment, the network. That is no sandbox: examine only code that you would run yourself. Of "
        "hf:FOLDER, a run and --batch only data are read, and no code in them runs.",
        [
            ("clearhead doctor mymodel.py:build", "a function without arguments, or a module, in a file of yours"),
            ("clearhead doctor hf:llama --set num_hidden_layers=2", "an architecture of transformers; no download"),
            ("clearhead doctor", "the newest run"),
            ("clearhead doctor loss mylosses.py:compute", "what a loss function really asks for, token by token"),
            ("clearhead doctor compare mine.py:build hf:FOLDER", "two models with equal weights: what differs first"),
            ("clearhead doctor --symptom repeats RUN", "what is behind it; 'symptoms' has all"),
            ("clearhead doctor train train.py -- --any --args", "a training script: two steps of it, watched"),
            ("clearhead doctor explain M01", "one fault of the catalogue; 'list' has all"),
        ],
    )
    parser.add_argument("target", nargs="?", help="file.py:name, package.module:name, hf:NAME, hf:FOLDER or a run")
    parser.add_argument(
        "what", nargs="?", help="after 'loss' a function, 'train' a script, 'explain' an id, 'compare' a model"
    )
    parser.add_argument(
        "words", nargs="*", help="after 'compare' the other model, after 'train' and '--' the script's arguments"
    )
    parser.add_argument("--symptom", metavar="NAME", help="diagnose a symptom ('doctor symptoms' lists them)")
    parser.add_argument("--kind", help="causal, bidirectional or seq2seq (default: auto, read from the model)")
    parser.add_argument(
        "--pad-id", metavar="ID", help="the token that fills up short rows (default: as the model says)"
    )
    parser.add_argument("--level", help="quick (default), standard (longer rows of large models), deep (more draws)")
    parser.add_argument(
        "--only",
        action="append",
        metavar="ID",
        help="run only checks that can find this id, and their prerequisites; repeatable",
    )
    parser.add_argument("--allow", action="append", metavar="ID=REASON", help="waive this finding, with a reason")
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help="override a config value of hf:NAME")
    parser.add_argument(
        "--batch", metavar="FILE.pt", help="a batch of yours, by torch.save: ids, (source, target) or a dict"
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="also what was assumed, what was run, and what holds"
    )
    parser.add_argument("--device", help="where to examine: cpu (default), cuda, cuda:N or mps")
    parser.add_argument("--seed", help="of inputs and noise (default: 0)")
    parser.add_argument("--timeout", help=f"seconds for the whole examination (default: {TIMEOUT:g})")
    for form, about in FILES.items():
        parser.add_argument(f"--{form}", metavar="FILE", help=f"write {about}")
    return parser


def run(args: argparse.Namespace) -> int:
    """Do what the first word asks for; a word that asks for nothing special is a target to examine."""
    console = Console(json=args.json)
    target, what = getattr(args, "target", None), getattr(args, "what", None)
    rest = getattr(args, "words", [])
    if rest and target not in LONG:
        raise UsageError(f"'{rest[0]}' is one argument too many; see 'clearhead doctor --help'")
    if target in ACTIONS:
        wrong = next((name for name in OF_A_MODEL if hasattr(args, name)), None)
        if wrong:
            raise UsageError(f"--{wrong} is for the examination of a model; leave it out with '{target}'")
        module, name = ACTIONS[target]
        action = getattr(import_module(f"clearhead.cli.doctor.{module}"), name)
        code: int = action(console, args, what)
        return code
    if what is not None:
        raise UsageError(f"'{what}' is one argument too many; see 'clearhead doctor --help'")
    from clearhead.cli.doctor.check import check

    return check(console, args, target)
