import torch
import torch.nn.functional as F
from tiny_models import GPT, text

ACCUMULATE = 2


def train(steps=3):
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20)
    for number in range(steps * ACCUMULATE):
        ids = text(number)
        loss = F.cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:]) / ACCUMULATE
        loss.backward()
        if (number + 1) % ACCUMULATE == 0:
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    train()
