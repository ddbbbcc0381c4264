"""A model that returns probabilities, where torch's losses take logits."""

import re

import torch

from clearhead.doctor.calling.names import file_of, is_of_a_library
from clearhead.doctor.checks.base import STEADY, Finding, Skipped, Status, Subject, Where, finding, model_check

TAKES_LOGITS = re.compile(r"\b(CrossEntropyLoss|cross_entropy)\b")
TAKES_LOGARITHMS = re.compile(r"\b(NLLLoss|nll_loss)\b")
SUM = 1e-4  # how far the probabilities of one position may be from a sum of one


@model_check("L03", "probabilities", order=245, covers=("L04",), needs=STEADY)
def probabilities(subject: Subject) -> list[Finding]:
    """What is returned in training are logits, or what the loss beside the model takes."""
    if is_of_a_library(type(subject.original)):
        raise Skipped("a library's model says itself what it returns")
    with subject.training():  # some make probabilities in evaluation only, where nothing is learned
        outputs = subject.run(subject.inputs(3, salt=27)), subject.run(subject.inputs(2, salt=28))
    if outputs[0].shape[-1] < 2 or not all(map(_are_probabilities, outputs)):
        return []
    text = file_of(subject.original)
    loss = TAKES_LOGITS.search(text) or TAKES_LOGARITHMS.search(text)
    expected = "logits" if TAKES_LOGITS.search(text) else "logarithms"
    witness = "what it returns is never negative and sums to 1 at every position"
    witness += f", and {loss[0]} in its file takes {expected}" if loss else "; a cross-entropy of torch takes logits"
    status: Status = "fail" if loss else "warn"
    return [finding((("L03", 0.9), ("L04", 0.1)), witness, where=_last_softmax(subject), status=status)]


def _are_probabilities(output: torch.Tensor) -> bool:
    return bool((output >= 0).all()) and float((output.sum(-1) - 1).abs().max()) < SUM


def _last_softmax(subject: Subject) -> Where:
    """Where the last softmax is."""
    calls = [call for call in subject.inside.calls if call.name == "softmax" and call.outputs]
    return subject.place_of(calls[-1]) if calls else Where()
