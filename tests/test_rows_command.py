"""`skyinfer rows`: every format, runs that end early and go on, and inputs that are refused."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from commands import Run, Terminal, process
from test_compiled import QUESTIONS

import skyinfer
from skyinfer.command.main import main
from skyinfer.command.rows import _Rate
from skyinfer.core import border
from skyinfer.terminal import Progress

pa = pytest.importorskip("pyarrow")
csv = pytest.importorskip("pyarrow.csv")
pq = pytest.importorskip("pyarrow.parquet")

from skyinfer.rows import answer_rows, runs  # noqa: E402

N = 3000


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the same rows in every format, which is the current one."""
    monkeypatch.chdir(tmp_path)
    table = rows()
    pq.write_table(table, "in.parquet", row_group_size=700)
    csv.write_csv(table, "in.csv")
    with pa.ipc.new_file("in.arrow", table.schema) as writer:
        writer.write_table(table, 500)
    with pa.ipc.new_stream("stream.arrow", table.schema) as writer:
        writer.write_table(table, 500)
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    Path("q.json").write_text(json.dumps(QUESTIONS))
    return tmp_path


def rows() -> Any:
    return pa.table({"id": range(N), "state": [f"vy {i % 13} dx {i % 41}" for i in range(N)]})


def read(path: str) -> Any:
    if path.endswith(".parquet"):
        return pq.read_table(path)
    if path.endswith(".csv"):
        return csv.read_csv(path)
    if path.endswith(".arrow"):
        return pa.ipc.open_file(path).read_all()
    return pa.Table.from_pylist([json.loads(line) for line in Path(path).read_text().splitlines()])


def test_rows_are_answered_in_the_precision_that_is_asked_for(there: Path) -> None:
    found = {}
    for precision in border.PRECISIONS:
        assert main(["rows", "in.parquet", "-q", "q.json", "-o", f"{precision}.parquet", "--precision", precision]) == 0
        found[precision] = read(f"{precision}.parquet").drop_columns(["id", "state"])
        own = answer_rows(skyinfer.load(precision=precision), QUESTIONS, rows()).read_all()
        for name in found[precision].column_names:
            assert found[precision][name].to_pylist() == own[name].to_pylist(), name
    assert found["exact"]["sure_noul"].to_pylist() != found["int8"]["sure_noul"].to_pylist()


@pytest.mark.parametrize("source", ["in.parquet", "in.csv", "in.arrow", "stream.arrow", "in.jsonl"])
@pytest.mark.parametrize("out", ["out.parquet", "out.csv", "out.arrow", "out.jsonl"])
def test_every_format_to_every_other(there: Path, source: str, out: str) -> None:
    assert main(["rows", source, "-q", "q.json", "-o", out]) == 0
    expected = answer_rows(skyinfer.load(), QUESTIONS, rows()).read_all()
    found = read(out)
    assert found["id"].to_pylist() == list(range(N))
    for name in ("action", "sure_noul", "level_score", "turned_confidence"):
        given = expected[name].to_pylist()
        if out == "out.csv" and name != "action":  # floats are written with as many digits as a float32 needs
            assert found[name].cast(pa.float32()).to_pylist() == given
        else:
            assert list(map(str, found[name].to_pylist())) == list(map(str, given))
    assert not list(there.glob("*.parts"))


# Parts of some hundred rows, and a signal so many seconds after the first row is begun; the time of it all is printed.
_KILLED = """
import os, sys, threading, time
from skyinfer.command import rows
from skyinfer.command.main import main
from skyinfer.rows import runs, tables
runs._PART_ROWS, tables.ROWS_AT_ONCE = 200, 100
number, after = int(sys.argv[1]), float(sys.argv[2])
begun = []
class Rate(rows._Rate):
    def show(self, done, total):
        if not begun:
            begun.append(time.monotonic())
            if number:
                threading.Timer(after, os.kill, (os.getpid(), number)).start()
rows._Rate = Rate
code = main(sys.argv[3:])
print(time.monotonic() - begun[0], flush=True)
os._exit(code)
"""


