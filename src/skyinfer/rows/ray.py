"""Answers on many machines: a class for Ray Data's `map_batches`, whose actors load the model once each.

    ray.data.read_parquet("events").map_batches(
        AnswerBatches, fn_constructor_kwargs={"questions": questions, "model": "model.gguf", "state": "note"},
        batch_format="pyarrow", batch_size=4096, compute=ray.data.ActorPoolStrategy(size=8),
    ).write_parquet("answers")

Ray itself is not imported here: what calls an `AnswerBatches` with tables of pyarrow may be anything, such as Dask.
"""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa

from ..model import load
from ..schema import Questions
from .tables import answer_rows


class AnswerBatches:
    """Answers the same questions about every row of the tables that it is called with."""

    def __init__(
        self,
        questions: Questions,
        model: str | os.PathLike[str] | None = None,
        *,
        threads: int = 1,
        **options: Any,
    ) -> None:
        """Loads the model, in the process that will answer.

        Args:
            model: as for `skyinfer.load`; a path has to be there on every machine.
            threads: CPUs of this object; one for each thread that computes.
            options: `state`, `parse_json`, `probabilities`, `prefix`, `on_error` and `min_confidence` of `answer_rows`.

        Raises:
            FormatError, HubError, OSError: as `skyinfer.load`.
        """
        self._questions, self._options = questions, {**options, "threads": threads}
        self._model = load(model, threads=threads)

    def __call__(self, table: pa.Table) -> pa.Table:
        """The table with the answers' columns behind its own.

        Raises:
            ColumnError, RequestError: as `answer_rows`; a faulty row's number counts from the beginning of `table`.
        """
        return answer_rows(self._model, self._questions, table, **self._options).read_all()
