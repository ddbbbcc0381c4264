"""Where in the subject an operation, or the first attention, is."""

from clearhead.doctor.probes.attention import attentions
from clearhead.doctor.probes.tracing import ModuleCall
from clearhead.doctor.report.findings import Where
from clearhead.doctor.subject import Subject


def place_of(subject: Subject, call: ModuleCall) -> Where:
    """The module in which an operation was called, and the line."""
    if call.module is None:
        return Where(file=call.file, line=call.line, op=call.name)
    copies = (subject.model, subject.fresh)
    name = next((name for copy in copies for name, module in copy.named_modules() if module is call.module), None)
    return Where(name, type(call.module).__name__, call.file, call.line, call.name)


def attention_place(subject: Subject) -> Where:
    """The first attention."""
    attention = next(iter(attentions(subject.inside.calls)), None)
    return Where() if attention is None else place_of(subject, attention.call)
