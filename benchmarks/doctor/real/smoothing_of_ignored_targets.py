"""Label smoothing pays no heed to ignore_index: its even part is taken over the ignored positions as well.

pytorch/pytorch #73205. The part of the loss that asks for the target leaves out what is to be ignored; the part that
asks for an even distribution does not. Padding is trained to be undecided, and real tokens are smoothed the more, the
more padding there is.
"""

import torch.nn.functional as F

IGNORE_INDEX, SMOOTHING = -100, 0.1


def buggy(logits, targets):
    log_p = F.log_softmax(logits, dim=-1).flatten(0, 1)
    wanted = targets.flatten()
    hard = F.nll_loss(log_p, wanted, ignore_index=IGNORE_INDEX)
    even = -log_p.mean(-1).sum() / (wanted != IGNORE_INDEX).sum()
    return (1 - SMOOTHING) * hard + SMOOTHING * even


def fixed(logits, targets):
    log_p = F.log_softmax(logits, dim=-1).flatten(0, 1)
    wanted = targets.flatten()
    real = wanted != IGNORE_INDEX
    hard = F.nll_loss(log_p, wanted, ignore_index=IGNORE_INDEX)
    even = -log_p.mean(-1)[real].sum() / real.sum()
    return (1 - SMOOTHING) * hard + SMOOTHING * even
