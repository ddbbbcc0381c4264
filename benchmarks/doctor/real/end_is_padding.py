"""The padding token is the end-of-text token, and every label that is padding is ignored: the end is never learned.

huggingface/transformers #23530. For a tokenizer without padding the common advice is `pad_token = eos_token`. The
collator then masks labels by the padding token's number, and with them the one end of text that each row has. The
loss falls as ever; the fine-tuned model never stops.
"""

import torch.nn.functional as F

EOS_TOKEN_ID = 2
PAD_TOKEN_ID = EOS_TOKEN_ID
IGNORED = -100


def buggy(logits, input_ids):
    labels = input_ids.masked_fill(input_ids == PAD_TOKEN_ID, IGNORED)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)


def fixed(logits, input_ids):
    ended = (input_ids == EOS_TOKEN_ID).cumsum(1)
    labels = input_ids.masked_fill((input_ids == PAD_TOKEN_ID) & (ended > 1), IGNORED)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
