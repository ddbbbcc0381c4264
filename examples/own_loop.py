"""The bare loop: a model from a config, any batches, and events to do with as you like."""

import torch

import clearhead as ch
from clearhead.training import Stepped

config = ch.ModelConfig(vocab_size=16, block_size=32, n_layers=2, n_heads=2, d_model=32, positions="rope")
model = ch.DecoderLM(config)  # a plain nn.Module


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Count upwards from anywhere: a pure function of the step, so every batch can be looked at again."""
    starts = torch.randint(16, (8, 1), generator=torch.Generator().manual_seed(step))
    numbers = (starts + torch.arange(33)) % 16  # (B, T + 1)
    return numbers[:, :-1], numbers[:, 1:]


options = ch.TrainConfig(steps=100, learning_rate=3e-3)
for event in ch.fit(model, options, batch, seed=1):
    if isinstance(event, Stepped) and event.step % 20 == 0:
        print(f"step {event.step:3}  loss {event.loss:.4f}")
