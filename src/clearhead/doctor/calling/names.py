"""What the names of `forward`'s parameters suggest. A suggestion is only an order of trials: behaviour decides."""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product

from torch import nn

from clearhead.doctor.calling.inputs import CAUSAL_FORMS, KEEP_FORMS

TRIALS = 150  # of ways to call a model
SOURCE = re.compile(r"^(src|source|enc|encoder|memory)")
TARGET = re.compile(r"^(tgt|trg|target|dec|decoder)")
MASK = re.compile(r"mask|padding|(^|_)pads?$|lengths?$|_lens?$")
PADDING = re.compile(r"pad|attention_mask|key|lengths?$|_lens?$")
LENGTHS = re.compile(r"lengths?$|_lens?$")
ANY = {
    "mask",
    "ids",
    "id",
    "input",
    "inputs",
    "attention",
    "padding",
    "pad",
    "key",
    "tokens",
    "lengths",
    "length",
    "len",
}
STYLES = (  # who may see whom, and which tokens are real, as they go together
    ("True sees, (B, 1, T, T)", "1 keeps"),
    ("True sees, (B, 1, T, T)", "True keeps, (B, 1, 1, T)"),
    ("True sees, (B, T, T)", "True keeps, (B, 1, T)"),
    ("True sees, (T, T)", "True keeps"),
    ("added, (T, T)", "True drops"),
    ("True is hidden, (T, T)", "True drops"),
    ("True is hidden, (B, 1, T, T)", "True drops, (B, 1, 1, T)"),
    ("True is hidden, (B, T, T)", "True drops, (B, 1, T)"),
)
LABELS = re.compile(r"label|target|^y$|^tgt$|^trg$")
CACHE = re.compile(r"cache|past|(^|_)kvs?($|_)|^mems?$|(?<!hidden_)state")
POSITIONS = re.compile(r"pos")
POSITION_TABLE = re.compile(  # of parameters and buffers
    r"(?<!com)(?<!pro)pos(?!t|itive|(ition)?_?(wise|ff))|rotary|rope|wpe|(^|[._])pe($|[._])|alibi|relative|freq"
    r"|(^|[._])(cos|sin)($|[._])",
    re.I,
)
SEGMENTS = re.compile(r"token_type|segment|seg_ids")
START = re.compile(r"start|offset")
FLAG = re.compile(r"^(use|return|output|is|training|need)_?")
TOKENS = re.compile(
    r"^(x|y|idx|ids?|inp|inputs?|tokens?|seq|sequences?|text|batch)$|_ids$|_tokens$|_inputs?$|tokens$|^input"
)
CONTAINER = re.compile(r"^(batch|inputs?|data|features|sample|x|kwargs)$")
TIME_FIRST = re.compile(
    r"time.?first|\((seq|seq_len|sequence|T|time)\s*,\s*(batch|batch_size|B|bsz)\b|"
    r"(?<!,)(?<!, )\b(seq_len|T)\s*,\s*\w+\s*=\s*\w+\.(shape|size)",
    re.I,
)

Call = tuple[tuple[str, str], ...]  # (parameter, name of its filler), in order
PAD_NAMES = (
    "pad_id", "pad_idx", "pad_token_id", "padding_idx", "pad_token", "pad", "tgt_pad_idx", "trg_pad_idx", "tgt_pad_id",
    "trg_pad_id", "target_pad_id", "PAD",
)  # fmt: skip


def parameters_of(model: nn.Module) -> list[inspect.Parameter]:
    """What `forward` takes, variable ones left out."""
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [parameter for parameter in signature.parameters.values() if parameter.kind not in variable]


def suggestions(model: nn.Module, named: Sequence[str] = ()) -> Iterator[Call]:
    """Ways to call the model, the likeliest first.

    Args:
        named: what a batch of the person calls its tensors.
    """
    parameters = parameters_of(model)
    required = [p.name for p in parameters if p.default is inspect.Parameter.empty]
    optional = [p.name for p in parameters if p.default is not inspect.Parameter.empty]
    yield from _without_targets(parameters, required, optional, named)
    tokens = [name for name in required or optional[:1] if not _is_aside(name)]
    targets = [name for name in optional if LABELS.search(name) and not _is_aside(name)]
    if (
        len(tokens) == 1 and len(required) < 2
    ):  # some make the logits of the last place alone where nobody tells targets
        yield from (((tokens[0], "ids"), (name, "labels")) for name in targets if name != tokens[0])


def _without_targets(
    parameters: Sequence[inspect.Parameter], required: Sequence[str], optional: Sequence[str], named: Sequence[str]
) -> Iterator[Call]:
    optional_inputs = [name for name in optional if name in named and not _is_aside(name) and not LABELS.search(name)]
    if optional_inputs:
        yield from _calls([p.name for p in parameters if p.name in (*required, *optional_inputs)], required)
    if not required:
        strong = [name for name in optional if re.search(r"^(decoder_)?input_ids$|^(src|tgt|ids|idx|tokens|x)$", name)]
        yield from _calls(strong or optional[:1], strong)
        if not parameters:
            yield (("", "ids"),)
            yield (("", "source"), ("", "ids"))
        return
    chosen = [name for name in optional if re.fullmatch(r"(decoder_input_ids|tgt|target_ids|decoder_input)", name)]
    if chosen:
        yield from _calls([*required, chosen[0]], required)
    yield from _calls(required, required)


def _calls(names: Sequence[str], required: Sequence[str]) -> Iterator[Call]:
    tokens = [name for name in names if not _is_aside(name)]
    for roles in _token_roles(tokens):
        choices = [[roles[name]] if name in roles else _fillers(name, roles) for name in names]
        for arguments in _in_one_style(names, roles):
            first = zip(names, choices, strict=True)
            yield tuple((name, arguments.get(name, likeliest[0])) for name, likeliest in first)
        for fillers in islice(product(*choices), TRIALS):
            yield tuple(zip(names, fillers, strict=True))


