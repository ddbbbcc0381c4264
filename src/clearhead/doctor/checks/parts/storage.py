"""Parameters that are not what they seem: shared, copied, unregistered, untied."""

from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from clearhead.doctor.checks.base import finding, model_check
from clearhead.doctor.probes.freshness import freshness
from clearhead.doctor.probes.locations import place_of_module
from clearhead.doctor.probes.norms import is_norm
from clearhead.doctor.report.findings import Finding, Status, Where
from clearhead.doctor.subject import Subject

DRAWN = 2  # different numbers in a row of a matrix, from which on it was drawn


@model_check(
    "I02",
    "storage",
    order=20,
    covers=("I01", "I02", "I05", "E01", "N08"),
    holds="every module is registered and stands once, no two are born equal, and what is tied is one tensor",
    needs=("finite",),
)
def storage(subject: Subject) -> list[Finding]:
    """What can be read off the objects."""
    model = subject.fresh
    findings = _repeated(model) + _called_for_all(subject) + _unregistered(subject) + _untied(subject)
    if freshness(subject.fresh, subject.spec.fresh)[0] is not False:
        findings += _copies(subject)
    return findings + _shared_norms(model)


def _repeated(model: nn.Module) -> list[Finding]:
    """One module several times in one list."""
    for name, module in model.named_modules():
        if not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        children = [
            child for child in module._modules.values() if child is not None and any(True for _ in child.parameters())
        ]
        if len({id(child) for child in children}) < len(children):
            witness = f"{len(children)} places of {name or 'the list'} hold {len({id(c) for c in children})} module"
            first = children[0]
            return [finding("I02", witness, where=place_of_module(f"{name}.0", first))]
    return []


def _called_for_all(subject: Subject) -> list[Finding]:
    """One layer of a list called as often as there are layers, the others never: their weights move nothing."""
    times = Counter(call.name for call in subject.module_calls)
    calls = subject.modules_called(subject.inputs(2, salt=25))
    if times != Counter(call.name for call in calls):
        return []  # what is called depends on what is read
    for name, module in subject.model.named_modules():
        if not isinstance(module, nn.ModuleList) or len(module) < 2 or len({type(layer) for layer in module}) > 1:
            continue
        called = [_times(times, f"{name}.{number}", layer) for number, layer in enumerate(module)]
        if sorted(called) != [0] * (len(module) - 1) + [len(module)]:
            continue
        number = called.index(len(module))
        witness = f"{name}.{number} is called {len(module)} times in one pass, and the others of the list never"
        status: Status = "warn" if len(module) == 2 else "fail"  # one of two may be for another language, or task
        return [finding("I02", witness, where=place_of_module(f"{name}.{number}", module[number]), status=status)]
    return []


def _times(times: Counter[str], path: str, layer: nn.Module) -> int:
    """How often a layer is called; of a list, which is gone through, the first part of it."""
    parts = list(layer.named_children()) if isinstance(layer, (nn.ModuleList, nn.ModuleDict)) else []
    return max((times[f"{path}.{name}"] for name, _ in parts), default=0) if parts else times[path]


def _unregistered(subject: Subject) -> list[Finding]:
    """Modules with weights that are called and that model.modules() does not know."""
    known = {id(module) for module in subject.model.modules()}
    strangers: dict[int, tuple[nn.Module, str | None, int | None]] = {}

    def look(module: nn.Module, args: object, output: object) -> None:
        from clearhead.doctor.probes.tracing import caller

        if id(module) not in known and any(True for _ in module.parameters(recurse=False)):
            strangers.setdefault(id(module), (module, *caller()))

    handle = nn.modules.module.register_module_forward_hook(look)
    try:
        with torch.no_grad():
            subject.run(subject.inputs())
    finally:
        handle.remove()
    registered = {id(parameter) for parameter in subject.model.parameters()}
    lost = [
        stranger for stranger in strangers.values() if any(id(p) not in registered for p in stranger[0].parameters())
    ]
    if not lost:
        return []
    module, file, line = lost[0]
    witness = f"model.parameters() does not know the weights of {len(lost)} modules that are called"
    where = Where(_hidden_path(subject.model, module), type(module).__name__, file, line)
    return [finding("I05", witness, value=len(lost), where=where)]


