"""Answers for tables: Arrow in, Arrow out, a few thousand rows in memory at a time. Needs the extra `rows` (pyarrow).

    import pyarrow.dataset, skyinfer
    from skyinfer.rows import answer_rows

    reader = answer_rows(skyinfer.load(), questions, pyarrow.dataset.dataset("events.parquet"), state=["speed", "note"])

docs/rows.md says how columns become states and what the columns of the answers are.
"""

from __future__ import annotations

from ..errors import lacking

try:
    import pyarrow as _  # noqa: F401
except ImportError as error:
    raise lacking("skyinfer.rows needs the package pyarrow: pip install 'skyinfer[rows]'", error) from error

from .columns import AnswerColumns
from .states import ColumnError, StateColumns
from .tables import answer_rows

__all__ = ["AnswerColumns", "ColumnError", "StateColumns", "answer_rows"]
