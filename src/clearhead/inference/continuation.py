"""Ids in, ids out: what `model.generate` is."""

import torch
from torch import Tensor

from clearhead.config import GenerationConfig
from clearhead.errors import UsageError
from clearhead.inference.generation import stream_ids
from clearhead.models import CausalLM
from clearhead.models.eval_mode import OnNotice
from clearhead.parts import refuse_beyond, refuse_wrong_ids


def generate_ids(
    model: CausalLM,
    ids: Tensor,
    max_new_tokens: int | None = None,
    *,
    end: int | None = None,
    on_notice: OnNotice | None = None,
    **options: object,
) -> Tensor:
    """Continue each row of token ids, (B, T) -> (B, T + new).

    Args:
        model: in any mode; it writes without dropout and is left as it was.
        ids: a row per text, on any device; at most block_size tokens each.
        max_new_tokens: how many tokens to add at most; None: the default of `GenerationConfig`.
        end: the token that ends a text. Rows that end before others are filled up with it.
        on_notice: called with sentences to show the user.
        options: as in `GenerationConfig`: temperature=0.8, greedy=True... Without `seed`, torch's own generator gives
            one, so that `torch.manual_seed` repeats it. Each row is continued `num_samples` times.

    Raises:
        UsageError: an option, or ids that the model cannot read.
    """
    length = {} if max_new_tokens is None else {"max_new_tokens": max_new_tokens}
    config = GenerationConfig.read(options, length)
    if config.stop:
        raise UsageError("stop: token ids have no text to stop at; use a run's generate, or `end` for a token")
    if config.is_constrained:
        raise UsageError("`regex` and `json_schema` are about texts, and token ids have none; use a run's generate")
    refuse_wrong_ids(ids, model.config.vocab_size)
    if model.receptive_field is None:
        refuse_beyond(range(ids.shape[1]), model.config.block_size)
    if config.seed is None:
        config = config.model_copy(update={"seed": int(torch.randint(2**62, ()))})
    rows = ids.repeat_interleave(config.num_samples, dim=0).tolist()
    for column in stream_ids(model, rows, config, end=end, engine=config, on_notice=on_notice):
        for row, token in column.items():
            rows[row].append(token)
    longest = max(map(len, rows))
    return torch.tensor([row + [end] * (longest - len(row)) for row in rows], dtype=ids.dtype, device=ids.device)
