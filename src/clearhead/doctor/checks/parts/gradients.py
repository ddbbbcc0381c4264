"""Which weights have an effect, and which of them a gradient reaches, now or after a few steps."""

import re
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.docs import makes_no_graph
from clearhead.doctor.calling.names import POSITION_TABLE
from clearhead.doctor.calling.outputs import tensors
from clearhead.doctor.checks.base import STEADY, Finding, Skipped, Subject, attempt, finding, model_check
from clearhead.doctor.checks.parts.effects import (
    NUDGE,
    SAME,
    all_kept,
    beside,
    effect,
    knows_order,
    moves,
    padding_rows,
    with_options,
)
from clearhead.doctor.probes.flow import read_by
from clearhead.doctor.probes.locations import layer_of, owner_of
from clearhead.doctor.probes.mentions import is_mentioned, is_used_by_its_class
from clearhead.doctor.probes.norms import is_leaf_norm, is_norm
from clearhead.doctor.probes.products import LINEAR, PRODUCTS

TRIED = 24  # parameters without gradient whose effect is looked at
CHOICES = ("topk", "sort", "argsort", "argmax", "max", "multinomial")  # by which tokens are sent somewhere
MAX_PARTS = 256  # parts of a list that are chosen from
SOMETIMES = re.compile(r"expert|pooler|lora|adapter|mask_token|cls\.|router", re.I)  # used for some inputs only
OF_A_SOURCE = re.compile(r"cross|encoder_attn|enc_dec|memory", re.I)  # idle if only ids are read
READING = LINEAR | PRODUCTS | {"embedding", "conv2d"}  # operations
READERS = (nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # read an input that is not a hidden state
EXPLAIN = {"dependencies", "sources", "positions", "norms", "paddings", "attention"}  # may explain idle weights
EFFECT = "the effect that it has"


def gradients_of(
    subject: Subject, loss: Callable[[Tensor], Tensor], rows: int, salt: int, model: nn.Module
) -> dict[str, Tensor] | None:
    """The gradient of a loss of the logits for each parameter that the graph leads to; None if they have no graph."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    logits = subject.run(subject.inputs(rows, salt=salt), model=model, graph=True)
    if not logits.requires_grad:
        return None
    gradients = torch.autograd.grad(loss(logits), list(parameters.values()), allow_unused=True)
    return {name: g for name, g in zip(parameters, gradients, strict=True) if g is not None}


@model_check("I06", "gradients", order=260, covers=("A13", "N03", "N12", "P01", "S06"), needs=STEADY)
def gradients(subject: Subject) -> list[Finding]:
    """Every weight has an effect, and a gradient reaches every weight that has one."""
    model, padding = subject.model, padding_rows(subject.model)

    def random_sum(logits: Tensor) -> Tensor:
        return (torch.randn(logits.shape, generator=subject.generator(8)).to(logits) * logits).sum()

    led_to = gradients_of(subject, random_sum, 3, 0, model)
    if led_to is None:
        beside_it = tensors(subject.convention.raw(subject.model, subject.inputs()))
        with subject.training():  # a model may detach what it predicts in evaluation, and not what it learns from
            beside_it += tensors(subject.convention.raw(subject.model, subject.inputs()))
        if any(tensor.requires_grad for tensor in beside_it) or not moves(subject, model.parameters()):
            raise Skipped("what was taken for its logits may not be what it learns from")
        witness = "the logits have no graph: no part of the model can learn"
        is_declared = makes_no_graph(subject.original)
        witness += "; its forward is declared so, as of a model that is used as it is" if is_declared else ""
        return [finding("I06", witness, against=EFFECT, status="warn" if is_declared else "fail")]
    gradients = {name for name, gradient in led_to.items() if gradient.any()}
    bare = {name: p for name, p in model.named_parameters() if p.requires_grad and name not in gradients}
    cut: list[str] = []
    idle: list[str] = []
    for name, parameter in list(bare.items())[:TRIED]:
        if moves(subject, [parameter], padding=False):
            # a vector may be meant to be compared with; a matrix that is only compared with cannot learn
            is_compared = parameter.dim() > 1 and name not in led_to  # else its units may be inactive
            is_cut = is_compared or effect(subject, [parameter], size=NUDGE)
            cut += [name] if is_cut and not _is_led_to_beside(subject, parameter) else []
        elif id(parameter) not in padding or not moves(subject, [parameter]):  # else only its padding row was read
            idle.append(name)
    accumulated = _reached_by_backward(subject, random_sum) if cut else set()
    cut = [name for name in cut if name not in accumulated]
    findings = [_cut_off(model, cut)] if cut else []
    called = Counter(call.name for call in subject.modules_called(subject.inputs(2))) if idle else Counter()
    idle = [name for name in idle if not _reads_other_inputs(model, name, called)]
    reached = {name for name, _ in model.named_parameters()} - {*bare}
    idle = [name for name in idle if not _may_be_idle(subject, name, reached)]
    if not idle or subject.failed & EXPLAIN:
        return findings
    is_table = not isinstance(model.get_submodule(idle[0].rpartition(".")[0]), nn.Linear)  # that reads what it maps
    if len(idle) == 1 and is_table and POSITION_TABLE.search(idle[0]) and not knows_order(subject):
        witness = f"{idle[0]} has no effect on any logit"
        where = owner_of(model, idle[0])
        findings.append(finding("P01", witness, value=0.0, where=where, against="that it holds positions"))
    else:
        findings.append(_left_out(subject, idle, reached, called))
    return findings


def _reached_by_backward(subject: Subject, loss: Callable[[Tensor], Tensor]) -> set[str]:
    """Weights in whose `.grad` a backward pass leaves something: reversible layers put it there themselves."""
    loss(subject.run(subject.inputs(3), graph=True)).backward()  # type: ignore[no-untyped-call]
    reached = {name for name, p in subject.model.named_parameters() if p.grad is not None and bool(p.grad.any())}
    nn.Module.zero_grad(subject.model)
    return reached


def _is_led_to_beside(subject: Subject, parameter: Tensor) -> bool:
    """Whether a gradient reaches a weight from what is returned beside the logits, as from the scores of an argmax."""
    returned = tensors(subject.convention.raw(subject.model, subject.inputs()))
    parts = [part.sum() for part in returned if part.requires_grad and part.is_floating_point()]
    return any(
        g is not None
        for part in parts
        for g in torch.autograd.grad(part, [parameter], allow_unused=True, retain_graph=True)
    )


def _may_be_idle(subject: Subject, name: str, reached: set[str]) -> bool:
    """Whether a weight may have no effect on these logits by design."""
    return bool(
        SOMETIMES.search(name)
        # by arithmetic, the bias of keys beside a matrix that learns moves no softmax
        or (name.endswith("bias") and f"{name.removesuffix('bias')}weight" in reached)
        or (OF_A_SOURCE.search(name) and not subject.convention.has_source)
        or (_is_choice(subject.model, name, reached) and _chooses(subject))
        or effect(subject, [subject.model.get_parameter(name)], of=beside) > SAME
        or effect(subject, [subject.model.get_parameter(name)], of=with_options) > SAME
    )


def _chooses(subject: Subject) -> bool:
    return bool(subject.operations(subject.inputs(2), named=lambda operation: operation in CHOICES))


def _is_choice(model: nn.Module, name: str, reached: set[str]) -> bool:
    """Whether a weight belongs to one part of a list within a layer, and other parts have an effect, as experts do."""
    layer, path = layer_of(name) or name, name.split(".")
    for depth in range(layer.count(".") + 1, len(path)):
        is_list = isinstance(model.get_submodule(".".join(path[:depth])), (nn.ModuleList, nn.ParameterList))
        others = (".".join((*path[:depth], str(number), *path[depth + 1 :])) for number in range(MAX_PARTS))
        if is_list and any(other in reached for other in others):
            return True
    return False


def _reads_other_inputs(model: nn.Module, name: str, called: Counter[str]) -> bool:
    """Whether a weight belongs to a part with inputs of its own, such as pictures, which this call does not have."""
    part = _uncalled(model, name, called)
    if part == name:
        return False
    inside = [(f"{part}.{other}", module) for other, module in model.get_submodule(part).named_modules() if other]
    return any(isinstance(module, READERS) and not POSITION_TABLE.search(other) for other, module in inside)


def _cut_off(model: nn.Module, cut: list[str]) -> Finding:
    order = [name for name, _ in model.named_parameters()]
    last = order.index(cut[0])
    while last + 1 < len(order) and order[last + 1] in cut:
        last += 1  # the cut lies behind the last parameter of an unreached run
    witness = f"other values in {order[last]} move the logits, but no gradient reaches it"
    return finding("I06", witness, value=0.0, where=owner_of(model, order[last], own_code=True), against=EFFECT)


def _left_out(subject: Subject, idle: Sequence[str], reached: set[str], called: Counter[str]) -> Finding:
    """Weights without effect: a fault if parts that are like them have one, else perhaps an option that is not used."""
    model = subject.model
    for name in idle:
        if stand_in := _stand_in(model, name, called):
            part = _uncalled(model, name, called)
            witness = f"{part} is never called, and {stand_in}, which is like it, {called[stand_in]} times in one pass"
            where = owner_of(model, part, own_code=True)
            return finding((("A13", 0.9), ("I02", 0.1)), witness, value=0.0, where=where, against="the part beside it")
    in_vain = next((name for name in idle if _is_read_in_vain(subject, name)), None)
    if in_vain is not None:
        witness = f"other values in {in_vain} move nothing that the model returns or keeps, though every call reads it"
        causes: tuple[tuple[str, float], ...] = (("A13", 0.7), ("A12", 0.1), ("N04", 0.1), ("I06", 0.1))
        where = owner_of(model, in_vain, own_code=model.get_parameter(in_vain).dim() > 1)
        return finding(causes, witness, value=0.0, where=where, against="the operation that reads it")
    lost = [name for name in idle if _is_lost_part(model, name, reached, called)]
    first = (lost or idle)[0]
    listed = ", ".join(idle[:3]) + (f" and {len(idle) - 3} more" if len(idle) > 3 else "")
    norm = is_norm(model.get_submodule(first.rpartition(".")[0])) and layer_of(first) is None
    causes = (("N03", 0.8), ("A13", 0.2)) if norm else (("A13", 1.0),)
    witness, against = f"other values in {listed} move no logit", "the maps beside it" if lost else ""
    part = _uncalled(model, first, called)
    if not lost and (mentions := _without_mention(model, first, part)):
        witness, against = f"{witness}, and {mentions} but where it is made", "the code that makes it"
    return finding(causes, witness, value=0.0, where=owner_of(model, first), against=against)


def _without_mention(model: nn.Module, name: str, part: str) -> str:
    """In words that nothing mentions a norm, a stack or one of its layers; empty where something does.

    A norm within a layer is its class's to mention.
    """
    is_leaf = is_norm(model.get_submodule(name.rpartition(".")[0]))
    if is_leaf and layer_of(name) is not None:
        return "" if is_used_by_its_class(model, part) else f"its class does not mention {part.rpartition('.')[2]}"
    is_known = not (is_leaf or _is_stack(model, part)) or is_mentioned(model, part)
    return "" if is_known else f"no code mentions {part}"


def _is_stack(model: nn.Module, path: str) -> bool:
    """Whether it is a stack of layers, or one of them; a path may also be that of a weight."""
    modules = dict(model.named_modules())
    names = (path, path.rpartition(".")[0]) if path in modules else ()
    return any(isinstance(modules[name], (nn.ModuleList, nn.Sequential)) for name in names)


def _stand_in(model: nn.Module, name: str, called: Counter[str]) -> str | None:
    """What is called in place of the uncalled part around a weight: twice for each call of what holds them both."""
    part = _uncalled(model, name, called)
    owner = part.rpartition(".")[0]
    if part == name or not called[owner] or model.get_parameter(name).dim() < 2:
        return None
    return next((path for path in _alike(model, part) if called[path] >= 2 * called[owner]), None)


def _alike(model: nn.Module, part: str) -> list[str]:
    """The modules beside one that have its class and weights of its shapes."""
    owner, _, key = part.rpartition(".")
    children = dict(model.get_submodule(owner).named_children())
    shapes = {name: (type(m), [weight.shape for weight in m.parameters()]) for name, m in children.items()}
    return [f"{owner}.{name}".lstrip(".") for name in children if name != key and shapes[name] == shapes[key]]


def _uncalled(model: nn.Module, name: str, called: Counter[str]) -> str:
    """The outermost module around a weight that is never called, and that is no list; failing that, the weight."""
    path = name.split(".")
    owners = (".".join(path[:depth]) for depth in range(1, len(path)))
    containers = (nn.ModuleList, nn.ModuleDict)  # never called themselves
    return next((o for o in owners if o not in called and not isinstance(model.get_submodule(o), containers)), name)


def _is_read_in_vain(subject: Subject, name: str) -> bool:
    """Whether a map or a norm reads a weight, no way leads from there to the logits, and nothing else comes of it."""
    weight, inside = subject.model.get_parameter(name), subject.inside
    readers = [call for call in inside.calls if any(part is weight for part in read_by(call))]
    is_read = any(is_leaf_norm(call.module) or (call.name in READING and weight.dim() > 1) for call in readers)
    if not is_read or inside.flow.comes_from(inside.logits, len(inside.calls), weight):
        return False
    with attempt():
        return effect(subject, [weight], of=all_kept) <= SAME
    return False  # what it keeps grows with each call


def _is_lost_part(model: nn.Module, name: str, reached: set[str], called: Counter[str]) -> bool:
    """Whether it is a map that no code calls, beside at least two like it that have an effect."""
    part = _uncalled(model, name, called)
    part = name.rpartition(".")[0] if part == name else part
    around = part.rpartition(".")[0]
    while around and not called[around]:  # a list is never called itself
        around = around.rpartition(".")[0]
    is_inside = layer_of(part) not in (None, part)  # of a list outside a layer, only some may be meant to be used
    if not is_inside or not called[around] or called[part] or model.get_parameter(name).dim() < 2:
        return False
    if is_used_by_its_class(model, part):  # by other inputs than these, such as tokens that all others see
        return False
    return sum(any(name.startswith(f"{other}.") for name in reached) for other in _alike(model, part)) >= 2
