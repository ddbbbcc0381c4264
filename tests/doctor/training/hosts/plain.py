import copy
import math

import torch
import torch.nn.functional as F
from tiny_models import GPT, text
from torch.nn.utils import clip_grad_norm_


def train(steps=3):
    torch.manual_seed(0)
    model = GPT()
    average = copy.deepcopy(model)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: s / 2 if s < 2 else 0.5 + 0.5 * math.cos(s / 9))
    model.train()
    for step in range(steps):
        ids = text(step)
        inputs, targets = ids[:, :-1], ids[:, 1:]
        logits = model(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        with torch.no_grad():
            for kept, p in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(p, 0.01)
        if step == 1:
            evaluate(model)
            model.train()


def evaluate(model):
    model.eval()
    with torch.no_grad():
        ids = text(99)
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).item()


if __name__ == "__main__":
    train()
