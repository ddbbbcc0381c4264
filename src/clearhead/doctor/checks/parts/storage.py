"""Parameters that are not what they seem: shared, copied, unregistered, untied."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import combinations, pairwise

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.outputs import tensors
from clearhead.doctor.calling.settings import setting
from clearhead.doctor.checks.base import Finding, Status, Subject, Where, finding, model_check
from clearhead.doctor.checks.parts.effects import moves
from clearhead.doctor.probes.flow import Flow, made_by, read_by
from clearhead.doctor.probes.freshness import freshness
from clearhead.doctor.probes.locations import is_own, owner_of, owners_of, place_of_module
from clearhead.doctor.probes.norms import is_leaf_norm, is_norm
from clearhead.doctor.probes.products import CARRYING, KEEPING
from clearhead.doctor.probes.tensors import are_same
from clearhead.doctor.probes.tracing import caller

LAYERS = re.compile(r"(n|num|nr|number)_?(of_)?(\w+_)?(layers?|blocks?)|layers|blocks|depth", re.I)
SHARED = re.compile(r"shar(e|ing)|\btie[ds]?\b|tying|albert|universal|recur|loop|reus|iterat", re.I)
NOISE, UNLIKE = 64, 0.25  # numbers that show whether they were drawn, and how alike neighbors among them may be
DRAWN = 2  # a row of a matrix with more different numbers than that was drawn at random


@model_check("I02", "storage", order=20, covers=("I01", "I05", "E01", "N08"), needs=("finite",))
def storage(subject: Subject) -> list[Finding]:
    """Every module is registered and used once, no two layers start equal, and tied weights are one tensor."""
    is_fresh = freshness(subject.fresh, subject.spec.fresh)[0] is not False
    findings = _norms_called_again(subject)
    findings += [twice for twice in _held_twice(subject.fresh) if twice.id not in {called.id for called in findings}]
    findings += (
        _called_for_all(subject)
        + _called_as_often_as_told(subject)
        + (_unregistered(subject) or _listed(subject) or _plain_tensors(subject))
    )
    return findings + _untied(subject, is_fresh) + (_copies(subject.fresh) if is_fresh else [])


def _held_twice(model: nn.Module) -> list[Finding]:
    """One module several times in one list, or one norm under two names."""
    findings: dict[str, Finding] = {}
    for path, owner in model.named_modules():
        children = {
            name: child for name, child in owner._modules.items() if child is not None and [*child.parameters()]
        }
        times = Counter(map(id, children.values()))
        shared = [name for name, child in children.items() if times[id(child)] > 1]
        if shared and isinstance(owner, (nn.ModuleList, nn.Sequential)):
            modules = "one module" if len(times) == 1 else f"only {len(times)} modules"
            witness = f"the {len(children)} places of {path or 'the list'} hold {modules}"
            findings.setdefault("I02", finding("I02", witness, where=place_of_module(f"{path}.0", owner[0])))
        elif shared and is_norm(children[shared[0]]):
            witness, where = f"{path}: {' and '.join(shared)} are one module", Where(path, type(owner).__name__)
            findings.setdefault("N08", finding("N08", witness, where=where, status="warn"))
    return list(findings.values())


def _norms_called_again(subject: Subject) -> list[Finding]:
    """One norm reads what one sublayer made and is read by another, and then again for two others.

    A layer that is called several times on purpose has the same sublayers around its norm each time; and queries and
    keys, which one norm may serve, are not made of each other.
    """
    flow, spans = subject.inside.flow, _spans_of_norms(subject)
    for spans_of_one in spans.values():
        for (start, end), (later, last) in combinations(spans_of_one, 2):
            before, after = (flow.calls[index] for index in (end, later))
            if not any(flow.comes_from(part, later, output) for part in read_by(after) for output in made_by(before)):
                continue
            around_both = [
                (_feeders(flow, begin), _consumers(flow, stop)) for begin, stop in ((start, end), (later, last))
            ]
            (feeder, readers), (other, others) = around_both
            if feeder and other and readers and others and feeder != other and not readers & others:
                where = subject.place_of(before)
                witness = f"{where.module} is called for the input of one sublayer, and again for that of another"
                status: Status = "fail" if is_own(subject.model, where.module) else "warn"
                return [finding((("N08", 0.9), ("I02", 0.1)), witness, where=where, status=status)]
    return []


def _spans_of_norms(subject: Subject) -> dict[int, list[tuple[int, int]]]:
    """The first and the last operation of each call of each norm that learns."""
    spans: dict[int, list[tuple[int, int]]] = {}
    calls = subject.inside.calls
    for index, call in enumerate(calls):
        if call.module is None or not is_leaf_norm(call.module) or not [*call.module.parameters()]:
            continue
        known = spans.setdefault(id(call.module), [])
        if known and calls[index - 1].module is call.module:
            known[-1] = (known[-1][0], index)
        else:
            known.append((index, index))
    return spans


def _feeders(flow: Flow, index: int) -> set[int]:
    """The weights by which the latest part of what an operation reads was made."""
    open_, latest, visited = [(part, index) for part in read_by(flow.calls[index])], -1, set()
    while open_:
        at = flow.maker(*open_.pop())
        if at is None or at in visited:
            continue
        visited.add(at)
        if _weights(flow, at):
            latest = max(latest, at)
        else:
            open_ += [(part, at) for part in read_by(flow.calls[at])]
    return _weights(flow, latest) if latest >= 0 else set()


def _consumers(flow: Flow, index: int) -> set[int]:
    """The weights that meet first what an operation made."""
    weights: set[int] = set()
    open_ = flow.readers(index)
    while open_:
        at = open_.pop()
        weights |= _weights(flow, at)
        if flow.calls[at].name in CARRYING and not _weights(flow, at):
            open_ += flow.readers(at)
    return weights


def _weights(flow: Flow, index: int) -> set[int]:
    """The weights that an operation reads, as they are or converted."""
    parts = read_by(flow.calls[index])
    converted = (flow.calls[at] for part in parts if (at := flow.maker(part, index)) is not None)
    parts += [part for call in converted if call.name in KEEPING for part in read_by(call)]
    return {id(part) for part in parts if isinstance(part, nn.Parameter)}


def _layers(model: nn.Module) -> Iterator[tuple[str, nn.ModuleList]]:
    lists = ((name, m) for name, m in model.named_modules() if isinstance(m, nn.ModuleList))
    yield from ((name, layers) for name, layers in lists if len(layers) > 1)


def _called_for_all(subject: Subject) -> list[Finding]:
    """One layer of a list is called as often as there are layers, and the others never."""
    times = Counter(call.name for call in subject.module_calls)
    if times != Counter(call.name for call in subject.modules_called(subject.inputs(2, salt=25))):
        return []  # what is called depends on what is read
    for name, layers in _layers(subject.model):
        called = [_times(times, f"{name}.{number}", layer) for number, layer in enumerate(layers)]
        if len({type(layer) for layer in layers}) > 1 or sorted(called) != [0] * (len(layers) - 1) + [len(layers)]:
            continue
        path = f"{name}.{called.index(len(layers))}"
        witness = f"{path} is called {len(layers)} times in one pass, and the other layers of the list never"
        status: Status = "warn" if len(layers) == 2 else "fail"  # one of two may be for another language, or task
        return [finding("I02", witness, where=place_of_module(path, subject.model.get_submodule(path)), status=status)]
    return []


def _called_as_often_as_told(subject: Subject) -> list[Finding]:
    """One module with an attention is called, each time with what it made before, as often as there are to be layers.

    Nothing in the code says that layers share their weights.
    """
    if subject.convention.at_once or subject.convention.stepwise or SHARED.search(subject.hints.code):
        return []
    flow, maps = subject.inside.flow, subject.inside.attentions
    owners = [f"{subject.place_of(attention.call).module}." for attention in maps]
    for path, count in sorted(Counter(call.name for call in subject.module_calls).items()):
        own = [attention for attention, owner in zip(maps, owners, strict=True) if owner.startswith(f"{path}.")]
        if not path or len(own) != count or count < 2 or not is_own(subject.model, path):
            continue
        names = [name for name, number in _layers_told(subject, path) if number == count]
        if not names or not all(made_by(attention.call) and read_by(attention.call) for attention in own):
            continue
        pairs = [(later, made_by(first.call)[0]) for first, later in pairwise(own)]
        if all(flow.comes_from(read_by(later.call)[0], later.index, before) for later, before in pairs):
            witness = f"{path} is called {count} times, each time with what it made before, and {names[0]} is {count}"
            return [finding("I02", witness, where=place_of_module(path, subject.model.get_submodule(path)))]
    return []


def _layers_told(subject: Subject, path: str) -> Iterator[tuple[str, int]]:
    """What the modules around a path and the model's config call a number of layers, and that number."""
    around = [vars(module) for _, module in owners_of(subject.original, path)[:0:-1]]
    for name, number in (item for held in (*around, subject.settings) for item in held.items()):
        if LAYERS.fullmatch(name) and isinstance(number, int):
            yield name, number


