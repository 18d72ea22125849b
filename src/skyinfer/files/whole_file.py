"""A file that appears whole or not at all, and replaces another one only when that is wanted.

It is written beside its place under another name, on the same file system, and moved there when it is complete and on
the disk. Every error names the path that the caller gave, not the one that is being written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

from ..errors import faults_named
from .paths import checked_path, kind_of

# what file systems without hard links answer
_NO_LINKS = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.EINVAL}

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def refuse_inputs(out: str | os.PathLike[str], *inputs: str | os.PathLike[str] | None) -> None:
    """Refuse to write to a file that is read for it, under whatever name; None and what is not there is nothing.

    Raises:
        OSError: `out` is one of the inputs.
    """
    for path in inputs:
        with contextlib.suppress(OSError, ValueError):
            if path is not None and os.path.samefile(out, path):
                break
    else:
        return
    raise OSError(errno.EINVAL, "is read by this command, too; name another file to write", os.fspath(out))


class NotForcedError(FileExistsError):
    """A file is there, which the caller did not ask to replace, and might have."""


class WholeFile:
    """A place for a file, checked: nothing stands there, or a regular file that may be replaced.

    Attributes:
        path: as the caller named it.
        target: where the file goes: a symbolic link is followed.
    """

    def __init__(self, path: str | os.PathLike[str], *, replace: bool) -> None:
        """`replace`: a regular file that stands there makes way, and passes its permissions on.

        Raises:
            FormatError: the path is empty or holds a NUL character.
            NotForcedError: something stands there and `replace` is not set.
            OSError: what stands there is no regular file, or its directory is missing.
        """
        self.path = checked_path(path)
        self._given = os.fspath(path)
        self._replace = replace
        if self._given.endswith(tuple(filter(None, (os.sep, os.altsep)))):
            raise self.fault(errno.EISDIR, "names a directory; name the file to write")
        self.target = Path(os.path.realpath(self._given))
        with self.faults_named():
            self._standing()
        if not self.target.parent.is_dir():
            raise self.fault(errno.ENOENT, f"there is no directory {self.target.parent}")

    def fault(self, number: int, message: str) -> OSError:
        """An OSError, of the class that `number` asks for, that names the file."""
        return OSError(number, message, self._given)

    def faults_named(self) -> AbstractContextManager[None]:
        """Lets every OSError of the block name the path that the caller gave, with its own cause."""
        return faults_named(self._given)

    def _standing(self) -> os.stat_result | None:
        """The file that stands there and may be replaced; None where nothing stands."""
        try:
            found = os.stat(self.target)
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(found.st_mode):
            raise self.fault(errno.EISDIR, "is a directory; name the file to write")
        if not stat.S_ISREG(found.st_mode):
            raise self.fault(errno.EINVAL, f"is {kind_of(found.st_mode)}; name a regular file to write")
        if not self._replace:
            raise NotForcedError(errno.EEXIST, "exists already; it is replaced only when forced", self._given)
        return found

    def refuse_files_of(self, *directories: Path) -> None:
        """Refuse to replace a file that lies in one of the directories, under whatever name; GGUF files may.

        Raises:
            OSError: it is one.
        """
        with self.faults_named():
            standing = self._standing()
        if standing is None:
            return
        for directory in directories:
            for file in directory.iterdir() if directory.is_dir() else ():
                if file.suffix != ".gguf" and file.exists() and os.path.samestat(standing, file.stat()):
                    raise self.fault(errno.EINVAL, f"is the checkpoint's own {file.name}; name another file")

    @contextmanager
    def writing(self) -> Iterator[BinaryIO]:
        """The file to write into. It takes its place at the end of the block, or vanishes with an exception."""
        # not made of the file's name, which may be as long as a name can be
        part = self.target.with_name(f".skyinfer-{secrets.token_hex(8)}.part")
        try:
            with self.faults_named():
                standing = self._standing()
                # what replaces a private file is private from its first byte on
                file = os.fdopen(os.open(part, _NEW_FILE, 0o600 if standing else 0o666), "wb")
            try:
                yield file
                with self.faults_named():
                    file.flush()
                    os.fsync(file.fileno())
            finally:
                # after a failure, which has been told, there may be a rest that cannot be written either
                with contextlib.suppress(OSError):
                    file.close()
            with self.faults_named():
                standing = self._standing()
                if standing is not None:
                    os.chmod(part, stat.S_IMODE(standing.st_mode))
                if self._replace:
                    os.replace(part, self.target)
                else:
                    self._place(part)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise

    def _place(self, part: Path) -> None:
        """Move a file to where nothing stands: what appears there at the last moment stays."""
        try:
            os.link(part, self.target)
        except FileExistsError:
            self._standing()
            raise
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # an empty file of our own keeps the place
            os.close(os.open(self.target, _NEW_FILE, 0o666))
            try:
                os.replace(part, self.target)
            except BaseException:
                self.target.unlink(missing_ok=True)
                raise
        else:
            part.unlink()
