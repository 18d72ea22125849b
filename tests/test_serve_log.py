"""The log on a stderr that is not read in time: every line is whole, missing ones are counted, answers do not wait."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from serving import DRONE, PAINTED, SECONDS, Client, Process, until

from skyinfer.serve import request_log
from skyinfer.serve.request_log import RequestLog

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes that can be full without blocking")


@pytest.fixture(params=["blocking", "non-blocking"])
def pipe(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """A pipe whose end for writing is stderr."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, request.param == "blocking")
    monkeypatch.setattr(request_log, "sys", SimpleNamespace(stderr=SimpleNamespace(fileno=lambda: write)))
    yield read, write
    os.close(read)
    with contextlib.suppress(OSError):
        os.close(write)


def take(read: int, n_bytes: int) -> bytes:
    parts = []
    while n_bytes:
        try:
            part = os.read(read, n_bytes)
        except BlockingIOError:
            break
        if not part:
            break
        parts.append(part)
        n_bytes -= len(part)
    return b"".join(parts)


@pytest.mark.parametrize("longest", [200, 3000, 60_000])
def test_every_line_is_whole_or_missing_and_counted(pipe: tuple[int, int], longest: int) -> None:
    """A reader that takes parts of any length at any time gets whole lines, in order, and the number of missing."""
    read, _ = pipe
    log, chosen, received = RequestLog("requests"), random.Random(longest), b""
    for number in range(3000):
        log.request({"number": number, "text": "x" * chosen.randrange(longest)})
        if chosen.random() < 0.02:
            received += take(read, chosen.randrange(1, 20_000))
    end = time.monotonic() + SECONDS
    while log._waiting or log._n_dropped:
        assert time.monotonic() < end
        received += take(read, 5000)
        log.flush()
    received += take(read, 1 << 20)
    assert received.endswith(b"\n")
    lines = [json.loads(line) for line in received.splitlines()]
    next_number = n_dropped = 0
    for line in lines:
        if line["event"] == "dropped":
            assert str(line["lines"]) in line["message"]
            next_number += line["lines"]
            n_dropped += line["lines"]
        else:
            assert line["number"] == next_number
            next_number += 1
    assert next_number == 3000
    assert n_dropped > 0 or longest == 200


def test_a_full_pipe_never_blocks(pipe: tuple[int, int]) -> None:
    log = RequestLog("requests")
    start = time.monotonic()
    for _ in range(2000):
        log.request({"text": "x" * 3000})
    assert time.monotonic() - start < 5
    assert log._waiting_bytes <= request_log._BUFFER_BYTES
    assert log._n_dropped > 1000


def test_a_closed_pipe_is_no_failure(pipe: tuple[int, int]) -> None:
    log = RequestLog("requests")
    log.request({"number": 1})
    os.close(pipe[1])
    for number in range(100):
        log.request({"number": number})
    log.close()
    assert not log._waiting


def test_a_full_disk_leaves_no_glued_lines(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short write and then "no space left": the rest of the line follows when there is space again."""
    with open(tmp_path / "log", "wb", buffering=0) as file:
        monkeypatch.setattr(request_log, "sys", SimpleNamespace(stderr=file))
        write, space = os.write, [150]

        def limited(descriptor: int, data: bytes) -> int:
            if space[0] == 0:
                raise OSError(28, "No space left on device")
            n = write(descriptor, data[: space[0]])
            space[0] -= n
            return n

        monkeypatch.setattr(os, "write", limited)
        log = RequestLog("requests")
        for number in range(5):
            log.request({"number": number, "text": "y" * 50})
        space[0] = 1 << 20
        log.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_bytes().splitlines()]
    assert [line["number"] for line in lines] == [0, 1, 2, 3, 4]


def test_a_server_whose_log_is_read_late() -> None:
    """Nobody reads for a thousand requests, which are answered all the same; then every line is whole."""
    with Process("-m", str(PAINTED), "--log", "states", reading=False) as process:
        client = Client(process.port)
        for number in range(300):
            assert client.post({**DRONE, "state": f"{number} " * 900}).status == 200
        client.close()
        process.read()
        until(lambda: process.event("dropped"), "the dropped lines to be reported")
        assert process.stop() == 0
    dropped = sum(line["lines"] for line in process.lines if line["event"] == "dropped")
    assert dropped + len(process.requests()) == 300
    assert len(process.lines) == len(process.text)  # all are JSON
