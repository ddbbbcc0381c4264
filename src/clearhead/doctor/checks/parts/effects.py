"""Whether the numbers that a model holds have any effect."""

import re
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice, product

import torch
from torch import Tensor, nn

from clearhead.doctor.calling import Convention, Inputs
from clearhead.doctor.calling.names import LABELS, MASK, POSITIONS, parameters_of
from clearhead.doctor.calling.outputs import leaves, tensors
from clearhead.doctor.checks.loss.losses import labels_parameter
from clearhead.doctor.checks.loss.scoring import number_of_labels
from clearhead.doctor.probes.tensors import relative_change
from clearhead.doctor.probes.tracing import quiet
from clearhead.doctor.problems import attempt
from clearhead.doctor.state_guard import kept
from clearhead.doctor.subject import Subject

SAME = 1e-5  # of the largest number: two results that are equal but for rounding
OTHER = 0.3  # standard deviation of the noise that makes numbers others
TARGETS = ("labels", "zeros (B)")  # what a target may be: of each token, or of each row
TRIED = 16  # ways to give targets
RETURNS = re.compile("^return_")
NUDGE = 1e-4  # the same, so small that no choice between experts or tokens changes


def moves(subject: Subject, weights: Iterable[Tensor], *, padding: bool = True) -> bool:
    """Whether other numbers in these parameters or buffers of the perturbed copy move any logit; see `effect`."""
    return effect(subject, weights, padding=padding) > SAME


def logits(subject: Subject, inputs: Inputs) -> list[Tensor]:
    """All logits."""
    return [subject.convention.logits(subject.model, inputs)]


def beside(subject: Subject, inputs: Inputs) -> list[Tensor]:
    """What is returned beside the logits. What lies deeper or has more axes is a cache or a record of the layers."""
    returned = leaves(subject.convention.raw(subject.model, inputs))
    parts = [leaf for path, leaf in returned if len(path) == 1 and path != subject.convention.output]
    return [leaf for leaf in parts if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dim() <= 3]


def all_kept(subject: Subject, inputs: Inputs) -> list[Tensor]:
    """All that is returned, and all that modules keep beside their weights, with targets and without, in both modes.

    Buffers, which a call may change, are restored after each call.

    Raises:
        LookupError: it takes targets, in no form that it was given.
    """
    numbers: list[Tensor] = []
    calls = [(subject.convention, inputs), *_with_targets(subject, inputs)]
    for (convention, batch), mode in product(calls, (nullcontext, subject.training)):
        with mode(), kept(subject.model.buffers()):
            returned = convention.raw(subject.model, batch)
            held = (vars(module).items() for module in subject.model.modules())
            parts = [part for values in held for name, part in values if name not in ("_parameters", "_modules")]
            numbers += [tensor.clone() for tensor in tensors((returned, parts)) if tensor.is_floating_point()]
    return numbers


def _with_targets(subject: Subject, inputs: Inputs) -> list[tuple[Convention, Inputs]]:
    """The call with every target that it may be given, of which it may compute a loss; none if it takes none."""
    convention, arguments = subject.convention, dict(subject.convention.call)
    names = [p.name for p in parameters_of(subject.model) if p.default is None]
    names += convention.requested(subject.model, inputs) if convention.dicts else []
    kinds = (MASK, POSITIONS)
    targets = [name for name in names if LABELS.search(name) and not any(kind.search(name) for kind in kinds)]
    targets = targets or list(filter(None, [labels_parameter(subject)]))
    targets = [name for name in dict.fromkeys(targets) if name not in arguments]
    batch = replace(inputs, labels=inputs.ids % number_of_labels(subject))
    for fillers in islice(product(TARGETS, repeat=len(targets)), TRIED if targets else 0):
        call = (*convention.call, *zip(targets, fillers, strict=True))
        with attempt():
            replace(convention, call=call).raw(subject.model, batch)
            return [(replace(convention, call=call), batch)]
    if targets:
        raise LookupError(f"{targets[0]} could not be filled")
    return []


def with_options(subject: Subject, inputs: Inputs) -> list[Tensor]:
    """All logits with each switch of `forward` turned the other way, and what is returned where one asks for more."""
    arguments, switched = dict(subject.convention.call), list[Tensor]()
    for name, default in ((p.name, p.default) for p in parameters_of(subject.model)):
        asks_for_more = RETURNS.search(name) is not None
        if name in arguments or not (isinstance(default, bool) or (default is None and asks_for_more)):
            continue
        with attempt():
            if not asks_for_more:
                switched.append(subject.run(inputs, {name: not default}))
                continue
            returned = subject.convention.raw(subject.model, inputs, **{name: not default})
            switched += [tensor.clone() for tensor in tensors(returned) if tensor.is_floating_point()]
    return switched


def knows_order(subject: Subject) -> bool:
    """Whether exchanging two tokens does more than to exchange their logits, as a mask of the future does by itself."""
    inputs, order = subject.inputs(2, salt=7), torch.arange(subject.calling.T)
    order[1], order[-2] = order[-2].item(), order[1].item()
    before, after = (subject.run(batch) for batch in (inputs, replace(inputs, ids=inputs.ids[:, order])))
    return relative_change(before, after[:, order]) > SAME


def effect(
    subject: Subject,
    weights: Iterable[Tensor],
    *,
    size: float = OTHER,
    of: Callable[[Subject, Inputs], list[Tensor]] = logits,
    padding: bool = True,
) -> float:
    """How far noise on these parameters or buffers of the perturbed copy moves numbers, of the largest of them.

    Args:
        size: the standard deviation of the noise.
        of: what is looked at.
        padding: also change the rows of embeddings that are declared to be padding's, and are never learned.
    """
    inputs, rows = subject.inputs(3), {} if padding else padding_rows(subject.model)
    numbers = [tensor for tensor in weights if tensor.is_floating_point()]
    with quiet(), kept(numbers):
        before = of(subject, inputs)
        for salt, tensor in enumerate(numbers):
            noise = torch.randn(tensor.shape, generator=subject.generator(9 + 100 * salt)).to(tensor)
            if id(tensor) in rows:
                noise[rows[id(tensor)]] = 0
            tensor.add_(size * noise)
        return max(map(relative_change, before, of(subject, inputs)), default=0.0)


def padding_rows(model: nn.Module) -> dict[int, int]:
    """The row of each table of embeddings that is declared to be padding's, by the id of its weight."""
    tables = (module for module in model.modules() if isinstance(module, nn.Embedding))
    return {id(table.weight): table.padding_idx for table in tables if table.padding_idx is not None}
