"""What kind of model it is meant to be, if nobody said: read from its names, its code, its config and its behavior."""

import inspect
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clearhead.doctor.calling import Convention
from clearhead.doctor.calling.inputs import role_of
from clearhead.doctor.calling.names import code_of
from clearhead.doctor.calling.settings import setting
from clearhead.doctor.probes.dependency import shape_of
from clearhead.doctor.probes.mentions import file_that_shifts
from clearhead.doctor.problems import attempt
from clearhead.doctor.spec import Assumption, Kind

CAUSAL_NAME = re.compile(
    r"causal|gpt|llama|mistral|sasrec|autoregress|decoder.?only|decoder.?lm|decoder$|language.?model", re.I
)
ENCODER_NAME = re.compile(r"bert|mlm|masked|classif|bidirect|electra|tagger", re.I)
CAUSAL_WORDS = re.compile(r"causal|autoregressive|next[- ]token|\btri[lu]_?\b|subsequent|future", re.I)
ENCODER_WORDS = re.compile(  # self.classifier may be any head
    r"\bmlm\b|masked language|mask_token|bidirectional|fill[- ]in|(?<!self\.)classif", re.I
)
DOCSTRING = re.compile(r'"{3}.*?"{3}', re.S)
GENERATES = (r"\[:,\s*-1\b", r"multinomial|argmax|topk", r"\bcat\(|append\(")  # all of them, in one function
MEANT = re.compile("'(causal|tri[lu]_?|subsequent)'")
CAUSAL_METHODS = ("generate", "sample", "generate_text", "decode_step", "new_cache", "init_cache")
CAUSAL_FLAG = re.compile(r"^(?!.*\bno[nt]?_?causal)\w*causal", re.I)  # attributes of modules, and arguments
SWITCHED_OFF = re.compile(r"def \w+\([^)]*causal\w*(: *bool)? *= *False", re.I)  # an option of some part

Vote = tuple[Kind, float, str]  # a kind, the weight of what suggests it, and what that is


@dataclass(frozen=True)
class Hints:
    """Votes for a kind, none of which needs the model to run. `code`: of the model's own classes, see `code_of`."""

    votes: tuple[Vote, ...]
    of_transformers: bool = False
    code: str = ""

    @property
    def lead(self) -> float:
        """By how much the votes for causal outweigh those for bidirectional."""
        return sum(weight if kind == "causal" else -weight for kind, weight, _ in self.votes)

    @property
    def kind(self) -> Kind:
        """Which of the two has more weight."""
        return "causal" if self.lead >= 0 else "bidirectional"

    def says(self, kind: Kind) -> bool:
        """Whether this kind outweighs the other clearly: nothing suggests the other, or its class is called so."""
        is_named = any(voted == kind and why.startswith("it is called") for voted, _, why in self.votes)
        return self.sure and self.kind == kind and (is_named or all(voted == kind for voted, _, _ in self.votes))

    @property
    def means_a_mask(self) -> bool:
        """Whether its code mentions a causal mask, and nothing suggests that it is bidirectional.

        A docstring may only say what an argument is for, as that of an attention which others wrote.
        """
        is_causal = all(kind == "causal" for kind, _, _ in self.votes)
        is_mentioned = any(MEANT.search(why) for _, _, why in self.votes)
        return is_causal and is_mentioned and CAUSAL_WORDS.search(DOCSTRING.sub("", self.code)) is not None

    @property
    def sure(self) -> bool:
        """Whether one outweighs the other clearly."""
        return abs(self.lead) >= 2


