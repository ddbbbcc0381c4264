"""A captioning model cuts and shifts its logits and labels, and calls a loss that shifts them again.

huggingface/transformers #47394, from 4.49 until July 2026, here in the library's own code: the loss of GitForCausalLM
as the installed version computes it, of logits that are handed in behind those of the image. Every caption's token is
asked for the token after the next, and the last of a row for one of the next row.
"""

from types import SimpleNamespace

import torch
from torch import nn
from transformers import GitConfig, GitForCausalLM


class Given(nn.Module):
    """Hands on what it was given, as the encoder and the head would."""

    def __init__(self):
        super().__init__()
        self.hidden = None
        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleList([nn.Module()])

    def forward(self, *args, **kwargs):
        return SimpleNamespace(last_hidden_state=self.hidden, past_key_values=None, hidden_states=None, attentions=None)


def loss(logits, labels):
    B, _, V = logits.shape
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = GitConfig(vocab_size=V, vision_config={**vision, "image_size": 32, "patch_size": 16}, **sizes)
    model = GitForCausalLM(config)
    attention = model.git.encoder.layer[0].attention
    given = Given()
    given.encoder.layer[0].attention = attention
    given.hidden = torch.cat((logits.new_zeros(B, attention.self.image_patch_tokens, V), logits), dim=1)
    model.git, model.output = given, nn.Identity()
    return model(input_ids=labels, labels=labels).loss
