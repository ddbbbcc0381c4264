"""The sides of a table of training steps: a plain program's, ours, and what stands between the two."""

import itertools
from collections.abc import Iterator, Sequence

import torch
from plain_transformer import Batch, Pair, shuffled_batches, training_steps
from plain_weights import plain_copy
from side_by_side import Row, Work
from torch import Tensor

from clearhead.config import RunConfig
from clearhead.data import IGNORED, EncodedPairs, PairBatches
from clearhead.models import EncoderDecoder, build_model
from clearhead.training import Stepped, fit, has_bfloat16
from clearhead.workflows.tasks.translation import TranslationTask

STEPS = 3  # in each round


def real_tokens(source: Tensor, targets: Tensor, pad: int) -> int:
    """Tokens of source and target that are no padding; padding of targets may be -100."""
    return int((source != pad).sum() + ((targets != pad) & (targets != IGNORED)).sum())


def as_pairs(pairs: EncodedPairs, end: int) -> list[Pair]:
    """The rows as tensors: sources, and targets with the end token in front as well."""
    sources = (torch.tensor(pairs.source[row].tolist()) for row in range(len(pairs)))
    targets = (torch.tensor([end, *pairs.target[row].tolist()]) for row in range(len(pairs)))
    return list(zip(sources, targets, strict=True))


class Training:
    """What is trained on, and by whom."""

    def __init__(self, config: RunConfig, task: TranslationTask) -> None:
        self.config, self.pairs = config, as_pairs(task.prepared.train, task.prepared.end)
        self.pad = task.prepared.pad
        batches = task.batches(config)
        assert isinstance(batches, PairBatches)
        self.batches = batches
        self.sentences = round(len(self.pairs) / batches.n_batches)  # on average as many real tokens as in ours
        model = build_model(config.model, seed=config.seed)
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
        model = build_model(self.config.model, seed=self.config.seed)
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
