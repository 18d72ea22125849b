"""Runs rounds in a child process and watches it: a crash, a hang, a memory blow-up and a wrong exception are all seen.

An input that cannot be made is a fault of the fuzzer's own. It is reported like any other, and the run goes on.

Beside files and requests there is a kind whose rounds are faulty on purpose, for test_fuzz.py.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from .bases import Outcome
from .files import Files
from .requests import Requests

COMMAND = Path(__file__).parents[1] / "fuzz.py"


MEMORY_LIMIT = 4 << 30
MAX_FAULTS = 20


class Planted:
    """Faults on purpose, so that a test can see the watchdog at work."""

    outcomes = ("fine",)

    def __init__(self, work: Path) -> None:
        self.work = work

    def case(self, rng: random.Random) -> str:
        number = int(rng.name)  # type: ignore[attr-defined]
        if number == 1:
            raise TypeError("planted in the fuzzer itself")
        if number == 5:
            os.abort()
        return ""

    def write(self, case: str, path: Path) -> Path:
        path.write_text(case)
        return path

    def run(self, case: str, rng: random.Random) -> Outcome:
        number = int(rng.name)  # type: ignore[attr-defined]
        if number == 2:
            raise KeyError("planted")
        if number == 4:
            os.abort()
        if number == 6:
            time.sleep(600)
        if number == 8:
            bytearray(MEMORY_LIMIT * 2)
        return "fine"


KINDS: dict[str, type[Files] | type[Requests] | type[Planted]] = {
    "files": Files,
    "requests": Requests,
    "planted": Planted,
}


class Rng(random.Random):
    """The random numbers of one round."""

    name: str

    @classmethod
    def of(cls, kind: str, seed: int, number: int) -> Rng:
        rng = cls(f"{kind}:{seed}:{number}")
        rng.name = str(number)
        return rng


class Board:
    """Numbers that a child writes and its watchdog reads, even after a crash: the round at work, how often each outcome
    came, the slowest round in microseconds and its number."""

    _FORM: ClassVar[struct.Struct] = struct.Struct("<7q")
    _FIELDS = ("round", "done", "first outcome", "second outcome", "third outcome", "slowest_us", "slowest")

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(self._FORM.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), self._FORM.size)

    def read(self) -> list[int]:
        return list(self._FORM.unpack_from(self._map))

    def write(self, numbers: list[int]) -> None:
        self._FORM.pack_into(self._map, 0, *numbers)


class Fault(NamedTuple):
    number: int
    what: str


def child(kind: str, seed: int, first: int, end: int, work: Path, deadline: float) -> None:
    """Run rounds and note faults in a file. A crash or a hang is the watchdog's to see."""
    faulthandler.enable()
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    board = Board(work / "board")
    target: Any = KINDS[kind](work)
    numbers = board.read()
    for number in range(first, end):
        if time.time() > deadline:
            break
        numbers[0] = number
        board.write(numbers)
        start = time.perf_counter()
        said = "the fuzzer's own: no input was made\n"
        try:
            rng = Rng.of(kind, seed, number)
            case = target.case(rng)
            said = ""
            numbers[2 + target.outcomes.index(target.run(case, rng))] += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            said += "".join(traceback.format_exception(error, limit=-8))[-4000:]
            with (work / "faults").open("a") as file:
                file.write(json.dumps([number, said]) + "\n")
        taken = int((time.perf_counter() - start) * 1e6)
        numbers[1] += 1
        if taken > numbers[5]:
            numbers[5:] = [taken, number]
    board.write(numbers)


def save(kind: str, seed: int, number: int, work: Path, path: Path) -> None:
    """Write the input of a round to `path`, and print where. Meant for a process of its own, which it may end."""
    target: Any = KINDS[kind](work)
    print(target.write(target.case(Rng.of(kind, seed, number)), path))


