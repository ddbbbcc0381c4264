"""The person's own batch: what their model really reads, as inputs for the examination."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from clearhead.doctor.calling import Inputs
from clearhead.doctor.calling.names import (
    LABELS,
    MASK,
    POSITIONS,
    SEGMENTS,
    SOURCE,
    TARGET,
    TOKENS,
    is_aside,
    parameters_of,
)
from clearhead.doctor.calling.trial import WorkingCall
from clearhead.doctor.problems import attempt
from clearhead.errors import DataError
from clearhead.wording import with_article

ROLES = ("ids", "source", "labels")
Given = Tensor | Mapping[str, Tensor] | Sequence[Tensor]


def load_batch(file: str) -> Any:
    """What `torch.save` wrote into a file. Tensors in dicts, lists and tuples are read, and no code is run.

    Raises:
        DataError: it is not there, or holds something else.
    """
    if not Path(file).is_file():
        raise DataError(f"there is no file {file}; --batch takes what torch.save wrote")
    with attempt() as attempted:
        return torch.load(file, map_location="cpu", weights_only=True)
    raise DataError(
        f"{file} cannot be read as plain tensors ({attempted.sentence(100)}); "
        "write it with torch.save({'input_ids': ids, 'attention_mask': mask}, file)"
    )


@dataclass(frozen=True)
class OwnBatch:
    """A batch that fits the model. `more`: masks, positions and segments, by the names that `forward` has for them."""

    inputs: Inputs
    more: Mapping[str, Tensor]


@dataclass(frozen=True)
class GivenBatch:
    """Tensors as the person gave them: by name, or in order (then every name is empty)."""

    parts: tuple[tuple[str, Tensor], ...]

    @classmethod
    def of(cls, batch: object) -> Self:
        """A tensor of ids; a tuple such as (source, target); a dict by the names that `forward` has.

        Raises:
            DataError: it is something else, or holds no token ids.
        """
        named: Iterable[tuple[object, object]] = ()
        if isinstance(batch, Mapping):
            named = batch.items()
        elif isinstance(batch, Tensor):
            named = (("", batch),)
        elif isinstance(batch, Sequence) and not isinstance(batch, str):
            named = (("", part) for part in batch)
        parts = tuple((str(name), part) for name, part in named if isinstance(part, Tensor))
        if not any(_holds_tokens(part) for _, part in parts):
            raise DataError(
                f"the batch is {_described(batch)}, and holds no token ids; give a tensor (B, T) of whole numbers, "
                "a tuple (source, target) of them, or a dict such as {'input_ids': ids, 'attention_mask': mask}"
            )
        return cls(parts)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of tensors of tokens that have one."""
        return tuple(name for name, part in self.parts if name and _holds_tokens(part))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths that its rows may have, along either axis."""
        first = next(part for _, part in self.parts if _holds_tokens(part))
        return tuple(dict.fromkeys((first.shape[1], first.shape[0])))

    def arranged(self, model: nn.Module, known: WorkingCall) -> OwnBatch:
        """The batch as inputs, given how the model is called.

        Raises:
            DataError: nothing in it is what the model reads, or it has tokens that the model does not know.
        """
        called, has_source = dict(known.convention.call), known.convention.has_source
        roles: dict[str, Tensor] = {}
        order = iter(("source", "ids", "labels") if has_source else ("ids", "labels"))
        for name, part in self.parts:
            role = _role(name, called.get(name), has_source) if name else next(order, None)
            if role is not None and _holds_tokens(part):
                roles.setdefault(role, part.t() if known.convention.time_first else part)
        if has_source and "labels" in roles:
            roles.setdefault("ids", roles["labels"].clamp_min(0))  # for a model that makes its target's inputs itself
        ids, source = roles.get("ids"), roles.get("source") if has_source else None
        if ids is None or (has_source and source is None):
            names = ", ".join(name for name, _ in self.parts if name) or "without names"
            expected = "source and target" if has_source else "token ids"
            raise DataError(f"the batch ({names}) does not say which are its {expected}; name them as forward() does")
        for tokens, size in ((ids, known.vocab_size), (source, known.source_vocab_size)):
            unknown = [] if tokens is None else tokens[(tokens < 0) | (tokens >= size)].tolist()
            if unknown:
                raise DataError(f"the batch holds token {unknown[0]}, and the model knows 0 to {size - 1}")
        if source is not None and len(source) != len(ids):
            raise DataError(f"the batch has {len(source)} rows of sources and {len(ids)} of targets")
        free = {p.name for p in parameters_of(model)} - {name for name, filler in called.items() if filler in roles}
        more = {name: part for name, part in self.parts if name in free and _is_aside(name)}
        return OwnBatch(Inputs(ids, source, labels=roles.get("labels")), more)


def _holds_tokens(part: Tensor) -> bool:
    is_whole = not part.is_floating_point() and not part.is_complex() and part.dtype != torch.bool
    return is_whole and part.dim() == 2 and part.numel() > 0


def _described(batch: object) -> str:
    if isinstance(batch, Tensor):
        return f"a tensor {tuple(batch.shape)} of {str(batch.dtype).removeprefix('torch.')}"
    size = f" of {len(batch)}" if isinstance(batch, (Mapping, list, tuple)) else ""
    return f"{with_article(type(batch).__name__)}{size}"


def _is_aside(name: str) -> bool:
    return any(kind.search(name) for kind in (MASK, POSITIONS, SEGMENTS))


def _role(name: str, filler: str | None, has_source: bool) -> str | None:
    """What a named tensor is: ids, source or labels; None if it holds no tokens."""
    if filler in ROLES or is_aside(name):
        return filler if filler in ROLES else None
    if TARGET.search(name) and (has_source or not LABELS.search(name)) and "label" not in name:
        return "ids"
    if LABELS.search(name):
        return "labels"
    return ("source" if has_source else "ids") if SOURCE.search(name) or TOKENS.search(name) else None