def _is_aside(name: str) -> bool:
    """Whether a parameter is no sequence of tokens."""
    if TOKENS.search(name) and not (POSITIONS.search(name) or SEGMENTS.search(name) or MASK.search(name)):
        return False
    return any(kind.search(name) for kind in (MASK, CACHE, POSITIONS, SEGMENTS, START, FLAG))


def _token_roles(names: Sequence[str]) -> Iterator[dict[str, str]]:
    if len(names) == 1:
        yield {names[0]: "ids"}
    elif len(names) == 2:
        first, second = names
        if TARGET.search(first) or SOURCE.search(second):
            yield {first: "ids", second: "source"}
        yield {first: "source", second: "ids"}
        if LABELS.search(second):
            yield {first: "ids", second: "labels"}
        yield {first: "ids", second: "source"}
    elif names:
        yield dict(zip(names, ("source", "ids", "labels"), strict=False))


def filler_for(name: str, *, has_source: bool) -> str:
    """What a batch holds under a name that nobody has said more of.

    Raises:
        KeyError: the name says nothing.
    """
    of_source = has_source and not TARGET.search(name)
    if MASK.search(name) or "pad" in name:
        side = "source keep" if of_source else "keep"
        form = "lengths" if LENGTHS.search(name) else "True drops" if "pad" in name else "1 keeps"
        return f"{side}: {form}"
    if SEGMENTS.search(name):
        return "zeros like ids"
    if POSITIONS.search(name):
        return "positions (B, T)"
    if SOURCE.search(name):
        return "source" if has_source else "ids"
    if TARGET.search(name) or LABELS.search(name) or TOKENS.search(name):
        return "ids"
    raise KeyError(name)


def is_of_source(mask: str, roles: Mapping[str, str]) -> bool:
    """Whether a mask is one of the source: by what its name shares with that of tokens, as query_mask and query_ids.

    Args:
        roles: of the parameters that hold tokens, ids or source.
    """
    if "source" not in roles.values():
        return False
    shared = {role for name, role in roles.items() if (_words(mask) & _words(name)) - ANY}
    return "source" in shared if len(shared) == 1 else not TARGET.search(mask)


def _words(name: str) -> set[str]:
    return {*re.findall(r"[a-z]+|\d+", name.lower())}


def _in_one_style(names: Sequence[str], roles: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Several masks at once, each in the form that it has where the others have theirs: torch's, or those of a book."""
    masks = [name for name in names if MASK.search(name)]
    if len(masks) < 2:
        return
    drops_first = any("padding" in name for name in masks)
    for causal, keep in sorted(STYLES, key=lambda style: ("drops" in style[1]) != drops_first):
        for closes in (True, False):
            arguments = {}
            for name in masks:
                source = is_of_source(name, roles)
                side = "source keep: " if source else "keep: "
                beside = any(
                    other != name and PADDING.search(other) and _words(name) < _words(other) for other in masks
                )
                if LENGTHS.search(name):
                    arguments[name] = f"{side}lengths"
                elif PADDING.search(name) or (source and not beside):
                    arguments[name] = f"{side}{keep}"
                elif source:
                    arguments[name] = "None"  # of who sees whom in the source, beside one of its padding
                else:
                    arguments[name] = f"causal: {causal}" if closes else f"{side}{keep}"
            yield arguments


def _fillers(name: str, roles: Mapping[str, str]) -> list[str]:
    """For a required parameter that holds no tokens, what it may be given, the likeliest first."""
    has_source = "source" in roles.values()
    if LENGTHS.search(name):
        return [f"{'source keep' if is_of_source(name, roles) else 'keep'}: lengths", "None"]
    if MASK.search(name):
        about_source = is_of_source(name, roles)
        keep = [f"{'source keep' if about_source else 'keep'}: {form}" for form in KEEP_FORMS]
        if about_source or PADDING.search(name):
            return ["None", *keep[3:], *keep[:3]] if about_source and not PADDING.search(name) else [*keep, "None"]
        causal = [f"causal: {form}" for form in CAUSAL_FORMS]
        return [*causal[3:5], *causal[:3], *causal[5:], *keep, "None"] if has_source else [*causal, *keep, "None"]
    if SEGMENTS.search(name):
        return ["zeros like ids"]
    if START.search(name):
        return ["0"]
    if POSITIONS.search(name):
        return ["positions (B, T)", "positions (T)", "0"]
    if CACHE.search(name):
        return ["None"]
    return ["False", "None"]


def code_of(model: nn.Module) -> str:
    """The source of the model's own classes and of what they call, as far as it is the person's and not a library's."""
    sources = []
    for cls in {base for module in model.modules() for base in type(module).__mro__[:-1]}:
        if cls.__module__.startswith(("torch.", "transformers.", "clearhead.")):
            continue
        try:
            code = inspect.getsource(cls)
            sources += [code, *_called_by(cls, code)]
        except (OSError, TypeError):
            continue
    return "\n".join(dict.fromkeys(sources))


def _called_by(cls: type, code: str) -> list[str]:
    """The source of the functions beside a class that its code names."""
    beside = getattr(getattr(cls, "forward", None), "__globals__", {}).values()
    own = [function for function in beside if inspect.isfunction(function) and function.__module__ == cls.__module__]
    return [inspect.getsource(function) for function in own if re.search(rf"\b{function.__name__}\(", code)]


def says_time_first(model: nn.Module) -> bool:
    """Whether its code speaks of ids as (time, batch)."""
    return bool(TIME_FIRST.search(code_of(model)))
