"""Who is asked: a model in this process, or an endpoint of the System One API over HTTP.

Both give answers as rows of training have them: of a choice and of a score an object of probabilities, of a noul the
probability that it is true.
"""

from __future__ import annotations

import json
import math
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from http.client import HTTPException
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from .. import __version__
from ..errors import RequestError, SkyinferError
from ..model import Model
from ..runtime.arrays import batches_at_once, in_order
from ..runtime.precision import EXACT
from ..schema import Question, parse_questions
from ..train.rows import target_of
from ..values import short, whole_number

PATH = "/v1/systemone"
_STATES_AT_ONCE = 64
_LONGEST_ANSWER = 1 << 24
# Answers of a server that may be others a little later (RFC 9110: too many requests, and faults of its own).
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
_LONGEST_PAUSE = 60.0  # seconds
# Within `_NEAR` in the logarithm, as in a score, are the answers of one model on all instruction sets. What is less
# probable than `_LEAST` teaches a student nothing.
_NEAR, _LEAST = 2e-3, 1e-7


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """Python's own would send the key to whatever address an answer names, and a GET without the request."""

    def redirect_request(self, *_: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirection)


class TeacherError(SkyinferError):
    """A teacher does not answer, or not what was asked."""


class Taught(NamedTuple):
    """What a teacher says about one state: answers as in a row, tokens that it read (0: not said), seconds it took; of
    an endpoint the name of the model that gives them, where it says one."""

    answers: dict[str, Any]
    n_tokens: int
    seconds: float
    model: str | None = None


class Teacher(Protocol):
    """name: as it is kept with its answers; one that answers otherwise has another."""

    @property
    def name(self) -> str: ...

    def ask(self, states: Sequence[Any]) -> Iterator[Taught]:
        """What it says about each state, in order. Raises TeacherError or RequestError where it cannot."""
        ...


def as_row(response: Mapping[str, Any], questions: Sequence[Question]) -> dict[str, Any]:
    """The answers of a response as those of a row.

    Raises:
        RequestError: one is missing, or is no answer to its question; the path says which.
    """
    answers = response.get("answers")
    found = {}
    for question in questions:
        loc = ("answers", question.id)
        answer = answers.get(str(question.id)) if isinstance(answers, Mapping) else None
        if not isinstance(answer, Mapping):
            raise RequestError(loc, "is missing")
        said = answer.get("noul") if question.type == "noul" else answer.get("probabilities")
        if said is None or (question.type != "noul" and not isinstance(said, Mapping)):
            raise RequestError(loc, f"has no {'noul' if question.type == 'noul' else 'probabilities'}")
        target_of(question, said)
        found[str(question.id)] = said
    return found


def _is_near(p: float, q: float) -> bool:
    """By their logarithms, in which two models differ even where both are sure."""
    return abs(math.log(max(p, _LEAST)) - math.log(max(q, _LEAST))) < _NEAR


class LocalTeacher:
    """A model that skyinfer loads."""

    def __init__(self, model: Model, questions: Mapping[str, Any]) -> None:
        self.model, self.name = model, model.name
        if model.precision != EXACT:  # whose answers are others on another instruction set, too
            self.name = f"{model.name} ({model.precision}, {model.isa})"
        self._compiled, self._at_once = model.compile(questions), batches_at_once(model.engine)
        self._questions = parse_questions(questions)

    def says(self, state: Any, answers: Mapping[str, Any]) -> bool:
        """Whether these, as in a row, are its answers about a state, up to the rounding of another instruction set.

        Raises:
            RequestError: they are no answers to its questions.
        """
        own = next(self.ask([state])).answers
        return all(
            _is_near(p, q)
            for question in self._questions
            for p, q in zip(*(target_of(question, said.get(str(question.id))) for said in (own, answers)), strict=True)
        )

    def ask(self, states: Sequence[Any]) -> Iterator[Taught]:
        def answer(begin: int) -> list[Taught]:
            some, start = states[begin : begin + _STATES_AT_ONCE], time.perf_counter()
            responses: list[Any] = self._compiled.many(some)
            seconds = (time.perf_counter() - start) / len(some)
            return [Taught(as_row(one, self._questions), one["usage"]["input_tokens"], seconds) for one in responses]

        with closing(in_order(answer, range(0, len(states), _STATES_AT_ONCE), self._at_once)) as batches:
            for batch in batches:
                yield from batch


