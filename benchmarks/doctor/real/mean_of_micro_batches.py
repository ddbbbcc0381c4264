"""The loss of an accumulated batch is the mean of the means of its parts.

huggingface/transformers #34191. Each micro-batch divides by its own number of tokens, and the results are averaged. A
token in a part with few of them counts for more than one in a part with many. With rows of one length nothing is to
be seen; with padding every large-batch run by accumulation had other gradients than the large batch itself.
"""

import torch.nn.functional as F

IGNORE_INDEX = -100


def buggy(logits, targets):
    losses = [
        F.cross_entropy(part.flatten(0, 1), wanted.flatten(), ignore_index=IGNORE_INDEX)
        for part, wanted in zip(logits.split(1), targets.split(1), strict=True)
    ]
    return sum(losses) / len(losses)


def fixed(logits, targets):
    n_tokens = (targets != IGNORE_INDEX).sum()
    losses = [
        F.cross_entropy(part.flatten(0, 1), wanted.flatten(), ignore_index=IGNORE_INDEX, reduction="sum")
        for part, wanted in zip(logits.split(1), targets.split(1), strict=True)
    ]
    return sum(losses) / n_tokens
