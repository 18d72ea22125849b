"""`skyinfer rows` where a disk is full, or a file changes or cannot be read: a message, and nothing lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Run
from test_compiled import QUESTIONS

from skyinfer.command.main import main
from skyinfer.terminal import Progress

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

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
