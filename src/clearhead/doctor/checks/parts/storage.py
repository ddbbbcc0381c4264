"""Parameters that are not what they seem: shared, copied, unregistered, untied."""

from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from clearhead.doctor.checks.base import Finding, Status, Subject, Where, finding, model_check
from clearhead.doctor.probes.freshness import freshness
from clearhead.doctor.probes.locations import place_of_module
from clearhead.doctor.probes.norms import is_norm
from clearhead.doctor.probes.tensors import are_same
from clearhead.doctor.probes.tracing import caller
from clearhead.doctor.state_guard import kept

DRAWN = 2  # a row of a matrix with more different numbers than that was drawn at random


@model_check("I02", "storage", order=20, covers=("I01", "I05", "E01", "N08"), needs=("finite",))
def storage(subject: Subject) -> list[Finding]:
    """Every module is registered and used once, no two layers start equal, and tied weights are one tensor."""
    is_fresh = freshness(subject.fresh, subject.spec.fresh)[0] is not False
    findings = _repeated(subject.fresh) + _called_for_all(subject) + _unregistered(subject)
    findings += _untied(subject, is_fresh) + (_copies(subject) if is_fresh else [])
    return findings + _shared_norms(subject.fresh)


def _repeated(model: nn.Module) -> list[Finding]:
    """One module several times in one list."""
    for name, module in model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)):
            children = [child for child in module._modules.values() if child is not None and [*child.parameters()]]
            different = len({id(child) for child in children})
            if different < len(children):
                modules = "one module" if different == 1 else f"only {different} modules"
                witness = f"the {len(children)} places of {name or 'the list'} hold {modules}"
                return [finding("I02", witness, where=place_of_module(f"{name}.0", children[0]))]
    return []


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
        subject.run(subject.inputs())
    if not lost:
        return []
    module, file, line = next(iter(lost.values()))
    witness = f"model.parameters() lacks the weights of {len(lost)} modules that are called"
    where = Where(_hidden_path(subject.model, module), type(module).__name__, file, line)
    return [finding("I05", witness, value=len(lost), where=where)]


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
    config = getattr(model, "config", None)
    if declared is None:
        setting = getattr(config, "tie_word_embeddings", getattr(config, "tied", None))
        declared = setting if isinstance(setting, bool) else None
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
    for table, head in pairs if declared and not hasattr(config, "model_type") else ():
        if len(tables[table]) == subject.calling.vocab_size:
            witness = f"{table}.weight and {head}.weight are declared to be tied, but are two tensors"
            return [finding("E01", witness, where=Where(head, "Linear"))]
    return []


def _copies(subject: Subject) -> list[Finding]:
    """Layers that start with the same random numbers: exchanged, they give the same logits to the last bit."""
    for name, (first, second, *_) in _layers(subject.fresh):
        matrices = [_drawn(layer) for layer in (first, second)]
        if first is second or type(first) is not type(second) or not matrices[0] or not are_same(*matrices):
            continue
        witness = f"every matrix of {name}.1 equals that of {name}.0 to the last bit"
        where = place_of_module(f"{name}.1", second)
        # torch's own stacks start like this, and many train well
        owner = type(subject.fresh.get_submodule(name.rpartition(".")[0])).__module__
        if owner.startswith("torch.nn") or not _are_interchangeable(subject, first, second):
            return [finding("I01", witness, where=where, status="warn")]
        return [finding("I01", f"{witness}: each with the weights of the other, no logit moves", where=where)]
    return []


def _are_interchangeable(subject: Subject, first: nn.Module, second: nn.Module) -> bool:
    """Whether nothing changes if two layers exchange their weights."""
    inputs, others = subject.inputs(2), dict(second.named_parameters())
    pairs = [(parameter, others[name]) for name, parameter in first.named_parameters() if name in others]
    before = subject.run(inputs, model=subject.fresh)
    with kept([parameter for pair in pairs for parameter in pair]):
        for parameter, other in pairs:
            numbers = parameter.clone()
            parameter.copy_(other)
            other.copy_(numbers)
        return torch.equal(before, subject.run(inputs, model=subject.fresh))


def _drawn(module: nn.Module) -> list[Tensor]:
    """The matrices that were drawn at random: of many numbers, not of zeros and ones."""
    return [p for p in module.parameters() if p.dim() > 1 and len(torch.unique(p[0].detach())) > DRAWN]


def _shared_norms(model: nn.Module) -> list[Finding]:
    for name, module in model.named_modules():
        norms = [(n, child) for n, child in module._modules.items() if child is not None and is_norm(child)]
        counts = Counter(id(child) for _, child in norms)
        names = " and ".join(n for n, child in norms if counts[id(child)] > 1)
        if names:
            where = Where(name, type(module).__name__)
            return [finding("N08", f"{name}: {names} are one module", where=where, status="warn")]
    return []