@pytest.mark.parametrize("out", ["out.parquet", "out.jsonl"])
@pytest.mark.skipif(os.name != "posix", reason="no signals")
def test_killed_at_ten_random_moments_and_resumed_gives_the_same_bytes(there: Path, out: str) -> None:
    def answer(out: str, number: int, after: float) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-c", _KILLED, str(number), str(after), "rows", "in.jsonl", "-q", "q.json",
                   "--threads", "1", "--resume", "-o", out]  # fmt: skip
        return subprocess.run(command, capture_output=True)

    took, rng, n_parts = float(answer(f"whole.{out}", 0, 0).stdout), random.Random(5), set()
    for _ in range(10):
        number = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
        if answer(out, number, took * rng.uniform(0.02, 0.3)).returncode == 0:
            break
        n_parts.add(len(list(there.glob(f"{out}.parts/*.arrows"))))
    else:
        assert answer(out, 0, 0).returncode == 0
    assert Path(out).read_bytes() == Path(f"whole.{out}").read_bytes()
    assert max(n_parts) > 0  # it went on from what was there
    assert not Path(f"{out}.parts").exists()


def test_what_was_answered_before_an_interruption_is_kept(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered, shown = runs.answered, Progress.show_rows

    def interrupted(self: Progress, rate: str, done: int, total: int | None) -> None:
        if done >= 2048:
            raise KeyboardInterrupt
        shown(self, rate, done, total)

    monkeypatch.setattr(Progress, "show_rows", interrupted)
    assert main(["rows", "in.parquet", "-q", "q.json", "-o", "out.parquet"]) == 130
    assert not Path("out.parquet").exists()
    (part,) = there.glob("out.parquet.parts/*.arrows")
    end = int(part.stem.partition("-")[2])
    assert end >= 2048
    monkeypatch.setattr(Progress, "show_rows", shown)
    first_rows = []

    def counted(*arguments: Any, **options: Any) -> Any:
        first_rows.append(options["first_row"])
        return answered(*arguments, **options)

    monkeypatch.setattr(runs, "answered", counted)
    assert main(["rows", "in.parquet", "-q", "q.json", "-o", "out.parquet", "--resume"]) == 0
    assert first_rows == [end]
    assert main(["rows", "in.parquet", "-q", "q.json", "-o", "whole.parquet"]) == 0
    assert Path("out.parquet").read_bytes() == Path("whole.parquet").read_bytes()


def test_unfinished_and_changed_runs(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = Path("in.jsonl").read_text().splitlines()
    Path("in.jsonl").write_text("\n".join([*lines[:2600], '{"state": null}', *lines[2600:]]) + "\n")
    command = ["rows", "in.jsonl", "-q", "q.json", "-o", "out.jsonl"]
    assert main(command) == 1
    assert "rows.2600: must not be null" in capsys.readouterr().err
    assert list(there.glob("out.jsonl.parts/*.arrows"))
    assert main(command) == 1
    assert "--resume goes on with it, --force starts over" in capsys.readouterr().err
    os.utime("in.jsonl", (1, 1))
    assert main([*command, "--resume"]) == 1
    assert "another source; --force starts over" in capsys.readouterr().err
    assert main([*command, "--force", "--on-error", "keep"]) == 0
    found = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [i for i, row in enumerate(found) if row["x_error"] is not None] == [2600]
    assert found[2600]["action"] is None
    capsys.readouterr()
    assert main(command) == 1
    assert "out.jsonl: exists already; --force replaces it" in capsys.readouterr().err


def test_shards_follow_each_other(there: Path) -> None:
    for source in ("in.parquet", "in.csv", "in.jsonl"):
        ids = []
        for i in (1, 2, 3):
            assert main(["rows", source, "-q", "q.json", "-o", f"{source}.{i}.parquet", "--shard", f"{i}/3"]) == 0
            ids.append(read(f"{source}.{i}.parquet")["id"].to_pylist())
        assert list(itertools.chain(*ids)) == list(range(N))
        assert [len(some) for some in ids] == [1000, 1000, 1000]


def test_standard_streams(there: Path) -> None:
    lines = Path("in.jsonl").read_bytes().splitlines(keepends=True)[:20]
    given = b"".join([lines[0], b"\n", b'{"state": {"a": [1, 2]}, "big": 123456789012345678901234567890}\n', b"{no\n"])
    command = ["rows", "-", "-q", "q.json", "-o", "-", "--on-error", "keep"]
    found = [json.loads(line) for line in process(*command, input=given, stdin=None).stdout.splitlines()]
    assert [row["x_error"] is None for row in found] == [True, True, False]
    assert found[1]["big"] == 123456789012345678901234567890
    assert found[1]["action"] == skyinfer.load().decide({"a": [1, 2]}, QUESTIONS)["answers"]["action"]["choice"]  # type: ignore[typeddict-item]
    assert found[2]["x_line"] == "{no"
    assert found[2]["action"] is None
    given = b'{"state": 1}\n{"other": 2}\n'
    stopped = process("rows", "-", "-q", "q.json", "-o", "out.parquet", input=given, stdin=None)
    assert stopped.returncode == 1
    assert not Path("out.parquet").exists()


def test_faulty_files_are_told_and_leave_nothing(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.parquet").write_bytes(Path("in.parquet").read_bytes()[:-100])
    Path("broken.csv").write_text("id,state\n1,a\n2\n")
    Path("types.csv").write_text("id,state\n" + "1,a\n" * 300000 + "1.5,b\n")
    Path("empty.csv").write_text("")
    for name, message in (
        ("broken.parquet", "broken.parquet: "),
        ("broken.csv", "broken.csv: CSV parse error"),
        ("empty.csv", "empty.csv: Empty CSV file"),
        ("none.parquet", "none.parquet: No such file"),
        ("in.parquet --state nothing", "column 'nothing': there is none"),
    ):
        assert main(["rows", *name.split(), "-q", "q.json", "-o", "out.parquet"]) == 1
        assert message in capsys.readouterr().err
        assert not list(there.glob("out*"))
    for wrong in (["--shard", "4/3"], ["--threads", "0"], ["--to", "csv", "-o", "-"]):
        with pytest.raises(SystemExit) as caught:
            main(["rows", "in.parquet", "-q", "q.json", "-o", "out.parquet", *wrong])
        assert caught.value.code == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device")
def test_a_full_disk_is_told(there: Path) -> None:
    with open("/dev/full", "wb") as full:
        found = process("rows", "in.jsonl", "-q", "q.json", "-o", "-", stdout=full)
    assert found.returncode == 1
    assert b"standard output: No space left" in found.stderr


def test_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    terminal = Terminal()
    with Progress(terminal) as drawn:
        rate = _Rate(drawn)
        rate.show(1000, 10000)
        now[0] += 10
        rate.show(3000, 10000)
        now[0] += 10
        rate.show(5000, None)
    assert "30 % of 10000 rows, 200 rows/s, 35 s left" in terminal.getvalue()
    assert "5000 rows, 200 rows/s" in terminal.getvalue()
    rate = _Rate(Progress(None))
    for done in range(0, 1300, 10):
        rate.show(done, 10000)
        now[0] += 1
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "skyinfer: 600 rows of 10000, 10 rows/s, 16 min left",
        "skyinfer: 1200 rows of 10000, 10 rows/s, 15 min left",
    ]


def test_an_empty_file_of_questions_is_told_from_a_request(run: Run, tmp_path: Path) -> None:
    questions = tmp_path / "questions.json"
    questions.write_text("\n", "utf-8")
    fault = run("rows", tmp_path / "rows.jsonl", "-q", questions, "-o", tmp_path / "out.jsonl").fault()
    assert fault == f"{questions}: is empty; questions are a JSON object of id -> question"


@pytest.mark.parametrize(("n", "said"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows")])
def test_how_many_rows_there_were(run: Run, there: Path, n: int, said: str) -> None:
    Path("few.jsonl").write_text('{"state": "a"}\n' * n)
    assert run("rows", "few.jsonl", "-q", "q.json", "-o", "few.out.jsonl").err == f"skyinfer: few.out.jsonl: {said}\n"
