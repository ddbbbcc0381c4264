"""What a model is meant to be, where nobody said: read from its names, its code, its config and what it does."""

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from clearhead.doctor.calling.names import code_of
from clearhead.doctor.probes.dependency import shape_of
from clearhead.doctor.spec import Assumption, Kind

if TYPE_CHECKING:
    from clearhead.doctor.subject import Subject

CAUSAL_NAME = re.compile(
    r"causal|gpt|llama|mistral|autoregress|decoder.?only|decoder.?lm|decoder$|language.?model", re.I
)
ENCODER_NAME = re.compile(r"bert|mlm|masked|classif|bidirect|electra|tagger", re.I)
CAUSAL_WORDS = re.compile(r"causal|autoregressive|next[- ]token|\btril\b|\btriu\b|generat|future", re.I)
ENCODER_WORDS = re.compile(  # self.classifier may be any head
    r"\bmlm\b|masked language|mask_token|bidirectional|fill[- ]in|(?<!self\.)classif", re.I
)
CAUSAL_METHODS = ("generate", "sample", "generate_text", "decode_step", "new_cache", "init_cache")
CAUSAL_FLAGS = ("causal", "is_causal")  # attributes of modules


@dataclass(frozen=True)
class Hints:
    """Votes with their reasons. Nothing of it needs the model to run."""

    votes: tuple[tuple[Kind, float, str], ...]

    def total(self, kind: Kind) -> float:
        """The weight of what speaks for it."""
        return sum(weight for voted, weight, _ in self.votes if voted == kind)

    @property
    def kind(self) -> Kind:
        """Which of the two readings has more weight."""
        return "causal" if self.total("causal") >= self.total("bidirectional") else "bidirectional"

    @property
    def sure(self) -> bool:
        """Whether one reading outweighs the other clearly."""
        return abs(self.total("causal") - self.total("bidirectional")) >= 2


def hints_of(model: nn.Module) -> Hints:
    """Everything that speaks for a kind before the first call."""
    votes: list[tuple[Kind, float, str]] = []
    name = type(model).__name__
    if CAUSAL_NAME.search(name) or re.search(r"(?<!masked)(?<!encoder)lm$", name, re.I):
        votes.append(("causal", 2, f"it is called {name}"))
    if not re.search(r"causal|decoder", name, re.I):
        if ENCODER_NAME.search(name):
            votes.append(("bidirectional", 3, f"it is called {name}"))
        elif re.search("encoder", name, re.I):
            votes.append(("bidirectional", 2, f"it is called {name}"))
    config = getattr(model, "config", None)
    if getattr(config, "is_decoder", False) is True:
        votes.append(("causal", 2, "its config says is_decoder"))
    text = f"{type(model).__doc__ if type(model).__doc__ != nn.Module.__doc__ else ''} {code_of(model)}"
    if _is_asked(model):
        text = re.sub("causal", "", text, flags=re.I)
    for kind, pattern, weight in (("causal", CAUSAL_WORDS, 1.0), ("bidirectional", ENCODER_WORDS, 1.0)):
        match = pattern.search(text)
        if match:
            votes.append((kind, weight, f"its code says '{match[0].lower()}'"))  # type: ignore[arg-type]
    flags = (vars(module).get(name) for module in model.modules() for name in CAUSAL_FLAGS)
    values = {flag for flag in flags if isinstance(flag, bool)}
    if values == {True}:
        votes.append(("causal", 2, "its modules are told to be causal"))
    elif values == {False}:
        votes.append(("bidirectional", 3, "its modules are told not to be causal"))
    own = [method for method in CAUSAL_METHODS if callable(getattr(type(model), method, None))]
    if own and not hasattr(config, "model_type"):
        votes.append(("causal", 2, f"it has {own[0]}()"))
    for buffer_name, buffer in model.named_buffers():
        if _is_triangle(buffer):
            votes.append(("causal", 2, f"its buffer {buffer_name} is a triangle"))
            break
    return Hints(tuple(votes))


def _is_asked(model: nn.Module) -> bool:
    """Whether the model's own class is told whether to be causal, and is not unless it is told so."""
    try:
        parameters = inspect.signature(type(model)).parameters
    except (TypeError, ValueError):
        return False
    return any(parameters[name].default is False for name in CAUSAL_FLAGS if name in parameters)


def _is_triangle(buffer: torch.Tensor) -> bool:
    if buffer.dim() < 2 or buffer.shape[-1] != buffer.shape[-2] or buffer.shape[-1] < 3:
        return False
    part = buffer.reshape(-1, *buffer.shape[-2:])[0]
    part = part.bool() if not part.is_floating_point() or part.isfinite().all() else part.isinf()
    return (
        bool(part.any())
        and (bool((part == part.tril()).all()) or bool((part == part.triu()).all()))
        and not bool(part.all())
    )


def _looks_mostly_back(alive: torch.Tensor) -> bool:
    """Whether a logit reads at least twice as far back as ahead, and ahead not far, in a matrix (T, T)."""
    places, tokens = alive.nonzero(as_tuple=True)
    if not len(places):
        return False
    back, ahead = int((places - tokens).max()), int((tokens - places).max())
    return ahead <= len(alive) // 4 and back >= 2 * max(1, ahead)


def assumed_kind(subject: "Subject") -> Assumption:
    """The kind, with its reasons, and what the other reading would lead to."""
    if subject.convention.has_source:
        return Assumption("kind", "seq2seq", ("it reads a source and a target",))
    votes = list(subject.hints.votes)
    shape, _ = shape_of(subject.matrix.alive)
    alive = subject.matrix.alive
    future = alive.triu(1)
    share = float(future.sum()) / max(1, len(alive) * (len(alive) - 1) / 2)
    if shape in ("causal", "window", "strict", "gaps", "alone"):
        votes.append(("causal", 2, "no token reaches an earlier position"))
    elif share < 0.5 or shape == "reversed":
        votes.append(("causal", 3, f"only {share:.0%} of the future reaches back" if share else "it looks one way"))
    elif _looks_mostly_back(alive):
        votes.append(("causal", 2, "tokens look much further back than ahead"))
    elif shape == "full":
        votes.append(("bidirectional", 0.5, "every token reaches every position"))
    if getattr(getattr(subject.original, "config", None), "model_type", "") and shape == "full":
        votes.append(("bidirectional", 0.5, "transformers builds it so"))
    causal = sum(weight for kind, weight, _ in votes if kind == "causal")
    both = sum(weight for kind, weight, _ in votes if kind == "bidirectional")
    kind: Kind = "causal" if causal > both else "bidirectional"
    other = "bidirectional" if kind == "causal" else "causal"
    votes.sort(key=lambda vote: -vote[1])
    reasons = tuple(reason for voted, _, reason in votes if voted == kind)
    against = tuple(reason for voted, _, reason in votes if voted != kind)
    fits = {"causal": not bool(future.any()), "bidirectional": bool(future.any())}[other]
    otherwise = f"as {other} (--kind {other}) its dependencies would be {'in order' if fits else 'a fault'}"
    assumption = Assumption("kind", kind, reasons, otherwise)
    return assumption if not against else Assumption("kind", kind, (*reasons, f"although {against[0]}"), otherwise)
