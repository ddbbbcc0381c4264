import torch
import torch.nn.functional as F
from tiny_models import GPT, text

IGNORED = -100
MICRO = 3


def batches(step):
    """The prompt of each row, of its own length, is not scored."""
    ids = text(step, rows=2 * MICRO)
    labels = ids.clone()
    for row in range(len(ids)):
        labels[row, : 2 + row] = IGNORED
    return list(zip(ids.chunk(MICRO), labels.chunk(MICRO), strict=True))


def train(steps=3):
    torch.manual_seed(0)
    model = GPT(tied=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, decay], milestones=[5])
    model.train()
    for step in range(steps):
        parts = batches(step)
        counted = sum(int((labels[:, 1:] != IGNORED).sum()) for _, labels in parts)
        model.zero_grad()
        for ids, labels in parts:
            logits = model(ids)[:, :-1]
            loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum")
            (loss / counted).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5)
        optimizer.step()
        scheduler.step()


if __name__ == "__main__":
    train()