def hints_of(model: nn.Module) -> Hints:
    """Everything that suggests a kind before the first call."""
    votes: list[Vote] = []
    name, of_transformers = type(model).__name__, setting(model, "model_type")
    if CAUSAL_NAME.search(name) or re.search(r"(?<!masked)(?<!encoder)lm$", name, re.I):
        votes.append(("causal", 2, f"it is called {name}"))
    if not re.search(r"causal|decoder", name, re.I) and (ENCODER_NAME.search(name) or re.search("encoder", name, re.I)):
        votes.append(("bidirectional", 3 if ENCODER_NAME.search(name) else 2, f"it is called {name}"))
    if setting(model, "is_decoder") is True:
        votes.append(("causal", 2, "its config says is_decoder"))
    code = code_of(model)
    text = f"{type(model).__doc__ if type(model).__doc__ != nn.Module.__doc__ else ''} {code}"
    if _is_told(model) or SWITCHED_OFF.search(text):
        text = re.sub(r"causal|tri[lu]", "", text, flags=re.I)
    if match := CAUSAL_WORDS.search(text) or re.search("generat", text, re.I):
        votes.append(("causal", 1, f"its code says '{match[0].lower()}'"))
    if match := ENCODER_WORDS.search(text):
        votes.append(("bidirectional", 1, f"its code says '{match[0].lower()}'"))
    attributes = (item for module in model.modules() for item in vars(module).items())
    flags = {flag for name, flag in attributes if isinstance(flag, bool) and CAUSAL_FLAG.search(name)}
    if flags == {True}:
        votes.append(("causal", 2, "its modules are set to be causal"))
    elif flags == {False}:
        votes.append(("bidirectional", 3, "its modules are set not to be causal"))
    if beside := _generator_beside(model):
        votes.append(("causal", 2, f"{beside}() beside it appends what the last position predicts"))
    own = next((method for method in CAUSAL_METHODS if callable(getattr(type(model), method, None))), None)
    if own and not of_transformers and not _is_one_call(getattr(type(model), own)):
        votes.append(("causal", 2, f"it has {own}()"))
    triangle = next((name for name, buffer in model.named_buffers() if _is_triangle(buffer)), None)
    if triangle:
        votes.append(("causal", 2, f"its buffer {triangle} is a triangle"))
    is_open = sum(weight for _, weight, _ in votes) < 2 and all(kind == "causal" for kind, _, _ in votes)
    if is_open and (file := file_that_shifts(model)):
        votes.append(("causal", 2, f"{file} cuts its targets one token behind its rows"))
    return Hints(tuple(votes), bool(of_transformers), code)


def _generator_beside(model: nn.Module) -> str | None:
    """A function in a file of this model alone that appends the token which the last position predicts."""
    cls = type(model)
    beside = getattr(getattr(cls, "forward", None), "__globals__", {}).values()
    own = [value for value in beside if getattr(value, "__module__", None) == cls.__module__]
    parts = {type(module) for module in model.modules()}
    if any(isinstance(value, type) and issubclass(value, nn.Module) and value not in parts for value in own):
        return None  # it may be about another model
    for function in filter(inspect.isfunction, own):
        with suppress(OSError, TypeError):
            code = inspect.getsource(function)
            if all(re.search(pattern, code) for pattern in GENERATES):
                return function.__name__
    return None


def _is_one_call(method: Callable[..., object]) -> bool:
    """Whether it calls the model and has no loop: then it writes all tokens at once."""
    with suppress(OSError, TypeError):
        code = re.sub(r"#[^\n]*", "", DOCSTRING.sub("", inspect.getsource(method)))
        return re.search(r"\bself(\.forward)?\(", code) is not None and not re.search(r"\b(for|while)\b", code)
    return False


def _is_told(model: nn.Module) -> bool:
    """Whether an argument of the model's class decides if it is causal, with false as its default."""
    try:
        parameters = inspect.signature(type(model)).parameters
    except (TypeError, ValueError):
        return False
    return any(CAUSAL_FLAG.search(name) and p.default is False for name, p in parameters.items())


