"""HTTP/1.1 as the listener reads it: upgrades, other protocols, bodies in any framing and segmentation, pipelining.

What is right comes from RFC 9110 and RFC 9112, and from what public clients send.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Iterator, Sequence

import pytest
from serving import DRONE, Serving, connect, head, read_all, serving

from skyinfer.serve.options import Limits

BODY = json.dumps(DRONE).encode()
INNER = b"GET /metrics HTTP/1.1\r\nHost: y\r\n\r\n"  # a body that reads like a request
UPGRADES = {
    "JDK": ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAABk"),
    "curl --http2": ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAA"),
    "websocket": (
        "Connection: keep-alive, Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ),
    "any": ("CONNECTION:upgrade", "UPGRADE:  TLS/1.0, x/2 ,h2c  "),
    "two": ("Connection: close", "Connection: Upgrade", "Upgrade: h2c", "Upgrade: websocket"),
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as running:
        yield running


def exchange(server: Serving, parts: Sequence[bytes], pause: float = 0.0) -> list[tuple[int, bytes]]:
    """(status, body) of every response to what is sent in these segments; then this side is closed for writing."""
    with contextlib.closing(connect(server.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(ConnectionError):
            for part in parts:
                connection.sendall(part)
                time.sleep(pause)
        # a client that closes its side counts as disconnected, so the last request asks the server to close
        return responses(read_all(connection))


def responses(data: bytes) -> list[tuple[int, bytes]]:
    found = []
    while data:
        begin, _, data = data.partition(b"\r\n\r\n")
        status = int(begin.split()[1])
        if status == 100:
            continue
        length = re.search(rb"(?i)^content-length: (\d+)", begin, re.MULTILINE)
        assert length is not None, begin
        found.append((status, data[: int(length[1])]))
        data = data[int(length[1]) :]
    return found


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    return (
        b"".join([b"%x;extension=1\r\n%s\r\n" % (len(piece), piece) for piece in pieces]) + b"0\r\nTrailer: x\r\n\r\n"
    )


def framed(body: bytes, framing: str, *headers: str) -> bytes:
    if framing == "length":
        return head(len(body), *headers) + body
    return head(None, "transfer-encoding: chunked", *headers) + chunked(body, 7)


LAST = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("name", [name for name in UPGRADES if name != "two"])
def test_an_upgrade_is_ignored(server: Serving, name: str, framing: str) -> None:
    """In one segment, byte by byte, with other requests around it: the answers are those without the upgrade."""
    plain = framed(BODY, framing)
    ((_, expected), _) = exchange(server, [plain + LAST])
    request = framed(BODY, framing, *UPGRADES[name])
    ok = (200, expected)
    health = (200, b'{"status":"ok"}')
    assert exchange(server, [request + LAST]) == [ok, health]
    assert exchange(server, [bytes([byte]) for byte in request + LAST]) == [ok, health]
    around = plain + request + request + plain + LAST
    assert exchange(server, [around]) == [ok, ok, ok, ok, health]
    for size in (1000, 61):
        assert exchange(server, [around[i : i + size] for i in range(0, len(around), size)]) == [ok] * 4 + [health]


def test_every_place_to_cut_a_request_with_an_upgrade(server: Serving) -> None:
    request = framed(BODY[:-1] + b" }", "length", *UPGRADES["JDK"]) + LAST
    whole = exchange(server, [request])
    assert [status for status, _ in whole] == [200, 200]
    begin = request.index(b"\r\n\r\n")
    for cut in [*range(begin - 20, begin + 8), len(request) - len(LAST) - 1, len(request) - len(LAST)]:
        assert exchange(server, [request[:cut], request[cut:]], 0.002) == whole


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("name", UPGRADES)
def test_a_body_is_never_a_request(server: Serving, name: str, framing: str) -> None:
    request = framed(INNER, framing, *UPGRADES[name], "connection: close")
    for parts in ([request], [bytes([byte]) for byte in request]):
        ((status, body),) = exchange(server, parts)
        assert status == 422
        assert b"skyinfer_requests" not in body


def test_an_upgrade_without_a_body(server: Serving) -> None:
    get = b"GET /health HTTP/1.1\r\nhost: x\r\n" + "".join(f"{line}\r\n" for line in UPGRADES["websocket"]).encode()
    assert exchange(server, [get + b"\r\n" + get + b"\r\n" + LAST]) == [(200, b'{"status":"ok"}')] * 3
    old = b"GET /health HTTP/1.0\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    assert exchange(server, [old]) == [(200, b'{"status":"ok"}')]


def test_faults_of_an_upgrading_request_stay_faults(server: Serving) -> None:
    upgrade = "".join(f"{line}\r\n" for line in UPGRADES["JDK"]).encode()
    post = b"POST /v1/systemone HTTP/1.1\r\nhost: x\r\n" + upgrade
    for rest, status in [
        (b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"content-length: 5\r\ncontent-length: 6\r\n\r\nabcdef", 400),
        (b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"content-length: 99999999\r\nconnection: close\r\n\r\n", 413),
        (b"x: " + b"y" * 70_000 + b"\r\n\r\n", 431),
        (b"host: y\r\ncontent-length: 0\r\nconnection: close\r\n\r\n", 400),
    ]:
        assert [found for found, _ in exchange(server, [post + rest])] == [status], rest[:50]


def test_an_upgrade_that_waits_for_100_continue(server: Serving) -> None:
    with contextlib.closing(connect(server.port)) as connection:
        connection.sendall(head(len(BODY), "expect: 100-continue", "connection: close, upgrade", "upgrade: h2c"))
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert read_all(connection).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x12\x04\x00\x00\x00\x00\x00", 505),
        (b"GET /health HTTP/2.0\r\nhost: x\r\n\r\n", 505),
        (b"CONNECT example.com:443 HTTP/1.1\r\nhost: example.com:443\r\n\r\n" + INNER, 501),
        (b"CONNECT example.com:443 HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nabcde", 501),
        (b"CONNECT /health HTTP/1.1\r\nhost: x\r\n\r\n", 501),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # TLS
        (b"HELO example.com\r\n", 400),
        (b"\x00" * 100, 400),
    ],
)
def test_other_protocols_end_the_connection(server: Serving, data: bytes, status: int) -> None:
    for parts in ([data], [bytes([byte]) for byte in data]):
        ((found, body),) = exchange(server, parts, 0.0005 if len(parts) > 1 else 0)
        assert found == status
        assert json.loads(body)["detail"]["message"]


# ---- pipelining, trailers


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (b"garbage\r\n\r\n", 400),
        (b"POST /v1/systemone HTTP/1.1\r\nhost: x\r\ncontent-length: x\r\n\r\n", 400),
        (head(None, "transfer-encoding: chunked") + b"5\r\n{\r\n\r\n\r\nzz\r\n", 400),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", 431),
        (b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n", 501),
    ],
)
def test_a_fault_comes_after_the_answers_to_earlier_requests(server: Serving, fault: bytes, status: int) -> None:
    """Else a client takes the error for the answer to its first request."""
    body = json.dumps({"state": "x " * 4000, "questions": DRONE["questions"]}).encode()  # takes its time, in a thread
    request = head(len(body)) + body
    ((_, expected), _) = exchange(server, [request + LAST])
    for n in (1, 3):
        found = exchange(server, [request * n + fault + request])
        assert [one for one, _ in found] == [200] * n + [status]
        assert found[:n] == [(200, expected)] * n
        assert json.loads(found[n][1])["detail"]["message"]


def test_trailers_are_no_headers() -> None:
    with serving(api_key="the-key") as running:
        trailers = b"Host: y\r\nX-Api-Key: the-key\r\nAuthorization: Bearer the-key\r\nX-Request-Id: mine\r\n\r\n"
        body = b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
        for key, status in [("x-api-key: the-key", 200), ("x: y", 401)]:
            request = head(None, "transfer-encoding: chunked", "connection: close", key) + body + trailers
            for parts in ([request], [request[:-100], request[-100:]]):
                ((found, _),) = exchange(running, parts, 0.01)
                assert found == status


def test_trailers_and_extensions_of_chunks_are_bounded(server: Serving) -> None:
    """The parser keeps them in memory, and they are no part of a body whose size is limited."""
    begin = head(None, "transfer-encoding: chunked") + b"1\r\n{\r\n"
    for more in (b"0\r\n" + b"x: y\r\n" * 500_000, b"0\r\nx: " + b"y" * 3_000_000, b"1;" + b"x" * 3_000_000):
        ((status, _),) = exchange(server, [begin, more], 0.01)
        assert status == 431
    ok = head(None, "transfer-encoding: chunked", "connection: close") + chunked(BODY, 1)
    ((status, _),) = exchange(server, [ok])
    assert status == 200


def test_the_head_of_a_second_request_has_a_timeout_too() -> None:
    limits = Limits(head_seconds=0.3)
    with serving(limits=limits) as running, contextlib.closing(connect(running.port)) as connection:
        body = json.dumps({"state": "x " * 4000, "questions": DRONE["questions"]}).encode()
        start = time.monotonic()
        connection.sendall(head(len(body)) + body + b"GET /health HTTP/1.1\r\nhost")
        assert [status for status, _ in responses(read_all(connection))] == [200, 408]
        assert time.monotonic() - start < 5


# ---- a stranger's requests


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /health HTTP/1.1", 200),
        ("GET /health?x=%ff&y=\u007e HTTP/1.1", 200),
        ("GET http://other/health HTTP/1.1", 200),
        ("HEAD /health HTTP/1.1", 200),
        ("GET /health/ HTTP/1.1", 404),
        ("GET //health HTTP/1.1", 404),
        ("GET * HTTP/1.1", 404),
        ("GET /health%00 HTTP/1.1", 404),
        ("GET /%ff HTTP/1.1", 404),
        ("GET /v1/systemone/../../health HTTP/1.1", 404),
        ("GET /\u00e9 HTTP/1.1", 400),
        ("GET \\health HTTP/1.1", 400),
        ("GET health HTTP/1.1", 400),
        ("TRACE /health HTTP/1.1", 405),
        ("OPTIONS * HTTP/1.1", 404),
        ("GET /health HTTP/0.9", 505),
        ("G\u00e9T /health HTTP/1.1", 400),
    ],
)
def test_request_lines(server: Serving, request_line: str, status: int) -> None:
    request = f"{request_line}\r\nhost: x\r\nconnection: close\r\n\r\n".encode("latin-1")
    with contextlib.closing(connect(server.port)) as connection:
        connection.sendall(request)
        begin, _, body = read_all(connection).partition(b"\r\n\r\n")
    assert begin.split()[1] == str(status).encode()
    assert request_line.startswith("HEAD") is (not body)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (["content-length: +5"], 400),
        (["content-length: 0x5"], 400),
        (["content-length: 5, 5"], 400),
        (["content-length: 5", "content-length: 5"], 400),
        (["content-length: 99999999999999999999999999"], 400),
        (["content-length: "], 400),
        (["transfer-encoding: chunked, identity"], 400),
        (["transfer-encoding: xchunked"], 400),
        (['transfer-encoding: "chunked"'], 400),
        (["transfer-encoding : chunked"], 400),
        (["content-length: 5", "x: a\r\n folded"], 400),
        (["content-length: 5", "x: a\0b"], 400),
        (["content-length: 5", "x: a\rb"], 400),
        (["content-length: 5", ": a"], 400),
        (["content-length: 5", "no colon"], 400),
        (["content-length: 5", "host: again"], 400),
        (["content-length: 5", "content-type: Multipart/Form-Data; boundary=x"], 415),
        (
            ["content-length: 5", "x: \u00e9\u00ff", "authorization: \u00ff", "origin: \u00ff", "x-request-id: \u00ff"],
            422,
        ),
    ],
)
def test_faulty_headers(server: Serving, headers: list[str], status: int) -> None:
    begin = "\r\n".join(["POST /v1/systemone HTTP/1.1", "host: x", "connection: close", *headers, "", ""])
    ((found, body),) = exchange(server, [begin.encode("latin-1") + b"abcde"])
    assert found == status
    assert json.loads(body)["detail"]


@pytest.mark.parametrize("host", [b"a b", b"x/y", b"a@b", b"\xff", b'"x"', b"<x>"])
def test_what_is_no_host(server: Serving, host: bytes) -> None:
    ((status, _),) = exchange(server, [b"GET /health HTTP/1.1\r\nhost: %s\r\nconnection: close\r\n\r\n" % host])
    assert status == 400


@pytest.mark.parametrize("host", [b"", b"x", b"127.0.0.1:8080", b"[::1]:80", b"a_b.example", b"x%20y"])
def test_hosts(server: Serving, host: bytes) -> None:
    ((status, _),) = exchange(server, [b"GET /health HTTP/1.1\r\nhost: %s\r\nconnection: close\r\n\r\n" % host])
    assert status == 200


@pytest.mark.parametrize(
    "chunks",
    [b"FFFFFFFFFFFFFFFFF\r\n", b"-1\r\n", b"0x5\r\nabcde\r\n0\r\n\r\n", b"5\nabcde\n0\n\n", b"5\r\nabcdefg",
     b"5 \r\nabcde\r\n0\r\n\r\n", b"5\r\nabcde\r\n0\r\nno trailer\r\n\r\n", b"\r\n", b";\r\n"],
)  # fmt: skip
def test_faulty_chunks(server: Serving, chunks: bytes) -> None:
    request = head(None, "transfer-encoding: chunked") + chunks
    for parts in ([request], [request[:-1], request[-1:]]):
        ((status, _),) = exchange(server, parts, 0.002)
        assert status == 400


def test_many_pipelined_requests(server: Serving) -> None:
    get = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    assert exchange(server, [get * 1000 + LAST]) == [(200, b'{"status":"ok"}')] * 1001
    # a body on a method without one is read and left
    odd = b"GET /health HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(INNER), INNER)
    assert exchange(server, [odd * 3 + LAST]) == [(200, b'{"status":"ok"}')] * 4


def test_idle_connections_make_room() -> None:
    """At the limit, the connection that has been idle for longest is closed, and none that is in use."""
    with serving(limits=Limits(connections=3)) as running:
        idle = []
        for _ in range(3):
            idle.append(connect(running.port))
            idle[-1].sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert idle[-1].recv(1000).startswith(b"HTTP/1.1 200")
            time.sleep(0.02)
        idle[0].sendall(head(100))  # in use
        time.sleep(0.1)
        assert exchange(running, [LAST]) == [(200, b'{"status":"ok"}')]
        assert read_all(idle[1]) == b""
        idle[2].sendall(LAST)
        assert read_all(idle[2]).startswith(b"HTTP/1.1 200")
        for connection in idle:
            connection.close()
