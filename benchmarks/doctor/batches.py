"""One batch for every host, with its loss: what tools that ask for inputs are given."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import corpus
import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS, TIME = 6, 12
Loss = Callable[[Any], Tensor]  # of what the host returns


@dataclass(frozen=True)
class Batch:
    """What one host is called with, by name, and what is to come of it.

    Attributes:
        inputs: arguments of the host's `forward`.
        logits: the part of what it returns that holds them, batch first.
        targets: (B, T) what each position is to predict; `ignored` where nothing is.
        tokens: the argument whose order is that of the logits.
        padding: arguments that may be padded with 0 on the right, in turn: what stands behind must not matter.
        mask: the argument that tells padding from real tokens, if there is one.
        source: the argument that holds the sentences to translate, if there is one.
        own_loss: whether the host was given targets, and returns its loss.
        batch_axis: of `inputs`.
    """

    inputs: dict[str, Tensor]
    logits: Callable[[Any], Tensor]
    targets: Tensor
    tokens: str
    padding: tuple[str, ...] = ()
    mask: str | None = None
    source: str | None = None
    own_loss: bool = False
    batch_axis: int = 0
    ignored: int = -100

    def loss(self, output: Any) -> Tensor:
        """The host's own, or the mean cross-entropy of its logits."""
        if self.own_loss:
            loss: Tensor = output[1] if isinstance(output, tuple) else _named(output, "loss")
            return loss
        logits = self.logits(output)
        return F.cross_entropy(logits.flatten(0, 1), self.targets.flatten(), ignore_index=self.ignored)

    @property
    def only_tokens(self) -> dict[str, Tensor]:
        """The inputs without targets."""
        return {name: value for name, value in self.inputs.items() if name not in ("labels", "targets")}


def _named(output: Any, name: str) -> Any:
    return output[name] if isinstance(output, dict) else getattr(output, name)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(11)


def _itself(output: Any) -> Tensor:
    logits: Tensor = output
    return logits


def _first(output: Any) -> Tensor:
    logits: Tensor = output[0]
    return logits


def _language_model(vocab_size: int, name: str, logits: Callable[[Any], Tensor] = _itself) -> Batch:
    tokens = corpus.chains(vocab_size, ROWS, TIME + 1, _generator())
    # a decoder-only model has to bear padding on the right: it must not see it
    return Batch({name: tokens[:, :-1].contiguous()}, logits, tokens[:, 1:].contiguous(), name, padding=(name,))


def _time_first(vocab_size: int, name: str) -> Batch:
    tokens = corpus.chains(vocab_size, ROWS, TIME + 1, _generator())
    logits: Callable[[Any], Tensor] = lambda output: output.transpose(0, 1)  # noqa: E731
    return Batch({name: tokens[:, :-1].T.contiguous()}, logits, tokens[:, 1:].contiguous(), name, batch_axis=1)


def _with_targets(vocab_size: int) -> Batch:
    tokens = corpus.chains(vocab_size, ROWS, TIME + 1, _generator())
    ids, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return Batch({"idx": ids, "targets": targets}, _first, targets, "idx", padding=("idx",), own_loss=True)


def _with_labels(vocab_size: int) -> Batch:
    ids = corpus.chains(vocab_size, ROWS, TIME, _generator())
    targets = F.pad(ids[:, 1:], (0, 1), value=-100)
    logits: Callable[[Any], Tensor] = lambda output: output.logits  # noqa: E731
    inputs = {"input_ids": ids, "labels": ids}
    return Batch(inputs, logits, targets, "input_ids", padding=("input_ids",), own_loss=True)


def _masked_lm(vocab_size: int) -> Batch:
    ids, labels = corpus.masked(vocab_size, ROWS, TIME, _generator())
    keep = (torch.arange(TIME) < TIME - torch.arange(ROWS)[:, None]).long()
    labels = labels.masked_fill(keep == 0, -100)
    inputs = {"input_ids": ids * keep, "attention_mask": keep, "token_type_ids": 1 - keep, "labels": labels}
    logits: Callable[[Any], Tensor] = lambda output: output["logits"]  # noqa: E731
    return Batch(inputs, logits, labels, "input_ids", ("input_ids",), "attention_mask", own_loss=True)


def _tagger(vocab_size: int) -> Batch:
    symbols, tags = corpus.tagged(vocab_size, ROWS, TIME, _generator())
    return Batch({"symbols": symbols}, _itself, tags, "symbols")


def _translator(
    source_size: int, target_size: int, *, own_loss: bool = False, names: tuple[str, str] = ("src", "tgt")
) -> Batch:
    source, target, labels = corpus.pairs(source_size, target_size, ROWS, TIME, _generator())
    inputs = dict(zip(names, (source, target), strict=True)) | ({"labels": labels} if own_loss else {})
    logits = _first if own_loss else _itself
    return Batch(inputs, logits, labels, names[1], names, source=names[0], own_loss=own_loss, ignored=0)


BATCHES: dict[str, Callable[[], Batch]] = {
    "alibi": lambda: _language_model(31, "input_ids"),
    "bert": lambda: _masked_lm(41),
    "cached": lambda: _language_model(43, "ids", _first),
    "clearhead_decoder": lambda: _language_model(37, "ids"),
    "clearhead_translator": lambda: _translator(33, 37, names=("source", "target")),
    "gpt": lambda: _language_model(31, "idx"),
    "llama": lambda: _language_model(37, "tokens"),
    "moe": lambda: _with_labels(47),
    "nano": lambda: _with_targets(31),
    "seq2seq_post": lambda: _translator(39, 39),
    "seq2seq_pre": lambda: _translator(31, 37),
    "tagger": lambda: _tagger(23),
    "time_first": lambda: _time_first(33, "inp"),
    "torch_layers": lambda: _language_model(29, "src"),
    "torch_translation": lambda: _translator(35, 29),
    "tutorial_gpt": lambda: _language_model(31, "x"),
    "tutorial_translation": lambda: _translator(33, 41, own_loss=True),
}


class TokensToLogits(nn.Module):
    """A host as a function of one tensor (B, T) alone, for tools that know no other; the rest of its batch stays.

    Where it reads a source, all rows read the first one.
    """

    def __init__(self, model: nn.Module, batch: Batch) -> None:
        super().__init__()
        self.model = model
        self.batch = batch

    def forward(self, tokens: Tensor) -> Tensor:
        batch, rows = self.batch, len(tokens)
        inputs = {name: value[:1].expand(rows, -1) for name, value in batch.only_tokens.items() if name == batch.source}
        if batch.mask is not None:
            inputs[batch.mask] = torch.ones(tokens.shape[:2], dtype=torch.long)
        inputs[batch.tokens] = tokens.transpose(0, 1) if batch.batch_axis else tokens
        return batch.logits(self.model(**inputs)) if not batch.own_loss else _logits_alone(self.model(**inputs), batch)


def _logits_alone(output: Any, batch: Batch) -> Tensor:
    """Some return a pair with targets, and logits alone without."""
    return output if isinstance(output, Tensor) else batch.logits(output)
