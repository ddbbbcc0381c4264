"""What a model's own `generate` writes: greedy ones are held to the logits, samplers to nothing but themselves."""

import random

import numpy as np
import pytest
import torch
from doctor_helpers import made, write
from torch import Tensor, nn

from clearhead.doctor import check


class Writer(nn.Module):
    """A healthy GPT that writes by its best token; what it does otherwise is in the classes below."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.asked = 0

    def forward(self, ids: Tensor) -> Tensor:
        found = self.model(ids)
        logits: Tensor = found[0] if isinstance(found, tuple) else found
        return logits

    def generate(self, ids: Tensor, max_new_tokens: int) -> Tensor:
        for _ in range(max_new_tokens):
            ids = torch.cat([ids, self.choose(self(ids)[:, -1])[:, None]], dim=1)
        self.asked += 1
        return ids

    def choose(self, logits: Tensor) -> Tensor:
        return logits.argmax(-1)


class Second(Writer):
    def choose(self, logits: Tensor) -> Tensor:
        return logits.topk(2).indices[:, 1]


class SecondByChance(Second):
    """A sampler may take the second best, with every seed that one happens to try."""

    def choose(self, logits: Tensor) -> Tensor:
        torch.rand(1)
        return super().choose(logits)


class Remembering(Writer):
    def choose(self, logits: Tensor) -> Tensor:
        return (logits.argmax(-1) + self.asked) % logits.shape[-1]


class OfPython(Writer):
    def choose(self, logits: Tensor) -> Tensor:
        return torch.tensor([random.randrange(logits.shape[-1]) for _ in logits])


class OfItsOwn(Writer):
    """Draws from a generator that nobody else can seed."""

    def choose(self, logits: Tensor) -> Tensor:
        return torch.from_numpy(np.random.default_rng().integers(0, logits.shape[-1], len(logits)))


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> nn.Module:
    return made(write(tmp_path_factory.mktemp("models"), "gpt"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("writer", "found", "status"),
    [
        (Writer, [], "pass"),
        (Second, ["K11"], "fail"),
        (SecondByChance, [], "skip"),
        (Remembering, ["K06"], "fail"),
        (OfPython, [], "skip"),
        (OfItsOwn, [], "skip"),
    ],
)
def test_who_draws_is_not_held_to_the_best_token(
    gpt: nn.Module, writer: type[Writer], found: list[str], status: str
) -> None:
    report = check(writer(gpt), only=["K06", "K11"])
    assert [finding.id for finding in report.findings] == found
    assert next(one for one in report.checks if one.name == "generations").status == status


class Cached(nn.Module):
    """A model of two layers of running means, whose generate() reads its prompt at once and then token by token."""

    def __init__(self, again: bool, samples: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.again, self.samples = again, samples
        self.words, self.mixing, self.head = nn.Embedding(41, 16), nn.Linear(16, 16), nn.Linear(16, 41)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        counts = torch.arange(1, ids.shape[1] + 1)[:, None]
        x = x + torch.tanh(self.mixing(x).cumsum(1) / counts)
        logits: Tensor = self.head(x)
        return logits

    def generate(self, ids: Tensor, max_new_tokens: int, temperature: float = 1.0) -> Tensor:
        read = ids  # what the cache would hold
        for step in range(max_new_tokens):
            if step > 0 or self.again:
                read = torch.cat([read, ids[:, -1:]], dim=1)
            logits = self(read)[:, -1] / temperature
            token = torch.multinomial(logits.softmax(-1), 1) if self.samples else logits.argmax(-1, keepdim=True)
            ids = torch.cat([ids, token], dim=1)
        return ids


@pytest.mark.parametrize("samples", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_a_last_token_that_is_read_twice_is_found(again: bool, samples: bool) -> None:
    report = check(Cached(again, samples), only=["K08"])
    assert [finding.id for finding in report.findings] == (["K08"] if again else []), str(report)
