"""How each host is called: the inputs on which a mutant has to differ from its healthy twin, and a loss to train on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import corpus
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Call = Callable[[nn.Module], Tensor]
Loss = Callable[[nn.Module, torch.Generator], Tensor]
ROWS, TIME = 5, 13


@dataclass(frozen=True)
class Host:
    """What is asked of a host, by what it is about, and the loss of a fresh batch."""

    calls: Mapping[str, Call]
    loss: Loss


def ids(vocab_size: int, *, rows: int = ROWS, time: int = TIME, seed: int = 0) -> Tensor:
    """(rows, time) of any tokens but the special ones."""
    return torch.randint(corpus.SPECIAL, vocab_size, (rows, time), generator=torch.Generator().manual_seed(seed))


def ends(filler: int, tokens: Tensor) -> Tensor:
    """`tokens` (B, T) with the end of every row but the first filled up, one place more in each."""
    rows, time = tokens.shape
    return tokens.masked_fill(torch.arange(time) >= time - torch.arange(rows)[:, None], filler)


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Of logits (B, T, V) that read `tokens` (B, T + 1) without the last."""
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def language_model(vocab_size: int) -> Host:
    """ids -> logits."""

    def loss(model: nn.Module, generator: torch.Generator) -> Tensor:
        tokens = corpus.chains(vocab_size, 16, 17, generator)
        return next_token_loss(model(tokens[:, :-1]), tokens)

    return Host({"logits": lambda model: model(ids(vocab_size))}, loss)


def time_first(vocab_size: int) -> Host:
    """ids (T, B) -> logits (T, B, V)."""

    def loss(model: nn.Module, generator: torch.Generator) -> Tensor:
        tokens = corpus.chains(vocab_size, 16, 17, generator)
        return next_token_loss(model(tokens[:, :-1].T).transpose(0, 1), tokens)

    return Host({"logits": lambda model: model(ids(vocab_size).T)}, loss)


def with_targets(vocab_size: int) -> Host:
    """ids, the tokens after them -> (logits, loss)."""
    tokens = ids(vocab_size, time=TIME + 1)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    targets[0, :4] = 0  # a token like any other

    def loss(model: nn.Module, generator: torch.Generator) -> Tensor:
        tokens = corpus.chains(vocab_size, 16, 17, generator)
        batch_loss: Tensor = model(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())[1]
        return batch_loss

    calls: dict[str, Call] = {
        "logits": lambda model: model(inputs)[0],
        "loss": lambda model: model(inputs, targets)[1],
        "loss of padded rows": lambda model: model(inputs, ends(-1, targets))[1],
    }
    return Host(calls, loss)


def with_labels(vocab_size: int) -> Host:
    """ids, labels=the same ids -> an object with logits and loss."""
    tokens = ids(vocab_size)

    def loss(model: nn.Module, generator: torch.Generator) -> Tensor:
        tokens = corpus.chains(vocab_size, 16, 17, generator)
        batch_loss: Tensor = model(tokens, labels=ends(-100, tokens)).loss
        return batch_loss

    calls: dict[str, Call] = {
        "logits": lambda model: model(tokens).logits,
        "loss": lambda model: model(tokens, labels=tokens).loss,
        "loss of padded rows": lambda model: model(tokens, labels=ends(-100, tokens)).loss,
    }
    return Host(calls, loss)


def cached(vocab_size: int) -> Host:
    """ids, cache -> (logits, cache)."""

    def in_pieces(model: nn.Module) -> Tensor:
        logits, cache = [], None
        for piece in torch.split(ids(vocab_size), [5, 4, 1, 1, 1, 1], dim=1):
            piece_logits, cache = model(piece, cache)
            logits.append(piece_logits)
        return torch.cat(logits, dim=1)

    def twice(model: nn.Module) -> Tensor:
        for seed in (1, 2):
            written: Tensor = model.generate(ids(vocab_size, time=6, seed=seed), 5)  # type: ignore[operator]
        return written

    def loss(model: nn.Module, generator: torch.Generator) -> Tensor:
        tokens = corpus.chains(vocab_size, 16, 17, generator)
        return next_token_loss(model(tokens[:, :-1])[0], tokens)

    calls: dict[str, Call] = {
        "logits": lambda model: model(ids(vocab_size))[0],
        "logits in pieces": in_pieces,
        "a second generation": twice,
    }
    return Host(calls, loss)


