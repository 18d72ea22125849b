"""`skyinfer play`: what the table says, what the picture shows, and that a terminal is left as it was found."""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import skyinfer
from skyinfer.command import main as cli
from skyinfer.core import border
from skyinfer.games import pilots, play, screen
from skyinfer.games.flappy import DIFFICULTIES, Flappy

ROOT = Path(__file__).parents[1]
PAINTED = ROOT / "examples" / "painted"
SIZES = [(76, 14), (80, 24), (132, 50), (300, 90)]


@pytest.fixture(scope="module")
def model() -> skyinfer.Model:
    return skyinfer.load(PAINTED)


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    try:
        code: Any = cli.main(["play", *map(str, arguments)])
    except SystemExit as error:
        code = error.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# ------------------------------------------------------------------------------------------ headless


def test_headless_flies_the_seeds_in_turn(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys, "--headless", "--pilot", "teacher", "--episodes", "3", "--seed", "5", "--seconds", "4", "--json"
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert [(one["seed"], one["frames"], one["seconds"], one["ending"]) for one in found["flights"]] == [
        (seed, 240, 4.0, "time") for seed in (5, 6, 7)
    ]
    for one in found["flights"]:
        game = Flappy(one["seed"])
        while game.frame < 240:
            game.step(game.teacher())
        assert one["gaps"] == game.score
    assert (found["episodes"], found["frames"], found["danger"]) == (3, 720, None)
    assert 0 < found["decision_ms"]["median"] <= found["decision_ms"]["p99"] <= found["decision_ms"]["max"]
    assert found["seconds"] == {"median": 4.0, "min": 4.0, "max": 4.0}


def test_headless_prints_a_table_that_fits_a_terminal(
    capsys: pytest.CaptureFixture[str], model: skyinfer.Model
) -> None:
    code, out, err = run(capsys, "--headless", "-m", PAINTED, "--episodes", "2", "--difficulty", "easy")
    assert (code, err) == (0, "")
    head, *flights, count, _, decision, danger = out.splitlines()
    assert max(map(len, out.splitlines())) < 80
    assert head.split()[:5] == ["seed", "frames", "gaps", "seconds", "ending"]
    compiled = model.compile(pilots.QUESTIONS)
    for seed, line in enumerate(flights):
        # the flight once more, by answers and not by steps
        game = Flappy(seed, "easy")
        while game.alive:
            game.step(compiled(game.state_text())["answers"]["action"]["choice"] == "thrust")
        assert line.split()[:5] == [str(seed), str(game.frame), str(game.score), f"{game.frame / 60:.1f}", "crashed"]
    assert count.startswith("2 flights, ")
    assert decision.split()[0] == "decision"
    assert re.fullmatch(r"  danger +true in \d+\.\d % of frames(, AUC \d\.\d{4})?, ECE \d\.\d{4}", danger)


def test_a_model_flies_in_the_precision_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    said = {}
    for precision in border.PRECISIONS:
        code, out, err = run(
            capsys, "--headless", "-m", "s1-pico", "--precision", precision, "--seconds", "3", "--difficulty", "hard",
            "--json",
        )  # fmt: skip
        assert (code, err) == (0, "")
        said[precision] = json.loads(out)
        own = skyinfer.load("s1-pico", precision=precision)
        (episode,) = play.fly_headless("model", own, "hard", [0], 180)
        assert said[precision]["frames"] == episode.frames == 180
        assert said[precision]["danger"]["ece"] == play.summary([episode])["danger"]["ece"]
    assert said["exact"]["danger"]["ece"] != said["int8"]["danger"]["ece"]


def test_danger_is_set_beside_the_truth(model: skyinfer.Model) -> None:
    (episode,) = play.fly_headless("model", model, "hard", [3], 600)
    pilot, game = pilots.ModelPilot(model), Flappy(3)
    for p, true in zip(episode.p_danger, episode.danger, strict=True):
        assert (bool(true), game.alive) == (game.will_crash(30), True)
        thrust = pilot.thrust(game)
        assert p == pilot.p_danger
        answers = model.decide(game.state_text(), pilots.QUESTIONS)["answers"]
        assert pilot.p_danger == pytest.approx(answers["danger"]["noul"], abs=1e-6)
        assert pilot.p_thrust == pytest.approx(answers["action"]["probabilities"]["thrust"], abs=1e-6)
        assert pilot.p_margin == pytest.approx(list(answers["margin"]["probabilities"].values()), abs=1e-6)
        game.step(thrust)
    assert not game.alive


def test_a_decision_longer_than_a_frame_is_a_missed_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**9))
    monkeypatch.setattr(play.time, "perf_counter", lambda: next(clock) * 0.02)
    (episode,) = play.fly_headless("teacher", None, "easy", [0], 50)
    assert episode.missed == episode.frames == 50
    assert list(episode.latencies) == pytest.approx([0.02] * 50)


