"""Compressed bodies: Content-Encoding gzip (RFC 1952), deflate (RFC 1950 and 1951) and zstd (RFC 8878).

gzip and zstd data may be several members or frames, one after the other, as parallel compressors write them. The limit
of a body's size holds for all of them together, and memory is taken for no more.
"""

from __future__ import annotations

import importlib
import sys
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from .refusals import Refusal, invalid, too_large

# A frame of zstd may ask its reader for this much memory.
_ZSTD_WINDOW_LOG = 23
# Input goes to a decompressor in pieces, since it copies what is left of a piece behind its member.
_PIECE_BYTES = 1 << 14
# Codings that are applied one after the other.
_MOST_CODINGS = 4


class _Coding(NamedTuple):
    """A coding.

    Attributes:
        reader: makes a decompressor for data that begins so.
        has_members: whether any number of members or frames may follow each other.
        may_be_padded: whether zeros may come after the last one, as gzip takes them.
    """

    reader: Callable[[memoryview], Any]
    has_members: bool
    may_be_padded: bool = False


def decompressed(body: bytes, codings: bytes, limit: int) -> bytes:
    """A body, decompressed to at most `limit` bytes.

    Args:
        body: as received.
        codings: the value of Content-Encoding: one coding, or several in the order in which they were applied.
        limit: bytes of the result, and of what is between two codings.

    Raises:
        Refusal: 413; 415 for an unknown coding; 422 where the bytes are not in that coding.
    """
    names = [name.strip().lower() for name in codings.split(b",")]
    names = [name for name in names if name not in (b"", b"identity")]
    if len(names) > _MOST_CODINGS:
        raise _unsupported(f"a body may have at most {_MOST_CODINGS} codings")
    for name in reversed(names):
        coding = _CODINGS.get(name)
        if coding is None:
            raise _unsupported("this Content-Encoding is not supported; supported are gzip, deflate and zstd")
        body = _decompressed(body, name.decode(), coding, limit)
    return body


def _decompressed(body: bytes, name: str, coding: _Coding, limit: int) -> bytes:
    rest, parts, n_bytes, n_members = memoryview(body), list[bytes](), 0, 0
    while len(rest) or not n_members:
        if n_members and coding.may_be_padded and rest[0] == 0 and not bytes(rest).strip(b"\0"):
            break
        try:
            reader = coding.reader(rest)
            while not reader.eof and n_bytes <= limit and len(rest):
                piece = rest[:_PIECE_BYTES]
                parts.append(reader.decompress(piece, limit + 1 - n_bytes))
                n_bytes += len(parts[-1])
                rest = rest[len(piece) - len(reader.unused_data) :]
        except ImportError:
            raise _unsupported("this server was installed without zstd") from None
        except Exception:  # each library has its own types of errors
            what = f"goes on after its {name} data" if n_members else f"is not {name} data"
            raise invalid((), what, "encoding_invalid") from None
        if n_bytes > limit:
            raise too_large(f"the body has more than {limit} bytes when it is decompressed")
        if not reader.eof:
            raise invalid((), f"ends in the middle of its {name} data", "encoding_invalid")
        n_members += 1
        if len(rest) and not coding.has_members:
            raise invalid((), f"goes on after its {name} data", "encoding_invalid")
    return b"".join(parts)


def _unsupported(message: str) -> Refusal:
    accepted = b"gzip, deflate, zstd" if _has_zstd() else b"gzip, deflate"
    return Refusal(415, "unsupported_media_type", message, headers=[(b"accept-encoding", accepted)])


def _gzip(data: memoryview) -> Any:
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)


def _deflate(data: memoryview) -> Any:
    """The coding is named after raw deflate data but is zlib's format (RFC 9110, 8.4.1.2); clients send both."""
    is_zlib = len(data) < 2 or (data[0] & 15 == 8 and (data[0] << 8 | data[1]) % 31 == 0)
    return zlib.decompressobj(wbits=zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)


def _zstd(data: memoryview) -> Any:
    zstd = _zstd_module()
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG})


def _zstd_module() -> Any:
    # the standard library's from Python 3.14 on
    return importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


def _has_zstd() -> bool:
    try:
        _zstd_module()
    except ImportError:
        return False
    return True


_CODINGS = {
    b"gzip": _Coding(_gzip, has_members=True, may_be_padded=True),
    b"x-gzip": _Coding(_gzip, has_members=True, may_be_padded=True),
    b"deflate": _Coding(_deflate, has_members=False),
    b"zstd": _Coding(_zstd, has_members=True),
}
