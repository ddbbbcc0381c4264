"""A speech model's labels become the decoder's input, moved right by one; then the loss moves them by one again.

huggingface/transformers #46784 (the same again in #46894 and #46897). The class calls the loss that all decoder-only
models share, and that loss shifts by itself. Every position is asked for the token after the one that follows it:
what it is never asked for is the token that it will have to write. Loss and text look fluent.
"""

import torch
import torch.nn.functional as F
from torch import nn

PAD, START, IGNORED = 0, 1, -100


def causal_lm_loss(logits, labels):
    """For models whose labels are their own inputs."""
    labels = F.pad(labels, (0, 1), value=IGNORED)[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def aligned_loss(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def moved_right(labels):
    moved = F.pad(labels[:, :-1], (1, 0), value=START)
    return moved.masked_fill(moved == IGNORED, PAD)


class Recogniser(nn.Module):
    def __init__(self, loss, vocab_size=41, d_model=32, nhead=4):
        super().__init__()
        self.loss = loss
        self.embed = nn.Embedding(vocab_size, d_model)
        self.places = nn.Embedding(64, d_model)
        encoder = nn.TransformerEncoderLayer(d_model, nhead, 64, batch_first=True, norm_first=True)
        decoder = nn.TransformerDecoderLayer(d_model, nhead, 64, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(encoder, 1, norm=nn.LayerNorm(d_model), enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decoder, 1, norm=nn.LayerNorm(d_model))
        self.head = nn.Linear(d_model, vocab_size)

    def embedded(self, ids):
        return self.embed(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))

    def forward(self, input_ids, decoder_input_ids=None, labels=None):
        if decoder_input_ids is None:
            decoder_input_ids = moved_right(labels)
        memory = self.encoder(self.embedded(input_ids))
        T = decoder_input_ids.shape[1]
        hidden = torch.ones(T, T, dtype=torch.bool, device=input_ids.device).triu(1)
        logits = self.head(self.decoder(self.embedded(decoder_input_ids), memory, tgt_mask=hidden))
        loss = None if labels is None else self.loss(logits, labels)
        return {"loss": loss, "logits": logits}


def buggy():
    return Recogniser(causal_lm_loss)


def fixed():
    return Recogniser(aligned_loss)
