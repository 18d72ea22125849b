"""A file appears whole or not at all, in the place of nothing that it should not replace."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from skyinfer.files.whole_file import WholeFile, refuse_inputs

unix = pytest.mark.skipif(sys.platform == "win32", reason="no such files")


def write(path: str | Path, content: bytes = b"new", *, replace: bool = False) -> None:
    with WholeFile(path, replace=replace).writing() as file:
        file.write(content)


def refused(path: str | Path, *, replace: bool = False) -> OSError:
    """The error, which names the path as it was given."""
    with pytest.raises(OSError, match=r".") as caught:
        write(path, replace=replace)
    assert caught.value.filename == str(path)
    return caught.value


@pytest.mark.parametrize("replace", [False, True])
def test_a_new_file(replace: bool, tmp_path: Path) -> None:
    umask = os.umask(0o027)
    try:
        write(tmp_path / "out", replace=replace)
    finally:
        os.umask(umask)
    assert (tmp_path / "out").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    if sys.platform != "win32":
        assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o640


@unix
@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755, 0o440])
def test_permissions_stay(mode: int, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"old")
    out.chmod(mode)
    with WholeFile(out, replace=True).writing() as file:
        (part,) = (path for path in tmp_path.iterdir() if path != out)
        assert not part.stat().st_mode & ~mode & 0o077  # nobody reads it who could not read the old one
        file.write(b"new")
    assert (out.read_bytes(), stat.S_IMODE(out.stat().st_mode)) == (b"new", mode)


def test_what_stands_there_stays(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"old")
    assert isinstance(refused(out), FileExistsError)
    assert out.read_bytes() == b"old"


@pytest.mark.parametrize("links", [True, False])
def test_what_appears_meanwhile_stays(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also at the last moment, and where the file system has no hard links."""
    out = tmp_path / "out"
    link = os.link

    def late(source: str | Path, target: str | Path) -> None:
        out.write_bytes(b"theirs")
        if not links:
            raise OSError(errno.EPERM, "no links here", str(target))
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    assert isinstance(refused(out), FileExistsError)
    assert out.read_bytes() == b"theirs"
    assert list(tmp_path.iterdir()) == [out]

    monkeypatch.undo()
    out.unlink()
    file = WholeFile(out, replace=False)

    def write_late() -> None:
        with file.writing() as opened:
            opened.write(b"ours")
            out.write_bytes(b"theirs")

    with pytest.raises(FileExistsError):
        write_late()
    assert out.read_bytes() == b"theirs"
    assert list(tmp_path.iterdir()) == [out]


def test_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str | Path, target: str | Path) -> None:
        raise OSError(errno.EOPNOTSUPP, "no links here", str(target))

    monkeypatch.setattr(os, "link", refuse)
    write(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("replace", [False, True])
def test_it_is_on_the_disk_before_it_is_in_its_place(
    replace: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    synced = []

    def fsync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_size, out.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write(out, b"content", replace=replace)
    assert synced == [(7, False)]


@unix
@pytest.mark.parametrize("replace", [False, True])
def test_only_regular_files_are_replaced(replace: bool, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for place, said in [
        (tmp_path / "pipe", "is a pipe"),
        (tmp_path / "link", "is a pipe"),
        (tmp_path / "directory", "is a directory"),
        ("/dev/null", "is a device"),
    ]:
        assert said in str(refused(place, replace=replace))
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["directory", "link", "pipe"]


@unix
def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "target", tmp_path / "link"
    link.symlink_to("there/target")
    write(link)
    assert target.read_bytes() == b"new"
    assert isinstance(refused(link), FileExistsError)
    write(link, b"newer", replace=True)
    assert target.read_bytes() == b"newer"
    assert link.is_symlink()
    assert list((tmp_path / "there").iterdir()) == [target]
    (tmp_path / "loop").symlink_to("loop")
    assert refused(tmp_path / "loop", replace=True).errno == errno.ELOOP


def test_a_place_that_is_none(tmp_path: Path) -> None:
    for path in (f"{tmp_path}/out/", f"{tmp_path}/"):
        assert isinstance(refused(path, replace=True), IsADirectoryError)
    assert isinstance(refused(tmp_path / "nowhere" / "out"), FileNotFoundError)
    (tmp_path / "file").write_bytes(b"")
    refused(tmp_path / "file" / "out")
    assert not list(tmp_path.glob("*/*"))


@unix
def test_the_longest_name(tmp_path: Path) -> None:
    write(tmp_path / ("n" * 255))
    assert refused(tmp_path / ("n" * 256)).errno == errno.ENAMETOOLONG


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC, errno.EROFS])
def test_a_failure_names_the_place_and_the_cause(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    for function in ("open", "fsync", "replace"):

        def fail(path: object, *_: object) -> None:
            raise OSError(number, os.strerror(number), None if isinstance(path, int) else str(path))

        with monkeypatch.context() as patch:
            patch.setattr(os, function, fail)
            error = refused(out, replace=True)
        assert (error.errno, error.strerror) == (number, os.strerror(number))
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_the_blocks_own_errors_pass(error: type[BaseException], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"old")

    def fail() -> None:
        with WholeFile(out, replace=True).writing() as file:
            file.write(b"new")
            raise error

    with pytest.raises(error):
        fail()
    assert out.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [out]


def test_a_file_that_is_read_is_not_written_to(tmp_path: Path) -> None:
    rows, link = tmp_path / "rows.jsonl", tmp_path / "link.jsonl"
    rows.write_text("{}\n")
    link.symlink_to(rows)
    for out in (rows, link, str(tmp_path / "." / "rows.jsonl")):
        with pytest.raises(OSError, match="is read by this command, too"):
            refuse_inputs(out, None, tmp_path / "missing", rows)
    refuse_inputs(tmp_path / "new.jsonl", rows, None)
    refuse_inputs(link, tmp_path / "missing")
    assert rows.read_text() == "{}\n"


@pytest.mark.parametrize("command", [["evaluate"], ["calibrate"]])
def test_labelled_rows_survive_a_forced_command(tmp_path: Path, command: list[str]) -> None:
    rows = tmp_path / "rows.json"
    rows.write_text("{}\n")
    call = [sys.executable, "-m", "skyinfer", *command, str(rows), "-o", str(rows), "--force"]
    run = subprocess.run(call, capture_output=True, text=True)
    assert (run.returncode, "is read by this command, too" in run.stderr) == (1, True), run.stderr
    assert rows.read_text() == "{}\n"


def test_an_empty_model_is_not_the_default_one(tmp_path: Path) -> None:
    call = [sys.executable, "-m", "skyinfer", "decide", "-m", "", str(tmp_path / "request.json")]
    (tmp_path / "request.json").write_text(
        '{"state": "x", "questions": {"q": {"type": "noul", "instructions": "Up?"}}}'
    )
    run = subprocess.run(call, capture_output=True, text=True)
    assert (run.returncode, "the path is empty" in run.stderr) == (1, True), run.stderr