def _times(times: Counter[str], path: str, layer: nn.Module) -> int:
    """How often a layer is called; for a list, which is never called itself, the most that a part of it is."""
    parts = list(layer.named_children()) if isinstance(layer, (nn.ModuleList, nn.ModuleDict)) else []
    return max((times[f"{path}.{name}"] for name, _ in parts), default=0) if parts else times[path]


def _unregistered(subject: Subject) -> list[Finding]:
    """Modules with weights that are called, but that model.modules() does not list."""
    known = {id(module) for module in subject.model.modules()}
    registered = {id(parameter) for parameter in subject.model.parameters()}
    lost: dict[int, tuple[nn.Module, str | None, int | None]] = {}

    def look(module: nn.Module, args: object, output: object) -> None:
        is_unknown = any(id(p) not in registered for p in module.parameters(recurse=False))
        if id(module) not in known and is_unknown:
            lost.setdefault(id(module), (module, *caller()))

    with nn.modules.module.register_module_forward_hook(look):
        subject.run(subject.inputs(2))
    if not lost:
        return []
    module, file, line = next(iter(lost.values()))
    witness = f"model.parameters() lacks the weights of {len(lost)} modules that are called"
    where = Where(_hidden_path(subject.model, module), type(module).__name__, file, line)
    return [finding("I05", witness, value=len(lost), where=where)]


