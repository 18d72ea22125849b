"""Compressed bodies as public tools and clients write them, their sizes and faults. gzip, zlib and zstd."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from serving import DRONE, Client, Serving, serving

from skyinfer.serve.compression import decompressed
from skyinfer.serve.refusals import Refusal

zstd = pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")

BODY = json.dumps(DRONE).encode()
LIMIT = 1 << 20


def raw_deflate(data: bytes, level: int = 6) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def skippable(data: bytes, kind: int = 0) -> bytes:
    return struct.pack("<II", 0x184D2A50 + kind, len(data)) + data


def named_gzip(data: bytes) -> bytes:
    """With every optional field of a header: extra field, name, comment, checksum (RFC 1952, section 2.3)."""
    header = b"\x1f\x8b\x08" + bytes([2 | 4 | 8 | 16]) + b"\0\0\0\0\0\xff" + b"\3\0abc" + b"name\0" + b"comment\0"
    header += struct.pack("<H", zlib.crc32(header) & 0xFFFF)
    return header + raw_deflate(data) + struct.pack("<II", zlib.crc32(data), len(data))


def parts(data: bytes, n: int) -> list[bytes]:
    size = -(-len(data) // n)
    return [data[i : i + size] for i in range(0, len(data), size)]


WHOLE: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "gzip, all fields": ("gzip", named_gzip),
    "gzip, stored": ("GZip", lambda data: gzip.compress(data, 0)),
    "gzip, members": ("gzip", lambda data: b"".join(map(gzip.compress, parts(data, 5)))),
    "gzip, empty members": ("gzip", lambda data: gzip.compress(b"") * 3 + gzip.compress(data) + gzip.compress(b"")),
    "x-gzip": ("x-gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "deflate, stored": ("deflate", lambda data: zlib.compress(data, 0)),
    "deflate, raw": ("deflate", raw_deflate),
    "deflate, raw, stored": ("deflate", lambda data: raw_deflate(data, 0)),
    "deflate, raw, best": ("deflate", lambda data: raw_deflate(data, 9)),
    "zstd": ("zstd", zstd.compress),
    "zstd, frames": ("zstd", lambda data: b"".join(map(zstd.compress, parts(data, 5)))),
    "zstd, skippable": (
        "zstd",
        lambda data: skippable(b"x" * 40_000) + zstd.compress(data) + skippable(b"") + skippable(b"y", 15),
    ),
    "zstd, stream": ("zstd", lambda data: (packer := zstd.ZstdCompressor()).compress(data) + packer.flush()),
    "twice": ("gzip, zstd", lambda data: zstd.compress(gzip.compress(data))),
    "identity": ("identity", bytes),
    "identity and gzip": (" identity ,gzip", gzip.compress),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as running:
        yield running


@pytest.fixture
def client(server: Serving) -> Iterator[Client]:
    with server.client() as client:
        yield client


@pytest.mark.parametrize("name", WHOLE)
def test_whole_bodies(client: Client, name: str) -> None:
    coding, pack = WHOLE[name]
    assert client.post(pack(BODY), content_encoding=coding).json == client.post(BODY).json
    big = json.dumps({**DRONE, "state": random.Random(1).randbytes(30_000).hex()}).encode()
    assert client.post(pack(big), content_encoding=coding).json == client.post(big).json


@pytest.mark.parametrize("name", [name for name in WHOLE if name != "identity"])
def test_the_limit_holds_for_all_together(client: Client, name: str) -> None:
    coding, pack = WHOLE[name]
    assert decompressed(pack(b" " * LIMIT), coding.encode(), LIMIT) == b" " * LIMIT
    with pytest.raises(Refusal) as caught:
        decompressed(pack(b" " * (LIMIT + 1)), coding.encode(), LIMIT)
    assert caught.value.status == 413
    if "stored" not in name:
        assert client.post(pack(b" " * (20 << 20)), content_encoding=coding).status == 413


@pytest.mark.parametrize("name", [name for name in WHOLE if name != "identity"])
def test_parts_and_more_than_the_whole(name: str) -> None:
    coding, pack = WHOLE[name]
    data = pack(BODY)
    one = zstd.compress if coding == "zstd" else gzip.compress
    ends = {len(b"".join(map(one, parts(BODY, 5)[:i]))) for i in range(1, 6)}  # of members
    for length in [*range(0, len(data) - 1, 7), len(data) - 1]:
        try:
            found = decompressed(data[:length], coding.encode(), LIMIT)
        except Refusal as refusal:
            kind = refusal.kind
        else:  # between two members
            assert BODY.startswith(found)
            assert length in ends or found in (b"", BODY)
            continue
        assert kind == "encoding_invalid"
    for more in (b"junk", b"\1", b"\0\0\1"):
        with pytest.raises(Refusal) as caught:
            decompressed(data + more, coding.encode(), LIMIT)
        assert (caught.value.status, caught.value.kind) == (422, "encoding_invalid")
    if coding.endswith("gzip"):
        assert decompressed(data + b"\0" * 600, coding.encode(), LIMIT) == BODY


def test_a_changed_body_is_refused() -> None:
    for name in ("gzip", "gzip, members", "deflate", "zstd, stream"):
        coding, pack = WHOLE[name]
        data = bytearray(pack(BODY))
        data[-3] ^= 1  # of a checksum, where there is one
        if name != "zstd, stream":
            with pytest.raises(Refusal):
                decompressed(bytes(data), coding.encode(), LIMIT)


def test_many_small_members_take_linear_time() -> None:
    data = gzip.compress(b"") * 50_000
    start = time.monotonic()
    assert decompressed(data, b"gzip", LIMIT) == b""
    assert decompressed(skippable(b"") * 100_000, b"zstd", LIMIT) == b""
    assert time.monotonic() - start < 10  # 500 times as long where the rest is copied for each


def test_unknown_codings_are_named(client: Client) -> None:
    for coding in ("br", "compress", "gzip, br", "gzip;q=1", "x", ", ".join(["gzip"] * 5)):
        answer = client.post(gzip.compress(BODY), content_encoding=coding)
        assert answer.status == 415
        assert answer.headers["accept-encoding"] == "gzip, deflate, zstd"
        assert answer.json["detail"]["error_type"] == "unsupported_media_type"


def test_a_window_that_takes_too_much_memory_is_refused() -> None:
    options = {zstd.CompressionParameter.window_log: 27, zstd.CompressionParameter.content_size_flag: 0}
    packer = zstd.ZstdCompressor(options=options)
    with pytest.raises(Refusal):
        decompressed(packer.compress(BODY) + packer.flush(), b"zstd", LIMIT)


@pytest.mark.parametrize("tool", ["gzip", "pigz", "zstd", "pzstd"])
def test_what_tools_write(client: Client, tool: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    packed = subprocess.run([tool, "-c"], input=BODY, capture_output=True, check=True, timeout=20).stdout
    coding = "gzip" if tool.endswith("gz") or tool == "gzip" else "zstd"
    answer: Any = client.post(packed + packed.replace(packed, b""), content_encoding=coding)
    assert answer.json == client.post(BODY).json