def _is_triangle(buffer: torch.Tensor) -> bool:
    if buffer.dim() < 2 or buffer.shape[-1] != buffer.shape[-2] or buffer.shape[-1] < 3:
        return False
    part = buffer.reshape(-1, *buffer.shape[-2:])[0]
    part = part.bool() if not part.is_floating_point() or part.isfinite().all() else part.isinf()
    is_one_sided = torch.equal(part, part.tril()) or torch.equal(part, part.triu())
    return is_one_sided and bool(part.any()) and not bool(part.all())


def _looks_mostly_back(alive: torch.Tensor) -> bool:
    """Whether a logit reads at least twice as far back as ahead, and not far ahead, in a matrix (T, T)."""
    distances = [int(i - j) for i, j in alive.nonzero()]
    back, ahead = max(distances, default=-1), -min(distances, default=0)
    return bool(distances) and ahead <= len(alive) // 4 and back >= 2 * max(1, ahead)


def assumed_kind(hints: Hints, convention: Convention, dependencies: Callable[[], Tensor]) -> Assumption:
    """The kind, with its reasons, and what the other kind would mean.

    Args:
        dependencies: which token moves which logit, (T, T); computed only if nothing else decides.
    """
    if convention.gives != "tokens":
        return Assumption("kind", "bidirectional", ("it gives one output for each row",))
    is_pair = convention.has_source and not (convention.reads_numbers and hints.lead <= 0)  # else two of a kind
    if is_pair:
        return Assumption("kind", "seq2seq", ("it reads a source and a target",))
    votes = list(hints.votes)
    with attempt() as attempted:
        alive = dependencies()
    if attempted.failed:  # it cannot be run on so many rows: what was read before the first call must do
        return Assumption("kind", hints.kind, tuple(reason for kind, _, reason in votes if kind == hints.kind))
    shape, _ = shape_of(alive)
    if shape == "blocks" or (shape == "prefix" and convention.reads_numbers):
        return Assumption("kind", "bidirectional", ("positions see one another in blocks, and the blocks before",))
    if convention.has_source and shape != "full":
        return Assumption("kind", "seq2seq", ("it reads a source and a target",))
    is_meant = any(MEANT.search(why) for _, _, why in votes)
    future = alive.triu(1)
    share = float(future.sum()) / max(1, len(alive) * (len(alive) - 1) / 2)
    if shape in ("causal", "window", "strict", "gaps", "alone"):
        votes.append(("causal", 2, "no token reaches an earlier position"))
    elif share < 0.5 or shape == "reversed":
        reason = f"only {share:.0%} of the future reaches back" if 0 < share < 0.5 else "it looks one way"
        votes.append(("causal", 3, reason))
    elif _looks_mostly_back(alive):
        votes.append(("causal", 2, "tokens look much further back than ahead"))
    elif shape == "full" and sum(role_of(filler) == "ids" for _, filler in convention.call) > 1:
        votes.append(("bidirectional", 3, "every place of its inputs reaches every other"))
    elif shape == "full" and (convention.reads_pictures or (convention.reads_numbers and not is_meant)):
        votes.append(("bidirectional", 3, f"it reads {convention.reads}, and every place reaches every other"))
    elif shape == "full":
        is_named = any(kind == "bidirectional" and weight == 3 for kind, weight, _ in votes)
        votes.append(("bidirectional", 2 if is_named else 0.5, "every token reaches every position"))
    if hints.of_transformers and shape == "full":
        votes.append(("bidirectional", 0.5, "transformers builds it like this"))
    kind: Kind = "causal" if Hints(tuple(votes)).lead > 0 else "bidirectional"
    other = "bidirectional" if kind == "causal" else "causal"
    votes.sort(key=lambda vote: -vote[1])
    reasons = [reason for voted, _, reason in votes if voted == kind]
    reasons += [f"although {reason}" for voted, _, reason in votes if voted != kind][:1]
    fits = bool(future.any()) == (other == "bidirectional")
    otherwise = f"as {other} (--kind {other}) its dependencies would be {'in order' if fits else 'a fault'}"
    return Assumption("kind", kind, tuple(reasons), otherwise)
