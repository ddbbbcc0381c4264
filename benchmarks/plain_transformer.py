"""Translation as a competent PyTorch user writes it on `torch.nn.Transformer`: the peer of `translation_speed.py`.

Batches of so many sentences from a shuffled `DataLoader`, padded to the longest; a boolean mask for the future and one
for the padding of each side; torch's loss and optimizer; a beam search that runs the decoder over the whole prefix for
each new token. Rows of ids are those of Clearhead: a source ends with the end token, a target has it at both ends.
"""

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

Pair = tuple[Tensor, Tensor]  # source (T_src,) and target (T + 1,)


class Batch(NamedTuple):
    """Ids of sources (B, T_src), of targets without their last token (B, T), and without their first (B, T)."""

    source: Tensor
    inputs: Tensor
    targets: Tensor


class PlainTransformer(nn.Module):
    """Embedding times sqrt(D), sinusoidal positions, `nn.Transformer`, the embedding again as the head."""

    def __init__(
        self,
        *,
        vocab_size: int,
        pad: int,
        longest: int = 128,
        n_layers: int = 3,
        d_model: int = 256,
        n_heads: int = 4,
        d_ff: int = 1024,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.pad, self.scale = pad, math.sqrt(d_model)
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.dropout = nn.Dropout(dropout)
        with warnings.catch_warnings():  # it says that its short cut for padding is for post-norm only
            warnings.filterwarnings("ignore", message="enable_nested_tensor")
            self.transformer = nn.Transformer(
                d_model,
                n_heads,
                num_encoder_layers=n_layers,
                num_decoder_layers=n_layers,
                dim_feedforward=d_ff,
                dropout=dropout,
                batch_first=True,
                norm_first=True,
            )
        angles = torch.arange(longest).unsqueeze(1) * torch.exp(
            torch.arange(0, d_model, 2) * (-math.log(10_000.0) / d_model)
        )  # (longest, D/2)
        waves = torch.zeros(longest, d_model)
        waves[:, 0::2], waves[:, 1::2] = angles.sin(), angles.cos()
        self.register_buffer("waves", waves, persistent=False)
        self.waves: Tensor

    def embed(self, ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, D)."""
        return self.dropout(self.embedding(ids) * self.scale + self.waves[: ids.shape[1]])  # type: ignore[no-any-return]

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """The memory (B, T_src, D), and where the source is padding (B, T_src)."""
        padding = source == self.pad
        return self.transformer.encoder(self.embed(source), src_key_padding_mask=padding), padding

    def decode(self, target: Tensor, memory: Tensor, memory_padding: Tensor) -> Tensor:
        """The last layer, (B, T) -> (B, T, D)."""
        future = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=torch.bool)
        return self.transformer.decoder(  # type: ignore[no-any-return]
            self.embed(target),
            memory,
            tgt_mask=future,
            tgt_key_padding_mask=target == self.pad,
            memory_key_padding_mask=memory_padding,
            tgt_is_causal=True,
        )

    def head(self, hidden: Tensor) -> Tensor:
        """Logits (..., V)."""
        return hidden @ self.embedding.weight.T

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits (B, T, V)."""
        return self.head(self.decode(target, *self.encode(source)))


def shuffled_batches(pairs: Sequence[Pair], sentences: int, pad: int) -> Iterator[Batch]:
    """Batches of so many pairs, in a new order in every epoch, without end."""

    def collate(some: list[Pair]) -> Batch:
        source = pad_sequence([source for source, _ in some], batch_first=True, padding_value=pad)
        target = pad_sequence([target for _, target in some], batch_first=True, padding_value=pad)
        return Batch(source, target[:, :-1], target[:, 1:])

    loader: DataLoader[Pair] = DataLoader(
        pairs,  # type: ignore[arg-type]
        batch_size=sentences,
        shuffle=True,
        drop_last=True,
        collate_fn=collate,
    )
    while True:
        yield from loader


def training_steps(
    model: PlainTransformer, batches: Iterable[Batch], *, precision: torch.dtype = torch.float32
) -> Iterator[Batch]:
    """Train on one batch after the other; yields each when it is done."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.98))
    loss_function = nn.CrossEntropyLoss(ignore_index=model.pad, label_smoothing=0.1)
    model.train()
    for batch in batches:
        with torch.autocast("cpu", precision, enabled=precision != torch.float32):
            logits = model(batch.source, batch.inputs)
        loss = loss_function(logits.float().flatten(0, 1), batch.targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()  # what a progress bar shows
        yield batch


@torch.no_grad()
def beam_search(model: PlainTransformer, sources: Sequence[Tensor], *, end: int, beam: int = 5) -> list[list[int]]:
    """The best translation of each source; a sentence is done when `beam` hypotheses of it are finished.

    A score is the log-probability over ((5 + length) / 6)^0.6. A translation has at most twice the source's tokens
    and ten.
    """
    model.eval()
    n, longest = len(sources), len(model.waves)
    memory, padding = model.encode(pad_sequence(list(sources), batch_first=True, padding_value=model.pad))
    memory, padding = memory.repeat_interleave(beam, 0), padding.repeat_interleave(beam, 0)
    limits = [min(2 * len(source) + 10, longest) for source in sources]
    prefixes = torch.full((n * beam, 1), end)
    scores = torch.full((n, beam), -math.inf)  # log-probabilities
    scores[:, 0] = 0.0  # the hypotheses are equal at first, so one of them counts
    finished: list[list[tuple[float, list[int]]]] = [[] for _ in sources]
    done = [False] * n
    for length in range(1, max(limits) + 1):
        logits = model.head(model.decode(prefixes, memory, padding)[:, -1])  # (n * beam, V)
        chances = logits.log_softmax(-1)
        chances[:, model.pad] = -math.inf
        V = chances.shape[1]
        best, places = (scores.view(-1, 1) + chances).view(n, -1).topk(2 * beam)  # (n, 2 * beam)
        parents = places // V + torch.arange(n).unsqueeze(1) * beam  # rows of `prefixes`
        tokens = places % V
        penalty = ((5 + length) / 6) ** 0.6
        for row, rank in (tokens[:, :beam] == end).nonzero().tolist():
            if not done[row] and len(finished[row]) < beam and math.isfinite(best[row, rank]):
                finished[row].append((best[row, rank].item() / penalty, prefixes[parents[row, rank], 1:].tolist()))
        living = (tokens == end).int().argsort(dim=1, stable=True)[:, :beam]  # those that do not end, best first
        scores, parents, tokens = best.gather(1, living), parents.gather(1, living), tokens.gather(1, living)
        prefixes = torch.cat([prefixes[parents.flatten()], tokens.view(-1, 1)], dim=1)
        for row, limit in enumerate(limits):
            if not done[row] and length == limit and not finished[row]:
                finished[row].append((scores[row, 0].item() / penalty, prefixes[row * beam, 1:].tolist()))
            done[row] = done[row] or length >= limit or len(finished[row]) >= beam
        if all(done):
            break
    return [max(hypotheses)[1] for hypotheses in finished]