def _save_input(kind: str, seed: int, number: int, work: Path, out: Path) -> str:
    """Save a round's input, and say where, or why there is none."""
    out.mkdir(parents=True, exist_ok=True)
    place = out / f"{kind}-{seed}-{number}"
    arguments = ["--save", str(place), "--child", str(work), "--seed", str(seed), "--first", str(number)]
    command = [sys.executable, str(COMMAND), kind, *arguments]
    try:
        made = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return "no input saved: making it takes more than two minutes"
    if made.returncode:
        return f"no input saved: it cannot be made ({(made.stderr.strip().splitlines() or ['no reason given'])[-1]})"
    return f"input saved as {made.stdout.strip().splitlines()[-1]}"


def fuzz(
    kind: str, *, rounds: int, seed: int, first: int = 0, minutes: float = 1e6, hang: float = 10.0, out: Path
) -> list[Fault]:
    """Run rounds `first` to `first + rounds - 1` under a watchdog and report on stdout. Gives the faults."""
    end, deadline = first + rounds, time.time() + 60 * minutes
    environment = os.environ | {"RUST_BACKTRACE": "0", "TOKENIZERS_PARALLELISM": "false"}
    outcomes = KINDS[kind].outcomes
    faults: list[Fault] = []
    began = time.time()
    with tempfile.TemporaryDirectory(prefix="skyinfer-fuzz-", ignore_cleanup_errors=True) as name:
        work = Path(name)
        board, log, noted = Board(work / "board"), work / "stderr", 0
        at, said = first, began
        kinds: list[Any] = []
        repeats: list[int] = []

        def report() -> None:
            numbers = board.read()
            counts = ", ".join(f"{count} {outcome}" for outcome, count in zip(outcomes, numbers[2:5], strict=False))
            print(
                f"{kind}: seed {seed}: {numbers[1]} rounds in {time.time() - began:.0f} s: {counts},"
                f" {len(faults)} faults; slowest {numbers[5] / 1000:.1f} ms (round {numbers[6]})"
                + (f"; the same faults in rounds {repeats[:9]}, {len(repeats)} in all" if repeats else ""),
                flush=True,
            )

        def found(fault: Fault) -> None:
            places = [line.split(", in")[0] for line in fault.what.splitlines() if line.lstrip().startswith("File")]
            lines = fault.what.strip().splitlines()
            kinds.append((places[:1], places[-1:], lines[0][:40], lines[-1][:40]))
            if kinds.count(kinds[-1]) > 1:
                repeats.append(fault.number)
                return
            faults.append(fault)
            print(f"FAULT in round {fault.number}: {fault.what.strip()}")
            print(f"  {_save_input(kind, seed, fault.number, work, out)}")
            print(f"  again: python tests/fuzz.py {kind} --seed {seed} --first {fault.number} --rounds 1", flush=True)

        while at < end and len(faults) < MAX_FAULTS and time.time() < deadline:
            arguments = ["--child", str(work), "--seed", str(seed), "--first", str(at), "--rounds", str(end - at)]
            with log.open("wb") as stderr:
                process = subprocess.Popen(
                    [sys.executable, str(COMMAND), kind, *arguments, "--deadline", str(deadline)],
                    stderr=stderr,
                    env=environment,
                )
            board.write([-1, *board.read()[1:]])
            moved, last, hung = time.time(), -1, False
            while process.poll() is None:
                time.sleep(0.02)
                now, current = time.time(), board.read()[0]
                if current != last:
                    moved, last = now, current
                # the first round waits for its imports and base files
                elif now - moved > (hang if last >= 0 else hang + 60):
                    hung = True
                    # the child's faulthandler then says where it hung
                    process.send_signal(signal.SIGTERM if sys.platform == "win32" else signal.SIGABRT)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(5)
                    process.kill()
                    process.wait()
                if now - said > 20:
                    said = now
                    report()
            if (work / "faults").exists():
                lines = (work / "faults").read_text().splitlines()
                for line in lines[noted:]:
                    found(Fault(*json.loads(line)))
                noted = len(lines)
            if process.returncode == 0:
                break
            tail = log.read_bytes()[-3000:].decode("utf-8", "replace")
            why = f"hung for more than {hang:g} s" if hung else f"died with status {process.returncode}"
            crashed = board.read()[0]
            if crashed < 0:
                raise RuntimeError(f"the child {why} before its first round:\n{tail}")
            found(Fault(crashed, f"{why}\n{tail}"))
            at = crashed + 1
        report()
    return faults
