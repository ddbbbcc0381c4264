import torch
from tiny_models import D, T, Translator, text
from torch import nn

PAD = 0


def pairs(step):
    src, tgt = text(step, length=T), text(100 + step, length=T)
    for row in range(len(src)):
        src[row, 8 + row :] = PAD
        tgt[row, 9 + row :] = PAD
    return src, tgt


def train(steps=3):
    torch.manual_seed(0)
    model = Translator()
    criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: D**-0.5 * min((s + 1) ** -0.5, (s + 1) * 400**-1.5)
    )
    model.train()
    for step in range(steps):
        src, tgt = pairs(step)
        logits = model(src, tgt[:, :-1])
        loss = criterion(logits.reshape(-1, logits.shape[-1]), tgt[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()


if __name__ == "__main__":
    train()
