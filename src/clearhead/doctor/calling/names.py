"""What the names of `forward`'s parameters suggest. They only set the order of trials: behavior decides."""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice, product

from torch import nn

from clearhead.doctor.calling.inputs import CAUSAL_FORMS, KEEP_FORMS
from clearhead.doctor.calling.settings import settings_of

TRIALS = 150  # of ways to call a model
SOURCE = re.compile(r"^(src|source|enc|encoder|memory)")
TARGET = re.compile(r"^(tgt|trg|target|dec|decoder)")
MASK = re.compile(r"mask|padding|(^|_)pads?$|^(is_)?valid|lengths?$|_lens?$")
PADDING = re.compile(r"pad|attention_mask|key|valid|keep|lengths?$|_lens?$")
LENGTHS = re.compile(r"lengths?$|_lens?$")
ANY = {  # words that say nothing about whose a mask is
    "mask", "ids", "id", "input", "inputs", "attention", "padding", "pad", "key", "tokens", "lengths", "length", "len",
}  # fmt: skip
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
SEGMENTS = re.compile(r"token_type|segment|(^|_)segs?(_|$)|type_ids")
DOCUMENTS = re.compile(r"^(doc|document|example|sample|sequence|seq|pack)s?_?(ids?|idx|index|indices)$")
START = re.compile(r"start|offset")
USERS = re.compile(r"^users?(_ids?)?$")  # one for each row
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
OF_TYPES = {
    "bool": ["False", "True"],
    "int": ["0", "1", "2", "4"],
    "float": ["0.5", "1.0", "0"],
    "str": ["text"],
    "device": ["device"],
}
OF_ROWS = re.compile(r"^(t|y|c|noise|sigma|cond|class\w*|labels?|time_?\w*|step\w*|index)$|" + USERS.pattern)

Call = tuple[tuple[str, str], ...]  # (parameter, name of its filler), in order
PAD_ID = re.compile(r"(^|_)pad(ding)?_?(token_?)?(id|idx|index)$|^pad(_token)?$", re.I)
SIDES = {"src", "source", "enc", "encoder"}, {"tgt", "trg", "target", "dec", "decoder"}


def signature_of(model: nn.Module) -> list[inspect.Parameter]:
    """What `forward` takes; nothing if that cannot be told."""
    return arguments_of(model.forward)


def arguments_of(call: Callable[..., object]) -> list[inspect.Parameter]:
    """What a function or a class takes; nothing if that cannot be told."""
    with suppress(TypeError, ValueError):
        return list(inspect.signature(call).parameters.values())
    return []


