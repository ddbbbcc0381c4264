"""clearhead translate"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from clearhead.cli.arguments import Parser, settings_of
from clearhead.cli.console import Console
from clearhead.cli.environment import load_workflow
from clearhead.cli.implied_run import implied_run
from clearhead.cli.output import notice, standard_output
from clearhead.cli.run_and_text import add_run_and_text, split_run_and_text
from clearhead.cli.standard_input import is_typed, standard_input
from clearhead.config import TranslationConfig
from clearhead.errors import ClearheadError, UsageError

if TYPE_CHECKING:
    from clearhead.workflows import Translated


def parser() -> Parser:
    """What `clearhead translate` understands."""
    parser = Parser(
        "translate",
        "Translate sentences, one per line, with beam search.",
        [
            ('clearhead translate "Ein Mann schläft."', "one sentence, with the newest run"),
            ("clearhead translate runs/a --input t.de --out t.en", "a file, line by line"),
            (
                "clearhead translate runs/a --n-best 3 --alignment < t.de",
                "three candidates per line, with word alignment",
            ),
        ],
    )
    add_run_and_text(parser, "sentence", "the sentence to translate (default: the lines of standard input)")
    parser.add_argument("--input", metavar="FILE", help="translate the lines of this file")
    parser.add_argument("--out", metavar="FILE", help="write the translations to this file")
    parser.add_argument(
        "--alignment", action="store_true", help="append the word alignment to each translation: 0-0 1-2"
    )
    parser.add_argument("--device", help="auto, cpu, cuda, mps")
    parser.add_options(TranslationConfig, "beam search")
    return parser


def run(args: argparse.Namespace) -> None:
    """Translate, and print or write line by line."""
    load_workflow("translate")
    from clearhead import workflows

    which, sentence = split_run_and_text(args, "translate", "sentence")
    which = implied_run(which)
    sentences = _sentences(sentence, getattr(args, "input", None))
    output = Path(args.out) if "out" in args else None
    if output:
        _writing(output, lambda: output.touch())  # before the work, not after it
    notices: list[str] = []
    console = Console(json=args.json)
    with console.progress("translating") as advance:
        translations = workflows.translate(
            which,
            sentences,
            settings_of(args, TranslationConfig),
            align="alignment" in args,
            device=getattr(args, "device", "auto"),
            on_progress=advance,
            on_notice=notices.append,
        )
    lines = [_line(translated, numbered=len(best) > 1) for best in translations for translated in best]
    if output:
        _writing(output, lambda: output.write_text("".join(line + "\n" for line in lines), encoding="utf-8"))
    elif not args.json:
        standard_output().text("".join(line + "\n" for line in lines))
    for warning in notices:
        notice(warning)
    texts = zip(sentences, translations, strict=True)
    console.result({"translations": [{"source": s, "translations": [asdict(t) for t in best]} for s, best in texts]})


def _line(translated: "Translated", *, numbered: bool) -> str:
    score = f"{translated.score:.4f}\t" if numbered else ""
    pairs = translated.alignment
    text = " ".join(translated.text.splitlines())  # a young model may write a line break
    return score + text + ("" if pairs is None else "\t" + " ".join(f"{s}-{t}" for s, t in pairs))


def _sentences(sentence: str | None, file: str | None) -> Sequence[str]:
    """One sentence to a line: the word on the command line, a file, or standard input."""
    if sentence is not None and file is not None:
        raise UsageError("a sentence and --input both name what to translate; leave one out")
    if sentence is not None and sentence != "-":
        return [sentence]
    if file is not None:
        from clearhead.data import read_lines

        return list(read_lines(Path(file)))
    if is_typed():
        notice("type one sentence per line, then Ctrl-D")
    lines = standard_input("text").removeprefix("\ufeff").split("\n")
    return [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]


def _writing(path: Path, write: Callable[[], object]) -> None:
    try:
        write()
    except OSError as error:
        raise ClearheadError(f"{path} cannot be written: {error.strerror or error}; choose another --out") from None
