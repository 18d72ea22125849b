"""`skyinfer rows` where a disk is full, or a file changes or cannot be read: a message, and nothing lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import Run, saved
from test_compiled import QUESTIONS

from skyinfer.command.main import main
from skyinfer.terminal import Progress

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("pyarrow.csv")

N = 2000
ROWS = ("rows", "-q", "q.json", "-o")


@pytest.fixture(autouse=True)
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    table = pa.table({"id": range(N), "state": [f"vy {i % 13} dx {i % 41}" for i in range(N)]})
    pq.write_table(table, "in.parquet", row_group_size=700)
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    Path("q.json").write_text(json.dumps(QUESTIONS))
    return tmp_path


# The command with parts of 200 rows, and no file longer than so many bytes; Python ignores the signal that tells it.
_LIMITED = """
import resource, sys
from skyinfer.command.main import main
from skyinfer.rows import runs, tables
runs._PART_ROWS = tables.ROWS_AT_ONCE = 200
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no limit on the size of files")
@pytest.mark.parametrize("out", ["part.parquet", "out.parquet", "out.csv", "out.arrow", "out.jsonl"])
def test_where_a_file_cannot_be_written_nothing_is_lost(there: Path, out: str) -> None:
    """Of the first part, or of OUT itself when all parts are there: as on a full disk, writing ends in the middle."""
    assert main([*ROWS, f"whole.{out}", "in.parquet"]) == 0
    limit = 10_000 if out.startswith("part") else Path(f"whole.{out}").stat().st_size // 2
    Path(out).write_bytes(b"of before")
    command = [*ROWS, out, "in.parquet"]
    found = subprocess.run([sys.executable, "-c", _LIMITED, str(limit), *command, "--force"], capture_output=True)
    assert found.returncode == 1
    assert found.stderr.count(b"\n") == 1
    assert b": File too large" in found.stderr
    assert Path(out).read_bytes() == b"of before"
    assert not list(there.glob(".skyinfer*")) + list(there.glob("*.parts/.skyinfer*"))
    parts = len(list(there.glob("*.parts/*.arrows")))
    assert parts == (0 if out.startswith("part") else N // 200)
    assert main([*command, "--resume" if parts else "--force"]) == 0
    assert Path(out).read_bytes() == Path(f"whole.{out}").read_bytes()


@pytest.mark.parametrize("change", ["longer", "another", "gone"])
@pytest.mark.parametrize("source", ["in.parquet", "in.jsonl"])
def test_an_input_that_changes_meanwhile_is_told(
    run: Run, there: Path, monkeypatch: pytest.MonkeyPatch, source: str, change: str
) -> None:
    """With the rows that were answered before: the file of before stays, and a run of the new input begins anew."""
    shown, command = Progress.show_rows, [*ROWS, "out.jsonl", source]
    Path("out.jsonl").write_bytes(b"of before")
    happened: list[str] = []

    def changed(self: Progress, rate: str, done: int, total: int | None) -> None:
        if done >= 1024 and not happened:
            happened.append(change)
            if change == "longer":
                with open(source, "ab") as file:
                    file.write(b'{"state": "more"}\n')
            elif change == "another":
                Path("new").write_bytes(Path(source).read_bytes()[:-1])
                os.replace("new", source)
            else:
                Path(source).unlink()
        shown(self, rate, done, total)

    monkeypatch.setattr(Progress, "show_rows", changed)
    said = run(*command, "--force").fault()
    assert said.startswith(f"{source}: ")
    assert "No such file" in said if change == "gone" else "has changed since the run began; start over" in said
    assert Path("out.jsonl").read_bytes() == b"of before"
    monkeypatch.setattr(Progress, "show_rows", shown)
    if change == "longer" and source == "in.jsonl":
        assert run(*command, "--force").code == 0
        assert len(Path("out.jsonl").read_text().splitlines()) == N + 1


def test_a_run_that_was_to_replace_a_file_may_still_when_resumed(
    run: Run, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, command = Progress.show_rows, [*ROWS, "out.jsonl", "in.jsonl"]
    Path("out.jsonl").write_bytes(b"of before")

    def interrupted(self: Progress, rate: str, done: int, total: int | None) -> None:
        if done >= 1024:
            raise KeyboardInterrupt

    assert run(*command, "--resume", "--force").code == 2
    monkeypatch.setattr(Progress, "show_rows", interrupted)
    assert run(*command, "--force").code == 130
    monkeypatch.setattr(Progress, "show_rows", shown)
    assert run(*command, "--resume").code == 0
    assert len(Path("out.jsonl").read_text().splitlines()) == N
    monkeypatch.setattr(Progress, "show_rows", interrupted)
    Path("out.jsonl").unlink()
    assert run(*command).code == 130
    Path("out.jsonl").write_bytes(b"another's")
    monkeypatch.setattr(Progress, "show_rows", shown)
    assert run(*command, "--resume").fault() == "out.jsonl: exists already; --force replaces it"
    assert Path("out.jsonl").read_bytes() == b"another's"


LONE = "\ud800"
NOUL = {"type": "noul", "instructions": "?"}


@pytest.mark.parametrize("out", ["out.parquet", "out.csv", "out.arrow", "out.jsonl", "-"])
def test_text_that_no_column_can_be_called_is_told(run: Run, there: Path, out: str) -> None:
    """A lone surrogate, which JSON can write and UTF-8 cannot."""
    saved(Path("lone.json"), {LONE: NOUL})
    saved(Path("label.json"), {"a": {"type": "choice", "instructions": "?", "criteria": [LONE, "b"]}})
    saved(Path("field.jsonl"), {"state": "a", LONE: 1})
    saved(Path("value.jsonl"), {"state": "a", "b": [LONE]})
    saved(Path("state.jsonl"), {"state": LONE})
    before = sorted(there.iterdir())
    for arguments in (
        ["in.jsonl", "-q", "lone.json"],
        ["in.jsonl", "-q", "label.json"],
        ["in.jsonl", "-q", "q.json", "--prefix", LONE],
        ["in.jsonl", "-q", "q.json", "--state", LONE],
        ["in.parquet", "-q", "q.json", "--state", LONE],
        ["state.jsonl", "-q", "q.json"],
    ):
        said = run("rows", *arguments, "-o", out).fault()
        assert "lone surrogate U+D800" in said or "is missing" in said
        assert sorted(there.iterdir()) == before
    for name in ("field.jsonl", "value.jsonl"):
        found = run("rows", name, "-q", "q.json", "-o", out)
        if out in ("out.jsonl", "-"):  # the line stays as it is
            assert found.code == 0
            line = Path(out).read_text("utf-8") if out != "-" else found.out
            assert line.isascii()
            assert json.loads(line).items() >= json.loads(Path(name).read_text()).items()
            Path(out).unlink(missing_ok=True)
        else:
            assert found.fault().startswith(f"{name}: rows.0: holds the lone surrogate U+D800")
    kept = run("rows", "state.jsonl", "-q", "q.json", "-o", out, "--on-error", "keep", "--from", "jsonl")
    if out in ("out.jsonl", "-"):
        line = Path(out).read_text("utf-8") if out != "-" else kept.out
        assert "lone surrogate U+D800" in json.loads(line)["x_error"]


def test_messages_name_the_file(run: Run, there: Path) -> None:
    Path("empty.jsonl").write_bytes(b"")
    saved(Path("faulty.json"), {"q": {"type": "noul"}})
    Path("broken.json").write_text("{")
    Path("rows.jsonl").write_text('{"state": null}\n')
    for arguments, name in (
        (["empty.jsonl", "-q", "q.json", "-o", "out.csv"], "empty.jsonl"),
        (["in.jsonl", "-q", "faulty.json", "-o", "out.csv"], "faulty.json"),
        (["in.jsonl", "-q", "broken.json", "-o", "out.csv"], "broken.json"),
        (["in.jsonl", "-q", "none.json", "-o", "out.csv"], "none.json"),
        (["rows.jsonl", "-q", "q.json", "-o", "out.csv"], "rows.jsonl"),
    ):
        assert run("rows", *arguments).fault().startswith(f"{name}: ")
    streamed = run("rows", "-", "-q", "q.json", "-o", "-", stdin=b'{"state": null}\n')
    assert streamed.fault().startswith("standard input: ")
    assert run("rows", "empty.jsonl", "-q", "q.json", "-o", "out.jsonl").code == 0
    assert Path("out.jsonl").read_bytes() == b""


@pytest.mark.skipif(os.name != "posix", reason="no signals")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_line_is_written_whole_or_not_at_all(there: Path, number: signal.Signals, unbuffered: str) -> None:
    """Of a stream whose reader is slow, where a signal comes while a batch is being written."""
    command = [sys.executable, "-m", "skyinfer", *ROWS, "-", "in.parquet"]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as running:
        assert running.stdout is not None
        found = running.stdout.read(1000)  # of a batch of some hundred kB, which waits for the rest to be read
        time.sleep(0.3)
        running.send_signal(number)
        time.sleep(0.3)
        found += running.stdout.read()
    assert running.returncode == (130 if number == signal.SIGINT else 128 + number)
    lines = found.split(b"\n")
    assert lines.pop() == b""
    assert 0 < len(lines) < N
    assert [json.loads(line)["id"] for line in lines] == list(range(len(lines)))


def test_inputs_that_cannot_be_read_leave_nothing(run: Run, there: Path) -> None:
    before = sorted(there.iterdir())
    Path("directory.jsonl").mkdir()
    for name, message in (("directory.jsonl", "directory"), ("none.jsonl", "No such file or directory")):
        said = run(*ROWS, "out.jsonl", name).fault()
        assert said.startswith(f"{name}: ")
        assert message in said
    if Path("/proc/self/mem").exists():  # opens, and answers a read of its beginning with an error
        Path("mem.jsonl").symlink_to("/proc/self/mem")
        assert run(*ROWS, "out.jsonl", "mem.jsonl").fault() == "mem.jsonl: Input/output error"
        Path("mem.jsonl").unlink()
    if os.name == "posix" and os.geteuid():
        Path("in.jsonl").chmod(0)
        assert run(*ROWS, "out.jsonl", "in.jsonl").fault() == "in.jsonl: Permission denied"
    Path("directory.jsonl").rmdir()
    assert sorted(there.iterdir()) == before


FAULTY_LINES = [b"{no", b"[1]", b'{"state": "caf\xe9"}', b'{"state": "\\\xe9"}', b'{"state": "\\ud800"}']
SAID = [
    "is not JSON",
    "is not an object",
    "is not UTF-8 (byte 0xe9 at offset 14)",
    "is not UTF-8 (byte 0xe9",
    "surrogate",
]


@pytest.mark.parametrize("out", ["out.parquet", "out.csv", "out.arrow", "out.jsonl"])
def test_faulty_lines_are_kept_in_every_format(run: Run, there: Path, out: str) -> None:
    sound = [b'{"id": 1, "state": "vy 1"}', b'{"id": 2, "state": "vy 2"}']
    Path("mixed.jsonl").write_bytes(b"\n".join([sound[0], *FAULTY_LINES, sound[1], b'{"id": 3}']) + b"\n")
    assert run("rows", "mixed.jsonl", "-q", "q.json", "-o", out, "--on-error", "keep").code == 0
    if out.endswith(".jsonl"):
        rows = [json.loads(line) for line in Path(out).read_text().splitlines()]
    elif out.endswith(".csv"):
        nulls = pa.csv.ConvertOptions(strings_can_be_null=True)
        rows = pa.csv.read_csv(out, convert_options=nulls).to_pylist()
    else:
        table = pq.read_table(out) if out.endswith(".parquet") else pa.ipc.open_file(out).read_all()
        assert table.schema.field("x_line").type == pa.string()
        rows = table.to_pylist()
    assert [row.get("id") for row in rows] == [1, None, None, None, None, None, 2, 3]
    assert [row["action"] is None for row in rows] == [False, *[True] * 5, False, True]
    for row, line, said in zip(rows[1:6], FAULTY_LINES, SAID, strict=True):
        assert said in row["x_error"]
        if "x_line" in row:  # a lone surrogate is JSON, which JSON Lines can write
            assert row["x_line"] == line.decode("utf-8", "backslashreplace")
    assert rows[0].get("x_line") is rows[6].get("x_line") is None
    # of a column it is not known whether the field was there
    assert rows[7]["x_error"].startswith("state: is missing" if out.endswith(".jsonl") else "must not be null")
    # without --on-error keep, the one row
    said = run("rows", "mixed.jsonl", "-q", "q.json", "-o", f"stop.{out}").fault()
    assert said.startswith("mixed.jsonl: rows.1: is not JSON")
    Path("latin.jsonl").write_bytes(b"\n".join([*sound, FAULTY_LINES[2]]))
    said = run("rows", "latin.jsonl", "-q", "q.json", "-o", f"stop.{out}").fault()
    assert said.startswith("latin.jsonl: rows.2: is not UTF-8 (byte 0xe9 at offset 14); --on-error keep")


@pytest.mark.parametrize("option", [[], ["--text"]])
@pytest.mark.parametrize(
    "table",
    ["state,note\na,caf\xe9\n", "state,caf\xe9\na,b\n", "state,note\n" + f"a,{1000 * 'b'}\n" * 1200 + "c,\xe9\n"],
)
def test_csv_that_is_not_utf8_is_told(run: Run, there: Path, table: str, option: list[str]) -> None:
    Path("latin.csv").write_text(table, "latin-1")
    said = run("rows", "latin.csv", "-q", "q.json", "-o", "out.csv", *option, "--on-error", "keep").fault()
    assert said.startswith("latin.csv: is not UTF-8 (byte 0xe9); save it as UTF-8")


def test_a_column_called_as_that_of_faulty_lines(run: Run, there: Path) -> None:
    """It is carried along from a table, and refused where lines become columns."""
    saved(Path("own.jsonl"), {"state": "a", "x_line": "mine"})
    assert run("rows", "own.jsonl", "-q", "q.json", "-o", "own.parquet").code == 0
    said = run("rows", "own.jsonl", "-q", "q.json", "-o", "out.parquet", "--on-error", "keep").fault()
    assert "field 'x_line' is to hold" in said
    assert run("rows", "own.parquet", "-q", "q.json", "-o", "out.jsonl", "--prefix", "b_").code == 0
    assert json.loads(Path("out.jsonl").read_text())["x_line"] == "mine"


@pytest.mark.parametrize("out", ["out.jsonl", "-"])
def test_a_line_with_a_field_of_an_answers_name_is_faulty(run: Run, there: Path, out: str) -> None:
    """It is told with its row, and kept whole where faulty rows are."""
    rows: list[dict[str, object]] = [{"id": i, "state": f"vy {i}"} for i in range(1500)]
    rows[1200]["sure_noul"] = "mine"
    rows[1201]["x_error"] = "of before"
    Path("own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ("rows", "own.jsonl", "-q", "q.json", "-o", out)
    stopped = run(*command)
    assert stopped.code == 1
    assert stopped.err.rstrip().endswith(
        "own.jsonl: rows.1200.sure_noul: an answer's field has this name; rename it or the question, or give a prefix; "
        "--on-error keep writes such rows with their errors"
    )
    kept = run(*command, "--on-error", "keep", "--force")
    lines = (kept.out if out == "-" else Path(out).read_text()).splitlines()
    found = [json.loads(line) for line in lines]
    assert [i for i, row in enumerate(found) if row["x_error"] is not None] == [1200]
    assert found[1200]["x_error"].startswith("sure_noul: an answer's field has this name")
    assert json.loads(found[1200]["x_line"]) == rows[1200]
    assert found[1200]["sure_noul"] is None
    if out == "-":
        assert run(*command, "--prefix", "a_").code == 0
