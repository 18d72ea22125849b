"""A state longer than a sequence, read in overlapping windows, and which window's answer counts.

The rules are the Laya runtime's (laya 0.4.15, `predict_long`), so that numbers are the same: windows are cut from the
tokens of the whole state and tokenized anew as texts of their own; of a noul the window with the highest probability of
true decides, of a choice or score the most certain one, each rounded to four decimals, the first of equal ones. What
comes out is that window's answer and no probability for the whole text: the highest of many grows with their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import RequestError, warn
from ..text.sequence import StateTokens
from ..values import kind, python_scalar, short
from .thresholds import answered_probability

if TYPE_CHECKING:
    from ..schema import Answer, Response
    from .prepared import Prepared

_DECIMALS = 4  # of what windows are compared by

# what a request that asks for both is told
NO_THRESHOLD = "cannot be met by x_long: its probabilities are those of single windows, not of the whole state"


class Scan(NamedTuple):
    """How a state is read: windows of `window` tokens, each beginning `stride` tokens after the one before.

    n_tokens: of the whole state. is_whole: it is read at once, as by `decide`.
    """

    n_tokens: int
    window: int
    stride: int
    is_whole: bool

    @property
    def n_windows(self) -> int:
        return 1 if self.is_whole else 1 + -(-max(0, self.n_tokens - self.window) // self.stride)

    def spans(self) -> Iterator[tuple[int, int]]:
        """First and one past the last token of each window."""
        for i in range(self.n_windows):
            start = i * self.stride
            yield start, min(start + self.window, self.n_tokens)


class Windows(NamedTuple):
    """What a request says of the windows that its state is read in: what `scan_of` takes."""

    window: Any = None
    stride: Any = None


def windows_asked(value: Any, field: str) -> Windows | None:
    """The value of a request's field: true, or an object with `window` and `stride`, either or both; None for none.

    Raises:
        RequestError: at `field`, it is neither.
    """
    if value is None or value is False:
        return None
    if value is True:
        return Windows()
    if not isinstance(value, Mapping):
        raise RequestError((field,), f"must be true, or an object with window and stride, not {kind(value)}")
    for name in value:
        if name not in Windows._fields:
            raise RequestError((field,), f"has the field {short(name)}; there are window and stride")
    asked = Windows(**value)
    for name, number in asked._asdict().items():
        _count(number, (field, name))
    return asked


def scan_of(
    prepared: Prepared, n_tokens: int, window: Any = None, stride: Any = None, *, field: str = "", warns: bool = True
) -> Scan:
    """How a state of `n_tokens` tokens is read for these questions.

    Args:
        prepared: the questions; the one that leaves the least room for a state limits the window.
        n_tokens: of the whole state.
        window: tokens of a window. Default: what the model's limits leave beside a question of the most tokens, and at
            least 64, within the room that there is; then a state that fits in the room is read at once. Larger than
            the room: the room, with a warning.
        stride: default: half a window.
        field: what goes before "window" and "stride" in the path of an error, as ("x_long",).
        warns: False where nobody would read a warning; `x_window` says what was read.

    Raises:
        RequestError: the options leave no room; `window` or `stride` is no positive whole number; or a stride is
            longer than its window, so that tokens would be in no window.
    """
    loc = (field,) if field else ()
    wanted = _count(window, (*loc, "window"))
    step = _count(stride, (*loc, "stride"))
    room = prepared.room
    if room <= 0 and prepared.questions:
        raise RequestError(("questions",), "have options that leave no room for a state; use fewer or shorter options")
    asked = wanted or prepared.usual_window
    size = min(asked, room) if prepared.questions else asked
    if warns and wanted is not None and size < wanted:
        warn(f"a window of {wanted} tokens does not fit beside these questions; windows have {size}")
    if step is not None and step > asked:
        raise RequestError(
            (*loc, "stride"), f"is {step} for windows of {asked} tokens: {step - asked} between them would not be read"
        )
    # a stride that suited the window asked for is shortened with it
    step = max(1, size // 2) if step is None or step > size else step
    fits = n_tokens <= (size if wanted is not None else room)
    return Scan(n_tokens, size, step, fits or not prepared.questions)


def windows_of(prepared: Prepared, tokens: StateTokens, scan: Scan) -> list[StateTokens]:
    """What the model reads in turn. Raises RequestError as `Prepared.read`."""
    if scan.is_whole:
        return [tokens]
    return [prepared.reread(tokens.ids[start:end]) for start, end in scan.spans()]


def long_response(
    prepared: Prepared,
    scan: Scan,
    windows: list[StateTokens],
    logits: np.ndarray,
    temperature_clamp: bool | None = None,
) -> Response:
    """The response about the whole state: each question's answer is that of one window, which it names in ``x_window``.

    Args:
        logits: float32 [n_windows, n_options], as `Engine.run` gives them.

    Raises:
        FormatError: as `Prepared.answers`.
    """
    rows = logits.reshape(len(windows), prepared.n_options)
    found = [prepared.answers(tokens, row, temperature_clamp) for tokens, row in zip(windows, rows, strict=True)]
    result = found[0]
    result["usage"]["x_windows"] = len(windows)
    if scan.is_whole:
        return result
    spans = list(scan.spans())
    answers = {}
    for name in prepared.ids:
        certainties = [round(_certainty(one["answers"][name]), _DECIMALS) for one in found]
        best = certainties.index(max(certainties))
        answers[name] = answer = found[best]["answers"][name]
        start, end = spans[best]
        answer["x_window"] = {"index": best, "token_start": start, "token_end": end, "count": len(spans)}
    result["answers"] = answers
    result["usage"]["input_tokens"] = sum(one["usage"]["input_tokens"] for one in found)
    return result


def _certainty(answer: Answer) -> float:
    return answer["noul"] if answer["type"] == "noul" else answered_probability(answer)


def _count(value: Any, loc: tuple[str, ...]) -> int | None:
    if value is None:
        return None
    number = python_scalar(value)
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        what = number if isinstance(number, (int, float)) else kind(number)
        raise RequestError(loc, f"must be a whole number of tokens, 1 or more, not {what}")
    return number
