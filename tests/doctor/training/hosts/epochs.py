import torch
import torch.nn.functional as F
from tiny_models import GPT, text
from torch.utils.data import DataLoader, TensorDataset


def train(epochs=2):
    torch.manual_seed(0)
    model = GPT(tied=False)
    data = TensorDataset(text(0, rows=8))
    loader = DataLoader(data, batch_size=4, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    for _ in range(epochs):
        model.train()
        for (ids,) in loader:
            optimizer.zero_grad()
            logits = model(ids)
            loss = F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))
            loss.backward()
            optimizer.step()
        scheduler.step()
        model.eval()
        with torch.inference_mode():
            model(text(5))


if __name__ == "__main__":
    train()
