"""Answers as columns of a table: for each question its label, its number, confidence, truncation and probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..runtime.arrays import AnswerArrays
from ..schema import Question
from .states import ColumnError, check_name

Probabilities = Literal["list", "columns"]
ERROR = "x_error"


class AnswerColumns:
    """The columns that answers to questions become.

    Attributes:
        schema: of these columns, in order.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        *,
        prefix: str = "",
        probabilities: Probabilities = "list",
        with_abstained: bool = False,
        with_errors: bool = False,
    ) -> None:
        """`prefix`: what every name begins with. `probabilities`: one column of lists, or one for each option.

        Raises:
            ColumnError: two columns would have one name.
        """
        if probabilities not in ("list", "columns"):
            raise ValueError(f"probabilities: expected 'list' or 'columns', got {probabilities!r}")
        self._questions, self._probabilities = questions, probabilities
        self._with_abstained, self._with_errors = with_abstained, with_errors
        check_name(prefix, "the prefix")
        fields = []
        for question in questions:
            check_name(str(question.id), "a question's id")
            name, n = f"{prefix}{question.id}", len(question.options)
            fields.append(pa.field(name, pa.dictionary(pa.int32(), pa.string())))
            if question.type != "choice":
                fields.append(pa.field(f"{name}_{question.type}", pa.float32()))
            fields.append(pa.field(f"{name}_confidence", pa.float32()))
            fields.append(pa.field(f"{name}_truncated", pa.bool_()))
            if with_abstained:
                fields.append(pa.field(f"{name}_abstained", pa.bool_()))
            if probabilities == "list":
                fields.append(pa.field(f"{name}_probabilities", pa.list_(pa.field("item", pa.float32()), n)))
            else:
                fields += [pa.field(f"{name}_p_{option.name}", pa.float32()) for option in question.options]
        if with_errors:
            fields.append(pa.field(f"{prefix}{ERROR}", pa.string()))
        self.schema = pa.schema(fields)
        self._labels = [pa.array([_label(question, i) for i in range(len(question.options))], pa.string())
                        for question in questions]  # fmt: skip
        _refuse_repeated(self.schema.names, "two answers would have this column; change a question's id or an option")

    def joined(self, columns: pa.Schema) -> pa.Schema:
        """The columns of a table and after them these.

        Raises:
            ColumnError: both have one of the same name.
        """
        for name in self.schema.names:
            if name in columns.names:
                raise ColumnError(
                    f"column {name!r}: the table has it already; rename it or the question, or give a prefix"
                )
        return pa.schema([*columns, *self.schema], metadata=columns.metadata)

    def arrays(
        self,
        answers: AnswerArrays,
        errors: Sequence[str | None] | None = None,
        abstained: NDArray[np.bool_] | None = None,
    ) -> list[pa.Array]:
        """The columns. A faulty row's answers are null.

        errors: what was wrong with each row, null where nothing. abstained: bool [n_rows, n_questions], where wanted.
        """
        faulty = answers.labels[:, 0] < 0 if self._questions else np.zeros(len(answers), np.bool_)
        mask = faulty if faulty.any() else None
        found: list[pa.Array] = []
        begin = 0
        for i, question in enumerate(self._questions):
            end = begin + len(question.options)
            codes = pa.array(np.ascontiguousarray(answers.labels[:, i]), mask=mask)
            found.append(pa.DictionaryArray.from_arrays(codes, self._labels[i]))
            if question.type != "choice":
                found.append(_floats(answers.values[:, i], mask))
            found.append(_floats(answers.confidence[:, i], mask))
            found.append(pa.array(np.ascontiguousarray(answers.truncated[:, i]), mask=mask))
            if self._with_abstained:
                assert abstained is not None
                found.append(pa.array(np.ascontiguousarray(abstained[:, i]), mask=mask))
            own = answers.probabilities[:, begin:end]
            if self._probabilities == "list":
                kept = None if mask is None else pa.array(mask)
                found.append(
                    pa.FixedSizeListArray.from_arrays(_floats(own.reshape(-1), None), type=self._list(end - begin),
                                                      mask=kept)
                )  # fmt: skip
            else:
                found += [_floats(own[:, k], mask) for k in range(end - begin)]
            begin = end
        if self._with_errors:
            found.append(pa.array(errors or [None] * len(answers), pa.string()))
        return found

    @staticmethod
    def _list(n: int) -> pa.DataType:
        return pa.list_(pa.field("item", pa.float32()), n)


def _label(question: Question, i: int) -> str:
    return ("false", "true")[i] if question.type == "noul" else question.options[i].name


def _floats(values: np.ndarray, mask: np.ndarray | None) -> pa.Array:
    return pa.array(np.ascontiguousarray(values), mask=mask)


def _refuse_repeated(names: Iterable[str], remedy: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ColumnError(f"column {name!r}: {remedy}")
        seen.add(name)
