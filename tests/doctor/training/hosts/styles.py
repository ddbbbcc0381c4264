"""Trainings of many kinds, in a few lines each."""

import copy

import torch
import torch.nn.functional as F
from tiny_models import GPT, V, text
from torch import nn
from torch.utils.checkpoint import checkpoint

STYLES = {}


def style(function):
    STYLES[function.__name__] = function
    return function


def language(model, step):
    ids = text(step)
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def plain(model, optimizer, steps=3):
    model.train()
    for step in range(steps):
        optimizer.zero_grad()
        language(model, step).backward()
        optimizer.step()


@style
def rate_by_hand():
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
    for step in range(4):
        for group in optimizer.param_groups:
            group["lr"] = 6e-4 * step / 10
        for part in range(3):
            (language(model, 3 * step + part) / 3).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


@style
def gradients_divided_by_hand():
    model = GPT()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        for part in range(4):
            language(model, 4 * step + part).backward()
        for parameter in model.parameters():
            parameter.grad /= 4
        optimizer.step()
        optimizer.zero_grad()


@style
def losses_of_many_forms():
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(3):
        ids = text(step)
        logits = model(ids[:, :-1]).flatten(0, 1)
        each = F.cross_entropy(logits, ids[:, 1:].flatten(), label_smoothing=0.1, reduction="none")
        optimizer.zero_grad()
        (((1 - torch.exp(-each)) * each).mean() + 1e-3 * logits.logsumexp(-1).pow(2).mean()).backward()
        optimizer.step()


@style
def checkpointing():
    class Checkpointed(GPT):
        def forward(self, ids):
            x = self.embed(ids) + self.positions(torch.arange(ids.shape[1]))
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return self.head(self.norm(x))

    model = Checkpointed()
    plain(model, torch.optim.AdamW(model.parameters(), lr=1e-3))


@style
def recurrent():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.lstm, self.head = nn.Embedding(V, 16), nn.LSTM(16, 16, batch_first=True), nn.Linear(16, V)

        def forward(self, ids, state=None):
            x, state = self.lstm(self.embed(ids), state)
            return self.head(x), state

    model, state = Recurrent(), None
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for step in range(3):
        ids = text(step)
        logits, state = model(ids[:, :-1], state)
        state = tuple(part.detach() for part in state)
        optimizer.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()


@style
def distillation():
    teacher, student = GPT().eval(), GPT(layers=1)
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
    for step in range(3):
        ids = text(step)
        with torch.no_grad():
            wanted = (teacher(ids) / 2).softmax(-1)
        optimizer.zero_grad()
        F.kl_div((student(ids) / 2).log_softmax(-1), wanted, reduction="batchmean").backward()
        optimizer.step()


@style
def low_rank():
    class LowRank(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base
            self.down = nn.Parameter(0.01 * torch.randn(4, base.in_features))
            self.up = nn.Parameter(torch.zeros(base.out_features, 4))

        def forward(self, x):
            return self.base(x) + x @ self.down.T @ self.up.T

    model = GPT()
    model.requires_grad_(False)
    for block in model.blocks:
        block.qkv = LowRank(block.qkv)
    plain(model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2))


@style
def experts():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.router, self.head = nn.Embedding(V, 16), nn.Linear(16, 8), nn.Linear(16, V)
            self.parts = nn.ModuleList([nn.Linear(16, 16) for _ in range(8)])

        def forward(self, ids):
            x = self.embed(ids).flatten(0, 1)
            weight, chosen = self.router(x).softmax(-1).max(-1)
            mixed = torch.zeros_like(x)
            for number, part in enumerate(self.parts):
                mine = chosen == number
                if mine.any():
                    mixed[mine] = weight[mine, None] * part(x[mine])
            return self.head(x + mixed).view(*ids.shape, V)

    model = Experts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(3):
        ids = text(step, rows=2, length=4)
        optimizer.zero_grad()
        F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()


@style
def critic():
    writer, judge = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    writing, judging = (torch.optim.RMSprop(part.parameters(), lr=5e-5) for part in (writer, judge))
    for step in range(6):
        judging.zero_grad()
        (judge(writer(torch.randn(8, 4)).detach()).mean() - judge(torch.randn(8, 6)).mean()).backward()
        judging.step()
        for parameter in judge.parameters():
            parameter.data.clamp_(-0.01, 0.01)
        if step % 3 == 0:
            writing.zero_grad()
            (-judge(writer(torch.randn(8, 4))).mean()).backward()
            writing.step()


@style
def sharpness_aware():
    model = GPT()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        language(model, step).backward()
        with torch.no_grad():
            moves = [0.05 * p.grad / p.grad.norm() for p in model.parameters()]
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.add_(move)
        optimizer.zero_grad()
        language(model, step).backward()
        with torch.no_grad():
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.sub_(move)
        optimizer.step()
        optimizer.zero_grad()


@style
def layers_left_out_by_chance():
    class Shallow(GPT):
        def forward(self, ids):
            x = self.embed(ids) + self.positions(torch.arange(ids.shape[1]))
            for block in self.blocks:
                if not self.training or torch.rand(()) < 0.4:
                    x = block(x)
            return self.head(self.norm(x))

    model = Shallow(layers=4)
    plain(model, torch.optim.AdamW(model.parameters(), lr=1e-3))


@style
def averages_evaluated():
    model = GPT()
    average = copy.deepcopy(model).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(3):
        model.train()
        optimizer.zero_grad()
        language(model, step).backward()
        optimizer.step()
        with torch.no_grad():
            for kept, parameter in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(parameter, 0.1)
            own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            model.load_state_dict(average.state_dict())
            model.eval()
            language(model, 99)
            model.load_state_dict(own)


@style
def policy_gradient():
    model = GPT()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for step in range(3):
        ids = text(step)[:, :4]
        model.eval()
        with torch.no_grad():
            for _ in range(5):
                chosen = torch.distributions.Categorical(logits=model(ids)[:, -1]).sample()
                ids = torch.cat([ids, chosen[:, None]], 1)
        model.train()
        log_p = model(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None])[:, 3:, 0]
        optimizer.zero_grad()
        (-(torch.randn(4, 1) * log_p).mean()).backward()
        optimizer.step()


@style
def two_losses():
    model, head = GPT(), nn.Linear(V, 3)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3)
    for step in range(3):
        ids = text(step)
        logits = model(ids[:, :-1])
        optimizer.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward(retain_graph=True)
        F.cross_entropy(head(logits.mean(1)), ids[:, 0] % 3).backward()
        optimizer.step()


@style
def contrastive():
    model, temperature = nn.Linear(8, 8), nn.Parameter(torch.tensor(2.0))
    optimizer = torch.optim.AdamW([*model.parameters(), temperature], lr=1e-3)
    for _ in range(3):
        one, other = (F.normalize(model(torch.randn(8, 8)), dim=-1) for _ in range(2))
        optimizer.zero_grad()
        F.cross_entropy(one @ other.T * temperature.exp(), torch.arange(8)).backward()
        optimizer.step()


@style
def pictures():
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout2d(0.1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    model = nn.Sequential(*layers, nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(8, 3, 8, 8)), torch.randint(0, 4, (8,))).backward()
        optimizer.step()


def train():
    for name, function in STYLES.items():
        torch.manual_seed(0)
        print(name)
        function()


if __name__ == "__main__":
    train()
