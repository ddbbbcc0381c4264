"""What the experiments share: train a translator as an option says, score it, and write the table down.

The training is the library's own: `open_task` has the pairs and their batches, `fit` is the loop. The starting point of
every experiment is the preset `translator`; over it lie the experiment's own options, and over these a file of yours.
"""

import argparse
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from clearhead import inference
from clearhead.cli.environment import prepare_process
from clearhead.config import RunConfig, TranslationConfig
from clearhead.config.presets import PRESETS
from clearhead.errors import ClearheadError
from clearhead.inspection import Curve, Point
from clearhead.models import EncoderDecoder, build_model
from clearhead.options import Settings, merge, read_toml
from clearhead.training import Evaluated, Stepped, fit
from clearhead.workflows.hardware import choose_device, seconds_per_step
from clearhead.workflows.tasks import open_task
from clearhead.workflows.tasks.translation import TranslationTask

RESULTS = Path(__file__).parents[1] / "results"
EVALUATIONS = 8  # along one training


@dataclass(frozen=True)
class Trained:
    """A model after its last step, the losses on the way to it, and why the training gave up if it did."""

    model: EncoderDecoder
    curve: Curve
    seconds: float
    failure: str | None = None

    @property
    def val_loss(self) -> float:
        """The last loss on held-out pairs, in nats per token, without smoothing; NaN where there is none."""
        return self.curve.validation[-1][1] if self.curve.validation else float("nan")


@dataclass(frozen=True)
class Trial:
    """A configuration and the pairs that it is to learn."""

    config: RunConfig
    task: TranslationTask

    @classmethod
    def open(cls, args: argparse.Namespace, *layers: Settings) -> "Trial":
        """The preset, then the experiment's layers, then the person's file; and as many steps as they ask for."""
        file = read_toml(Path(args.config)) if args.config else {}
        layer = merge(PRESETS["translator"].options, *layers, file)
        task = open_task(RunConfig.read(layer))
        assert isinstance(task, TranslationTask)
        config = RunConfig.read(layer, {"model": task.model_settings()})
        steps = args.steps or max(1, int(60 * args.minutes / seconds_per_step(config, task)))
        return cls(in_steps(config, steps), task)

    def train(self, *, seed: int = 1, change: Callable[[EncoderDecoder], None] | None = None) -> Trained:
        """From fresh weights to the last step, in place of the model that was best on the way.

        Args:
            seed: of weights, order and dropout.
            change: made to the fresh model.
        """
        model = build_model(self.config.model, seed=seed)
        assert isinstance(model, EncoderDecoder)
        if change:
            change(model)
        model.to(choose_device(self.config.train.device))
        config = self.config.model_copy(update={"seed": seed})
        start_time = time.perf_counter()
        train: list[Point] = []
        validation: list[Point] = []
        failure = None
        events = fit(
            model,
            config.train,
            self.task.batches(config),
            seed=seed,
            evaluate=lambda: self.task.evaluate(model, config),
        )
        try:
            for event in events:
                if isinstance(event, Stepped):
                    train.append((event.step, event.loss))
                elif isinstance(event, Evaluated):
                    validation.append((event.step, event.loss))
                    print(f"  step {event.step:,}: validation loss {event.loss:.3f}", file=sys.stderr)
        except ClearheadError as error:
            failure = str(error)
        return Trained(model, Curve(tuple(train), tuple(validation)), time.perf_counter() - start_time, failure)

    def bleu(self, model: EncoderDecoder, *, beam: int, sentences: int) -> float:
        """SacreBLEU of the translations of so many held-out sentences, evenly taken."""
        texts = self.task.prepared.val_texts
        pairs = texts[:: max(1, len(texts) // sentences)][:sentences]
        config = TranslationConfig(beam_size=beam)
        sources = [source for source, _ in pairs]
        translations = inference.translate(model, self.task.source_tokenizer, self.task.tokenizer, sources, config)
        written = [best[0].text for best in translations]
        return inference.corpus_scores(written, [reference for _, reference in pairs]).bleu


def in_steps(config: RunConfig, steps: int) -> RunConfig:
    """The config for so many steps, its warm-up and evaluations in proportion."""
    train = {
        "steps": steps,
        "warmup_steps": min(config.train.warmup_steps, steps // 10),
        "eval_every": max(1, -(-steps // EVALUATIONS)),
        "save_every": steps,
    }
    return RunConfig.read(config.model_dump(), {"train": train})


def evaluations(config: RunConfig) -> list[int]:
    """The steps after which `fit` evaluates."""
    every, last = config.train.eval_every, config.train.steps
    return [*range(every, last, every), last]


def options(about: str, *, minutes: float = 10.0) -> argparse.ArgumentParser:
    """The options that every experiment has."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=minutes, help="of each training, about")
    length.add_argument("--steps", type=int, help="of each training")
    parser.add_argument("--config", help="a TOML file of options to lay over the experiment's")
    parser.add_argument("--sentences", type=int, default=1000, help="held-out sentences to translate, at most")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of everything, from different seeds")
    parser.add_argument("--keep", action="store_true", help="write the table into benchmarks/results")
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """What the person gave; prepares the process as the command does."""
    args = parser.parse_args()
    args.minutes = None if args.steps else args.minutes
    prepare_process()
    return args


def report(
    name: str,
    args: argparse.Namespace,
    header: Sequence[str],
    rows: Sequence[Sequence[object]],
    pictures: Mapping[str, str] | None = None,
) -> None:
    """Print a Markdown table; with --keep, write it into the results, and the pictures beside it.

    Args:
        name: of the experiment and of the file.
        args: the options it ran with.
        header, rows: floats are shown to three decimals.
        pictures: SVG by file name, without the ending.
    """
    options = " ".join(_option(option, value) for option, value in vars(args).items() if value not in (None, False))
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    table = "\n".join(lines)
    print(table)
    if args.keep:
        RESULTS.mkdir(exist_ok=True)
        shown = "".join(f"\n![{file}]({file}.svg)\n" for file in pictures or {})
        text = f"# {name}\n\n`benchmarks/experiments/{name}.py {options}`, {machine}\n\n{table}\n{shown}"
        (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
        for file, picture in (pictures or {}).items():
            (RESULTS / f"{file}.svg").write_text(picture, encoding="utf-8")


def _option(name: str, value: object) -> str:
    values = value if isinstance(value, list) else [] if value is True else [value]
    return " ".join([f"--{name}", *map(str, values)])


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
