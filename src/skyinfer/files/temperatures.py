"""Temperatures by question type and number of options: their names in files, and the rules by which one applies.

The rules are the Laya runtime's (laya 0.4.15), or llama.cpp's where the clamp is off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import FormatError
from ..schema import QUESTION_TYPES

# bounds of the Laya runtime's clamp
CLAMP = (0.5, 5.0)

# an option bucket's name in GGUF -> the Laya runtime's
BUCKETS = {"2": "2", "3_5": "3-5", "6_10": "6-10", "11": "11+"}
# Every name that a temperature can have: "choice", "choice.2", and so on.
TEMPERATURE_NAMES = frozenset(
    name for kind in QUESTION_TYPES for name in (kind, *(f"{kind}.{bucket}" for bucket in BUCKETS))
)


class Temperatures:
    """The temperature of a question by its type and number of options."""

    __slots__ = ("_by_bucket",)

    def __init__(self, raw: Mapping[str, Any], clamp: bool = True) -> None:
        """`raw` is keyed "choice", "choice.2", "choice.3_5", "choice.6_10", "choice.11", and so on.

        With `clamp`, every value is confined to [0.5, 5] and what is not a finite number counts as
        1.0 (Laya's rule); without, values are taken as they are, as llama.cpp does.
        """
        self._by_bucket: dict[tuple[str, str], float] = {
            (kind, bucket): _temperature(raw.get(f"{kind}.{bucket}", raw.get(kind, 1.0)), clamp)
            for kind in QUESTION_TYPES
            for bucket in BUCKETS
        }

    def of(self, kind: str, n_options: int) -> float:
        return self._by_bucket[kind, bucket(n_options)]


def bucket(n_options: int) -> str:
    """The option-count bucket that temperatures are fitted for; one option counts as two."""
    if n_options <= 5:
        return "2" if n_options <= 2 else "3_5"
    return "6_10" if n_options <= 10 else "11"


def as_number(value: Any) -> float:
    """What the Laya runtime's configuration may hold in place of a temperature, as a float; NaN for what is none."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def clamped(temperature: float) -> float:
    """The Laya runtime's rule: confined to `CLAMP`, and 1.0 for what is not finite."""
    low, high = CLAMP
    return min(high, max(low, temperature)) if math.isfinite(temperature) else 1.0


def at_limit(temperatures: Mapping[str, float]) -> Iterator[str]:
    """A warning for each fitted temperature, by its name, that ended at a bound of the clamp."""
    for name, value in temperatures.items():
        if value in CLAMP:
            what = "less sure" if value == max(CLAMP) else "surer"
            yield (
                f"temperature of {name}: {value:g} is the limit that the runtime applies; its answers ought to be "
                f"{what} than the model can say"
            )


def _temperature(value: Any, clamp: bool) -> float:
    number = as_number(value)
    if clamp:
        return clamped(number)
    if not (math.isfinite(number) and number > 0):
        raise FormatError(f"temperature {value!r} is not a finite positive number")
    return number
