"""Which words of a sentence its translation was made from, read from the cross-attention."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from clearhead.inference import evaluating
from clearhead.inference.text_stream import INCOMPLETE
from clearhead.inspection.capture.recording import record
from clearhead.inspection.capture.sites import attention_sites
from clearhead.models import EncoderDecoder


@torch.no_grad()
def alignment(
    model: EncoderDecoder, source_ids: Sequence[int], target_ids: Sequence[int], *, end: int, layer: int | None = None
) -> Tensor:
    """Where the decoder looked when it wrote each token, averaged over heads: (T_tgt, T_src), rows that sum to 1.

    Args:
        model: in whatever mode; dropout is off and the model is left as it was.
        source_ids: what the encoder read, its end token included, as in `Translation`.
        target_ids: what the decoder wrote, without the ends, as in `Translation`.
        end: the token that ends a translation, and begins it unless the model's config has another one for that.
        layer: the decoder's, counted from 0; the average of all of them without it.
    """
    names = [
        f"{site.name}.attention"
        for site in attention_sites(model)
        if site.kind == "cross" and layer in (None, site.layer)
    ]
    start = model.config.first_token(end)
    row = [start, *target_ids][: len(target_ids)]  # the token before each of the targets is what it was written from
    if not row:
        return torch.zeros(0, len(source_ids))
    with evaluating(model), record(model, names) as trace:
        source, target = (torch.tensor([ids], device=model.device) for ids in (list(source_ids), row))
        model.body(source, target, source_positions=range(source.shape[1]), target_positions=range(target.shape[1]))
    weights = torch.stack([trace.tensor(name) for name in names])  # (layers, 1, H, T_tgt, T_src)
    return weights.mean(dim=(0, 2))[0]  # (T_tgt, T_src)


def token_texts(decode: Callable[[Sequence[int]], str], ids: Sequence[int]) -> list[str]:
    """What each token adds to the text, special ones nothing: together they are the text of all.

    A character of several tokens belongs to the last of them.
    """
    texts, before = list[str](), ""
    for count in range(1, len(ids) + 1):
        text = decode(ids[:count])
        whole = text.rstrip(INCOMPLETE) if count < len(ids) else text
        texts.append(whole[len(before) :])
        before = whole
    return texts


def word_alignment(weights: Tensor, source_tokens: list[str], target_tokens: list[str]) -> list[tuple[int, int]]:
    """Each target word with the source word that it took the most weight from: (source, target), counted from 0.

    Words are what stands between spaces. The pairs are those of the Pharaoh format ("0-0 1-2 ..."), in the order of
    the target. A target word whose tokens look at no source word at all is left out.

    Args:
        weights: (T_tgt, T_src), from `alignment`.
        source_tokens, target_tokens: what each row and column adds to the text, from `token_texts`; an end adds
            nothing and belongs to no word.
    """
    assert weights.shape == (len(target_tokens), len(source_tokens)), "a row for each target, a column for each source"
    source, target = words_of_tokens(source_tokens), words_of_tokens(target_tokens)
    n_source, n_target = (1 + max((word for word in side if word is not None), default=-1) for side in (source, target))
    if not n_source:
        return []
    shared = [[0.0] * n_source for _ in range(n_target)]
    for row, own in zip(weights.tolist(), target, strict=True):
        for weight, word in zip(row, source, strict=True):
            if own is not None and word is not None:
                shared[own][word] += weight
    return [(row.index(max(row)), word) for word, row in enumerate(shared) if any(row)]


def words_of_tokens(tokens: list[str]) -> list[int | None]:
    """The number of the whitespace word that each token belongs to, None for those in none.

    A token belongs to the word of its first character that is no space; one that adds no text, to the word that it
    stands in: a part of a character does, an end does not.
    """
    text, numbers, start = "".join(tokens), list[int | None](), 0
    for token in tokens:
        reach = text[start : start + max(1, len(token))]
        first = start + len(reach) - len(reach.lstrip())
        numbers.append(len(text[: first + 1].split()) - 1 if reach.strip() else None)
        start += len(token)
    return numbers
