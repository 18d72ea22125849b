"""From probabilities to typed answers: confidence and envelope. All in float64 and unrounded.

Formulas: TypeSafe's confidence, as published for POST /v1/systemone. Temperature and softmax are the core's.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..errors import FormatError
from ..schema import Question

if TYPE_CHECKING:
    from ..schema import Answer, Response
    from ..text.sequence import Sequence


def faulty_weights() -> FormatError:
    return FormatError("the model's scores are not finite: its weights are faulty")


def choice_confidence(p: SequenceOf[float]) -> float:
    """How far the best is above chance: max(0, (p_max - 1/n) / (1 - 1/n)); 1 for one option."""
    n = len(p)
    return max(0.0, (max(p) - 1 / n) / (1 - 1 / n)) if n > 1 else 1.0


@lru_cache(maxsize=256)
def _spread_of_chance(n: int) -> float:
    """(1/n) sum_i |i - (n-1)/2| over n levels."""
    return sum(abs(i - (n - 1) / 2) for i in range(n)) / n


def score_confidence(p: SequenceOf[float]) -> float:
    """max(0, 1 - sum_i p_i |i - mode| / D), D = (1/n) sum_i |i - (n-1)/2|; 1 for one level."""
    n = len(p)
    if n == 1:
        return 1.0
    mode = p.index(max(p))
    spread = sum([value * abs(i - mode) for i, value in enumerate(p)])  # a list takes half as long as a generator
    return max(0.0, 1.0 - spread / _spread_of_chance(n))


def answer(
    question: Question,
    sequence: Sequence | None,
    p: SequenceOf[float],
) -> Answer:
    """The typed answer to one question.

    `p`: [n_options], the probability of each option in the order of the options. `sequence` adds ``x_truncated`` where
    the state was cut, ``x_options`` where options became identical and ``x_grown`` where it is longer than the model's
    `max_tokens`; None leaves them out.
    """
    options = question.options
    result: dict[str, Any] = {"type": question.type}
    if question.type == "noul":
        result["noul"] = p[1]
    else:
        if question.type == "choice":
            result["choice"] = options[p.index(max(p))].key
            confidence = choice_confidence(p)
        else:
            result["score"] = sum([i * value for i, value in enumerate(p)])
            result["legend"] = {option.key: option.description for option in options}
            confidence = score_confidence(p)
        result["probabilities"] = {option.key: value for option, value in zip(options, p, strict=True)}
        result["confidence"] = confidence
    if sequence is not None:
        if sequence.truncated:
            result["x_truncated"] = {
                "state_tokens": sequence.state_tokens,
                "state_tokens_used": sequence.state_tokens_used,
            }
        if sequence.options_distinct < sequence.options:
            result["x_options"] = {
                "options": sequence.options,
                "distinct": sequence.options_distinct,
            }
        if sequence.grown_past is not None:
            result["x_grown"] = {"tokens": len(sequence.ids), "max_tokens": sequence.grown_past}
    if question.ignored:
        result["x_ignored"] = list(question.ignored)
    return result  # type: ignore[return-value]


def response(
    model: str,
    questions: SequenceOf[Question],
    sequences: SequenceOf[Sequence | None],
    probabilities: SequenceOf[SequenceOf[float]],
    *,
    input_tokens: int,
) -> Response:
    """The envelope: an answer by question id, in the order received, and the tokens read.

    `probabilities` holds a row for each question, and `sequences` is likewise, both as in `answer`.
    """
    return {
        "model": model,
        "answers": {
            question.id: answer(question, sequence, row)
            for question, sequence, row in zip(questions, sequences, probabilities, strict=True)
        },
        "usage": {
            "input_tokens": input_tokens,
            "output_tokens": 0,
        },
    }
