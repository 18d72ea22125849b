"""Copies of models that differ in their temperatures alone: of a GGUF file, or of a checkpoint directory.

Temperatures go by the names of `temperatures.TEMPERATURE_NAMES`. In a directory only the two entries of
rl_agent_config.json change, and in that file nothing around them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core import scanners
from ..errors import FormatError, faults_named
from ..schema import QUESTION_TYPES
from .config import temperature_key
from .gguf import GGUFFile, write_with_floats
from .paths import checked_path
from .temperatures import BUCKETS
from .whole_file import WholeFile

_AGENT, _BY_TYPE, _BY_OPTIONS = "rl_agent_config.json", "temperature", "temperature_by_options"
_STANDS = "exists already, and a directory is never replaced; name a new one"
# what an unfinished training leaves in a checkpoint directory
_TRAINING = "training"


class ModelCopy:
    """A place for a copy of a model, checked before any work is done."""

    def __init__(self, source: Path, out: str | os.PathLike[str], *, replace: bool = False) -> None:
        """`replace`: a GGUF file that stands there makes way; a directory never does.

        Raises:
            FormatError: a path is empty or holds a NUL character.
            OSError: something stands there, or its directory is missing.
        """
        self._source, self.path = source, checked_path(out)
        self._file: WholeFile | None = None
        if not source.is_dir():
            self._file = WholeFile(out, replace=replace)
        elif os.path.lexists(self.path):
            raise FileExistsError(errno.EEXIST, _STANDS, str(self.path))
        elif not self.path.absolute().parent.is_dir():
            raise FileNotFoundError(
                errno.ENOENT, f"there is no directory {self.path.absolute().parent}", str(self.path)
            )

    def write(self, temperatures: Mapping[str, float]) -> None:
        """Write the copy with these temperatures, by name ("choice", "choice.3_5"). It appears whole or not at all.

        Raises:
            FormatError: the source is faulty.
            OSError: it cannot be read, or the copy cannot be written.
        """
        if self._file is not None:
            with GGUFFile.open(self._source) as source, self._file.writing() as file, self._file.faults_named():
                prefix = temperature_key(str(source.metadata["general.architecture"]))
                values = {prefix + name: value for name, value in temperatures.items()}
                write_with_floats(source, file, values)
            return
        part = self.path.absolute().with_name(f".skyinfer-{secrets.token_hex(8)}.part")
        try:
            shutil.copytree(self._source, part, ignore=self._left_out, copy_function=_copied)
            config = part / _AGENT
            with faults_named(self.path):
                text = config.read_bytes().decode()  # line breaks as they are
                config.write_bytes(_with_temperatures(text, temperatures, self._source / _AGENT).encode())
            if os.path.lexists(self.path):  # it appeared meanwhile, and an empty one would be replaced
                raise FileExistsError(errno.EEXIST, _STANDS, str(self.path))
            os.rename(part, self.path)
        except BaseException as error:
            with contextlib.suppress(OSError):
                shutil.rmtree(part, ignore_errors=True)
            if isinstance(error, _CopyFault):
                with faults_named(error.unreadable or self.path):
                    raise error.cause from None
            raise

    def _left_out(self, directory: str, names: list[str]) -> set[str]:
        return {_TRAINING} & set(names) if Path(directory) == self._source else set()


class _CopyFault(Exception):
    def __init__(self, cause: OSError, unreadable: str | None) -> None:
        """`unreadable`: the source, where that is at fault."""
        super().__init__(cause)
        self.cause, self.unreadable = cause, unreadable


def _copied(source: str, target: str) -> None:
    """As shutil.copy2. A fault ends the copy of the whole directory; an OSError would be kept for a list at its end."""
    try:
        shutil.copy2(source, target)
    except OSError as error:
        # a fault while bytes go from one to the other has both names
        is_unreadable = error.filename == source and error.filename2 is None
        raise _CopyFault(error, source if is_unreadable else None) from error


def _with_temperatures(text: str, temperatures: Mapping[str, float], path: Path) -> str:
    """A configuration with these temperatures; the text around the two values stays."""
    try:
        places = scanners.json_members(text, (_BY_TYPE, _BY_OPTIONS))
        by_type: Any = [1.0, 1.0, 1.0]
        by_options: Any = {}
        if _BY_TYPE in places:
            by_type = json.loads(text[slice(*places[_BY_TYPE])])
        if _BY_OPTIONS in places:
            by_options = json.loads(text[slice(*places[_BY_OPTIONS])])
    except ValueError as error:
        raise FormatError(f"{path}: {error}") from error
    if not isinstance(by_type, list) or len(by_type) != len(QUESTION_TYPES) or not isinstance(by_options, dict):
        raise FormatError(f"{path}: {_BY_TYPE} must be a list of 3 numbers, and {_BY_OPTIONS} an object")
    for name, value in temperatures.items():
        kind, _, bucket = name.partition(".")
        if bucket:
            by_options[f"{kind}:{BUCKETS[bucket]}"] = value
        else:
            by_type[[*QUESTION_TYPES].index(kind)] = value  # type: ignore[arg-type]
    new = {_BY_TYPE: json.dumps(by_type), _BY_OPTIONS: json.dumps(by_options)}
    for name, (begin, end) in sorted(places.items(), key=lambda item: -item[1][0]):
        text = text[:begin] + new.pop(name) + text[end:]
    missing = "".join(f'"{name}": {value}, ' for name, value in new.items())
    return text.replace("{", "{" + missing, 1) if missing else text
