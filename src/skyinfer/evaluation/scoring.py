"""A model's scores of the questions that labelled rows answer, computed by its engine, states in shared passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..core import border
from ..errors import RequestError, SkyinferError
from ..model import Model
from ..runtime.prepared import Prepared
from .labelled import LabelledRows

_STATES_AT_ONCE = 64


class Scored(NamedTuple):
    """Answers to one question beside the model's scores, in the order of the rows.

    Attributes:
        logits: float64 [n, n_options], before temperature.
        p: float64 [n, n_options], probabilities with the bits that answers have.
        targets: float64 [n, n_options]; each sums to 1.
        weights: float64 [n].
        rows: int64 [n], numbers of the rows.
        states: int64 [n], numbers of the states.
        slices: of the rows.
        temperature: that the model divides by.
        n_cut: states that the model did not see whole.
    """

    logits: np.ndarray
    p: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    rows: np.ndarray
    states: np.ndarray
    slices: list[str]
    temperature: float
    n_cut: int


def scores_of(
    model: Model, rows: LabelledRows, progress: Callable[[str, int, int], None] | None = None
) -> list[Scored]:
    """By the number of the question.

    `progress`: called with a name, the states done and the states in all.

    Raises:
        SkyinferError: the model cannot take a question or a state; says which.
        FormatError: a score is not finite.
    """
    engine = model.engine
    asked: dict[int, set[int]] = {}
    for answer in rows.answers:
        asked.setdefault(answer.state, set()).add(answer.question)
    by_questions: dict[tuple[int, ...], list[int]] = {}
    for state, questions in asked.items():
        by_questions.setdefault(tuple(sorted(questions)), []).append(state)
    found: dict[tuple[int, int], tuple[np.ndarray, list[float]]] = {}
    temperatures: dict[int, float] = {}
    cut: dict[int, set[int]] = {}
    done = 0
    for numbers, states in by_questions.items():
        try:
            prepared = engine.prepare([rows.questions[number] for number in numbers])
        except RequestError as error:
            raise SkyinferError(f"{rows.source}: {model.name} cannot be asked: {error}") from error
        temperatures.update(zip(numbers, prepared.temperatures().tolist(), strict=True))
        for begin in range(0, len(states), _STATES_AT_ONCE):
            some = states[begin : begin + _STATES_AT_ONCE]
            with border.DefaultFloatMode():
                for state, row in zip(some, _run(model, prepared, rows, some, numbers, cut), strict=True):
                    for i, (number, p) in enumerate(zip(numbers, prepared.probabilities(row), strict=True)):
                        found[state, number] = row[prepared.offsets[i] : prepared.offsets[i + 1]], p
            done += len(some)
            if progress is not None:
                progress(model.name, done, len(asked))
    return [
        _scored(rows, number, found, temperatures.get(number, 1.0), len(cut.get(number, ())))
        for number in range(len(rows.questions))
    ]


def _run(
    model: Model,
    prepared: Prepared,
    rows: LabelledRows,
    states: Sequence[int],
    numbers: Sequence[int],
    cut: dict[int, set[int]],
) -> np.ndarray:
    """float32 [n_states, n_options]; notes in `cut`, by question, the states that were not read whole."""
    read = []
    for number in states:
        state = rows.states[number]
        try:
            # a string is taken as it is, and this one is text already
            tokens = prepared.read(state.text)._replace(keep_tail=state.is_list)
        except RequestError as error:
            raise SkyinferError(f"{rows.source}: {model.name} cannot read a state: {error}") from error
        if prepared.cut(tokens) is not None:
            for which, sequence in zip(numbers, prepared.sequences(tokens), strict=True):
                if sequence.truncated:
                    cut.setdefault(which, set()).add(number)
        read.append(prepared.ask(tokens))
    return model.engine.run(read).reshape(len(read), prepared.n_options)


def _scored(
    rows: LabelledRows,
    number: int,
    found: dict[tuple[int, int], tuple[np.ndarray, list[float]]],
    temperature: float,
    n_cut: int,
) -> Scored:
    mine = [answer for answer in rows.answers if answer.question == number]
    n_options = len(rows.questions[number].options)
    return Scored(
        np.array([found[answer.state, number][0] for answer in mine], np.float64).reshape(-1, n_options),
        np.array([found[answer.state, number][1] for answer in mine], np.float64).reshape(-1, n_options),
        np.array([answer.target for answer in mine]).reshape(-1, n_options),
        np.array([answer.weight for answer in mine]),
        np.array([answer.row for answer in mine], np.int64),
        np.array([answer.state for answer in mine], np.int64),
        [answer.slice for answer in mine],
        temperature,
        n_cut,
    )
