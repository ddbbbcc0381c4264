"""pytest --doctor, as a stranger's project uses it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from doctor_helpers import source_of

from clearhead.doctor import pytest_items
from clearhead.doctor.checks import CHECKS
from clearhead.doctor.isolated import Request
from clearhead.doctor.report.findings import Evidence, Finding, Where
from clearhead.doctor.report.report import Report
from clearhead.doctor.report.verdict import Checked
from clearhead.errors import DataError

pytest_plugins = ["pytester"]

MASKING = ('        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))\n', "")
OUTCOMES = {"dependencies": "fail", "norms": "warn", "caches": "skip", "stress": "waived", "paths": "blocked"}


def project(pytester: pytest.Pytester, models: str) -> None:
    pytester.makepyprojecttoml(f"[tool.clearhead.doctor]\nmodels = {models}\n")
    pytester.makepyfile(test_own="def test_of_ones_own():\n    pass\n")


def run(pytester: pytest.Pytester, *words: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess(
        "-p", "clearhead.doctor.pytest_plugin", "-p", "no:cacheprovider", "-W", "default", *words
    )


def prepared(request: Request) -> Report:
    """A report in which every outcome occurs."""
    found = (
        Finding("M01", "fail", Evidence(1, 0, 0, "changing token 7 moves logits 3"), Where("blocks.0"),
                check="dependencies", repro="clearhead doctor ..."),
        Finding("N12", "warn", Evidence(1, 0, 0, "a matter of taste"), check="norms"),
    )  # fmt: skip
    checks = tuple(
        Checked(one.id, one.name, one.covers, one.holds, OUTCOMES.get(one.name, "pass"), "told why", 1.0)  # type: ignore[arg-type]
        for one in CHECKS
    )
    return Report(str(request.target), "causal", found, checks, (), (), 0.1)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Request, dict[str, Any]]]:
    """Examinations are not made but answered; what was asked for is kept."""
    kept: list[tuple[Request, dict[str, Any]]] = []

    def answer(request: Request, **more: Any) -> Any:
        kept.append((request, more))
        if request.target == "broken.py:build":
            raise DataError("there is no file broken.py; give file.py:name")
        return json.loads(json.dumps(prepared(request).as_json()))

    monkeypatch.setattr(pytest_items, "examine_isolated", answer)
    return kept


def test_each_check_is_a_test_with_its_outcome(pytester: pytest.Pytester, asked: list[Any]) -> None:
    project(pytester, '["mine.py:build", "other.py:build"]')
    done = run(pytester, "--doctor", "-v", "-rs")
    passed = len(CHECKS) - len(OUTCOMES) + 1  # a warning passes
    done.assert_outcomes(passed=2 * passed + 1, failed=2, skipped=6, warnings=2)
    shown = done.stdout.str()
    for told in (
        "doctor[mine.py:build]::dependencies",
        "FAIL M01  future tokens reach past positions  blocks.0",
        "changing token 7 moves logits 3",
        "clearhead doctor ...",
        "DoctorWarning: mine.py:build, norms",
        "a matter of taste",
        "skip: told why",
        "waived: told why",
        "blocked: told why",
    ):
        assert told in shown, told
    assert "pytest_items.py" not in shown.split("FAILURES")[1].split("warnings summary")[0]
    assert [request.target for request, _ in asked] == ["mine.py:build", "other.py:build"], "each is examined once"
    assert shown.index("test_of_ones_own") < shown.index("doctor[mine.py:build]") < shown.index("doctor[other.py")


def test_tests_are_chosen_by_name_and_marker(pytester: pytest.Pytester, asked: list[Any]) -> None:
    project(pytester, '["mine.py:build"]')
    run(pytester, "--doctor", "-k", "stress or finite").assert_outcomes(passed=1, skipped=1, deselected=len(CHECKS) - 1)
    run(pytester, "--doctor", "-m", "not doctor", "--strict-markers").assert_outcomes(passed=1, deselected=len(CHECKS))
    assert len(asked) == 1
    listed = run(pytester, "--doctor", "--collect-only", "-q")
    listed.stdout.fnmatch_lines([f"doctor[[]mine.py:build[]]::{one.name}" for one in CHECKS])
    assert len(asked) == 1, "listing examines nothing"


def test_a_table_says_all_that_the_command_can(pytester: pytest.Pytester, asked: list[Any]) -> None:
    project(
        pytester,
        '[{target = "hf:llama", kind = "causal", level = "standard", allow = {P01 = "on purpose"}, only = ["M01"], '
        'set = {num_hidden_layers = 2, tie_word_embeddings = true}, seed = 3, timeout = 9, batch = "b.pt"}]',
    )
    done = run(pytester, "--doctor", "-o", "pythonpath=src lib")
    assert done.parseoutcomes()["failed"] == 1
    request, more = asked[0]
    settings = {"num_hidden_layers": "2", "tie_word_embeddings": "true"}
    assert request == Request(
        "hf:llama", kind="causal", level="standard", only=("M01",), allow={"P01": "on purpose"}, settings=settings,
        seed=3, batch="b.pt",
    )  # fmt: skip
    assert more == {"timeout": 9.0, "folder": pytester.path, "search": [str(pytester.path / p) for p in ("src", "lib")]}


def test_what_cannot_be_examined_fails_once(pytester: pytest.Pytester, asked: list[Any]) -> None:
    project(pytester, '["broken.py:build"]')
    done = run(pytester, "--doctor")
    done.assert_outcomes(passed=1, failed=1, skipped=len(CHECKS) - 1)
    assert "there is no file broken.py" in done.stdout.str()
    assert "Traceback" not in done.stdout.str()
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("", "finds no models in"),
        ("models = []", "finds no models in"),
        ("models = 'mine.py'", "finds no models in"),
        ("models = [3]", "a model is a target, or a table that has one, and not 3"),
        ("models = [{kind = 'causal'}]", "a table that has one"),
        ("models = [{target = 'a.py', knd = 'causal'}]", "a.py: unknown option 'knd'; did you mean 'kind'?"),
        ("models = [{target = 'a.py', kind = 'casual'}]", "kind 'casual' is none of causal"),
        ("models = [{target = 'a.py', allow = ['P01']}]", "a.py: allow must be a table, not ['P01']"),
        ("models = [{target = 'a.py', allow = {P1 = 'x'}}]", "there is no check 'P1'"),
        ("models = [{target = 'a.py', timeout = 'long'}]", "a.py: timeout must be a number, not 'long'"),
        ("models = [", "cannot read [tool.clearhead.doctor]"),
    ],
)
def test_a_table_that_means_nothing_is_refused(table: str, said: str, pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("pyproject.toml").write_text(f"[tool.clearhead.doctor]\n{table}\n", encoding="utf-8")
    options = ["-c", "empty.ini", "--rootdir", "."] if table == "models = [" else []  # pytest reads the file too
    pytester.makefile(".ini", empty="")
    done = run(pytester, "--doctor", *options)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert said in done.stderr.str()
    assert "Traceback" not in done.stderr.str()


def test_a_real_model_is_examined_from_its_projects_folder(pytester: pytest.Pytester) -> None:
    pytester.mkdir("package").joinpath("model.py").write_text(source_of("gpt", MASKING), encoding="utf-8")
    project(pytester, '[{target = "package.model:build", kind = "causal", allow = {E04 = "a joke"}}]')
    inside = pytester.mkdir("elsewhere")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(inside)
        done = run(
            pytester, "--doctor", "--rootdir", str(pytester.path), "-rs", "-k", "dependencies or finite or paths"
        )
    done.assert_outcomes(passed=2, failed=1, deselected=len(CHECKS) - 3)
    assert "FAIL M01" in done.stdout.str()
    assert "y = att @ v" in done.stdout.str()


def test_without_the_option_nothing_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text("def test_nothing():\n    pass\n", encoding="utf-8")
    program = (
        "import sys, pytest\n"
        "code = pytest.main(['-q', '-p', 'clearhead.doctor.pytest_plugin', '-p', 'no:cacheprovider', sys.argv[1]])\n"
        "heavy = {name.split('.')[0] for name in sys.modules} & {'torch', 'numpy', 'pydantic', 'rich'}\n"
        "ours = {name for name in sys.modules if name.startswith('clearhead')}\n"
        "assert code == 0 and not heavy, heavy\n"
        "assert ours == {'clearhead', 'clearhead.lazy', 'clearhead.doctor', 'clearhead.doctor.pytest_plugin'}, ours\n"
    )
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, env=alone, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
