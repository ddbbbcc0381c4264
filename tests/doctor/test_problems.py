"""What a stranger's code raises is caught in one place, kept, and never more than it should be."""

import ast
from pathlib import Path

import pytest

from clearhead import doctor
from clearhead.doctor.problems import attempt

SOURCE = Path(str(doctor.__file__)).parent
OF_A_SCRIPT = {"training/script.py"}  # its last line is told, so that its frames are needed


def test_what_was_raised_is_kept_without_the_tensors_of_its_frames() -> None:
    with attempt() as attempted:
        raise ValueError("a size\nof 3")
    assert attempted.failed
    assert (attempted.kind, attempted.sentence()) == ("ValueError", "ValueError: a size of 3")
    assert attempted.error is not None
    assert attempted.error.__traceback__ is None


def test_nothing_raised_is_no_failure() -> None:
    with attempt() as attempted:
        pass
    assert not attempted.failed


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_who_ends_the_program_is_not_held_up(stop: type[BaseException]) -> None:
    with pytest.raises(stop), attempt():
        raise stop


def test_nothing_else_of_the_doctor_catches_every_exception() -> None:
    catching = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or {"Exception", "BaseException"} & {name.id for name in ast.walk(node.type)
                                                                   if isinstance(name, ast.Name)})
    }  # fmt: skip
    assert catching == OF_A_SCRIPT
