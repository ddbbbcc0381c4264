"""Translation, trained and searched, against a plain program on `torch.nn.Transformer`, interleaved in one process.

    python benchmarks/translation_speed.py [--rounds 5] [--run RUN] [--clock wall] [--install] [--keep]

Both sides have the same shape (3+3 layers, 256 wide, 4 heads, feed-forward 1024, ReLU, pre-norm, biases, sinusoidal
positions, one embedding for source, target and head, dropout 0.1) and the same weights. Real tokens of training per
second, with rows between the two programs that tell batches, dropout, precision and code apart; sentences per second of
a beam search of width 5, many at once and one at a time, by a model that is trained first, or by that of --run. Beside
busy neighbors, one thread (OMP_NUM_THREADS=1) and --clock processor tell more than the wall's clock. Where CTranslate2
is installed, or in the folder of --tools (--install puts it there), it translates with the same weights too: alone, in
float32 and in int8, and as our own engine, where the time in which the model is written for it counts, as that in which
it is brought into native code's order does.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # for both sides: a busy neighbor then costs little

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import ctranslate2_copy
import torch
from plain_transformer import beam_search
from plain_weights import obstacle, plain_copy
from side_by_side import Row, Work, arguments, compare, machine
from translation_training import Training

from clearhead import inference
from clearhead.cli.environment import prepare_process
from clearhead.config import RunConfig, TranslationConfig
from clearhead.inference import evaluating
from clearhead.models import EncoderDecoder, build_model
from clearhead.training import Stepped, fit
from clearhead.workflows import load
from clearhead.workflows.tasks import open_task
from clearhead.workflows.tasks.translation import TranslationTask

BEAM = 5
AT_ONCE = {64: 1, 1: 4}  # sentences -> of how many of those that there are one is translated
TABLES = ("training", "translating")
RESULTS = Path(__file__).parent / "results" / "translation_speed.md"
SHAPE = {
    "architecture": "encoder_decoder",
    "block_size": 128,
    "n_layers": 3,
    "n_heads": 4,
    "d_model": 256,
    "d_ff": 1024,
    "feedforward": "relu",
    "positions": "sinusoidal",
    "bias": True,
    "scale_embedding": True,
    "dropout": 0.1,
}
TRAIN = {"batch_size": 32, "label_smoothing": 0.1, "beta2": 0.98, "learning_rate": 3e-4}  # a room of 32 x 128 tokens
TO_TRANSLATE = {
    "optimizer": "muon",
    "learning_rate": 0.01,
    "schedule": "linear",
    "warmup_steps": 10,
    "min_lr_ratio": 0.0,
}


class Translating:
    """The sides of a table of translations; what each wrote last is kept for comparison."""

    def __init__(self, model: EncoderDecoder, task: TranslationTask, sentences: int, at_once: int) -> None:
        self.model, self.task, self.plain = model, task, plain_copy(model)
        self.config = TranslationConfig(beam_size=BEAM, batch_size=at_once)
        held_out = task.prepared.val
        every = max(1, len(held_out) // sentences)
        indices = list(range(0, len(held_out), every))[:sentences]
        self.sources = [torch.tensor(held_out.source[index].tolist()) for index in indices]
        self.texts = [task.prepared.val_texts[index][0] for index in indices]
        self.written: dict[str, list[str]] = {}

    def rows(self) -> Iterator[Row]:
        """What is measured: first the plain program, where it is not alone with one sentence, in which case we are."""
        n, alike = len(self.sources), "alike in length"
        by_length = sorted(range(n), key=lambda index: len(self.sources[index]))
        if self.config.batch_size > 1:
            yield Row("plain", "as they come", self._kept("plain", lambda: self._plain(list(range(n)))))
            yield Row("plain, sorted", alike, self._kept("plain, sorted", lambda: self._plain(by_length)))
        for name, engine in (("clearhead", "eager"), ("clearhead, native", "native"), *self._engines()):
            yield Row(name, alike, self._kept(name, self._ours(engine)))
        for precision in ("float32", "int8") if self._engines() else ():
            name = f"CTranslate2 alone, {precision}"
            alone = ctranslate2_copy.translator(self.model, self.task.tokenizer, self.config, precision)
            yield Row(name, alike, self._kept(name, partial(alone, self.texts)))

    def _engines(self) -> Sequence[tuple[str, str]]:
        if find_spec("ctranslate2") is None:
            print("CTranslate2 is left out: it is not in the folder of --tools; --install puts it there")
            return ()
        return [(f"clearhead, {engine}", engine) for engine in ("ctranslate2", "ctranslate2-int8")]

    def _kept(self, name: str, translate: Callable[[], list[str]]) -> Work:
        def work() -> int:
            self.written[name] = translate()
            return len(self.texts)

        return work

    def _ours(self, engine: str) -> Callable[[], list[str]]:
        config = TranslationConfig.read({**self.config.model_dump(), "engine": engine})

        def translate() -> list[str]:
            tokenizers = self.task.source_tokenizer, self.task.tokenizer
            hypotheses = inference.translate(self.model, *tokenizers, self.texts, config, on_notice=print)
            return [best[0].text for best in hypotheses]

        return translate

    def _plain(self, order: Sequence[int]) -> list[str]:
        written, at_once = [""] * len(order), self.config.batch_size
        for start in range(0, len(order), at_once):
            some = order[start : start + at_once]
            sources = [self.sources[index] for index in some]
            hypotheses = beam_search(self.plain, sources, end=self.task.prepared.end, beam=BEAM)
            for index, ids in zip(some, hypotheses, strict=True):
                written[index] = self.task.tokenizer.decode(ids)
        return written

    def table(self, rounds: int, clock: str) -> list[str]:
        """The lines of the table, and a line on what was written."""
        n, at_once = len(self.texts), self.config.batch_size
        head = f"| translating {n} sentences, beam {BEAM}, {at_once} at once | batches | sentences per second | ratio |"
        return [head, "|---|---|---|---|", *compare(list(self.rows()), rounds, clock), "", self.differences()]

    def differences(self) -> str:
        """How far logits and texts of the two programs agree; refuses to compare programs that do different things."""
        source, inputs, _ = next(iter(self.task.held_out(self.task_config(), limit=500)))
        with evaluating(self.model), evaluating(self.plain), torch.inference_mode():
            own, plain = (model(source, inputs).log_softmax(-1) for model in (self.model, self.plain))
        real = inputs != self.task.prepared.pad
        apart = (own - plain)[real].abs().max().item()
        assert apart < 1e-3, f"the two models are not the same: log-probabilities differ by {apart}"
        ours = self.written["clearhead"]
        equal = {
            name: statistics.mean(a == b for a, b in zip(ours, texts, strict=True))
            for name, texts in self.written.items()
        }
        assert equal.get("plain", 1) > 0.9, f"only {equal['plain']:.0%} of the translations are equal"
        mean_words = statistics.mean(len(text.split()) for text in ours)
        shares = ", ".join(f"{name} {share:.1%}" for name, share in equal.items() if name != "clearhead")
        sentences = [f"Translations equal to ours to the letter: {shares} ({mean_words:.1f} words on average)."]
        if "plain" in self.written:
            sentences.append(f"Log-probabilities of the plain program differ by at most {apart:.1g}.")
        return " ".join((*sentences, self._shape()))

    def _shape(self) -> str:
        config, size = self.model.config, sum(parameter.numel() for parameter in self.model.parameters())
        layers = f"{config.n_encoder_layers} + {config.n_layers} layers"
        return f"The translator has {layers}, {config.d_model} wide, and {size:,} parameters."

    def task_config(self) -> RunConfig:
        return RunConfig(objective="seq2seq", model=self.model.config, data=self.task.config)


def trained(config: RunConfig, task: TranslationTask, steps: int) -> EncoderDecoder:
    """A model that has learnt to write sentences of natural length."""
    model = build_model(config.model, seed=config.seed)
    assert isinstance(model, EncoderDecoder)
    train = config.train.model_copy(update={**TO_TRANSLATE, "steps": steps})
    for event in fit(model, train, task.batches(config), seed=config.seed):
        if isinstance(event, Stepped) and event.step == steps:
            print(f"trained for {steps} steps; the last batch had a loss of {event.loss:.2f} nats per token")
    return model


def opened(run: str) -> tuple[EncoderDecoder, TranslationTask]:
    """A run's model and data.

    Raises:
        SystemExit: the plain program has no equal of this model.
    """
    loaded = load(run)
    model, task = loaded.model(), loaded.task()
    assert isinstance(model, EncoderDecoder)
    assert isinstance(task, TranslationTask)
    if reason := obstacle(model):
        raise SystemExit(f"{run}: {reason}")
    return model, task


def main() -> None:
    parser = arguments(__doc__, 5, RESULTS)
    parser.add_argument("--source", default="multi30k")
    parser.add_argument("--bpe", type=int, default=8000, help="size of the vocabulary")
    parser.add_argument("--steps", type=int, default=300, help="of the training before the second table")
    parser.add_argument("--sentences", type=int, default=128, help="to translate")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--tools", type=Path, default=ctranslate2_copy.FOLDER, help="the folder that holds CTranslate2")
    parser.add_argument("--install", action="store_true", help="make that folder")
    parser.add_argument("--run", help="translate with this run's model instead")
    args = parser.parse_args()
    prepare_process()  # the allocator, for both sides
    if args.install:
        ctranslate2_copy.install(args.tools)
    sys.path.append(str(args.tools))
    layer = {"objective": "seq2seq", "data": {"source": args.source, "bpe_vocab_size": args.bpe}}
    config = RunConfig.read(layer, {"model": SHAPE, "train": TRAIN})
    task = open_task(config)
    assert isinstance(task, TranslationTask)
    config = RunConfig.read(config.model_dump(), {"model": task.model_settings()})
    lines = [f"{machine()}, {args.clock} clock, {args.rounds} rounds, interleaved; {task.describe()}."]
    print(lines[0])
    tables: list[list[str]] = []
    if "training" in args.tables:
        head = "| training | batches | padding | dropout | products | real tokens per second | ratio |"
        rows = Training(config, task).rows()
        tables.append([head, "|---|---|---|---|---|---|---|", *compare(rows, args.rounds, args.clock)])
    if "translating" in args.tables:
        model, its_task = opened(args.run) if args.run else (trained(config, task, args.steps), task)
        for at_once, share in AT_ONCE.items():
            translating = Translating(model, its_task, args.sentences // share, at_once)
            tables.append(translating.table(args.rounds, args.clock))
    for table in tables:
        print("", *table, sep="\n")
        lines += ["", *table]
    if args.keep:
        title = "# How fast translations are learnt and written"
        RESULTS.write_text("\n".join([title, "", *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
