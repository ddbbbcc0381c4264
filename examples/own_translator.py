"""An encoder-decoder on pairs of any kind: it learns to write a row of numbers backwards."""

import torch

import clearhead as ch
from clearhead.inference import beam_search

PAD, END = 0, 1  # the end also begins a target
config = ch.ModelConfig(
    architecture="encoder_decoder", vocab_size=12, pad_id=PAD, block_size=16, n_layers=1, n_heads=4, d_model=64
)
model = ch.EncoderDecoder(config)  # a plain nn.Module: logits = model(source, target)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows of unequal length, filled up with PAD: nobody builds a mask by hand."""
    generator = torch.Generator().manual_seed(step)
    source = torch.full((32, 8), PAD)
    targets = torch.full((32, 8), -100)  # -100 is not counted
    for row, length in enumerate(torch.randint(1, 8, (32,), generator=generator).tolist()):
        numbers = torch.randint(2, 12, (length,), generator=generator)
        source[row, : length + 1] = torch.cat((numbers, torch.tensor([END])))
        targets[row, : length + 1] = torch.cat((numbers.flip(0), torch.tensor([END])))
    written = torch.where(targets == -100, PAD, targets)
    inputs = torch.cat((torch.full((32, 1), END), written[:, :-1]), dim=1)
    return source, inputs, targets


options = ch.TrainConfig(steps=400, optimizer="muon", learning_rate=0.01, schedule="linear", warmup_steps=10)
for _ in ch.fit(model, options, batch, seed=1):
    pass
for hypothesis in beam_search(model, [[5, 3, 9, 2, END]], ch.TranslationConfig(beam_size=4, n_best=2), end=END)[0]:
    print(hypothesis.ids, f"{hypothesis.score:.3f}")
