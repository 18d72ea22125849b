"""From raw scores to typed answers: temperature, softmax, confidence, envelope.

Formulas: TypeSafe's confidence, as published for POST /v1/systemone; temperatures as the Laya runtime
applies them, or as llama.cpp does where the clamp is off. All in float64 and unrounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Any

from ..errors import FormatError
from ..files.temperatures import Temperatures
from ..schema import Question

if TYPE_CHECKING:
    from ..schema import Answer, Response
    from ..text.sequence import Sequence


def faulty_weights() -> FormatError:
    return FormatError("the model's scores are not finite: its weights are faulty")


def check_scores(logits: SequenceOf[float]) -> None:
    """Refuse scores that come of faulty weights.

    Raises:
        FormatError: one is NaN or infinite.
    """
    # scores are float32, so this sum of theirs in float64 cannot overflow
    if not math.isfinite(sum(logits)):
        raise faulty_weights()


def probabilities(logits: SequenceOf[float], temperature: float) -> list[float]:
    """softmax(logits / temperature) in float64.

    Raises:
        FormatError: a score is NaN or infinite, so the model's weights are faulty.
    """
    check_scores(logits)
    top = max(logits)
    exps = [math.exp((z - top) / temperature) for z in logits]
    total = math.fsum(exps)
    return [e / total for e in exps]


def choice_confidence(p: SequenceOf[float]) -> float:
    """How far the best is above chance: max(0, (p_max - 1/n) / (1 - 1/n)); 1 for one option."""
    n = len(p)
    return max(0.0, (max(p) - 1 / n) / (1 - 1 / n)) if n > 1 else 1.0


def score_confidence(p: SequenceOf[float]) -> float:
    """max(0, 1 - sum_i p_i |i - mode| / D), D = (1/n) sum_i |i - (n-1)/2|; 1 for one level."""
    n = len(p)
    if n == 1:
        return 1.0
    mode = p.index(max(p))
    spread = sum(value * abs(i - mode) for i, value in enumerate(p))
    uniform = sum(abs(i - (n - 1) / 2) for i in range(n)) / n
    return max(0.0, 1.0 - spread / uniform)


def answer(
    question: Question,
    sequence: Sequence | None,
    logits: SequenceOf[float],
    temperatures: Temperatures,
) -> Answer:
    """The typed answer to one question.

    `logits`: [n_options] in slot order, as the model computes them for the markers of `sequence`
    (`in_option_order` has not been applied). `sequence` adds ``x_truncated`` where the state was
    cut, ``x_options`` where options became identical and ``x_grown`` where it is longer than the model's
    `max_tokens`; None leaves them out.

    Raises:
        FormatError: a score is NaN or infinite.
    """
    options = question.options
    p = probabilities(logits, temperatures.of(question.type, len(options)))
    if question.option_order is not None:
        p = in_option_order(question, p)
    result: dict[str, Any] = {"type": question.type}
    if question.type == "noul":
        result["noul"] = p[1]
    else:
        if question.type == "choice":
            result["choice"] = options[p.index(max(p))].key
            confidence = choice_confidence(p)
        else:
            result["score"] = sum(i * value for i, value in enumerate(p))
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


def in_option_order(question: Question, values: Iterable[Any]) -> list[Any]:
    """Values by slot, put back into the order in which the caller gave the options."""
    if question.option_order is None:
        return list(values)
    by_option = dict(zip(question.option_order, values, strict=True))
    return [by_option[i] for i in range(len(by_option))]


def response(
    model: str,
    questions: SequenceOf[Question],
    sequences: SequenceOf[Sequence | None],
    logits: SequenceOf[SequenceOf[float]],
    temperatures: Temperatures,
    *,
    input_tokens: int,
) -> Response:
    """The envelope: an answer by question id, in the order received, and the tokens read.

    `logits` holds one row for each question, in slot order; `sequences` are as in `answer`. Raises as `answer`.
    """
    return {
        "model": model,
        "answers": {
            question.id: answer(question, sequence, row, temperatures)
            for question, sequence, row in zip(questions, sequences, logits, strict=True)
        },
        "usage": {
            "input_tokens": input_tokens,
            "output_tokens": 0,
        },
    }
