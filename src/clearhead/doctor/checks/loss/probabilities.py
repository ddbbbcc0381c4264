"""A model that returns probabilities, where torch's losses take logits."""

import inspect
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from torch import nn

from clearhead.doctor.calling.names import file_of, is_of_a_library
from clearhead.doctor.checks.base import STEADY, Finding, Skipped, Status, Subject, Where, attempt, finding, model_check
from clearhead.doctor.probes.loss import is_probability

TAKES_LOGITS = re.compile(r"\b(CrossEntropyLoss|cross_entropy)\b")
TAKES_LOGARITHMS = re.compile(r"\b(NLLLoss|nll_loss)\b")
LOGARITHM = re.compile(r"\blog(_softmax|p|10|2)?\(|LogSoftmax")  # somebody may take it on the way to the loss
FILES, LONG = 60, 300_000  # beside a model's own: how many are read, and of how many bytes


@model_check("L03", "probabilities", order=245, covers=("L04",), needs=STEADY)
def probabilities(subject: Subject) -> list[Finding]:
    """What is returned in training are logits, or what the loss beside the model takes."""
    if is_of_a_library(type(subject.original)):
        raise Skipped("a library's model says itself what it returns")
    with subject.training():  # some make probabilities in evaluation only, where nothing is learned
        outputs = subject.run(subject.inputs(3, salt=27)), subject.run(subject.inputs(2, salt=28))
    if outputs[0].shape[-1] < 2 or not all(map(is_probability, outputs)):
        return []
    file, loss = next(_losses(subject.original), ("", None))
    expected = "logits" if loss and TAKES_LOGITS.search(loss) else "logarithms"
    witness = "what it returns is never negative and sums to 1 at every position"
    witness += f", and {loss} in {file} takes {expected}" if loss else "; a cross-entropy of torch takes logits"
    status: Status = "fail" if loss else "warn"
    return [finding((("L03", 0.9), ("L04", 0.1)), witness, where=_last_softmax(subject), status=status)]


def _losses(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Losses of torch that the model's own file names, or one that imports the model, with the file's name."""
    for file, text in (("its file", file_of(model)), *_importing(type(model))):
        loss = TAKES_LOGITS.search(text) or TAKES_LOGARITHMS.search(text)
        if loss and (file == "its file" or not LOGARITHM.search(text)):
            yield file, loss[0]


def _importing(cls: type) -> Iterator[tuple[str, str]]:
    """The files in its folder, or the one above, that import a class from its module: the name and the text of each."""
    with attempt():
        home = Path(inspect.getfile(cls)).resolve()
        imports = re.compile(rf"^\s*(from|import)\b.*\b{re.escape(home.stem)}\b", re.M)
        for path in islice((path for folder in home.parents[:2] for path in sorted(folder.glob("*.py"))), FILES):
            if path != home and path.stat().st_size < LONG:
                text = path.read_text(encoding="utf-8", errors="replace")
                if imports.search(text) and re.search(rf"\b{re.escape(cls.__name__)}\b", text):
                    yield path.name, text


def _last_softmax(subject: Subject) -> Where:
    """Where the last softmax is."""
    calls = [call for call in subject.inside.calls if call.name == "softmax" and call.outputs]
    return subject.place_of(calls[-1]) if calls else Where()
