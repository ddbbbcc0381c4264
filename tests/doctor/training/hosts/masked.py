import torch
import torch.nn.functional as F
from tiny_models import GPT, text

MASK = 2


def train(steps=3):
    torch.manual_seed(0)
    model = GPT(causal=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        ids = text(step, rows=8)
        chosen = torch.rand(ids.shape, generator=torch.Generator().manual_seed(step)) < 0.3
        inputs = ids.masked_fill(chosen, MASK)
        labels = ids.masked_fill(~chosen, -100)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train()
