"""Requests that are sent before earlier ones are answered, and what they become when either side ends the connection.

While such a request waits, or is still being received, an earlier one is being answered: whatever ends the connection
must not take the newest request for that one.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from serving import DRONE, PAINTED, Serving, connect, head, read_all, serving, until

import skyinfer
from skyinfer.serve import listener, scheduling

BODY = json.dumps(DRONE).encode()
# parts of a request that comes behind another one: none of it, some of its head, its head, some of its body
BEHIND = {
    "nothing": b"",
    "head": head(100)[:20],
    "no body": head(100),
    "some body": head(100) + b"{",
    "whole": head(2) + b"{}",
}


@pytest.fixture(scope="module")
def expected() -> Any:
    return skyinfer.load(PAINTED).decide(DRONE["state"], DRONE["questions"])["answers"]


class Held:
    """A server whose model answers nothing until `go` is set."""

    def __init__(self, running: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running, self.go = running, threading.Event()
        engine = running.app._workers["painted"]._engine
        run = engine.run

        def held(asks: Any) -> Any:
            assert self.go.wait(20)
            return run(asks)

        monkeypatch.setattr(engine, "run", held)

    def ask(self, behind: bytes, *fields: str) -> socket.socket:
        """A connection with one request that is being answered, and bytes behind it that were received."""
        connection = connect(self.running.port)
        connection.sendall(head(len(BODY), *fields) + BODY + behind)
        until(lambda: self.running.app.admission.waiting >= 1, "a request to wait")
        time.sleep(0.1)
        return connection


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    monkeypatch.setattr(scheduling, "INLINE_SECONDS", 0.0)
    with serving() as running:
        one = Held(running, monkeypatch)
        yield one
        one.go.set()


def first(connection: socket.socket) -> tuple[int, Any, bytes]:
    """Status, body and the rest of what a connection brings until it ends."""
    received = read_all(connection)
    lines, _, rest = received.partition(b"\r\n\r\n")
    assert lines, "there was no answer"
    length = next(int(line[15:]) for line in lines.split(b"\r\n") if line.startswith(b"content-length:"))
    return int(lines[9:12]), json.loads(rest[:length]), rest[length:]


@pytest.mark.parametrize("behind", BEHIND)
def test_a_client_that_leaves_waits_no_more(behind: str, held: Held) -> None:
    connection = held.ask(BEHIND[behind])
    connection.close()
    until(lambda: held.running.app.admission.waiting == 0, "no request to wait", 5)
    until(lambda: not held.running.server.server_state.tasks, "requests to end", 5)


@pytest.mark.parametrize("behind", BEHIND)
def test_what_comes_behind_a_last_request_does_not_cost_its_answer(behind: str, held: Held, expected: Any) -> None:
    with contextlib.closing(held.ask(BEHIND[behind] + b"x" * 1_000_000, "connection: close")) as connection:
        held.go.set()
        status, body, rest = first(connection)
        assert (status, body["answers"], rest) == (200, expected, b"")


@pytest.mark.parametrize("behind", BEHIND)
def test_a_server_that_stops_answers_what_it_began(
    behind: str, held: Held, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_LAST_UPLOADS", 0.1)
    with contextlib.closing(held.ask(BEHIND[behind])) as connection:
        held.running.server.should_exit = True
        time.sleep(0.8)  # the server looks at it ten times a second
        held.go.set()
        start = time.monotonic()
        status, body, rest = first(connection)
        assert (status, body["answers"]) == (200, expected)
        status = {"whole": b"422", "no body": b"503", "some body": b"503"}.get(behind, b"")
        assert rest[9:12] == status
        assert time.monotonic() - start < 5


@pytest.mark.parametrize("behind", BEHIND)
def test_what_is_no_request_is_refused_behind_the_answer(behind: str, held: Held, expected: Any) -> None:
    chunked = head(None, "transfer-encoding: chunked")  # a body of which bytes can be wrong
    sent = {"no body": chunked, "some body": chunked + b"1\r\n{\r\n"}.get(behind, BEHIND[behind])
    with contextlib.closing(held.ask(sent + b"\x00\r\n\r\n" * 20)) as connection:
        held.go.set()
        status, body, rest = first(connection)
        assert (status, body["answers"]) == (200, expected)
        assert rest.startswith(b"HTTP/1.1 4")


def test_a_body_is_asked_for_behind_the_answers_before_it(held: Held, expected: Any) -> None:
    """100 Continue is of the request whose turn it is, or a client would take it for a part of another's answer."""
    with contextlib.closing(held.ask(head(2, "expect: 100-continue", "connection: close"))) as connection:
        held.go.set()
        received = b""
        while not received.endswith(b"HTTP/1.1 100 Continue\r\n\r\n"):
            more = connection.recv(1 << 16)
            assert more, received
            received += more
        assert json.loads(received.partition(b"\r\n\r\n")[2].partition(b"HTTP/1.1")[0])["answers"] == expected
        connection.sendall(b"{}")
        assert first(connection)[0] == 422


def test_requests_sent_before_their_responses_are_not_all_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends faster than it is answered fills the buffers of the system, not the server's memory."""
    most = 0
    complete = listener.Protocol.on_response_complete

    def counted(self: listener.Protocol) -> None:
        nonlocal most
        complete(self)
        most = max(most, len(self.pipeline))

    monkeypatch.setattr(listener.Protocol, "on_response_complete", counted)
    request, n_requests = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n", 30_000
    start = b"HTTP/1.1 200"
    with serving() as running, contextlib.closing(connect(running.port)) as connection:
        sender = threading.Thread(target=lambda: connection.sendall(request * n_requests), daemon=True)
        sender.start()
        n_answers, received = 0, b""
        while n_answers < n_requests:
            more = connection.recv(1 << 20)
            assert more, "the connection was closed"
            received = received[1 - len(start) :] + more
            n_answers += received.count(start)
        sender.join()
    assert most * len(request) <= 1 << 18  # what one read from the socket brings at most
