"""What a training shows while it lasts."""

from __future__ import annotations

import io
import sys

import pytest

from skyinfer.train import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(progress.time, "monotonic", found.monotonic)
    return found


def test_a_terminal_shows_a_bar_with_loss_and_time_left(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.shown(True) as call:
        call("learning a tokenizer", 0, 1)
        for step in range(1, 101):
            clock.now += 0.5
            call(f"loss {1 / step:.4f}", step, 400)
    text = terminal.getvalue()
    assert "learning a tokenizer" in text
    # 0.5 s for each of the 300 steps that are left
    assert " 25 % of 400 steps, loss 0.0100, 2 min left" in text
    assert text.endswith("\r")
    assert "\n" not in text


def test_without_a_terminal_there_is_a_line_every_minute(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.shown(True) as call:
        # gone on from step 100
        for step in range(101, 401):
            clock.now += 1.0
            call(f"loss {1 / step:.4f}", step, 1000)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5
    assert lines[0] == "skyinfer: step 160 of 1000, loss 0.0063, 14 min left"
    assert lines[-1] == "skyinfer: step 400 of 1000, loss 0.0025, 10 min left"


def test_a_short_training_says_nothing_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for given in (True, False, None):
        with progress.shown(given) as call:
            call("loss 1", 1, 2)
            call("loss 1", 2, 2)
    assert capsys.readouterr().err == ""


def test_a_program_gets_every_step() -> None:
    seen = []
    with progress.shown(lambda *what: seen.append(what)) as call:
        call("loss 1", 1, 2)
    assert seen == [("loss 1", 1, 2)]


def test_no_stderr_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with progress.shown(True) as call:
        call("loss 1", 1, 2)


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.2, "0 s"), (59, "59 s"), (60, "1 min"), (3570, "1 h 0 min"), (7900, "2 h 12 min")]
)
def test_durations(seconds: float, said: str) -> None:
    assert progress.duration(seconds) == said
