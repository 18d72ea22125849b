"""Abstention: which answers fall below the least confidence that a caller asks for. They are marked, and stay.

Names and rule are the Laya runtime's (laya 0.4.15, `min_confidence`): compared is the probability of the option that
was answered, for a noul the larger one of true and false, and a threshold may differ by type and number of options.
Laya rounds that probability to four decimals first; here it is compared as the answer gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import RequestError
from ..files.temperatures import BUCKETS, bucket
from ..schema import QUESTION_TYPES
from ..values import python_scalar, short

if TYPE_CHECKING:
    from ..schema import Answer, Response

_DEFAULT = "default"
# "choice:3-5" -> ("choice", "3_5")
_KEYS = {
    f"{kind}:{shown}": (kind, name) for kind in QUESTION_TYPES for name, shown in BUCKETS.items()
}  # fmt: skip
# that a mapping of thresholds may have
THRESHOLD_NAMES = (*_KEYS, _DEFAULT)


class Thresholds:
    """The least probability of an answer that is no abstention, by question type and number of options."""

    __slots__ = ("_by_bucket", "_otherwise")

    def __init__(self, by_bucket: Mapping[tuple[str, str], float], otherwise: float) -> None:
        """`by_bucket`: keyed as ("choice", "3_5"), names of `files.temperatures`. `otherwise`: for all others."""
        self._by_bucket, self._otherwise = dict(by_bucket), otherwise

    def of(self, kind: str, n_options: int) -> float:
        return self._by_bucket.get((kind, bucket(n_options)), self._otherwise)

    def mark(self, response: Response) -> Response:
        """Write to every answer the threshold it was held against, and to those below it that they abstain."""
        for answer in response["answers"].values():
            least = self.of(answer["type"], 2 if answer["type"] == "noul" else len(answer["probabilities"]))
            answer["x_min_confidence"] = least
            if answered_probability(answer) < least:
                answer["x_abstained"] = True
        return response


def thresholds_of(value: Any, field: str = "min_confidence") -> Thresholds | None:
    """What a caller gives: one threshold in [0, 1] for all, or a mapping of them by bucket; None for none.

    A mapping is keyed "choice:2", "choice:3-5", "choice:6-10", "choice:11+", likewise score and noul, and "default",
    which holds for the buckets that are not named; without it nothing in those abstains.

    Raises:
        RequestError: at `field`, it is neither.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        return Thresholds({}, _threshold(value, (field,)))
    if not value:
        raise RequestError((field,), "must not be empty; give a number, or thresholds by name, as {'choice:3-5': 0.8}")
    given = {}
    for key, threshold in value.items():
        if not isinstance(key, str) or (key not in THRESHOLD_NAMES):
            raise RequestError((field,), f"has the key {short(key)}; there are {', '.join(THRESHOLD_NAMES)}")
        given[key] = _threshold(threshold, (field, key))
    otherwise = given.pop(_DEFAULT, 0.0)
    return Thresholds({_KEYS[key]: threshold for key, threshold in given.items()}, otherwise)


def answered_probability(answer: Answer) -> float:
    """The probability of what was answered: the largest one (`answer_confidence` in Laya)."""
    if answer["type"] == "noul":
        return max(answer["noul"], 1.0 - answer["noul"])
    return max(answer["probabilities"].values())


def _threshold(value: Any, loc: tuple[str, ...]) -> float:
    number = python_scalar(value)
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number <= 1:  # NaN is not
        raise RequestError(loc, f"must be a number from 0 to 1, not {short(value)}")
    return float(number)
