"""One training at a time in an output directory, and nothing left behind of one that got nowhere.

The lock is the operating system's, on an open file: it ends with the process, however that ends, so a file that a
crash leaves is no obstacle. The file goes with the lock; whoever opened it before has the lock of a file that is gone,
and tries again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import FormatError, SkyinferError
from .writing import AGENT, OWN, SCRATCH, is_moving, remove, settle

if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> None:
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


_TAKEN = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK}
# what file systems without locks answer; they are trained on without
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}


class SnapshotError(FormatError):
    """A snapshot that cannot be gone on from. `fault`: what is wrong, without the remedy."""

    def __init__(self, fault: str) -> None:
        super().__init__(f"{fault}; force starts over")
        self.fault = fault


def snapshot_of(out: str | os.PathLike[str]) -> Path:
    """Where an unfinished training in `out` keeps what it has learned."""
    return Path(out) / SCRATCH / "snapshot.pt"


@contextmanager
def alone_in(out: Path) -> Iterator[None]:
    """Keep other trainings out of `out` for the block. What an ended one leaves there is a checkpoint, or a snapshot
    and what belongs to it, or nothing.

    Raises:
        SkyinferError: another training is at work there.
        OSError: the directory cannot be written to.
    """
    scratch, is_new = out / SCRATCH, not out.exists()
    lock = scratch / "lock"
    file = _locked(lock, out)
    try:
        settle(out)
        yield
    finally:
        # others are kept out until all is removed
        if not snapshot_of(out).exists() and not is_moving(out):
            with contextlib.suppress(OSError):
                for entry in list(scratch.iterdir()):
                    if entry != lock:
                        remove(entry)
            if is_new and not (out / AGENT).exists():
                for name in OWN - {SCRATCH}:
                    remove(out / name)
        if sys.platform == "win32":
            # an open file cannot be removed there, and one that another has opened stays
            os.close(file)
            remove(lock)
        else:
            remove(lock)
            os.close(file)
        # not where another one has begun meanwhile: then they are not empty
        with contextlib.suppress(OSError):
            scratch.rmdir()
            if is_new:
                out.rmdir()


def _locked(path: Path, out: Path) -> int:
    """The open file `path`, which no other process or thread has locked."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            # another one has removed the directory, which was its own
            continue
        try:
            try:
                _lock(file)
            except OSError as error:
                if error.errno in _TAKEN:
                    raise SkyinferError(f"another training is at work in {out}") from None
                if error.errno not in _NO_LOCKS:
                    raise
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), os.stat(path)):
                    return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)