def _listed(subject: Subject) -> list[Finding]:
    """Several modules of one class in a plain list, whether they are called or not, whose weights are to be learned."""
    registered = {id(parameter) for parameter in subject.original.parameters()}
    for path, owner in subject.original.named_modules():
        for name, value in vars(owner).items():
            if name.startswith("_") or not isinstance(value, (list, tuple)):
                continue
            lost = [
                module
                for module in value
                if isinstance(module, nn.Module)
                and any(weight.requires_grad and id(weight) not in registered for weight in module.parameters())
            ]
            if len(lost) > 1 and len({type(module) for module in lost}) == 1:
                list_path = f"{path}.{name}".lstrip(".")
                witness = (
                    f"model.parameters() lacks the weights of the {len(lost)} modules in {list_path}, a plain list"
                )
                return [finding("I05", witness, value=len(lost), where=Where(f"{list_path}.0", type(lost[0]).__name__))]
    return []


def _plain_tensors(subject: Subject) -> list[Finding]:
    """Numbers drawn at random, or meant to be trained, that move logits and are in no state_dict()."""
    if not subject.repeated.is_same and not subject.drops_in_evaluation:
        return []  # it moves anyway
    registered = {tensor.data_ptr() for tensor in (*subject.model.parameters(), *subject.model.buffers())}
    for path, module in subject.model.named_modules():
        plain = {name: value for name, value in vars(module).items() if name not in ("_parameters", "_buffers")}
        for name, tensor in ((name, tensor) for name, value in plain.items() for tensor in tensors(value)):
            is_meant = tensor.is_floating_point() and (tensor.requires_grad or _is_noise(tensor))
            if is_meant and tensor.data_ptr() not in registered and moves(subject, [tensor.detach()]):
                where = owner_of(subject.model, f"{path}.{name}".lstrip("."))
                witness = f"other numbers in {name} move logits, but it is neither a parameter nor a buffer"
                return [finding("I05", f"{witness}: it is not trained, saved or moved to a device", where=where)]
    return []


