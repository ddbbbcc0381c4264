"""Where in the patient an operation, or the first attention, is."""

from clearhead.doctor.instruments.attention import attentions
from clearhead.doctor.instruments.tracing import Call
from clearhead.doctor.patient import Patient
from clearhead.doctor.reports.findings import Where


def place_of(patient: Patient, call: Call) -> Where:
    """The module in which an operation was called, and the line."""
    if call.module is None:
        return Where(file=call.file, line=call.line, op=call.name)
    copies = (patient.model, patient.fresh)
    name = next((name for copy in copies for name, module in copy.named_modules() if module is call.module), None)
    return Where(name, type(call.module).__name__, call.file, call.line, call.name)


def attention_place(patient: Patient) -> Where:
    """The first attention."""
    seen = next(iter(attentions(patient.inside.calls)), None)
    return Where() if seen is None else place_of(patient, seen.call)
