from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from tiny_models import GPT, text

PAD, EOS = 0, 1


@dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor


class WithLabels(GPT):
    config = SimpleNamespace(pad_token_id=PAD, eos_token_id=EOS, tie_word_embeddings=True)

    def forward(self, input_ids, attention_mask=None, labels=None):
        logits = super().forward(input_ids)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        return Output(loss, logits)


def batch(step):
    ids = text(step)
    for row in range(len(ids)):
        ids[row, 6 + row] = EOS
        ids[row, 7 + row :] = PAD
    mask = ids != PAD
    return {"input_ids": ids, "attention_mask": mask.long(), "labels": ids.masked_fill(~mask, -100)}


def train(steps=3):
    torch.manual_seed(0)
    model = WithLabels()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, s / 2))
    model.train()
    for step in range(steps):
        output = model(**batch(step))
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    train()