def _hidden_path(model: nn.Module, hidden: nn.Module) -> str | None:
    """The way to a module over plain lists, tuples and dicts, as one would write it with dots."""
    for path, owner in model.named_modules():
        for name, value in vars(owner).items():
            if name.startswith("_") or not isinstance(value, (list, tuple, dict)):
                continue
            for key, part in value.items() if isinstance(value, dict) else enumerate(value):
                inside = part.named_modules() if isinstance(part, nn.Module) else ()
                for below, module in inside:
                    if module is hidden:
                        return ".".join(step for step in (path, name, str(key), below) if step)
    return None


def _untied(subject: Subject) -> list[Finding]:
    """Embedding and head that are declared to be one tensor, or were copied from each other."""
    model = subject.fresh
    config = getattr(model, "config", None)
    declared = subject.spec.tied
    if declared is None:
        setting = getattr(config, "tie_word_embeddings", getattr(config, "tied", None))
        declared = setting if isinstance(setting, bool) else None
    tables = {name: m.weight for name, m in model.named_modules() if isinstance(m, nn.Embedding)}
    heads = {name: m.weight for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    pairs = [(t, h) for t in tables for h in heads if tables[t].shape == heads[h].shape]
    if not pairs or any(tables[t].data_ptr() == heads[h].data_ptr() for t, h in pairs):
        return []
    for table, head in pairs:
        if tables[table].dim() == 2 and torch.equal(tables[table], heads[head]) and bool(tables[table].any()):
            status: Status = (
                "fail" if freshness(subject.fresh, subject.spec.fresh)[0] is not False or declared else "warn"
            )
            witness = f"{table}.weight and {head}.weight hold the same numbers in two places"
            return [finding("E01", witness, where=Where(head, "Linear"), status=status)]
    tied_pair = next(((t, h) for t, h in pairs if tables[t].shape[0] == subject.calling.vocab_size), None)
    if declared and tied_pair is not None and not hasattr(config, "model_type"):
        table, head = tied_pair
        witness = f"{table}.weight and {head}.weight are two tensors, and declared to be one"
        return [finding("E01", witness, where=Where(head, "Linear"))]
    return []


def _copies(subject: Subject) -> list[Finding]:
    """Layers that were born with the same random numbers: exchanged, they give the same logits to the last bit."""
    model = subject.fresh
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or len(module) < 2:
            continue
        first, second = module[0], module[1]
        if first is second or type(first) is not type(second):
            continue
        pairs = list(zip(_matrices(first), _matrices(second), strict=False))
        if pairs and all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs):
            witness = f"every matrix of {name}.1 equals that of {name}.0 to the last bit"
            where = place_of_module(f"{name}.1", second)
            # torch's own stacks are born so, and many train well as they are
            owner = type(model.get_submodule(name.rpartition(".")[0])).__module__
            if owner.startswith("torch.nn") or not _are_one(subject, first, second):
                return [finding("I01", witness, where=where, status="warn")]
            return [finding("I01", f"{witness}: each with the weights of the other, no logit moves", where=where)]
    return []


def _are_one(subject: Subject, first: nn.Module, second: nn.Module) -> bool:
    """Whether nothing changes where two layers exchange their weights."""
    inputs = subject.inputs(2)
    mine, other = (dict(layer.named_parameters()) for layer in (first, second))
    pairs = [(parameter, other[name]) for name, parameter in mine.items() if name in other]
    with subject.quiet():
        before = subject.run(inputs, model=subject.fresh)
        try:
            _exchange(pairs)
            return torch.equal(before, subject.run(inputs, model=subject.fresh))
        finally:
            _exchange(pairs)


def _exchange(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    for first, second in pairs:
        kept = first.detach().clone()
        first.copy_(second)
        second.copy_(kept)


def _matrices(module: nn.Module) -> list[Tensor]:
    """Those that were drawn at random: of many numbers, not of zeros and ones."""
    return [p for p in module.parameters() if p.dim() > 1 and len(torch.unique(p[0].detach())) > DRAWN]


def _shared_norms(model: nn.Module) -> list[Finding]:
    for name, module in model.named_modules():
        norms = [(n, child) for n, child in module._modules.items() if child is not None and is_norm(child)]
        if len({id(child) for _, child in norms}) < len(norms):
            names = " and ".join(n for n, child in norms if sum(child is other for _, other in norms) > 1)
            return [
                finding(
                    "N08", f"{name}: {names} are one module", where=Where(name, type(module).__name__), status="warn"
                )
            ]
    return []
