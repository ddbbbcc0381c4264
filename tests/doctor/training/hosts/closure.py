import torch
import torch.nn.functional as F
from tiny_models import GPT, text


def train(steps=2):
    torch.manual_seed(0)
    model = GPT(dropout=0.0, layers=1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)
    ids = text(0)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


if __name__ == "__main__":
    train()
