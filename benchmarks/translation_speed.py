"""Translation, trained and searched, against a plain program on `torch.nn.Transformer`, interleaved in one process.

    python benchmarks/translation_speed.py [--rounds 5] [--run RUN] [--source multi30k] [--clock wall] [--install]

Both sides have the same shape (3+3 layers, 256 wide, 4 heads, feed-forward 1024, ReLU, pre-norm, biases, sinusoidal
positions, one embedding for source, target and head, dropout 0.1) and the same weights. Two tables: real tokens of
training per second, with rows between the two programs that tell batches, dropout, precision and code apart; sentences
per second of a beam search of width 5, by a model that is trained first, or by that of --run. Beside busy neighbours,
one thread (OMP_NUM_THREADS=1) and --clock processor tell more than the wall's clock. Where CTranslate2 is in the folder
of --tools (--install puts it there), it translates with the same weights, in float32 and in int8.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # for both sides: a busy neighbour then costs little

import itertools
import statistics
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import ctranslate2_copy
import torch
from plain_transformer import Batch, Pair, beam_search, shuffled_batches, training_steps
from plain_weights import obstacle, plain_copy
from side_by_side import Row, Work, arguments, compare, machine
from torch import Tensor

from clearhead import inference
from clearhead.cli.environment import prepare_process
from clearhead.config import RunConfig, TranslationConfig
from clearhead.data import IGNORED, EncodedPairs, PairBatches
from clearhead.inference import evaluating
from clearhead.models import EncoderDecoder, build
from clearhead.training import Stepped, fit, has_bfloat16
from clearhead.workflows import open_run
from clearhead.workflows.tasks import open_task
from clearhead.workflows.tasks.translation import Translation

STEPS = 3  # of training in each round
BEAM, AT_ONCE = 5, 64
TABLES = ("training", "translating")
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
TO_TRANSLATE = {"optimizer": "muon", "learning_rate": 0.01, "schedule": "linear", "warmup_steps": 10, "final_rate": 0.0}


def real_tokens(source: Tensor, targets: Tensor, pad: int) -> int:
    """Tokens of source and target that are no padding; padding of targets may be -100."""
    return int((source != pad).sum() + ((targets != pad) & (targets != IGNORED)).sum())


def as_pairs(pairs: EncodedPairs, end: int) -> list[Pair]:
    """The rows as tensors: sources, and targets with the end token in front as well."""
    sources = (torch.tensor(pairs.source[row].tolist()) for row in range(len(pairs)))
    targets = (torch.tensor([end, *pairs.target[row].tolist()]) for row in range(len(pairs)))
    return list(zip(sources, targets, strict=True))


class Training:
    """The sides of the first table."""

    def __init__(self, config: RunConfig, task: Translation) -> None:
        self.config, self.pairs = config, as_pairs(task.prepared.train, task.prepared.end)
        self.pad = task.prepared.pad
        batches = task.batches(config)
        assert isinstance(batches, PairBatches)
        self.batches = batches
        self.sentences = round(len(self.pairs) / batches.n_batches)  # on average as many real tokens as in ours
        model = build(config.model, seed=config.seed)
        assert isinstance(model, EncoderDecoder)
        self.model = model

    def rows(self) -> list[Row]:
        shuffled = f"{self.sentences} shuffled sentences"
        ours = "alike in length"
        waste = f"{self._waste():.1%}"
        own = f"{self.batches.padding:.1%}"
        rows = [
            Row("plain", f"{shuffled} | {waste} | everywhere | float32", self.plain(bucketed=False)),
            Row("plain, our batches", f"{ours} | {own} | everywhere | float32", self.plain()),
            Row("plain, our dropout too", f"{ours} | {own} | ours | float32", self.plain(dropout_everywhere=False)),
            Row("clearhead", f"{ours} | {own} | ours | float32", self.ours("float32")),
        ]
        if has_bfloat16(torch.device("cpu")):
            bf16 = f"{ours} | {own} | ours | bfloat16"
            rows += [
                Row("plain, bfloat16 too", bf16, self.plain(dropout_everywhere=False, precision=torch.bfloat16)),
                Row("clearhead, as it trains by default here", bf16, self.ours("auto")),
            ]
        return rows

    def plain(
        self, *, bucketed: bool = True, dropout_everywhere: bool = True, precision: torch.dtype = torch.float32
    ) -> Work:
        model = plain_copy(self.model, dropout_everywhere=dropout_everywhere)
        batches = self._bucketed() if bucketed else shuffled_batches(self.pairs, self.sentences, self.pad)
        steps = training_steps(model, batches, precision=precision)
        return lambda: sum(real_tokens(b.source, b.targets, self.pad) for b in itertools.islice(steps, STEPS))

    def ours(self, precision: str) -> Work:
        model = build(self.config.model, seed=self.config.seed)
        never = {"steps": 10**9, "eval_every": 10**9, "save_every": 10**9, "precision": precision}
        train = self.config.train.model_copy(update=never)
        fed: list[Sequence[Tensor]] = []

        def batch(step: int) -> Sequence[Tensor]:
            fed.append(self.batches(step))
            return fed[-1]

        events = fit(model, train, batch, seed=self.config.seed)
        steps = (event for event in events if isinstance(event, Stepped))

        def work() -> int:
            fed.clear()
            assert len(list(itertools.islice(steps, STEPS))) == STEPS
            return sum(real_tokens(b[0], b[-1], self.pad) for b in fed)

        return work

    def _bucketed(self) -> Iterator[Batch]:
        """Our batches in the plain program's form."""
        for step in itertools.count():
            source, inputs, targets = self.batches(step)
            yield Batch(source, inputs, targets.masked_fill(targets == IGNORED, self.pad))

    def _waste(self) -> float:
        """The share of padding in an epoch of the plain program's batches."""
        real = whole = 0
        batches = shuffled_batches(self.pairs, self.sentences, self.pad)
        for batch in itertools.islice(batches, len(self.pairs) // self.sentences):
            real += real_tokens(batch.source, batch.targets, self.pad)
            whole += batch.source.numel() + batch.targets.numel()
        return 1 - real / whole


class Translating:
    """The sides of the second table; what each wrote last is kept for comparison."""

    def __init__(self, model: EncoderDecoder, task: Translation, sentences: int) -> None:
        self.model, self.task, self.plain = model, task, plain_copy(model)
        held_out = task.prepared.val
        every = max(1, len(held_out) // sentences)
        self.places = list(range(0, len(held_out), every))[:sentences]
        self.sources = [torch.tensor(held_out.source[place].tolist()) for place in self.places]
        self.written: dict[str, list[str]] = {}

    def rows(self) -> list[Row]:
        def plain(name: str, order: list[int]) -> Work:
            return lambda: self._translate_plain(name, order)

        n = len(self.sources)
        by_length = sorted(range(n), key=lambda place: len(self.sources[place]))
        return [
            Row("plain", "as they come", plain("plain", list(range(n)))),
            Row("plain, sorted", "alike in length", plain("sorted", by_length)),
            Row("clearhead", "alike in length", self._translate),
            *(Row(name, "alike in length", self._engine(name)) for name in self._engines()),
        ]

    def _engines(self) -> list[str]:
        if find_spec("ctranslate2") is None:
            print("CTranslate2 is left out: it is not in the folder of --tools; --install puts it there")
            return []
        return ["CTranslate2, float32", "CTranslate2, int8"]

    def _engine(self, name: str) -> Work:
        *_, precision = name.split()
        how = TranslationConfig(beam=BEAM, batch_size=AT_ONCE)
        translate = ctranslate2_copy.translator(self.model, self.task.tokenizer, how, precision)
        texts = [self.task.prepared.val_texts[place][0] for place in self.places]

        def work() -> int:
            self.written[name] = translate(texts)
            return len(texts)

        return work

    def differences(self) -> str:
        """How far logits and texts of the two programs agree; refuses to compare programs that do different things."""
        source, inputs, _ = next(iter(self.task.held_out(self.task_config(), limit=500)))
        with evaluating(self.model), evaluating(self.plain), torch.inference_mode():
            own, theirs = (model(source, inputs).log_softmax(-1) for model in (self.model, self.plain))
        real = inputs != self.task.prepared.pad
        apart = (own - theirs)[real].abs().max().item()
        assert apart < 1e-3, f"the two models are not the same: log-probabilities differ by {apart}"
        ours = self.written["clearhead"]
        equal = {
            name: statistics.mean(a == b for a, b in zip(ours, texts, strict=True))
            for name, texts in self.written.items()
        }
        assert equal["plain"] > 0.9, f"only {equal['plain']:.0%} of the translations are equal"
        words = statistics.mean(len(text.split()) for text in ours)
        shares = ", ".join(f"{name} {share:.1%}" for name, share in equal.items() if name != "clearhead")
        return (
            f"translations equal to ours to the letter: {shares} ({words:.1f} words on average); "
            f"log-probabilities of the plain one differ by at most {apart:.1g}"
        )

    def task_config(self) -> RunConfig:
        return RunConfig(objective="translation", model=self.model.config, data=self.task.config)

    def _translate(self) -> int:
        config = TranslationConfig(beam=BEAM, batch_size=AT_ONCE)
        task = self.task
        texts = [task.prepared.val_texts[place][0] for place in self.places]
        found = inference.translate(self.model, task.source_tokenizer, task.tokenizer, texts, config)
        self.written["clearhead"] = [best[0].text for best in found]
        return len(texts)

    def _translate_plain(self, name: str, order: list[int]) -> int:
        written = [""] * len(order)
        for start in range(0, len(order), AT_ONCE):
            some = order[start : start + AT_ONCE]
            sources = [self.sources[place] for place in some]
            found = beam_search(self.plain, sources, end=self.task.prepared.end, beam=BEAM)
            for place, ids in zip(some, found, strict=True):
                written[place] = self.task.tokenizer.decode(ids)
        self.written[name] = written
        return len(order)


def trained(config: RunConfig, task: Translation, steps: int) -> EncoderDecoder:
    """A model that has learnt to write sentences of natural length."""
    model = build(config.model, seed=config.seed)
    assert isinstance(model, EncoderDecoder)
    train = config.train.model_copy(update={**TO_TRANSLATE, "steps": steps})
    for event in fit(model, train, task.batches(config), seed=config.seed):
        if isinstance(event, Stepped) and event.step == steps:
            print(f"trained for {steps} steps; the last batch had a loss of {event.loss:.2f} nats per token")
    return model


def opened(run: str) -> tuple[EncoderDecoder, Translation]:
    """A run's model and data.

    Raises:
        SystemExit: the plain program has no equal of this model.
    """
    found = open_run(run)
    model, task = found.model(), found.task()
    assert isinstance(model, EncoderDecoder)
    assert isinstance(task, Translation)
    if reason := obstacle(model):
        raise SystemExit(f"{run}: {reason}")
    return model, task


def main() -> None:
    parser = arguments(__doc__, 5)
    parser.add_argument("--source", default="multi30k")
    parser.add_argument("--bpe", type=int, default=8000, help="size of the vocabulary")
    parser.add_argument("--steps", type=int, default=300, help="of the training before the second table")
    parser.add_argument("--sentences", type=int, default=128, help="to translate")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--tools", type=Path, default=ctranslate2_copy.FOLDER, help="the folder that holds CTranslate2")
    parser.add_argument("--install", action="store_true", help="make that folder")
    parser.add_argument("--run", help="translate with this run's model instead")
    given = parser.parse_args()
    prepare_process()  # the allocator, for both sides
    if given.install:
        ctranslate2_copy.install(given.tools)
    sys.path.append(str(given.tools))
    layer = {"objective": "translation", "data": {"source": given.source, "bpe_vocab_size": given.bpe}}
    config = RunConfig.read(layer, {"model": SHAPE, "train": TRAIN})
    task = open_task(config)
    assert isinstance(task, Translation)
    config = RunConfig.read(config.model_dump(), {"model": task.model_layer()})
    print(f"{machine()}, {given.clock} clock; {task.describe()}\n")

    if "training" in given.tables:
        lines = compare(Training(config, task).rows(), given.rounds, given.clock)
        print("| training | batches | padding | dropout | products | real tokens per second | ratio |")
        print("|---|---|---|---|---|---|---|", *lines, sep="\n", end="\n\n")
    if "translating" in given.tables:
        model, its_task = opened(given.run) if given.run else (trained(config, task, given.steps), task)
        translating = Translating(model, its_task, given.sentences)
        lines = compare(translating.rows(), given.rounds, given.clock)
        what = f"translating {len(translating.sources)} sentences, beam {BEAM}, batch {AT_ONCE}"
        print(f"\n| {what} | batches | sentences per second | ratio |")
        print("|---|---|---|---|", *lines, sep="\n", end="\n\n")
        print(translating.differences())


if __name__ == "__main__":
    main()
