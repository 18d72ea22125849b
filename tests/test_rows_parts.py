"""OUT.parts, the directory of an unfinished run: one of others is left alone, a damaged one and a busy one are told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Run
from test_compiled import QUESTIONS

from skyinfer.core import border

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")

N = 2000
COMMAND = ("rows", "-q", "q.json", "-o", "out.jsonl", "in.jsonl")
PARTS = Path("out.jsonl.parts")


@pytest.fixture(autouse=True)
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"id": i, "state": f"vy {i % 13} dx {i % 41}"}) + "\n" for i in range(N)]
    Path("in.jsonl").write_text("".join(lines))
    Path("q.json").write_text(json.dumps(QUESTIONS))
    return tmp_path


def unfinished(run: Run, *command: str) -> None:
    """A run that ended at its last row, which is mended then."""
    given, status = Path("in.jsonl").read_bytes(), Path("in.jsonl").stat()
    Path("in.jsonl").write_bytes(given[:-2] + b" \n")  # of the same size
    os.utime("in.jsonl", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert run(*(command or COMMAND)).code == 1
    assert list(PARTS.glob("*.arrows"))
    Path("in.jsonl").write_bytes(given)
    os.utime("in.jsonl", ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("option", [[], ["--resume"], ["--force"]])
def test_a_directory_of_others_is_left_alone(run: Run, option: list[str]) -> None:
    PARTS.mkdir()
    (PARTS / "thesis.txt").write_text("mine")
    (PARTS / "0-100.arrows").write_text("mine, too")
    said = run(*COMMAND, *option).fault()
    assert said.endswith("out.jsonl.parts: is not an unfinished run's; move it away, or name another file to write")
    assert sorted(path.name for path in PARTS.iterdir()) == ["0-100.arrows", "thesis.txt"]


@pytest.mark.parametrize("option", [[], ["--resume"], ["--force"]])
def test_what_a_kill_at_the_beginning_leaves_is_no_hindrance(run: Run, option: list[str]) -> None:
    PARTS.mkdir()
    (PARTS / ".skyinfer-0123.part").write_text("{")
    assert run(*COMMAND, *option).code == 0
    assert not PARTS.exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b'{"source": 5}'])
def test_a_damaged_run_is_told(run: Run, content: bytes) -> None:
    PARTS.mkdir()
    (PARTS / "run.json").write_bytes(content)
    assert "its run was of another source; --force starts over" in run(*COMMAND, "--resume").fault()
    assert "holds an unfinished run; --resume goes on with it" in run(*COMMAND).fault()
    assert run(*COMMAND, "--force").code == 0
    assert not PARTS.exists()


CHANGES = {
    "--precision int8": "of another precision; --precision exact goes on with it",
    "-m s2-pico": "of another model",
    "--state id": "of other columns of the state",
    "--shard 1/2": "of another shard",
    "--prefix x": "of other options (--prefix)",
    "--parse-json --on-error keep --min-confidence 0.5":
        "of other options (--parse-json, --min-confidence, --on-error)",
    "--probabilities columns --text": "of other options (--text, --probabilities)",
    "--to csv": "of other formats",
}  # fmt: skip


@pytest.mark.parametrize("option", CHANGES)
def test_a_run_of_something_else_is_not_gone_on_with(run: Run, option: str) -> None:
    unfinished(run)
    before = {path: path.read_bytes() for path in PARTS.iterdir()}
    said = run(*COMMAND, "--resume", *option.split()).fault()
    assert said.endswith(f"out.jsonl.parts: its run was {CHANGES[option]}; --force starts over")
    assert {path: path.read_bytes() for path in PARTS.iterdir()} == before


@pytest.mark.parametrize("reordered", ["questions", "options"])
def test_questions_in_another_order_are_others(run: Run, reordered: str) -> None:
    """Their order is that of the columns, and that of a choice's options that of its probabilities."""
    unfinished(run)
    questions = dict(QUESTIONS)
    if reordered == "questions":
        questions = dict(reversed(questions.items()))
    else:
        name = next(key for key, question in questions.items() if question["type"] == "choice")
        question = dict(questions[name])
        question["criteria"] = dict(reversed(question["criteria"].items()))
        questions[name] = question
    Path("q.json").write_text(json.dumps(questions))
    assert "its run was of other questions; --force starts over" in run(*COMMAND, "--resume").fault()


