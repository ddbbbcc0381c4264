"""What a model's own `generate` draws from: the softmax of its logits, tempered and cut off as it was asked."""

import pytest
import torch
from torch import Tensor, nn

from clearhead.doctor import check


class Sampler(nn.Module):
    """A healthy model of running means that samples; what it does otherwise is in the classes below."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.mixing, self.head = nn.Embedding(41, 16), nn.Linear(16, 16), nn.Linear(16, 41)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        x = x + torch.tanh(self.mixing(x).cumsum(1) / torch.arange(1, ids.shape[1] + 1)[:, None])
        logits: Tensor = self.head(x)
        return logits

    def generate(self, ids: Tensor, max_new_tokens: int) -> Tensor:
        for _ in range(max_new_tokens):
            ids = torch.cat([ids, self.draw(self(ids))], dim=1)
        return ids

    def draw(self, logits: Tensor) -> Tensor:  # (B, n, V) -> (B, 1)
        return torch.multinomial(logits[:, -1].softmax(-1), 1)


class OfTheOneBefore(Sampler):
    def draw(self, logits: Tensor) -> Tensor:
        return torch.multinomial(logits[:, -2].softmax(-1), 1)


class OfProbabilities(Sampler):
    def draw(self, logits: Tensor) -> Tensor:
        return torch.multinomial(logits[:, -1].softmax(-1).softmax(-1), 1)


class OfTheLeastLikely(Sampler):
    def draw(self, logits: Tensor) -> Tensor:
        return torch.multinomial((-logits[:, -1]).softmax(-1), 1)


class Distributed(Sampler):
    def draw(self, logits: Tensor) -> Tensor:
        token: Tensor = torch.distributions.Categorical(logits=logits[:, -1]).sample()  # type: ignore[no-untyped-call]
        return token[:, None]


class Banning(Sampler):
    """Some tokens are marks and never written, and one that was there before is less likely."""

    def generate(self, ids: Tensor, max_new_tokens: int) -> Tensor:
        for _ in range(max_new_tokens):
            logits = self(ids)[:, -1].scatter_add(1, ids, torch.full(ids.shape, -2.0))
            logits[:, :3] = -torch.inf
            ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1)], dim=1)
        return ids


class Stopping(Sampler):
    """A row that has ended is filled up."""

    def generate(self, ids: Tensor, max_new_tokens: int) -> Tensor:
        open_ = torch.ones(len(ids), 1, dtype=torch.long)
        for _ in range(max_new_tokens):
            token = self.draw(self(ids)) * open_
            open_ = open_ * (token % 4 > 0)
            ids = torch.cat([ids, token], dim=1)
        return ids


class LosesItsFirst(Sampler):
    def generate(self, ids: Tensor, max_new_tokens: int) -> Tensor:
        n = ids.shape[1]
        return super().generate(ids, max_new_tokens + 1)[:, n + 1 :]


class Windowed(Sampler):
    def generate(self, ids: Tensor, steps: int, context_length: int) -> Tensor:  # type: ignore[override]
        for _ in range(steps):
            ids = torch.cat([ids, self.draw(self(ids[:, -context_length:]))], dim=1)
        return ids


class Tuned(Sampler):
    """Temperature, top_k and top_p as everybody writes them."""

    def generate(
        self, ids: Tensor, max_new_tokens: int, temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0
    ) -> Tensor:
        for _ in range(max_new_tokens):
            p = self.kept(self.tempered(self(ids)[:, -1], temperature), top_k)
            ids = torch.cat([ids, self.drawn(p, top_p)], dim=1)
        return ids

    def tempered(self, logits: Tensor, temperature: float) -> Tensor:
        return logits / temperature

    def kept(self, logits: Tensor, k: int | None) -> Tensor:
        if k is not None:
            logits = logits.masked_fill(logits < logits.topk(k).values[:, -1:], -torch.inf)
        return logits.softmax(-1)

    def drawn(self, p: Tensor, top_p: float) -> Tensor:
        ordered, tokens = p.sort(-1, descending=True)
        ordered = ordered.masked_fill(self.dropped(ordered, top_p), 0)
        return tokens.gather(1, torch.multinomial(ordered / ordered.sum(-1, keepdim=True), 1))

    def dropped(self, ordered: Tensor, top_p: float) -> Tensor:
        return ordered.cumsum(-1) - ordered > top_p


class HotIsCold(Tuned):
    def tempered(self, logits: Tensor, temperature: float) -> Tensor:
        return logits * temperature


class TooLate(Tuned):
    def kept(self, logits: Tensor, k: int | None) -> Tensor:
        return super().kept(logits, k) / self.temperature

    def tempered(self, logits: Tensor, temperature: float) -> Tensor:
        self.temperature = temperature
        return logits


class KeepsTheWorst(Tuned):
    def kept(self, logits: Tensor, k: int | None) -> Tensor:
        if k is not None:
            logits = logits.masked_fill(logits > (-logits).topk(k).values.neg()[:, -1:], -torch.inf)
        return logits.softmax(-1)


class KeepsAll(Tuned):
    def kept(self, logits: Tensor, k: int | None) -> Tensor:
        return logits.softmax(-1)


class DropsTheLikely(Tuned):
    def dropped(self, ordered: Tensor, top_p: float) -> Tensor:
        return (ordered.cumsum(-1) < top_p) & (top_p < 1)


class TakesRanksForTokens(Tuned):
    def drawn(self, p: Tensor, top_p: float) -> Tensor:
        return torch.multinomial(p.sort(-1, descending=True).values, 1)


@pytest.mark.parametrize(
    ("model", "id", "word"),
    [
        (Sampler, None, ""),
        (Distributed, None, ""),
        (Banning, None, ""),
        (Stopping, None, ""),
        (Windowed, None, ""),
        (Tuned, None, ""),
        (OfTheOneBefore, "K08", "position 4 of 6"),
        (OfProbabilities, "K11", "no softmax"),
        (OfTheLeastLikely, "K11", "no softmax"),
        (LosesItsFirst, "K11", "only those after it"),
        (TakesRanksForTokens, "K11", "writes others"),
        (HotIsCold, "K11", "flatter"),
        (TooLate, "K11", "what it is at 2"),
        (KeepsTheWorst, "K11", "is more likely"),
        (KeepsAll, "K11", "top_k=5 from"),
        (DropsTheLikely, "K11", "top_p"),
    ],
)
def test_what_is_drawn_from_is_held_to_the_logits(model: type[Sampler], id: str | None, word: str) -> None:
    report = check(model(), only=["generations"])
    outcome = next(one for one in report.checks if one.name == "generations")
    assert outcome.status == (("warn" if "top_" in word else "fail") if id else "pass"), str(report)
    assert [(finding.id, word in finding.evidence.witness) for finding in report.findings] == (
        [(id, True)] if id else []
    )
