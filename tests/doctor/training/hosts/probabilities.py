import torch
import torch.nn.functional as F
from tiny_models import GPT, text


def train(steps=4):
    """Logarithms of probabilities, as older tutorials return them, and probabilities themselves."""
    torch.manual_seed(0)
    model = GPT(tied=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(steps):
        ids = text(step)
        if step % 2:
            handle = model.head.register_forward_hook(lambda m, i, o: o.log_softmax(-1))
            loss = F.nll_loss(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        else:
            handle = model.head.register_forward_hook(lambda m, i, o: o.softmax(-1))
            loss = F.nll_loss(model(ids[:, :-1]).log().flatten(0, 1), ids[:, 1:].flatten())
        handle.remove()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train()
