"""Where a server listens: addresses of both families; paths in the file system, their permissions and leftovers."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from serving import DRONE, PAINTED, SECONDS, Process, connect

import skyinfer
from skyinfer.command.main import main
from skyinfer.serve.binding import address_of, bind, bound_path
from skyinfer.serve.options import Options, from_arguments

unix_only = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no Unix-domain sockets")


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


# ---- addresses


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on this machine")
@pytest.mark.parametrize("host", ["::1", "[::1]", "[0:0:0:0:0:0:0:1]"])
def test_ipv6(host: str) -> None:
    with Process("-m", str(PAINTED), "--host", host) as process:
        assert process.address == f"http://[::1]:{process.port}"
        connection = http.client.HTTPConnection("::1", process.port, timeout=SECONDS)
        connection.request("POST", "/v1/systemone", json.dumps(DRONE))
        assert connection.getresponse().status == 200
        connection.close()
        assert process.stop() == 0
    assert process.requests()[0]["client"] == "::1"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_ipv4_and_names(host: str) -> None:
    with bind(host, 0) as bound:
        assert bound.getsockname()[1] > 0
        assert address_of(bound).startswith("http://")


@pytest.mark.parametrize("host", ["[::1", "256.1.1.1.example.invalid", "", "[]", "a" * 70 + ".example", "[127.0.0.1"])
def test_what_is_no_address_is_named(host: str) -> None:
    if host in ("", "[]"):  # every address, to getaddrinfo; never what somebody meant
        with pytest.raises(OSError, match="empty"):
            bind(host, 0)
        return
    with pytest.raises(OSError) as caught:  # noqa: PT011
        bind(host, 0)
    assert host.strip("[]") in str(caught.value)


# ---- paths


def ask(path: str) -> Any:
    """The answer of a server that listens on a path."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(SECONDS)
        connection.connect(path)
        body = json.dumps(DRONE).encode()
        connection.sendall(
            b"POST /v1/systemone HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            + body
        )
        data = b""
        while part := connection.recv(1 << 16):
            data += part
    assert data.startswith(b"HTTP/1.1 200")
    return json.loads(data.partition(b"\r\n\r\n")[2])


@unix_only
@pytest.mark.parametrize("mode", [None, "600", "0666"])
def test_a_server_on_a_path(tmp_path: Path, mode: str | None) -> None:
    path = str(tmp_path / "a socket")
    with Process("-m", str(PAINTED), "--uds", path, *([] if mode is None else ["--uds-mode", mode])) as process:
        assert process.address == f"unix:{path}"
        status = os.stat(path)
        assert stat.S_ISSOCK(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == int(mode or "660", 8)
        expected = skyinfer.load(PAINTED).decide(DRONE["state"], DRONE["questions"])
        assert ask(path) == expected
        # a second server leaves the first alone
        assert main(["serve", "-m", str(PAINTED), "--uds", path]) == 1
        assert ask(path) == expected
        assert process.stop() == 0
    assert not os.path.exists(path)
    assert process.requests()[0]["client"] is None


@unix_only
@pytest.mark.skipif(sys.platform == "win32", reason="no such signal")
def test_a_socket_that_was_left_behind_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with Process("-m", str(PAINTED), "--uds", path) as process:
        process.process.send_signal(signal.SIGKILL)
        process.process.wait(SECONDS)
    assert os.path.exists(path)
    with Process("-m", str(PAINTED), "--uds", path) as process:
        assert ask(path)["model"] == "painted"
        assert process.stop() == 0
    assert not os.path.exists(path)


@unix_only
def test_permissions_hold_from_the_first_moment_and_the_umask_stays(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with bound_path(str(tmp_path / "socket"), 0o666) as bound:
            assert stat.S_IMODE(os.stat(bound.getsockname()).st_mode) == 0o666
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


@unix_only
def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    """A file, a directory, a link to a file: none is removed. A socket that took the path's place is not, either."""
    file, directory, link = tmp_path / "file", tmp_path / "directory", tmp_path / "link"
    file.write_text("mine")
    directory.mkdir()
    link.symlink_to(file)
    for path in (file, directory, link):
        with pytest.raises(OSError, match="not a socket") as caught, bound_path(str(path), 0o600):
            pass
        assert caught.value.filename == str(path)
    assert file.read_text() == "mine"
    path = str(tmp_path / "socket")
    with bound_path(path, 0o600):
        os.unlink(path)
        with bound_path(path, 0o600) as second:
            os.rename(path, f"{path}.kept")
            Path(path).write_text("mine")
            assert second is not None
    assert Path(path).read_text() == "mine"
    assert os.path.exists(f"{path}.kept")


@unix_only
def test_paths_that_cannot_be_bound_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing, long = str(tmp_path / "no" / "socket"), str(tmp_path / ("x" * 120))
    for path, number in [(missing, errno.ENOENT), (long, errno.ENAMETOOLONG)]:
        with pytest.raises(OSError) as caught, bound_path(path, 0o600):  # noqa: PT011
            pass
        assert (caught.value.errno, caught.value.filename) == (number, path)
        assert main(["serve", "-m", str(PAINTED), "--uds", path]) == 1
        printed = capsys.readouterr().err
        assert path in printed
        assert "Traceback" not in printed


def test_flags_that_exclude_each_other() -> None:
    from skyinfer.command.main import parser

    def options(*arguments: str) -> Options:
        return from_arguments(parser().parse_args(["serve", *arguments]), {})

    assert options("--uds", "x") == Options(uds="x")
    assert options("--uds", "x", "--uds-mode", "600").uds_mode == 0o600
    for flags in (
        ["--uds", "x", "--port", "8080"],
        ["--uds", "x", "--host", "::1"],
        ["--uds-mode", "600"],
        ["--uds", ""],
    ):
        with pytest.raises(ValueError, match="--uds"):
            options(*flags)
    for mode in ("9", "rw", "-660", "6600000", "0o660"):
        with pytest.raises(SystemExit):
            options("--uds", "x", "--uds-mode", mode)


@unix_only
def test_curl_reaches_a_path(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with Process("-m", str(PAINTED), "--uds", path), contextlib.suppress(FileNotFoundError):
        found = subprocess.run(
            ["curl", "-sS", "--unix-socket", path, "http://localhost/health"], capture_output=True, timeout=20
        )
        assert found.stdout == b'{"status":"ok"}', found.stderr


def test_a_taken_port_is_named() -> None:
    with bind("127.0.0.1", 0) as bound:
        bound.listen()
        port = bound.getsockname()[1]
        connect(port).close()
        with pytest.raises(OSError, match=f"127.0.0.1:{port}"):
            bind("127.0.0.1", port)
