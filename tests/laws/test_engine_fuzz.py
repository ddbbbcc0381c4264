"""Native code, called with whatever a caller could choose: it computes what eager code does, or refuses."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import engine_fuzz
import pytest

from clearhead.native import building, compiler

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler"),
    pytest.mark.usefixtures("compiled_code"),
]
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
CALLS = 10_000
MISSING = [  # checks, and what stands in their place
    ("known(decoder, call) ? FINE : TOKEN", "FINE"),
    ("if (positions[column] >= 0 || column < call.length) return false;", ";"),
    ("if (token < 0 || token > V) return false;", ";"),
]


def runtime(name: str) -> str | None:
    """Where this compiler's library of a sanitizer is."""
    command = compiler()
    assert command is not None
    path = subprocess.run([*command, f"-print-file-name={name}"], capture_output=True, text=True, timeout=60).stdout
    return os.path.realpath(path.strip()) if Path(path.strip()).is_absolute() else None


def sanitized(first: int, calls: int, *options: str) -> subprocess.CompletedProcess[str]:
    """Calls in a process of its own, which ends where a sanitizer sees something."""
    runtimes = [runtime("libasan.so"), runtime("libubsan.so")]
    if sys.platform != "linux" or None in runtimes:
        pytest.skip("this compiler has no sanitizers")
    environment = {"LD_PRELOAD": ":".join(map(str, runtimes)), "ASAN_OPTIONS": "detect_leaks=0"}
    environment |= {"UBSAN_OPTIONS": "print_stacktrace=1", "PYTHONPATH": os.pathsep.join(sys.path)}
    numbers = ["--first", str(first), "--calls", str(calls), *(f"--flag={flag}" for flag in SANITIZERS)]
    command = [sys.executable, engine_fuzz.__file__, *numbers, *options]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=7200)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("first", range(0, 100, 20))
def test_a_hundred_calls(first: int) -> None:
    for number in range(first, first + 20):
        engine_fuzz.call(number)


@pytest.mark.campaign
@pytest.mark.timeout(7300)
def test_ten_thousand_calls_under_the_sanitizers() -> None:
    done = sanitized(0, CALLS)
    assert done.returncode == 0, done.stderr[-5000:]
    assert f"{CALLS} calls" in done.stdout


@pytest.mark.campaign
@pytest.mark.timeout(7300)
@pytest.mark.parametrize(("right", "wrong"), MISSING, ids=[right for right, _ in MISSING])
def test_a_missing_check_is_seen(right: str, wrong: str, tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    shutil.copytree(building.HERE, sources)
    text = (sources / "checks.h").read_text(encoding="utf-8")
    assert text.count(right) == 1, "the check has no place any more"
    (sources / "checks.h").write_text(text.replace(right, wrong), encoding="utf-8")
    assert sanitized(0, 2000, "--sources", str(sources)).returncode != 0
