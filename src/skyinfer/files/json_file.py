"""A JSON object in a file, with typed access; what its entries mean is defined by the callers."""

from __future__ import annotations

import json
from pathlib import Path
from reprlib import repr as short_repr  # values of a hostile file may be long or deeply nested
from typing import Any, NoReturn

from ..errors import FormatError
from .paths import read_text


class JsonFile:
    """A JSON object in a file, with typed access that names file and entry in its errors.

    Attributes:
        path: the file.
        content: the object.
    """

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        self.path = path
        self.content = content

    @classmethod
    def read(cls, path: Path) -> JsonFile:
        """Read a file.

        Raises:
            FormatError: it is missing, unreadable, too large, or not a JSON object.
        """
        return cls.parse(path, read_text(path))

    @classmethod
    def parse(cls, path: Path, text: str) -> JsonFile:
        """The object that a file's text stands for. Raises as `read`."""
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{path}: is not JSON: {error}") from None
        if not isinstance(content, dict):
            raise FormatError(f"{path}: expected a JSON object")
        return cls(path, content)

    @classmethod
    def one_of(cls, directory: Path, *names: str) -> JsonFile:
        """The first of the files that is there."""
        for name in names:
            if (directory / name).exists():
                return cls.read(directory / name)
        raise FormatError(
            f"{directory}: not a checkpoint of an s1 (Laya) or s2 model: {' and '.join(names)} are missing"
        )

    def get(self, key: str) -> Any:
        return self.content.get(key)

    def fail(self, key: str, message: str) -> NoReturn:
        raise FormatError(f"{self.path}: {key}: {message}")

    def whole(self, key: str, default: int | None = None, least: int = 0) -> int:
        """A whole number below 2**31; null counts as absent."""
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            self.fail(key, "is missing")
        if not isinstance(value, int) or isinstance(value, bool):
            self.fail(key, f"expected a whole number, found {short_repr(value)}")
        if not least <= value < 1 << 31:
            self.fail(key, f"{short_repr(value)} is out of range")
        return int(value)

    def number(self, key: str, value: Any) -> float:
        """`value`, found at `key`, as a float."""
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            self.fail(key, f"expected a number, found {short_repr(value)}")
        try:
            return float(value)
        except OverflowError:
            self.fail(key, f"{short_repr(value)} is out of range")
