"""A batch of the person's own: what their model really reads, as inputs of the examination."""

from collections.abc import Mapping, Sequence
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
    parameters_of,
)
from clearhead.doctor.calling.search import WorkingCall
from clearhead.doctor.problems import attempt
from clearhead.errors import DataError

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
class GivenBatch:
    """Tensors as they were given: by name, or in an order (then every name is empty)."""

    parts: tuple[tuple[str, Tensor], ...]

    @classmethod
    def of(cls, batch: object) -> Self:
        """A tensor of ids; a tuple such as (source, target); a dict by the names that `forward` gives them.

        Raises:
            DataError: it is something else, or holds no token ids.
        """
        if isinstance(batch, Mapping):
            parts = tuple((str(name), part) for name, part in batch.items() if isinstance(part, Tensor))
        elif isinstance(batch, Tensor):
            parts = (("", batch),)
        elif isinstance(batch, Sequence) and not isinstance(batch, str):
            parts = tuple(("", part) for part in batch if isinstance(part, Tensor))
        else:
            parts = ()
        if not any(_holds_tokens(part) for _, part in parts):
            raise DataError(
                f"the batch is {_described(batch)}, and holds no token ids; give a tensor (B, T) of whole numbers, "
                "a tuple (source, target) of them, or a dict such as {'input_ids': ids, 'attention_mask': mask}"
            )
        return cls(parts)

    @property
    def names(self) -> tuple[str, ...]:
        """Of tokens that were given by name."""
        return tuple(name for name, part in self.parts if name and _holds_tokens(part))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of its rows, whichever of its axes that is."""
        first = next(part for _, part in self.parts if _holds_tokens(part))
        return tuple(dict.fromkeys((first.shape[1], first.shape[0])))

    def arranged(self, model: nn.Module, match: WorkingCall) -> "OwnBatch":
        """The batch as the examination's inputs, by what is known of how the model is called.

        Raises:
            DataError: nothing in it is what the model reads, or tokens that the model does not know.
        """
        called = dict(match.convention.call)
        has_source = match.convention.has_source
        roles: dict[str, Tensor] = {}
        order = iter(("source", "ids", "labels") if has_source else ("ids", "labels"))
        for name, part in self.parts:
            role = _role(name, called.get(name), has_source) if name else next(order, None)
            if role is not None and _holds_tokens(part):
                roles.setdefault(role, part.t() if match.convention.time_first else part)
        if has_source and "labels" in roles:
            roles.setdefault("ids", roles["labels"].clamp_min(0))  # a model that makes its target's inputs itself
        ids, source = roles.get("ids"), roles.get("source")
        if ids is None or (has_source and source is None):
            names = ", ".join(name for name, _ in self.parts if name) or "without names"
            expected = "source and target" if has_source else "token ids"
            raise DataError(f"the batch ({names}) does not say which are its {expected}; name them as forward() does")
        for tokens, known in ((ids, match.vocab_size), (source, match.source_vocab_size)):
            _refuse_unknown_tokens(tokens, known)
        if source is not None and len(source) != len(ids):
            raise DataError(f"the batch has {len(source)} rows of sources and {len(ids)} of targets")
        taken = {p.name for p in parameters_of(model)} - {name for name, filler in called.items() if filler in roles}
        more = {name: part for name, part in self.parts if name in taken and _is_aside(name)}
        return OwnBatch(Inputs(ids, source if has_source else None, labels=roles.get("labels")), more)


@dataclass(frozen=True)
class OwnBatch:
    """A batch that fits the model. `more`: masks, positions and segments, by the names that `forward` has for them."""

    inputs: Inputs
    more: Mapping[str, Tensor]


def _holds_tokens(part: Tensor) -> bool:
    whole = not part.is_floating_point() and not part.is_complex() and part.dtype != torch.bool
    return whole and part.dim() == 2 and part.numel() > 0


def _described(batch: object) -> str:
    if isinstance(batch, Tensor):
        return f"a tensor {tuple(batch.shape)} of {str(batch.dtype).removeprefix('torch.')}"
    held = f" of {len(batch)}" if isinstance(batch, (Mapping, list, tuple)) else ""
    return f"a {type(batch).__name__}{held}"


def _is_aside(name: str) -> bool:
    return any(kind.search(name) for kind in (MASK, POSITIONS, SEGMENTS))


def _role(name: str, filler: str | None, has_source: bool) -> str | None:
    """What a named tensor is to the examination; None where it is none of the tokens."""
    if filler in ("ids", "source", "labels"):
        return filler
    if _is_aside(name):
        return None
    if has_source and "label" not in name:
        if TARGET.search(name):
            return "ids"
        if SOURCE.search(name) or (TOKENS.search(name) and not LABELS.search(name)):
            return "source"
    if LABELS.search(name):
        return "labels"
    return "ids" if TOKENS.search(name) else None


def _refuse_unknown_tokens(tokens: Tensor | None, vocab_size: int) -> None:
    if tokens is None:
        return
    lowest, highest = int(tokens.min()), int(tokens.max())
    if lowest < 0 or highest >= vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise DataError(f"the batch holds token {wrong}, and the model knows 0 to {vocab_size - 1}")
