"""The command `skyinfer` as tests run it, and what it leaves: an exit code, and what it wrote to stdout and stderr."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

REQUEST = json.loads((Path(__file__).parent.parent / "examples" / "request.json").read_text(encoding="utf-8"))


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def fault(self) -> str:
        """The one line that an input's fault leaves."""
        assert (self.code, self.out) == (1, "")
        assert self.err.startswith("skyinfer: ")
        assert self.err.count("\n") == 1
        assert self.err.endswith("\n")
        return self.err[len("skyinfer: ") : -1]


Run = Callable[..., Result]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def process(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "skyinfer", *map(str, arguments)]
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("stdout", subprocess.PIPE)
    return subprocess.run(command, stderr=subprocess.PIPE, timeout=60, check=False, **options)


def saved(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path
