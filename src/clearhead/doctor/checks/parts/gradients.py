"""Which weights a gradient reaches, which have an effect, and how a fresh model's loss begins."""

import math
import re
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor.calling.names import POSITION_TABLE, parameters_of
from clearhead.doctor.checks.base import Skipped, finding, model_check
from clearhead.doctor.checks.parts.effects import is_threshold, moves, moves_beside, padding_rows
from clearhead.doctor.probes.freshness import freshness
from clearhead.doctor.probes.locations import layer_of, owner_of
from clearhead.doctor.probes.norms import is_norm
from clearhead.doctor.probes.tracing import without_dropout
from clearhead.doctor.report.findings import Finding, Status, Where
from clearhead.doctor.subject import Subject

TRIED = 24  # parameters without gradient whose effect is looked at
ODD = 1.0  # nats from ln V; over 120 architectures fresh ones stay within 0.8
CHOICES = ("topk", "sort", "argsort", "argmax", "max", "multinomial")  # by which tokens are sent somewhere
MOST = 256  # parts of a list that are chosen from
ABSURD = 2.0  # nats above ln V, from where a fresh model is not undecided but wrong
SOMETIMES = re.compile(r"expert|pooler|lora|adapter|mask_token|cls\.|router", re.I)  # used for some inputs only
OF_A_SOURCE = re.compile(r"cross|encoder_attn|enc_dec|memory", re.I)  # idle where nothing is to be read beside the ids
OTHER_INPUT = re.compile(r"_ids$|_values$|_features$|_states$|_mask$|^memory$|^context$|^bbox$|images?$")
USUAL_INPUT = re.compile(
    r"^(input|decoder_input|position|token_type)_ids$|past|cache|^(decoder_)?attention_mask$|head_mask"
)
READERS = (nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # what reads an input that is no hidden state
EXPLAINED = {
    "dependencies",
    "sources",
    "positions",
    "norms",
    "paddings",
    "attention",
}  # what idle weights may be due to


@model_check(
    "I06",
    "gradients",
    order=260,
    covers=("I06", "A13", "N03", "N12", "P01", "S06"),
    holds="every weight has an effect, and what has an effect has a gradient",
    needs=("finite", "deterministic"),
)
def gradients(subject: Subject) -> list[Finding]:
    """Every parameter that has an effect receives gradient, and every one has an effect."""
    model = subject.model
    bare = _without_gradient(subject, model)
    if bare is None:
        return [finding("I06", "the logits have no graph: nothing of the model can learn")]
    cut: list[str] = []
    idle: list[str] = []
    padding = padding_rows(model)
    for name, parameter in bare[:TRIED]:
        if moves(subject, [parameter], padding=False):
            # a vector may be meant to be compared with; a matrix that is only compared with can learn from nothing
            cut += [name] if parameter.dim() > 1 or not is_threshold(subject, parameter) else []
        elif id(parameter) not in padding or not moves(subject, [parameter]):  # else only padding was read of it
            idle.append(name)
    findings = [_found_cut(model, cut)] if cut else []
    called = _called(subject) if idle else set()
    idle = [name for name in idle if not _reads_other_inputs(model, name, called)]
    table = next((name for name in idle if POSITION_TABLE.search(name)), None)
    reached = {name for name, _ in model.named_parameters()} - {name for name, _ in bare}
    idle = [name for name in idle if not SOMETIMES.search(name) and name != table and not _is_invariant(name, reached)]
    idle = [name for name in idle if not moves_beside(subject, model.get_parameter(name))]
    if not subject.convention.has_source:
        idle = [name for name in idle if not OF_A_SOURCE.search(name)]
    if idle and _chooses(subject):
        idle = [name for name in idle if not _is_choice(model, name, reached)]
    if table and "sources" not in subject.failed:
        findings.append(finding("P01", f"{table} has no effect on any logit", value=0.0, where=owner_of(model, table)))
    elif idle and not subject.failed & EXPLAINED:
        findings.append(_found_idle(model, idle, reached, called if not _other_inputs(subject) else None))
    return findings


def _without_gradient(subject: Subject, model: nn.Module) -> list[tuple[str, nn.Parameter]] | None:
    """The parameters that a gradient from all logits does not reach; None if nothing has one."""
    for parameter in model.parameters():
        parameter.grad = None
    inputs = subject.inputs(3)
    with torch.enable_grad(), without_dropout():
        logits = subject.convention.logits(model, inputs)
        if not logits.requires_grad:
            return None
        weights = torch.randn(logits.shape, generator=subject.generator(8)).to(logits)
        (weights * logits).sum().backward()  # type: ignore[no-untyped-call]
    bare = [(n, p) for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    for parameter in model.parameters():
        parameter.grad = None
    return bare


def _called(subject: Subject) -> set[str]:
    """The modules that a pass goes through."""
    return {call.name for call in subject.modules_called(subject.inputs())}


def _chooses(subject: Subject) -> bool:
    """Whether it takes the largest of some numbers anywhere, as routers do."""
    return bool(subject.operations(subject.inputs(2), named=lambda name: name in CHOICES))


def _is_choice(model: nn.Module, name: str, reached: set[str]) -> bool:
    """Whether a weight is one of a list within a layer of which others have an effect: no token was sent to it."""
    layer, path = layer_of(name) or name, name.split(".")
    for depth in range(layer.count(".") + 1, len(path)):
        lists = isinstance(model.get_submodule(".".join(path[:depth])), (nn.ModuleList, nn.ParameterList))
        alike = (".".join((*path[:depth], str(number), *path[depth + 1 :])) for number in range(MOST))
        if lists and any(other in reached for other in alike):
            return True
    return False


def _reads_other_inputs(model: nn.Module, name: str, called: set[str]) -> bool:
    """Whether a weight belongs to a part with inputs of its own, such as pictures, which this call does not give."""
    path = name.split(".")
    owners = (".".join(path[:depth]) for depth in range(1, len(path)))
    part = next((owner for owner in owners if owner not in called and not _is_list(model, owner)), None)
    if part is None:
        return False
    inside = [(f"{part}.{other}", module) for other, module in model.get_submodule(part).named_modules() if other]
    return any(isinstance(module, READERS) and not POSITION_TABLE.search(other) for other, module in inside)


def _is_list(model: nn.Module, name: str) -> bool:
    """Containers are gone through and never called."""
    return isinstance(model.get_submodule(name), (nn.ModuleList, nn.ModuleDict))


def _is_invariant(name: str, reached: set[str]) -> bool:
    """A bias beside a matrix that learns: that of keys moves no softmax, by arithmetic."""
    return name.endswith("bias") and f"{name[: -len('bias')]}weight" in reached


def _found_cut(model: nn.Module, cut: list[str]) -> Finding:
    order = [name for name, _ in model.named_parameters()]
    last = order.index(cut[0])
    while last + 1 < len(order) and order[last + 1] in cut:
        last += 1  # the cut lies behind the last of a run that nothing reaches
    witness = f"other values in {order[last]} move the logits, and no gradient reaches it"
    return finding("I06", witness, value=0.0, where=owner_of(model, order[last], own_code=True))


def _other_inputs(subject: Subject) -> list[str]:
    """Further tensors that the model may be given, such as pictures or entities; weights may be there for them."""
    names_given = {name for name, _ in subject.convention.call}
    names = [p.name for p in parameters_of(subject.model) if p.name not in names_given]
    return [name for name in names if OTHER_INPUT.search(name) and not USUAL_INPUT.search(name)]


def _found_idle(model: nn.Module, idle: Sequence[str], reached: set[str], called: set[str] | None) -> Finding:
    """A matrix that moves nothing, beside others of its module in a layer that do, is a part left out by mistake.

    Args:
        called: the modules that a pass goes through; None where other inputs may give the rest something to do.
    """
    lost = [name for name in idle if called is not None and _is_lost_part(model, name, reached, called)]
    first = (lost or idle)[0]
    names = ", ".join(idle[:3]) + (f" and {len(idle) - 3} more" if len(idle) > 3 else "")
    witness = f"other values in {names} move no logit"
    norm = is_norm(model.get_submodule(first.rpartition(".")[0])) and layer_of(first) is None
    causes = (("N03", 0.8), ("A13", 0.2)) if norm else (("A13", 1.0),)
    status: Status = "fail" if lost else "warn"
    return finding(causes, witness, value=0.0, where=owner_of(model, first), status=status)


def _is_lost_part(model: nn.Module, name: str, reached: set[str], called: set[str]) -> bool:
    """Whether it stands in a sublayer that is called, beside matrices that have an effect."""
    path = name.rpartition(".")[0]
    around = path.rpartition(".")[0]
    while around and around not in called:  # a list or a sequence is no place of its own
        around = around.rpartition(".")[0]
    inside = around.rpartition(".")[0]
    if layer_of(inside) is None or model.get_parameter(name).dim() < 2:
        return False
    beside = [other for other in reached if other.startswith(around + ".") and model.get_parameter(other).dim() > 1]
    return len(beside) >= (2 if path in called else 1)


@model_check(
    "E04",
    "fresh loss",
    order=330,
    covers=("E04",),
    holds="a fresh model's loss is near ln V",
    needs=("finite",),
    of_tokens=True,
)
def fresh_loss(subject: Subject) -> list[Finding]:
    """A model that has learned nothing gives every token the same chance."""
    is_fresh, reason = freshness(subject.fresh, subject.spec.fresh)
    if not is_fresh:
        raise Skipped(reason)
    V = subject.calling.vocab_size
    inputs, targets = subject.inputs(4, salt=12), subject.inputs(4, salt=13).ids
    with torch.no_grad():
        logits = subject.run(inputs, model=subject.fresh).float()
    if logits.shape[-1] < V or V < 4:
        raise Skipped("its outputs are no logits over the vocabulary")
    loss, even = float(F.cross_entropy(logits.flatten(0, 1), targets.flatten())), math.log(logits.shape[-1])
    if abs(loss - even) <= ODD:
        return []
    witness = f"its loss on random targets is {loss:.2f}, even odds for {logits.shape[-1]} tokens give {even:.2f}"
    status: Status = "fail" if loss - even > ABSURD and freshness(subject.fresh)[0] else "warn"
    return [finding("E04", witness, value=loss - even, threshold=ODD, where=_head(subject), status=status)]


def _head(subject: Subject) -> Where:
    """Whose weights make the logits."""
    named = {id(parameter): name for name, parameter in subject.fresh.named_parameters()}
    for call in reversed(subject.inside_fresh.calls):
        for part in call.options["args"]:
            if isinstance(part, Tensor) and id(part) in named and part.dim() == 2:
                return owner_of(subject.fresh, named[id(part)])
    return Where()