def with_a_cache(vocab_size: int) -> Host:
    """ids, cache=an object that is filled -> logits."""

    @torch.no_grad()  # the cache is written in place
    def in_pieces(model: nn.Module) -> Tensor:
        cache = model.new_cache(ROWS, TIME)  # type: ignore[operator]
        pieces = torch.split(ids(vocab_size), [5, 4, 1, 1, 1, 1], dim=1)
        return torch.cat([model(piece, cache=cache) for piece in pieces], dim=1)

    plain = language_model(vocab_size)
    return Host({**plain.calls, "logits in pieces": in_pieces}, plain.loss)


def masked_lm(vocab_size: int) -> Host:
    """ids, attention_mask, token_type_ids, labels -> a dict with logits and loss."""
    tokens = ids(vocab_size)
    kept = ends(0, torch.ones_like(tokens))
    labels = tokens.masked_fill(ids(vocab_size, seed=1) % 3 > 0, -100)

    def loss(model: nn.Module, generator: torch.Generator) -> Tensor:
        inputs, labels = corpus.masked(vocab_size, 16, 16, generator)
        batch_loss: Tensor = model(inputs, labels=labels)["loss"]
        return batch_loss

    calls: dict[str, Call] = {
        "logits": lambda model: model(tokens)["logits"],
        "logits of padded rows": lambda model: model(ends(0, tokens), kept)["logits"],
        "logits of two segments": lambda model: model(tokens, token_type_ids=1 - kept)["logits"],
        "loss": lambda model: model(tokens, labels=labels)["loss"],
    }
    return Host(calls, loss)


def tagger(vocab_size: int) -> Host:
    """symbols -> scores of tags."""

    def loss(model: nn.Module, generator: torch.Generator) -> Tensor:
        symbols, tags = corpus.tagged(vocab_size, 16, 16, generator)
        return F.cross_entropy(model(symbols).flatten(0, 1), tags.flatten())

    return Host({"scores": lambda model: model(ids(vocab_size))}, loss)


def translator(source_size: int, target_size: int, *, left_padding: bool = True) -> Host:
    """src, tgt -> logits, both padded with 0."""
    source, target = ids(source_size, time=11), ids(target_size, time=7, seed=1)

    def loss(model: nn.Module, generator: torch.Generator) -> Tensor:
        source, inputs, labels = corpus.pairs(source_size, target_size, 16, 10, generator)
        return F.cross_entropy(model(source, inputs).flatten(0, 1), labels.flatten(), ignore_index=0)

    calls: dict[str, Call] = {
        "logits": lambda model: model(source, target),
        "logits of padded rows": lambda model: model(ends(0, source), ends(0, target)),
    }
    if left_padding:
        calls["logits of rows padded on the left"] = lambda model: model(source, ends(0, target).flip(1))
    return Host(calls, loss)


def translator_with_labels(source_size: int, target_size: int) -> Host:
    """src, tgt, labels -> (logits, loss)."""
    source, target = ids(source_size, time=11), ids(target_size, time=8, seed=1)

    def loss(model: nn.Module, generator: torch.Generator) -> Tensor:
        batch_loss: Tensor = model(*corpus.pairs(source_size, target_size, 16, 10, generator))[1]
        return batch_loss

    def padded(model: nn.Module) -> Tensor:
        batch_loss: Tensor = model(source, ends(0, target)[:, :-1], ends(0, target)[:, 1:])[1]
        return batch_loss

    plain = translator(source_size, target_size)
    return Host({**plain.calls, "loss of padded rows": padded}, loss)


CALLS: dict[str, Host] = {
    "alibi": language_model(31),
    "bert": masked_lm(41),
    "cached": cached(43),
    "clearhead_decoder": with_a_cache(37),
    "clearhead_translator": translator(33, 37),
    "gpt": language_model(31),
    "llama": language_model(37),
    "moe": with_labels(47),
    "nano": with_targets(31),
    "seq2seq_post": translator(39, 39),
    "seq2seq_pre": translator(31, 37),
    "tagger": tagger(23),
    "time_first": time_first(33),
    "torch_layers": language_model(29),
    "torch_translation": translator(35, 29, left_padding=False),
    "tutorial_gpt": language_model(31),
    "tutorial_translation": translator_with_labels(33, 41),
}