def parameters_of(model: nn.Module) -> list[inspect.Parameter]:
    """What `forward` takes, except for *args and **kwargs."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [parameter for parameter in signature_of(model) if parameter.kind not in variable]


def is_told_more(model: nn.Module) -> bool:
    """Whether its caller may give `forward` what it names nowhere, and it names no mask: one may be meant."""
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature_of(model))
    return takes_any and not any(MASK.search(p.name) for p in parameters_of(model))


def pad_ids_of(model: nn.Module, vocab_size: int, *, source: bool | None = None) -> Iterator[tuple[str, int]]:
    """What says which token fills up rows, and that token: config, attributes, arguments' defaults and embeddings.

    Args:
        source: what is named after the target is not the source's, nor the reverse; None if there is one side only.
    """
    parts = [(name, part) for name, part in model.named_modules() if not is_of_a_library(type(part))]
    holders: list[tuple[str, Mapping[str, object]]] = [("", vars(model)), ("its config's ", settings_of(model))]
    holders += [(f"{name}.", vars(part)) for name, part in parts if name]
    holders += [
        ("by default ", {p.name: p.default for p in arguments_of(call)}) for call in (type(model), model.forward)
    ]
    named = (
        (f"{where}{name}", value) for where, held in holders for name, value in held.items() if PAD_ID.search(name)
    )
    tables = ((f"{name}.padding_idx", m.padding_idx) for name, m in model.named_modules() if _reads(m, vocab_size))
    wrong = set() if source is None else SIDES[source]
    for name, value in chain(named, tables):
        is_id = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocab_size
        if is_id and not wrong & _words(name):
            yield name, value


def _reads(module: nn.Module, vocab_size: int) -> bool:
    return isinstance(module, nn.Embedding) and module.num_embeddings == vocab_size


def is_of_a_library(code: object) -> bool:
    """Whether a class or a function is torch's, transformers' or this library's, and not a person's own."""
    return str(getattr(code, "__module__", "")).startswith(("torch.", "transformers.", "clearhead."))


def suggestions(model: nn.Module, named: Sequence[str] = ()) -> Iterator[Call]:
    """Ways to call the model, the likeliest first.

    Args:
        named: the names of the tensors in a batch of the person.
    """
    parameters = parameters_of(model)
    required = [p.name for p in parameters if p.default is p.empty]
    optional = [p.name for p in parameters if p.default is not p.empty]
    chosen = [name for name in optional if name in named and not is_aside(name) and not LABELS.search(name)]
    if chosen:
        yield from _calls([p.name for p in parameters if p.name in (*required, *chosen)], required)
    if required:
        targets = [name for name in optional if re.fullmatch(r"decoder_input_ids|tgt|target_ids|decoder_input", name)]
        if targets:
            yield from _calls([*required, targets[0]], required)
        yield from _calls(required, required)
    else:
        strong = [name for name in optional if re.search(r"^(decoder_)?input_ids$|^(src|tgt|ids|idx|tokens|x)$", name)]
        yield from _calls(strong or optional[:1], strong)
        if not parameters:
            yield (("*0", "ids"),)
            yield (("*0", "source"), ("*1", "ids"))
    tokens = [name for name in required or optional[:1] if not is_aside(name)]
    labels = [name for name in optional if LABELS.search(name) and not is_aside(name)]
    if len(tokens) == 1 and len(required) < 2:  # without targets, some models give the logits of the last token alone
        yield from (((tokens[0], "ids"), (name, "labels")) for name in labels if name != tokens[0])


def _calls(names: Sequence[str], required: Sequence[str]) -> Iterator[Call]:
    tokens = [name for name in names if not is_aside(name)]
    for roles in _token_roles(tokens):
        known = {name: "ones like ids" for name in names if is_positive(name, names)} | roles
        choices = [[known[name]] if name in known else fillers_of_aside(name, roles) for name in names]
        for arguments in _in_one_style(names, roles):
            first = zip(names, choices, strict=True)
            yield tuple((name, arguments.get(name, fillers[0])) for name, fillers in first)
        for fillers in islice(product(*choices), TRIALS):
            yield tuple(zip(names, fillers, strict=True))


def is_positive(name: str, names: Sequence[str]) -> bool:
    """Whether a parameter holds items that do come next, and another one, named alike, sampled ones that do not."""
    return "pos" in name and name.replace("pos", "neg") in names


def _is_pad_id(name: str) -> bool:
    """Whether a parameter takes the id of the padding token, and not a mask."""
    return bool(PAD_ID.search(name)) and name.endswith(("id", "idx", "index"))


def is_aside(name: str) -> bool:
    """Whether a parameter holds something other than a sequence of tokens."""
    if USERS.search(name) or _is_pad_id(name):
        return True
    aside = (POSITIONS, SEGMENTS, DOCUMENTS, MASK)
    if TOKENS.search(name) and not any(kind.search(name) for kind in aside):
        return False
    return name == "device" or any(kind.search(name) for kind in (*aside, CACHE, START, FLAG))


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
        if not TARGET.search(second):
            yield {first: "ids", second: "zeros like ids"}
    elif names:
        yield dict(zip(names, ("source", "ids", "labels"), strict=False))


def is_of_source(mask: str, roles: Mapping[str, str]) -> bool:
    """Whether a mask is the source's: its name shares a word with that of tokens, like query_mask with query_ids.

    Args:
        roles: ids or source, by the parameters that hold tokens.
    """
    if "source" not in roles.values():
        return False
    shared = {role for name, role in roles.items() if (_words(mask) & _words(name)) - ANY}
    return "source" in shared if len(shared) == 1 else not TARGET.search(mask)


def _words(name: str) -> set[str]:
    return {*re.findall(r"[a-z]+|\d+", name.lower())}


def _in_one_style(names: Sequence[str], roles: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Several masks at once, all in forms that go together: torch's, or those of a textbook."""
    masks = [name for name in names if MASK.search(name)]
    if len(masks) < 2:
        return
    drops_first = any("padding" in name for name in masks)
    for causal, keep in sorted(STYLES, key=lambda style: ("drops" in style[1]) != drops_first):
        for closes in (True, False):
            yield {name: _in_style(name, masks, roles, causal if closes else None, keep) for name in masks}


