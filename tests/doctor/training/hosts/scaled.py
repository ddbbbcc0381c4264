import torch
import torch.nn.functional as F
from tiny_models import GPT, text
from torch.amp import GradScaler, autocast


def train(steps=3):
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=0.5, total_iters=2)
    scaler = GradScaler("cpu", init_scale=1024.0)
    for step in range(steps):
        ids = text(step)
        optimizer.zero_grad()
        with autocast("cpu", dtype=torch.bfloat16):
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()


if __name__ == "__main__":
    train()