@pytest.mark.parametrize("precision", ["exact", "int8"])
def test_a_run_on_another_instruction_set_is_gone_on_with_there_only(
    run: Run, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    names = [name for name in border.isa_names() if border.isa_supported(name)]
    if len(names) < 2:
        pytest.skip("this CPU has one instruction set")
    command = (*COMMAND, "--precision", precision)
    monkeypatch.setenv("SKYINFER_ISA", names[0])
    assert run(*command[:3], "-o", "whole.jsonl", *command[5:]).code == 0
    given, status = Path("in.jsonl").read_bytes(), Path("in.jsonl").stat()
    unfinished(run, *command)
    assert Path("in.jsonl").read_bytes() == given
    assert Path("in.jsonl").stat().st_mtime_ns == status.st_mtime_ns
    monkeypatch.setenv("SKYINFER_ISA", names[-1])
    said = run(*command, "--resume").fault()
    assert said.endswith(
        f"its run was on another instruction set; SKYINFER_ISA={names[0]} in the environment goes on with it; "
        "--force starts over"
    )
    monkeypatch.setenv("SKYINFER_ISA", names[0])
    assert run(*command, "--resume", "--threads", "1").code == 0  # threads change no bits
    assert Path("out.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()


@pytest.mark.parametrize("name", [*border.isa_names(), "vliw", 5, None])
def test_a_run_on_an_instruction_set_that_is_not_here_starts_over_only(run: Run, name: object) -> None:
    if name in border.isa_names() and border.isa_supported(str(name)):
        pytest.skip("this CPU has it")
    unfinished(run)
    about = json.loads((PARTS / "run.json").read_text())
    about["instruction set"] = name
    (PARTS / "run.json").write_text(json.dumps(about))
    said = run(*COMMAND, "--resume").fault()
    known = f"on {name}, an instruction set that this CPU cannot run"
    assert said.endswith(
        f"{known if name in border.isa_names() else 'on another instruction set'}; --force starts over"
    )


@pytest.mark.parametrize("damage", [b"", b"junk", None])
def test_a_damaged_part_is_told(run: Run, damage: bytes | None) -> None:
    unfinished(run)
    (part,) = PARTS.glob("*.arrows")
    part.write_bytes(part.read_bytes()[:-1000] if damage is None else damage)
    said = run(*COMMAND, "--resume").fault()
    assert part.name in said
    assert "cannot be read; start over with --force" in said
    assert not Path("out.jsonl").exists()
    (PARTS / "notes.arrows").write_bytes(b"")  # a file of another name is none
    assert run(*COMMAND, "--force").code == 0


_HELD = """
import os, signal, sys
from skyinfer.command import rows
from skyinfer.command.main import main
from skyinfer.rows import runs, tables
runs._PART_ROWS = tables.ROWS_AT_ONCE = 200
class Rate(rows._Rate):
    def show(self, done, total):
        if done >= 400:
            print("begun", flush=True)
            signal.pause()
rows._Rate = Rate
main(sys.argv[1:])
"""


@pytest.mark.skipif(os.name != "posix", reason="no signals")
@pytest.mark.parametrize("option", [[], ["--resume"], ["--force"]])
def test_two_processes_do_not_work_on_the_same_file(run: Run, option: list[str]) -> None:
    assert run(*COMMAND[:3], "-o", "whole.jsonl", "in.jsonl").code == 0
    command = [sys.executable, "-c", _HELD, *COMMAND]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"begun\n"
        assert "another process is answering rows for it" in run(*COMMAND, *option).fault()
        assert list(PARTS.glob("*.arrows"))
        running.send_signal(signal.SIGKILL)
    assert run(*COMMAND, "--resume").code == 0  # the other one is gone
    assert Path("out.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()