def _is_noise(tensor: Tensor) -> bool:
    """Whether neighbors in a matrix have nothing to do with each other, unlike those in any table that is computed."""
    if tensor.dim() < 2 or tensor.numel() < NOISE or not tensor.isfinite().all() or float(tensor.abs().max()) < 1.001:
        return False  # sines and cosines may look like it
    numbers = tensor.detach().double()
    spread = (numbers - numbers.mean()) / numbers.std().clamp_min(1e-12)
    sizes = [(axis, size) for axis, size in enumerate(numbers.shape) if size > 1]
    pairs = ((spread.narrow(axis, 1, size - 1), spread.narrow(axis, 0, size - 1)) for axis, size in sizes)
    alike = max(abs(float((first * second).mean())) for first, second in pairs)
    return alike < UNLIKE and len({*numbers.flatten().tolist()}) > numbers.numel() // 2


def _hidden_path(model: nn.Module, hidden: nn.Module) -> str | None:
    """The path to a module through plain lists, tuples and dicts, written with dots."""
    for path, owner in model.named_modules():
        for name, value in vars(owner).items():
            if name.startswith("_") or not isinstance(value, (list, tuple, dict)):
                continue
            for key, part in value.items() if isinstance(value, dict) else enumerate(value):
                for below, module in part.named_modules() if isinstance(part, nn.Module) else ():
                    if module is hidden:
                        return ".".join(step for step in (path, name, str(key), below) if step)
    return None


def _untied(subject: Subject, is_fresh: bool) -> list[Finding]:
    """Embedding and head that are declared to be one tensor, or were copied from each other."""
    model, declared = subject.fresh, subject.spec.tied
    if declared is None:
        tied = setting(model, "tie_word_embeddings", setting(model, "tied"))
        declared = tied if isinstance(tied, bool) else None
    tables, heads = (
        {name: m.weight for name, m in model.named_modules() if isinstance(m, kind)}
        for kind in (nn.Embedding, nn.Linear)
    )
    pairs = [(table, head) for table in tables for head in heads if tables[table].shape == heads[head].shape]
    if not pairs or any(tables[table].data_ptr() == heads[head].data_ptr() for table, head in pairs):
        return []
    for table, head in pairs:
        names, where = f"{table}.weight and {head}.weight", Where(head, "Linear")
        if tables[table].dim() == 2 and torch.equal(tables[table], heads[head]) and bool(tables[table].any()):
            status: Status = "fail" if is_fresh or declared else "warn"
            return [finding("E01", f"{names} hold the same numbers in two places", where=where, status=status)]
    for table, head in pairs if declared and not setting(model, "model_type") else ():
        if len(tables[table]) == subject.calling.vocab_size:
            witness = f"{table}.weight and {head}.weight are declared to be tied, but are two tensors"
            return [finding("E01", witness, where=Where(head, "Linear"))]
    return []


def _copies(model: nn.Module) -> list[Finding]:
    """Layers that start with the same random numbers."""
    for name, (first, second, *_) in _layers(model):
        matrices = [_drawn(layer) for layer in (first, second) if layer is not None]
        if first is second or type(first) is not type(second) or not all(matrices) or not are_same(*matrices):
            continue
        where = place_of_module(f"{name}.1", second)
        witness = f"every matrix of {name}.1 equals that of {name}.0 to the last bit"
        return [finding("I01", witness, where=where)]  # they part as they learn: many train well
    return []


def _drawn(module: nn.Module) -> list[Tensor]:
    """The matrices that were drawn at random: of many numbers, not of zeros and ones."""
    return [p for p in module.parameters() if p.dim() > 1 and len({*p[0].detach().cpu().flatten().tolist()}) > DRAWN]
