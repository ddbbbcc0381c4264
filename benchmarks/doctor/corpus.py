"""Tiny synthetic data: enough for a loss to fall on, made anew from a generator."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

SPECIAL = 3  # ids below are: 0 padding, 1 start or mask, 2 end


@cache
def _successors(vocab_size: int) -> Tensor:
    """(V, 3): what may follow each token, small ids more often than large ones."""
    draws = torch.rand(vocab_size, 3, generator=torch.Generator().manual_seed(1))
    return SPECIAL + (draws.square() * (vocab_size - SPECIAL)).long()


def chains(vocab_size: int, rows: int, time: int, generator: torch.Generator) -> Tensor:
    """Ids (rows, time) of a Markov chain in which three tokens may follow each, with chances 0.7, 0.2 and 0.1."""
    successors, chances = _successors(vocab_size), torch.tensor([0.7, 0.2, 0.1])
    ids = torch.randint(SPECIAL, vocab_size, (rows, 1), generator=generator)
    for _ in range(time - 1):
        which = torch.multinomial(chances.expand(rows, 3), 1, generator=generator)  # (rows, 1)
        ids = torch.cat((ids, successors[ids[:, -1:]].gather(2, which[..., None]).squeeze(2)), dim=1)
    return ids


def pairs(
    source_size: int, target_size: int, rows: int, longest: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Sources (rows, <= longest), targets' inputs and labels (rows, <= longest + 1), padded with 0.

    A target is its source, each id mapped to one of the other vocabulary.
    """
    source = chains(source_size, rows, longest, generator)
    lengths = torch.randint(longest // 2, longest + 1, (rows, 1), generator=generator)
    real = torch.arange(longest) < lengths  # (rows, longest)
    targets = SPECIAL + (source * 5) % (target_size - SPECIAL)
    ended = F.pad(targets.masked_fill(~real, 0), (0, 1)).scatter(1, lengths, 2)  # (rows, longest + 1)
    started = F.pad(targets.masked_fill(~real, 0), (1, 0), value=1)
    return source.masked_fill(~real, 0), started, ended


def tagged(vocab_size: int, rows: int, time: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Symbols (rows, time) and tags of the same shape; a tag depends on the symbol and on the one before it."""
    symbols = chains(vocab_size, rows, time, generator)
    before = F.pad(symbols[:, :-1], (1, 0))
    return symbols, (symbols * 5 + before % 2) % vocab_size


def masked(vocab_size: int, rows: int, time: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Ids (rows, time) of which a fifth is masked with 1, and labels: the hidden ids there, -100 elsewhere."""
    ids = chains(vocab_size, rows, time, generator)
    hidden = torch.rand(rows, time, generator=generator) < 0.2
    return ids.masked_fill(hidden, 1), ids.masked_fill(~hidden, -100)