def test_the_collector_is_as_it_was_afterwards() -> None:
    def fail() -> None:
        with play.collector_off():
            assert not gc.isenabled()
            assert gc.get_freeze_count() > 1000
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--episodes", "0"], "--episodes: expected at least 1"),
        (["--seconds", "0"], "--seconds: expected more than 0"),
        (["--seconds", "nan"], "--seconds: expected more than 0"),
        (["--seed", "-1"], "--seed: expected at least 0"),
        (["--seed", str(1 << 63)], "--seed: expected at least 0"),
        (["--json"], "--json: needs --headless"),
        (["--pilot", "nobody"], "--pilot: invalid choice"),
        (["--difficulty", "HARD"], "--difficulty: invalid choice"),
    ],
)
def test_a_faulty_command_line(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_faults_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capsys, "--headless", "-m", tmp_path / "none.gguf")
    assert (code, out, err.count("\n")) == (1, "", 1)
    code, out, err = run(capsys, "--pilot", "teacher")
    assert (code, out) == (1, "")
    assert err == "skyinfer: standard output is no terminal; --headless flies without one and prints a table\n"


def test_without_blessed_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Tty())
    monkeypatch.setattr(sys, "stdout", Tty())
    monkeypatch.setitem(sys.modules, "blessed", None)
    with pytest.raises(skyinfer.SkyinferError, match=r"pip install 'skyinfer\[play\]'"):
        play.open_terminal()


def test_the_command_knows_every_pilot_and_difficulty(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert f"{{{','.join(play.PILOTS)}}}" in out
    assert f"{{{','.join(DIFFICULTIES)}}}" in out


# ------------------------------------------------------------------------------------------- picture


def facts(**changes: Any) -> screen.Facts:
    found: dict[str, Any] = {
        "pilot": "s1-pico", "seed": 7, "thrust": True, "p_thrust": 0.75, "p_danger": 0.5, "p_margin": (0.0, 0.25, 0.75),
        "decision_ms": {"median": 0.4, "p99": 0.5, "max": 1.25}, "missed": 2, "frames": 1234, "notice": None,
        "keys": "q quit",
    }  # fmt: skip
    return screen.Facts(**(found | changes))


@pytest.mark.parametrize("size", SIZES)
def test_walls_and_drone_are_where_the_game_has_them(size: tuple[int, int]) -> None:
    painter = screen.Painter(blocks=False, colours=False)
    game = Flappy(11, "normal")
    for _ in range(300):
        game.step(game.teacher())
        painter.advance(game)
        canvas = painter.paint(game, facts(), *size)
        rows = ["".join(row) for row in canvas.characters]
        assert all(len(row) == canvas.columns for row in rows)
        world = rows[1 : len(rows) - 5]
        unit = 64 / len(world)
        (bottom, top), _ = game.gaps
        middle = int(20 + game.distance) + 4
        for up, row in enumerate(reversed(world)):
            low, high = up * unit, (up + 1) * unit
            inside = bottom <= low - unit / 2 and high + unit / 2 <= top
            outside = high + unit / 2 <= bottom or low - unit / 2 >= top
            if 0 <= middle < canvas.columns and (inside or outside) and middle not in range(16, 21):
                assert (row[middle] == "#") == outside, (game.state_text(), up)
            if "o=>" in row:
                assert row.index("o=>") == 17  # its nose before column 20
                assert low - unit <= game.altitude <= high + unit
        assert sum("o=>" in row for row in world) == 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("blocks", "colours"), [(True, True), (True, False), (False, True), (False, False)])
