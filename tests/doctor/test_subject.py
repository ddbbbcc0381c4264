"""What the checks work on stays as it was made."""

from collections import Counter
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest
import torch
from doctor_helpers import NAMES, made, write

from clearhead.doctor import Spec, examination
from clearhead.doctor.preparation import prepare
from clearhead.doctor.subject import Subject


def test_nothing_of_it_can_be_set(tmp_path: Path) -> None:
    subject = prepare(made(write(tmp_path, "gpt")), Spec(), "quick", 0)
    for field in fields(Subject):
        with pytest.raises(FrozenInstanceError):
            setattr(subject, field.name, None)


@pytest.mark.parametrize("host", NAMES)
def test_no_check_changes_its_weights_or_buffers(host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subjects: list[Subject] = []

    def remembered(*given: object) -> Subject:
        subject = prepare(*given)  # type: ignore[arg-type]
        subjects.append(subject)
        held.extend({name: t.clone() for name, t in copy.state_dict().items()} for copy in copies(subject))
        return subject

    def copies(subject: Subject) -> tuple[torch.nn.Module, torch.nn.Module]:
        return subject.fresh, subject.model

    held: list[dict[str, torch.Tensor]] = []
    monkeypatch.setattr(examination, "prepare", remembered)
    examination.check(made(write(tmp_path, host)), level="standard")
    (subject,) = subjects
    for copy, before in zip(copies(subject), held, strict=True):
        after = copy.state_dict()
        assert [name for name, tensor in before.items() if not torch.equal(tensor, after[name])] == []
        assert not any(module.training for module in copy.modules())


def test_dropout_in_evaluation_is_taken_out_of_every_call(tmp_path: Path) -> None:
    model = made(write(tmp_path, "gpt", ("x = self.fc2(x)\n", "x = F.dropout(self.fc2(x), 0.2)\n")))
    subject = prepare(model, Spec(), "quick", 0)
    assert subject.drops_in_evaluation
    assert not subject.repeated.is_same
    inputs = subject.inputs(2)
    assert torch.equal(subject.run(inputs), subject.run(inputs))


def test_what_is_recorded_of_a_pass_is_one_pass(tmp_path: Path) -> None:
    subject = prepare(made(write(tmp_path, "gpt")), Spec(), "quick", 0)
    first = replace(subject, seed=1).inside  # nothing of it is known yet
    second = subject.look_inside(subject.model, subject.inputs(2))
    names = ("embedding", "softmax", "scaled_dot_product_attention")
    counts = [Counter(call.name for call in inside.calls if call.name in names) for inside in (first, second)]
    assert counts[0] == counts[1], "tokens are drawn before the recording, which may take calls of the model"