def _in_style(name: str, masks: Sequence[str], roles: Mapping[str, str], causal: str | None, keep: str) -> str:
    """One of several masks: of padding in the form `keep`, or of the future in the form `causal`."""
    source = is_of_source(name, roles)
    side = "source keep: " if source else "keep: "
    beside = any(other != name and PADDING.search(other) and _words(name) < _words(other) for other in masks)
    if LENGTHS.search(name):
        return f"{side}lengths"
    if PADDING.search(name) or (source and not beside):
        return f"{side}{keep}"
    if source:
        return "None"  # of who sees whom in the source, beside one of its padding
    return f"causal: {causal}" if causal else f"{side}{keep}"


def fillers_of_aside(name: str, roles: Mapping[str, str] = {}) -> list[str]:
    """What a required parameter that holds no tokens may be given, the likeliest first."""
    has_source, of_source = "source" in roles.values(), is_of_source(name, roles)
    side = "source keep" if of_source else "keep"
    if LENGTHS.search(name):
        return [f"{side}: lengths", "None"]
    if MASK.search(name):
        keep, causal = [f"{side}: {form}" for form in KEEP_FORMS], [f"causal: {form}" for form in CAUSAL_FORMS]
        if PADDING.search(name):
            return [*keep, "None"]
        if of_source:
            return ["None", *keep[3:], *keep[:3]]
        return [*causal[3:5], *causal[:3], *causal[5:], *keep, "None"] if has_source else [*causal, *keep, "None"]
    if SEGMENTS.search(name) or DOCUMENTS.search(name):
        return ["zeros like ids"]
    if USERS.search(name):
        return ["zeros (B)"]
    if START.search(name) or _is_pad_id(name):
        return ["0"]
    if POSITIONS.search(name):
        of = "source " if of_source else ""
        return [f"{of}positions (B, T)", f"{of}positions (T)", "0"]
    if name == "device":
        return ["device"]
    return ["None"] if CACHE.search(name) else ["False", "None"]


def likeliest(name: str) -> str:
    """What a parameter probably holds."""
    if MASK.search(name) and "pad" in name:
        return "keep: True drops"
    return fillers_of_aside(name)[0] if is_aside(name) else "ids"


def code_of(model: nn.Module) -> str:
    """The source of the model's own classes and of the functions that they call, without that of libraries."""
    sources: list[str] = []
    for cls in {base for module in model.modules() for base in type(module).__mro__[:-1]}:
        with suppress(OSError, TypeError):
            sources += [] if is_of_a_library(cls) else _code_of_class(cls)
    return "\n".join(dict.fromkeys(sources))


def _code_of_class(cls: type) -> list[str]:
    """The source of a class, and of the functions beside it that it mentions."""
    code = inspect.getsource(cls)
    beside = getattr(getattr(cls, "forward", None), "__globals__", {}).values()
    own = [function for function in beside if inspect.isfunction(function) and function.__module__ == cls.__module__]
    return [code, *(inspect.getsource(f) for f in own if re.search(rf"\b{f.__name__}\(", code))]


def file_of(model: nn.Module) -> str:
    """The source of the file in which the model's class is; empty if it is a library's, or cannot be read."""
    if is_of_a_library(type(model)):
        return ""
    with suppress(OSError, TypeError, KeyError):
        return inspect.getsource(sys.modules[type(model).__module__])
    return ""


def says_time_first(model: nn.Module) -> bool:
    """Whether its code mentions ids as (time, batch)."""
    return bool(TIME_FIRST.search(code_of(model)))