def test_the_picture_fits_and_uses_what_can_be_shown(size: tuple[int, int], blocks: bool, colours: bool) -> None:
    columns, rows = size
    painter = screen.Painter(blocks=blocks, colours=colours)
    for difficulty in DIFFICULTIES:
        game = Flappy(2, difficulty)
        for thrust in [True] * 5 + [False] * 100:  # through the whole world, and on the ground
            game.step(thrust)
            painter.advance(game)
            told = facts(p_thrust=None) if thrust else facts(notice="crashed")
            canvas = painter.paint(game, told, columns, rows)
            assert (canvas.columns <= columns, canvas.rows <= rows) == (True, True)
            for characters, styles in zip(canvas.characters, canvas.styles, strict=True):
                assert len(characters) == len(styles) == canvas.columns
                assert set(styles) <= screen._COLOURS.keys()
                assert blocks or "".join(characters).isascii()
    text = "\n".join("".join(row) for row in canvas.characters)
    for told in ("normal" if game.difficulty == "normal" else "hard", "seed 7", "crashed", "0.75", "0.50", "s1-pico",
                 "comfortable", "0.400 ms, p99 0.500, max 1.25", "2 of 1,234 frames missed", "q quit"):  # fmt: skip
        assert told in text


def test_only_rows_that_changed_are_written() -> None:
    terminal: Any = SimpleNamespace(
        home="<home>", clear="<clear>", normal="", number_of_colors=0, move_yx=lambda y, x: f"<{y},{x}>"
    )
    shown = screen.Screen(terminal, colours=False)
    canvas = screen.Canvas(5, 3)
    canvas.put(1, 3, "abc", "text")
    assert shown.text(canvas, 80, 24) == "<home><clear><0,0>     <1,0>   ab<2,0>     "
    assert shown.text(canvas, 80, 24) == ""
    canvas.put(2, -1, "xyz", "text")
    assert shown.text(canvas, 80, 24) == "<2,0>yz   "
    assert shown.text(canvas, 81, 24).startswith("<home><clear>")
    shown.forget()
    assert shown.text(canvas, 81, 24).startswith("<home><clear>")


# ------------------------------------------------------------------------------------------ terminal


LAUNCHER = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "skyinfer", "play", *sys.argv[1:]])
"""
ENTER, LEAVE, HIDE, SHOW = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25l", b"\x1b[?25h"
COLOUR = re.compile(rb"\x1b\[[0-9;:]*[34]8[;:]")


class Session:
    """The command on a terminal of its own."""

    def __init__(self, *arguments: str, size: tuple[int, int] = (80, 24), **environment: str) -> None:
        import pty
        import termios

        self.master, self.slave = pty.openpty()
        self.resize(*size)
        self.before = termios.tcgetattr(self.slave)
        # PYTHONPATH and the like stay; what describes the terminal that the tests run in does not
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "TERM", "COLOR", "NO_COLOR"))}
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, *arguments],
            stdin=self.slave, stdout=self.slave, stderr=self.slave, start_new_session=True,
            env=kept | {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"} | environment,
        )  # fmt: skip
        self.output = b""

    def resize(self, columns: int, rows: int) -> None:
        import fcntl
        import struct
        import termios

        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds: float) -> None:
        ready, _, _ = select.select([self.master], [], [], seconds)
        if ready:
            try:
                found = os.read(self.master, 1 << 16)
            except OSError as error:  # Linux's end of file
                if error.errno != errno.EIO:
                    raise
                return
            self.output += found
            # as every terminal does, tell where the cursor is; blessed asks when it starts
            self.type("\x1b[1;1R" * found.count(b"\x1b[6n"))

    def until(self, wanted: bytes, seconds: float = 20.0) -> bytes:
        """What was written until `wanted` appears, which must not be long."""
        end = time.monotonic() + seconds
        while wanted not in self.output:
            assert time.monotonic() < end, (wanted, self.output[-2000:])
            assert self.process.poll() is None or select.select([self.master], [], [], 0)[0], self.output[-2000:]
            self.read(0.05)
        at = self.output.index(wanted) + len(wanted)
        found, self.output = self.output[:at], self.output[at:]
        return found

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def end(self) -> tuple[int, bytes]:
        """Exit code and the rest of the output; the terminal's modes must be what they were."""
        import termios

        end = time.monotonic() + 20
        while self.process.poll() is None:
            assert time.monotonic() < end, self.output[-2000:]
            self.read(0.05)
        while select.select([self.master], [], [], 0)[0]:
            before = len(self.output)
            self.read(0)
            if len(self.output) == before:
                break
        assert termios.tcgetattr(self.slave) == self.before
        return self.process.returncode, self.output


@contextlib.contextmanager
def session(*arguments: str, size: tuple[int, int] = (80, 24), **environment: str) -> Iterator[Session]:
    if os.name != "posix":
        pytest.skip("there is no pseudoterminal")
    pytest.importorskip("blessed")
    opened = Session(*arguments, size=size, **environment)
    try:
        yield opened
    finally:
        opened.process.kill()
        opened.process.wait()
        os.close(opened.master)
        os.close(opened.slave)


