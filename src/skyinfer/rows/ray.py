"""Answers on many machines: a class for Ray Data's `map_batches`, whose actors load the model once each.

    ray.data.read_parquet("events").map_batches(
        AnswerBatches, fn_constructor_kwargs={"questions": questions, "model": "model.gguf", "state": "note"},
        batch_format="pyarrow", batch_size=4096, compute=ray.data.ActorPoolStrategy(size=8),
    ).write_parquet("answers")

Ray itself is not imported here: what calls an `AnswerBatches` with tables of pyarrow may be anything, such as Dask.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from ..model import load
from ..runtime.precision import EXACT
from ..schema import Questions
from ..values import lone_surrogate
from .tables import answer_rows


class AnswerBatches:
    """Answers the same questions about every row of the tables that it is called with."""

    def __init__(
        self,
        questions: Questions,
        model: str | os.PathLike[str] | None = None,
        *,
        threads: int = 1,
        precision: str = EXACT,
        state: str | Iterable[str] | None = None,
        **options: Any,
    ) -> None:
        """Loads the model, in the process that will answer, and checks the questions and options.

        Args:
            model: as for `skyinfer.load`; a path has to be there on every machine.
            threads: CPUs of this object; one for each thread that computes.
            precision: as for `skyinfer.load`: "exact" or "int8".
            state: as for `answer_rows`: the state's column, or several.
            options: `parse_json`, `probabilities`, `prefix`, `on_error` and `min_confidence` of `answer_rows`.

        Raises:
            FormatError, HubError, OSError: as `skyinfer.load`.
            ColumnError, RequestError, TypeError, ValueError: as `answer_rows`, of what tables have no part in.
        """
        names = ("state",) if state is None else state
        if not isinstance(names, (str, bytes)) and isinstance(names, Iterable):
            names = tuple(names)  # an iterator gives them once
        self._questions, self._options = questions, {**options, "state": names if state is not None else None}
        self._options["threads"] = threads
        self._model = load(model, threads=threads, precision=precision)
        # not by the call, which a class of the user's may have replaced and which Ray hands to another thread
        self._answer(_empty((names,) if isinstance(names, str) else names))

    def __call__(self, table: pa.Table) -> pa.Table:
        """The table with the answers' columns behind its own.

        Raises:
            ColumnError, RequestError: as `answer_rows`; a faulty row's number counts from the beginning of `table`.
        """
        return self._answer(table)

    def _answer(self, table: pa.Table) -> pa.Table:
        return answer_rows(self._model, self._questions, table, **self._options).read_all()


def _empty(names: Any) -> pa.Table:
    """A table with a state's columns, as far as they may be called so: what is wrong with the others is told of it."""
    there = [name for name in names if isinstance(name, str)] if isinstance(names, tuple) else []
    fields = [pa.field(name, pa.string()) for name in there if lone_surrogate(name) is None]
    return pa.schema(fields).empty_table()
