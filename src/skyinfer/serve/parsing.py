"""From the bytes of a body to what a model has to run, or to a refusal: parsing, limits, tokenizing.

JSON is read strictly (RFC 8259): no NaN, no lone surrogates, UTF-8 only; of repeated names the last one counts. Nesting
is counted before anything is parsed. Recently seen question sets are kept tokenized; their key is their exact bytes.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..errors import RequestError
from ..runtime.prepared import Prepared
from ..runtime.thresholds import Thresholds, thresholds_of
from ..runtime.windows import NO_THRESHOLD, Scan, Windows, scan_of, windows_asked, windows_of
from ..schema import EXTENSIONS, Question, parse_questions, render_state, unknown_extensions
from ..text.sequence import StateTokens
from .catalog import Catalog, ServedModel
from .options import Limits
from .refusals import Refusal, invalid, of_request_error, too_large
from .scheduling import INLINE_SECONDS

# seconds that a served model, by its name, takes for so many tokens
SecondsOf = Callable[[str, int], float]

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
# All but brackets is deleted, and braces become brackets.
_BRACKETS, _NO_BRACKETS = bytes.maketrans(b"{}", b"[]"), bytes(set(range(256)) - set(b"[]{}"))
# A larger body is parsed while no other such body is, and for half of the time at most: a parser in C holds the GIL,
# for some ten milliseconds for each megabyte, and the event loop waits for it.
LARGE_BODY = 1 << 16
_MOST_PAUSE = 0.25  # seconds


class _Single(msgspec.Struct):
    state: Any = msgspec.UNSET
    questions: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    model: Any = None
    x_min_confidence: Any = None
    x_long: Any = None


class _Batch(msgspec.Struct):
    states: Any = msgspec.UNSET
    questions: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    model: Any = None
    x_min_confidence: Any = None
    x_long: Any = None


# a name, or a text, that begins as the names of skyinfer's own fields do, and is none of them
_UNKNOWN = re.compile(rf'"x_(?!(?:{"|".join(name[2:] for name in EXTENSIONS)})")'.encode())
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_single = msgspec.json.Decoder(_Single)
_batch = msgspec.json.Decoder(_Batch)


class ParsedRequest(NamedTuple):
    """A request that can be answered: its model, its questions, and the tokens of each state.

    `n_tokens` have to be computed for it, and `input_tokens` count as read.
    """

    served: ServedModel
    prepared: Prepared
    states: list[StateTokens]
    n_tokens: int
    input_tokens: int
    state: Any  # or states, for the log; None unless they are to be kept
    is_batch: bool
    thresholds: Thresholds | None = None
    scan: Scan | None = None  # where one long state was asked for, of which `states` are the windows
    ignored: tuple[str, ...] = ()  # fields that skyinfer does not have, though they are named as its own

    @property
    def n_probabilities(self) -> int:
        """In the answers, of all states."""
        return len(self.states) * self.prepared.n_options

    def scores(self) -> np.ndarray:
        """float32 [n_states, n_options]: those of every question about each state, computed in this thread."""
        asks = [self.prepared.ask(tokens) for tokens in self.states]
        return self.served.model.engine.run(asks).reshape(len(asks), self.prepared.n_options)


class TakesLong(Exception):
    """Options of unseen questions have to be encoded, which takes about so many `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds


class RequestParser:
    """Reads requests for the models of a catalog. Safe to share between threads."""

    def __init__(self, catalog: Catalog, limits: Limits, strict_length: bool, keep_states: bool = False) -> None:
        """`strict_length`: states that do not fit are refused. `keep_states`: the result has them, for the log."""
        self._catalog, self._limits, self._strict_length = catalog, limits, strict_length
        self._keep_states = keep_states
        self._large = threading.Lock()
        # what these limits allow may be refused by others
        self._key_prefix = f"json {limits.questions} {limits.options} {limits.levels}:".encode()

    def single(self, body: bytes, seconds_of: SecondsOf | None = None) -> ParsedRequest:
        """The request of POST /v1/systemone.

        Args:
            seconds_of: in the event loop, how long a model takes for a number of tokens.

        Raises:
            Refusal: it cannot be answered.
            TakesLong: in the event loop, and it would.
        """
        request: _Single = self._decode(_single, body)
        if request.state is msgspec.UNSET:
            raise invalid(("state",), "is missing; add 'state'", "missing")
        thresholds, windows = _extras(request)
        served, prepared = self._prepared(request, seconds_of)
        try:
            tokens = self._read(prepared, request.state, body)
            if windows is not None:
                return self._long(served, prepared, tokens, windows, request.state)._replace(ignored=_ignored(body))
        except RequestError as error:
            raise of_request_error(error) from None
        asked = self._asked(served, prepared, [tokens], request.state, is_batch=False)
        return asked._replace(thresholds=thresholds, ignored=_ignored(body))

    def _long(
        self, served: ServedModel, prepared: Prepared, tokens: StateTokens, windows: Windows, state: Any
    ) -> ParsedRequest:
        scan = scan_of(prepared, len(tokens.ids), *windows, field="x_long", warns=False)
        # before they are made, which bounds the memory
        if scan.n_windows > self._limits.tokens or scan.n_windows * prepared.least_tokens > self._limits.tokens:
            raise too_large(_long_by(scan.n_windows, self._limits.tokens))
        read = windows_of(prepared, tokens, scan)
        return self._asked(served, prepared, read, state, is_batch=False, is_long=True)._replace(scan=scan)

    def _read(self, prepared: Prepared, state: Any, body: bytes) -> StateTokens:
        if type(state) is str or len(body) <= LARGE_BODY:
            return prepared.read(state)
        with self._alone(body):  # writing JSON holds the GIL as reading it does
            text = render_state(state)
        return prepared.read(text)._replace(keep_tail=isinstance(state, list))

    def batch(self, body: bytes, seconds_of: SecondsOf | None = None) -> ParsedRequest:
        """The request of POST /v1/systemone/batch: `states` instead of `state`. Raises as `single`."""
        request: _Batch = self._decode(_batch, body)
        states, most = request.states, self._limits.states
        if states is msgspec.UNSET:
            raise invalid(("states",), "is missing; add 'states'", "missing")
        if not isinstance(states, list):
            raise invalid(("states",), "must be a list of states", "list_type")
        if len(states) > most:
            raise invalid(("states",), f"has {len(states)} states; at most {most} are answered", "too_long")
        thresholds, windows = _extras(request)
        if windows is not None:
            raise invalid(("x_long",), "is for POST /v1/systemone, which takes one state")
        served, prepared = self._prepared(request, seconds_of)
        read: list[StateTokens] = []
        n_tokens = 0
        for i, state in enumerate(states):
            try:
                read.append(prepared.read(state))
            except RequestError as error:
                raise invalid(("states", i, *error.loc[1:]), error.message) from None
            n_tokens += prepared.n_tokens(read[-1])
            if n_tokens > self._limits.tokens:  # before the next state is tokenized, which bounds the memory
                raise too_large(self._how_many_fit(i))
        asked = self._asked(served, prepared, read, states, is_batch=True)
        return asked._replace(thresholds=thresholds, ignored=_ignored(body))

    def _asked(
        self,
        served: ServedModel,
        prepared: Prepared,
        states: list[StateTokens],
        state: Any,
        *,
        is_batch: bool,
        is_long: bool = False,
    ) -> ParsedRequest:
        n_tokens = sum([prepared.n_tokens(tokens) for tokens in states])
        most = self._limits.tokens
        if n_tokens > most:
            if is_long:
                raise too_large(_long_by(len(states), most))
            raise too_large(f"these questions take {n_tokens} tokens, more than {most}; ask fewer at once")
        if self._strict_length and not is_long:
            for i, tokens in enumerate(states):
                _check_whole(prepared, tokens, f"state {i}" if is_batch else "the state")
        read = sum([prepared.input_tokens(tokens) for tokens in states])
        kept = state if self._keep_states else None  # else it would be freed in the event loop, which may take long
        return ParsedRequest(served, prepared, states, n_tokens, read, kept, is_batch)

    def _how_many_fit(self, n_states: int) -> str:
        """The message where the first `n_states` of a batch fit in the limit of tokens, and the next one does not."""
        message = f"these states and questions take more than {self._limits.tokens} tokens"
        if n_states == 0:
            return f"{message} with the first state; ask fewer questions at once"
        them = "the first state fits" if n_states == 1 else f"the first {n_states} states fit"
        return f"{message}; {them}, so send at most {n_states} like them at once"

    def _decode(self, decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
        with self._alone(body):
            return self._decode_now(decoder, body)

    @contextlib.contextmanager
    def _alone(self, body: bytes) -> Iterator[None]:
        """Where a body is large: no other large one is parsed meanwhile, nor for as long as it took afterwards."""
        if len(body) <= LARGE_BODY:
            yield
            return
        with self._large:
            start = time.perf_counter()
            try:
                yield
            finally:
                time.sleep(min(time.perf_counter() - start, _MOST_PAUSE))

    def _decode_now(self, decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
        _check_depth(body, self._limits.depth)
        try:
            return decoder.decode(body)
        except (msgspec.DecodeError, ValueError) as error:  # some versions raise ValueError where the body is not UTF-8
            raise _malformed(body, error) from None
        except RecursionError:
            raise _too_deep(self._limits.depth) from None

    def _prepared(self, request: _Single | _Batch, seconds_of: SecondsOf | None) -> tuple[ServedModel, Prepared]:
        if request.questions is msgspec.UNSET:
            raise invalid(("questions",), "is missing; add 'questions'", "missing")
        served = self._catalog.find(request.model)
        text = bytes(request.questions)

        def check(n_tokens: int) -> None:
            if n_tokens > self._limits.tokens:
                raise too_large(
                    f"the options of these questions take {n_tokens} tokens, more than {self._limits.tokens}; ask fewer"
                )
            seconds = 0.0 if seconds_of is None else seconds_of(served.name, n_tokens)
            if seconds > INLINE_SECONDS:
                raise TakesLong(seconds)

        try:
            return served, served.model.engine.prepared(self._key_prefix + text, partial(self._parse, text), check)
        except RequestError as error:
            raise of_request_error(error) from None

    def _parse(self, text: bytes) -> list[Question]:
        try:
            with self._alone(text):
                questions = msgspec.json.decode(text)
        except (msgspec.DecodeError, ValueError) as error:
            raise invalid(("questions",), str(error), "json_invalid") from None
        return parse(questions, self._limits)


def _long_by(n_windows: int, most: int) -> str:
    return (
        f"{n_windows} windows of this state take more than {most} tokens; send a shorter state, ask fewer questions or "
        "take longer windows and strides"
    )


def _extras(request: _Single | _Batch) -> tuple[Thresholds | None, Windows | None]:
    """What the fields of skyinfer's own ask for."""
    try:
        thresholds = thresholds_of(request.x_min_confidence, "x_min_confidence")
        windows = windows_asked(request.x_long, "x_long")
    except RequestError as error:
        raise of_request_error(error) from None
    if thresholds is not None and windows is not None:
        raise invalid(("x_min_confidence",), NO_THRESHOLD)
    return thresholds, windows


def _ignored(body: bytes) -> tuple[str, ...]:
    """Fields of a sound request that are named as skyinfer's own and are none."""
    return () if _UNKNOWN.search(body) is None else tuple(unknown_extensions(_fields.decode(body)))


# ------------------------------------------------------------------------------------------ questions


def parse(questions: Any, limits: Limits) -> list[Question]:
    """Questions as `schema.parse_questions` reads them, by the rules of the HTTP API.

    There must be at least one question, within the limits. Instructions may be missing, null or blank. Labels must
    differ as names in a JSON object, because the answer has them there.

    Raises:
        RequestError: as `parse_questions`.
    """
    if not isinstance(questions, dict):
        return parse_questions(questions)  # raises, and names the type
    if not questions:
        raise RequestError(("questions",), "must not be empty; ask at least one question")
    if len(questions) > limits.questions:
        raise RequestError(("questions",), f"has {len(questions)} questions; at most {limits.questions} are answered")
    blank: dict[str, str] = {}  # question id to its instructions
    for qid, question in questions.items():
        if isinstance(question, dict):
            _check_sizes(qid, question, limits)
            instructions = question.get("instructions")
            if instructions is None or (isinstance(instructions, str) and not instructions.strip()):
                blank[qid] = instructions or ""
                question["instructions"] = "?"  # passes the check; replaced below
    parsed = parse_questions(questions)
    for found in parsed:
        if found.id in blank:
            found.instructions = blank[found.id]
        if found.type == "choice":
            _name_labels(found)
    return parsed


def _check_sizes(qid: str, question: dict[str, Any], limits: Limits) -> None:
    criteria = question.get("criteria")
    if not isinstance(criteria, (dict, list)):
        return
    what, most = ("levels", limits.levels) if question.get("type") == "score" else ("options", limits.options)
    if len(criteria) > most:
        raise RequestError(("questions", qid, "criteria"), f"has {len(criteria)} {what}; at most {most} are answered")


def _name_labels(question: Question) -> None:
    """Gives numbers and booleans among the labels their JSON names as keys; the text that the model reads stays."""
    if all(type(option.key) is str for option in question.options):
        return
    names: dict[str, int] = {}
    for i, option in enumerate(question.options):
        name = option.key if isinstance(option.key, str) else json.dumps(option.key)
        if names.setdefault(name, i) != i:
            raise RequestError(
                ("questions", question.id, "criteria", i),
                f"label {name} and label {names[name]} have the same name in JSON; give every option its own",
            )
        question.options[i] = option._replace(key=name)


def _check_whole(prepared: Prepared, tokens: StateTokens, name: str) -> None:
    found = prepared.cut(tokens)
    if found is not None:
        raise too_large(
            f"{name} has {found.state_tokens} tokens, and there is room for {found.state_tokens_used}; shorten it"
        )


# ---------------------------------------------------------------------------------------------- bytes


def _check_depth(body: bytes, most: int) -> None:
    """Refuses a body that is nested more than `most` levels deep. Whether its brackets match is left to the parser.

    Deleting every pair with nothing in it takes away the innermost level, so all that takes long is in C.
    """
    if body.count(b"[") + body.count(b"{") <= most:
        return
    rest = _STRING.sub(b"", body).translate(_BRACKETS, _NO_BRACKETS)
    for _ in range(most):
        shorter = rest.replace(b"[]", b"")
        if len(shorter) == len(rest):
            break
        rest = shorter
    if b"[]" in rest or rest.count(b"[") > most:
        raise _too_deep(most)


def _too_deep(most: int) -> Refusal:
    return invalid((), f"is nested more than {most} levels deep; flatten it", "json_too_deep")


def _malformed(body: bytes, error: Exception) -> Refusal:
    text = body.lstrip(b" \t\r\n")
    if not text:
        return invalid((), "is empty; a request is a JSON object with state and questions", "json_invalid")
    if isinstance(error, msgspec.ValidationError) and not text.startswith(b"{"):
        return invalid((), "must be a JSON object", "dict_type")
    return invalid((), str(error), "json_invalid")