def test_a_session_from_start_to_quit() -> None:
    with session("-m", str(PAINTED), "--difficulty", "easy", COLORTERM="truecolor") as opened:
        shown = opened.until(b"decided in ")
        assert ENTER in shown
        assert HIDE in shown
        assert COLOUR.search(shown)
        opened.type("p")
        opened.until(b"paused")
        opened.type("p ")
        opened.until(b"you")
        opened.until(b"hand back")
        opened.type("h")
        opened.until(b"painted")
        opened.resize(100, 40)
        opened.until(b"\x1b[40;1H")
        opened.resize(50, 10)
        opened.until(b"76 x 14 needed")
        opened.resize(80, 24)
        os.write(opened.master, b"\xff\xe9")  # keys of another coding
        opened.type("n")
        opened.until(b"seed 1 ")
        opened.type("q")
        code, rest = opened.end()
        assert code == 0
        _, table = rest.split(LEAVE)
        assert SHOW in rest
        lines = table.decode().split("\r\n")
        head = next(i for i, line in enumerate(lines) if "seed   frames" in line)
        assert [line.split()[0] for line in lines[head + 1 : head + 3]] == ["0", "1"]
        assert lines[head + 3].startswith("2 flights, ")


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM", "exception"])
def test_the_terminal_is_restored(how: str, tmp_path: Path) -> None:
    environment = {}
    if how == "exception":
        (tmp_path / "sitecustomize.py").write_text(
            "import skyinfer.games.screen as screen\n"
            "paint, count = screen.Painter.paint, []\n"
            "def fail(self, *arguments):\n"
            "    count.append(1)\n"
            "    if len(count) > 20: raise OSError(5, 'on purpose')\n"
            "    return paint(self, *arguments)\n"
            "screen.Painter.paint = fail\n",
            "utf-8",
        )
        environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    with session("--pilot", "teacher", **environment) as opened:
        opened.until(ENTER)
        if how == "Ctrl-C":
            opened.until(b"decided in ")
            opened.type("\x03")
        elif how == "SIGTERM":
            opened.until(b"decided in ")
            opened.process.send_signal(signal.SIGTERM)
        code, rest = opened.end()
        assert code == {"Ctrl-C": 130, "SIGTERM": 143, "exception": 1}[how]
        assert rest.rindex(LEAVE) >= 0
        assert rest.rindex(SHOW) > rest.rfind(HIDE)
        assert b"Traceback" not in rest
        assert (b"on purpose" in rest) == (how == "exception")


def test_ctrl_z_gives_the_terminal_back_and_takes_it_again() -> None:
    with session("--pilot", "teacher") as opened:
        opened.until(b"decided in ")
        opened.type("\x1a")
        opened.until(LEAVE)
        end = time.monotonic() + 10
        while os.waitid(os.P_PID, opened.process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is None:
            assert time.monotonic() < end
            time.sleep(0.01)
        opened.process.send_signal(signal.SIGCONT)
        opened.until(ENTER)
        opened.until(b"decided in ")
        opened.type("q")
        assert opened.end()[0] == 0


@pytest.mark.parametrize(
    ("environment", "colours", "moves", "ascii_only"),
    [
        ({"NO_COLOR": "1"}, False, True, False),
        ({"TERM": "vt100"}, False, True, False),
        ({"PYTHONIOENCODING": "ascii"}, True, True, True),
        ({"TERM": "dumb"}, False, False, True),
    ],
)
def test_lesser_terminals(environment: dict[str, str], colours: bool, moves: bool, ascii_only: bool) -> None:
    with session("--pilot", "teacher", "--seconds", "0.5", "--episodes", "1", **environment) as opened:
        out = opened.until(b"time is up")
        opened.type("q")
        code, rest = opened.end()
    out += rest
    assert code == 0
    assert bool(COLOUR.search(out)) == colours
    assert (b"\x1b[2;1H" in out) == moves
    assert out.isascii() == ascii_only
    assert moves or b"\x1b" not in out


def test_the_example_runs() -> None:
    example = ROOT / "examples" / "game_loop.py"
    result = subprocess.run([sys.executable, example], capture_output=True, text=True, check=True, timeout=60)
    assert re.fullmatch(r"\d+ frames, \d+ gaps?s?, \d+ warnings, slowest frame \d+\.\d\d ms\n", result.stdout)
    assert result.stderr == ""
