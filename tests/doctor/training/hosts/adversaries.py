import torch
import torch.nn.functional as F
from torch import nn


def train(steps=3):
    torch.manual_seed(0)
    writer = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
    judge = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
    writing = torch.optim.Adam(writer.parameters(), lr=1e-3, betas=(0.5, 0.9))
    judging = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.9))
    for _ in range(steps):
        real, noise = torch.randn(8, 6), torch.randn(8, 4)
        judging.zero_grad()
        written = writer(noise)
        right = F.binary_cross_entropy_with_logits(judge(real), torch.ones(8, 1))
        wrong = F.binary_cross_entropy_with_logits(judge(written.detach()), torch.zeros(8, 1))
        (right + wrong).backward()
        judging.step()
        writing.zero_grad()
        F.binary_cross_entropy_with_logits(judge(written), torch.ones(8, 1)).backward()
        writing.step()


if __name__ == "__main__":
    train()
