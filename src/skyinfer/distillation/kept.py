"""A teacher's answers, kept as rows of training in a file of JSON Lines that grows by the answer.

Each line has the state, the questions, the answers, and as `x_teacher`, `x_tokens`, `x_seconds` who gave them, what it
read and how long it took; of an endpoint as `x_model` the model that it says it is. What an interrupted run leaves of
its last line is cut off by the next one.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import FormatError, RequestError, SkyinferError, faults_named
from ..train.rows import read_rows
from ..values import short
from .teachers import LocalTeacher, Taught

# Answers that a model gives once more: so many about the longest states, which tell its limits, and about the first.
_ASKED_AGAIN = 4
_REMEDY = "name another file, or remove this one"
# of every line
_BEGINNING = b'{"state": '


def key_of(state: Any) -> str:
    """A state as it is told from others: its JSON."""
    return json.dumps(state, ensure_ascii=False)


class KeptAnswers:
    """The answers of one teacher to the same questions, by state.

    Attributes:
        path: of the file.
        found: by `key_of` a state.
    """

    def __init__(self, path: Path, teacher: str, questions: Mapping[str, Any]) -> None:
        """Reads what an earlier run has kept.

        Raises:
            SkyinferError: the file holds answers of another teacher, or to other questions.
            FormatError: a line is no row of such a file, which then stays as it is.
            OSError: it cannot be read.
        """
        self.path, self._teacher = path, teacher
        self._questions = json.loads(json.dumps(questions))
        self._model: str | None = None
        self.found: dict[str, Taught] = {}
        if not path.exists():
            return
        with faults_named(path):
            data = path.read_bytes()
        last, rows = data[data.rfind(b"\n") + 1 :], list(read_rows(path))
        is_unfinished = (
            bool(last) and last.startswith(_BEGINNING[: len(last)]) and isinstance(rows[-1][1], RequestError)
        )
        for place, row in rows[:-1] if is_unfinished else rows:
            if isinstance(row, RequestError):
                raise FormatError(f"{path}: {place}: {row}")
            if not isinstance(row, dict) or not {"state", "questions", "answers", "x_teacher"} <= row.keys():
                raise FormatError(f"{path}: {place}: is no answer of a teacher; name another file")
            if row["x_teacher"] != teacher or row["questions"] != self._questions:
                other = "to other questions" if row["x_teacher"] == teacher else f"of {short(row['x_teacher'])}"
                raise SkyinferError(f"{path}: {place}: holds answers {other}; {_REMEDY}")
            tokens, seconds, model = row.get("x_tokens", 0), row.get("x_seconds", 0.0), row.get("x_model")
            self._model = model or self._model
            self.found[key_of(row["state"])] = Taught(row["answers"], tokens, seconds, model)
        # only now, as it might have been a file of the user's
        if last:
            with faults_named(path), open(path, "r+b") as file:
                file.truncate(len(data) - len(last))
                file.seek(0, os.SEEK_END)
                file.write(b"" if is_unfinished else last + b"\n")

    def check(self, teacher: LocalTeacher) -> None:
        """Ask about a few states once more, since a model that is trained anew keeps its name.

        Raises:
            SkyinferError: the teacher does not say what is kept.
            FormatError: what is kept is no answer to the questions.
        """
        by_length = sorted(self.found, key=len, reverse=True)
        for key in dict.fromkeys([*by_length[:_ASKED_AGAIN], *list(self.found)[:_ASKED_AGAIN]]):
            try:
                says_so = teacher.says(json.loads(key), self.found[key].answers)
            except RequestError as error:
                raise FormatError(f"{self.path}: state {short(key)}: {error}; {_REMEDY}") from error
            if not says_so:
                raise SkyinferError(
                    f"{self.path}: holds answers of another model named {short(teacher.name)}, or of this one before "
                    f"it was changed, as about the state {short(key)}; {_REMEDY}"
                )

    @contextmanager
    def adding(self) -> Iterator[_Writer]:
        """Where no answer comes, no new file stays that is empty."""
        is_new = not self.path.exists()
        with faults_named(self.path):
            try:
                with open(self.path, "ab") as file:
                    yield _Writer(self, file)
            finally:
                with contextlib.suppress(OSError):
                    if is_new and self.path.stat().st_size == 0:
                        self.path.unlink()

    def row(self, state: Any) -> dict[str, Any]:
        """The row of a state that was answered."""
        return {"state": state, "questions": self._questions, "answers": self.found[key_of(state)].answers}


class _Writer:
    def __init__(self, kept: KeptAnswers, file: Any) -> None:
        self._kept, self._file = kept, file

    def add(self, state: Any, taught: Taught) -> None:
        """
        Raises:
            SkyinferError: the teacher says that it is another model than that of the answers before.
        """
        kept = self._kept
        if taught.model is not None and kept._model is not None and taught.model != kept._model:
            raise SkyinferError(
                f"{kept.path}: holds answers of the model {short(kept._model)}, and {kept._teacher} says now that it "
                f"is {short(taught.model)}; {_REMEDY}"
            )
        kept._model = taught.model or kept._model
        line = {"state": state, "questions": kept._questions, "answers": taught.answers,
                "x_teacher": kept._teacher, "x_tokens": taught.n_tokens, "x_seconds": taught.seconds,
                **({} if taught.model is None else {"x_model": taught.model})}  # fmt: skip
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()
        kept.found[key_of(state)] = taught
