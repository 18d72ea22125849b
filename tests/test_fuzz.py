"""A short run of tests/fuzz.py, and its watchdog put to the test."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).with_name("fuzz.py")


def run(*arguments: str, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FUZZ), *arguments, "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(("kind", "rounds"), [("files", 800), ("requests", 2000)])
def test_only_documented_errors_come_out(kind: str, rounds: int, tmp_path: Path) -> None:
    result = run(kind, "--rounds", str(rounds), "--seed", "2", out=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    (done, answered, faults) = re.findall(r"(\d+) (?:rounds|answered|faults)", result.stdout.splitlines()[-1])
    assert (int(done), int(faults)) == (rounds, 0)
    # mutation that breaks everything would test little
    assert int(answered) > rounds // 12


def test_the_watchdog_sees_every_kind_of_fault(tmp_path: Path) -> None:
    """Of ten planted rounds one raises, one crashes, one hangs and one asks for too much memory.

    Two more are faults of the fuzzer's own, before there is an input; neither ends the run, nor hides what follows.
    """
    result = run("planted", "--rounds", "10", "--hang", "3", out=tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    found = dict(re.findall(r"FAULT in round (\d+): (.*(?:\n.*)*?)\n  (?:input|no input) saved", result.stdout))
    expected = {
        "1": "the fuzzer's own: no input was made",
        "2": "KeyError: 'planted'",
        "4": "died with status",
        "5": "died with status",
        "6": "hung for more than 3 s",
    }
    if sys.platform == "linux":  # elsewhere there may be no limit to memory
        expected["8"] = "MemoryError"
    assert {number: text for number, text in expected.items() if text not in found.get(number, "")} == {}
    saved = {f"planted-0-{number}" for number in expected if number not in ("1", "5")}
    assert {path.name for path in tmp_path.iterdir()} == saved
    assert "no input saved: it cannot be made (TypeError: planted in the fuzzer itself)" in result.stdout
    assert f"{len(expected)} faults" in result.stdout.splitlines()[-1]
    assert "again: python tests/fuzz.py planted --seed 0 --first 4 --rounds 1" in result.stdout