class RemoteTeacher:
    """An endpoint of the System One API, POST /v1/systemone, asked about one state a request."""

    def __init__(
        self,
        url: str,
        questions: Mapping[str, Any],
        *,
        key: str | None = None,
        at_once: int = 4,
        rate: float | None = None,
        retries: int = 5,
        seconds: float = 60.0,
    ) -> None:
        """
        Args:
            url: of the endpoint, or of its server: then /v1/systemone is added.
            key: sent as "Authorization: Bearer".
            at_once: requests under way at the same time.
            rate: requests a second at most, those that are tried again among them.
            retries: how often a request is tried again that failed on the way, or for which the server has no time.
            seconds: that one answer may take.

        Raises:
            TeacherError: the address is none of http or https, or holds a password.
            ValueError: a number is out of range.
        """
        whole_number(at_once, "at_once", 1)
        whole_number(retries, "retries", 0)
        for name, number in (("rate", rate), ("seconds", seconds)):
            if number is not None and not (0 < number < math.inf):
                raise ValueError(f"{name}: expected more than 0, got {short(number)}")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TeacherError(f"{url}: expected an address of http or https")
        if parts.username is not None or parts.password is not None:
            raise TeacherError("the address holds a user or a password; give the key in an environment variable")
        self.url = url if parts.path.rstrip("/").endswith(PATH) else f"{url.rstrip('/')}{PATH}"
        self.name = self.url
        self._questions, self._parsed = questions, parse_questions(questions)
        self._key, self._at_once, self._retries, self._seconds = key, at_once, retries, seconds
        self._pause, self._next, self._turn = (0.0 if rate is None else 1.0 / rate), 0.0, threading.Lock()
        self._stopped = threading.Event()

    def ask(self, states: Sequence[Any]) -> Iterator[Taught]:
        self._stopped.clear()
        # or the end would wait for those who wait to try again
        with closing(in_order(self._answer, states, self._at_once, self._stopped.set)) as found:
            yield from found

    def _answer(self, state: Any) -> Taught:
        body = json.dumps({"state": state, "questions": self._questions}).encode()
        response, seconds = self._response(body)
        try:
            answers = as_row(response, self._parsed)
        except RequestError as error:
            raise TeacherError(f"{self.url}: its answer cannot be learned from: {error}") from error
        usage = response.get("usage")
        n_tokens = usage.get("input_tokens") if isinstance(usage, Mapping) else 0
        model = response.get("model")
        return Taught(
            answers, n_tokens if isinstance(n_tokens, int) else 0, seconds, model if isinstance(model, str) else None
        )

    def _response(self, body: bytes) -> tuple[dict[str, Any], float]:
        """The server's answer, and how many seconds it took in the end."""
        for tried in range(self._retries + 1):
            self._wait_for_turn()
            start, after = time.perf_counter(), None
            try:
                with _opener.open(self._request(body), timeout=self._seconds) as answer:
                    data = answer.read(_LONGEST_ANSWER)
                return self._object(data), time.perf_counter() - start
            except urllib.error.HTTPError as error:
                with error:
                    fault = f"answered {error.code}: {_said(error)}"
                if error.code in (401, 403):
                    hint = "the key is not accepted" if self._key else "it wants a key; name its environment variable"
                    raise TeacherError(f"{self.url}: {fault}; {hint}") from None
                if error.code not in _LATER:
                    raise TeacherError(f"{self.url}: {fault}") from None
                after = _seconds_of(error.headers.get("retry-after"))
            except (OSError, HTTPException) as error:  # also of a connection that breaks off, or takes too long
                fault = f"cannot be asked: {getattr(error, 'reason', None) or error or type(error).__name__}"
            if tried < self._retries:
                pause = min(0.5 * 2.0**tried if after is None else after, _LONGEST_PAUSE)
                if self._stopped.wait(pause):
                    break
        raise TeacherError(f"{self.url}: {fault}, in {tried + 1} attempts")

    def _request(self, body: bytes) -> urllib.request.Request:
        headers = {"content-type": "application/json", "accept": "application/json",
                   "user-agent": f"skyinfer/{__version__}"}  # fmt: skip
        if self._key is not None:
            headers["authorization"] = f"Bearer {self._key}"
        return urllib.request.Request(self.url, data=body, headers=headers, method="POST")

    def _object(self, data: bytes) -> dict[str, Any]:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise TeacherError(f"{self.url}: its answer is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise TeacherError(f"{self.url}: its answer is no object: {short(found)}")
        return found

    def _wait_for_turn(self) -> None:
        if not self._pause:
            return
        with self._turn:
            now = time.monotonic()
            begin = max(now, self._next)
            self._next = begin + self._pause
        self._stopped.wait(begin - now)


def _said(error: urllib.error.HTTPError) -> str:
    """What the body of a refusal says, or its status line."""
    try:
        text = error.read(2000).decode("utf-8", "replace")
    except (OSError, HTTPException):
        text = ""
    return short(" ".join(text.split())[:200]) if text.strip() else str(error.reason)


def _seconds_of(retry_after: str | None) -> float | None:
    """Of the header's form that counts seconds; a date is left to the pauses that grow."""
    try:
        seconds = float(retry_after or "")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
