"""The sockets that a server listens on: an address and port, or a path in the file system (a Unix-domain socket)."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import sys
from collections.abc import Iterator

# Bytes of a path that every system takes are 103 (macOS); Linux takes 107.
_PATH_BYTES = 107 if sys.platform == "linux" else 103


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound to an address. An IPv6 address may stand in brackets, as in a URL.

    Raises:
        OSError: it cannot be bound; `filename` holds the address.
    """
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host:
        raise OSError(errno.EINVAL, "the address is empty; 0.0.0.0 or [::] is any address of this machine", "--host")
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            if sys.platform != "win32":  # there it would let two servers share a port
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except BaseException:
            bound.close()
            raise
    except (OSError, UnicodeError) as error:  # the latter for labels of a name that are too long
        number, text = (error.errno, error.strerror) if isinstance(error, OSError) else (errno.EINVAL, None)
        raise OSError(number, text or str(error), shown) from None
    return bound


@contextlib.contextmanager
def bound_path(path: str, mode: int) -> Iterator[socket.socket]:
    """A Unix-domain socket at `path`, with these permissions from its first moment; removed at the end.

    A socket that a server left behind is replaced. One that a server listens on is not, nor is any other file.

    Raises:
        OSError: it cannot be bound; `filename` holds the path.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise OSError(errno.EAFNOSUPPORT, "Python has no Unix-domain sockets on this system", path)
    if len(os.fsencode(path)) > _PATH_BYTES:
        raise OSError(errno.ENAMETOOLONG, f"the path of a Unix-domain socket has at most {_PATH_BYTES} bytes", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bound:
        umask = os.umask(0o777)  # nobody can connect before chmod
        try:
            _remove_stale(path)
            bound.bind(path)
            status = os.lstat(path)
            bound.listen()  # now, or another server that starts meanwhile would take it for one that was left behind
            os.chmod(path, mode)
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), path) from None
        finally:
            os.umask(umask)
        try:
            yield bound
        finally:
            _remove(path, status)


def address_of(bound: socket.socket) -> str:
    """The address of a bound socket: a URL, or unix: and a path."""
    name = bound.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    host, port = name[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _remove_stale(path: str) -> None:
    """Remove a socket that nobody listens on.

    Raises:
        OSError: something else is there.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise OSError(errno.EEXIST, "a file that is not a socket is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            _remove(path, status)
            return
        except (BlockingIOError, TimeoutError):  # it has a queue, which is full
            pass
    raise OSError(errno.EADDRINUSE, "a server listens there already")


def _remove(path: str, status: os.stat_result) -> None:
    """Remove the file, if it is still the one of `status`."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.lstat(path), status):
            os.unlink(path)
