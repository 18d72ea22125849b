"""Mutated requests, as Python objects and as the JSON text that the command reads, and what must come of them."""

# ruff: noqa: PT017, PT018 (assertions here are checks of the fuzzer, not of pytest)

from __future__ import annotations

import contextlib
import copy
import datetime
import decimal
import enum
import json
import math
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import paint

import skyinfer
from skyinfer.command.request_file import read_request
from skyinfer.errors import RequestError
from skyinfer.schema import parse_request

from .bases import META, QUESTIONS, STATES, TINY, Outcome
from .checks import check_response, check_sequence, only_documented_warnings
from .mutation import BIG_TEXT, hostile, mutate_bytes, mutate_json, nested


class _Text(str):
    __slots__ = ()


class _Number(enum.IntEnum):
    ONE = 1


class _Odd:
    """Prints, compares and tests badly."""

    def __repr__(self) -> str:
        raise ValueError("no repr")

    def __eq__(self, other: object) -> bool:
        raise ValueError("no eq")

    def __bool__(self) -> bool:
        raise ValueError("no bool")

    __hash__ = object.__hash__


def _circular_list() -> Any:
    value: list[Any] = [1]
    value.append(value)
    return value


def _circular_dict() -> Any:
    value: dict[str, Any] = {"a": 1}
    value["self"] = {"again": value}
    return value


_PYTHON_VALUES: list[Callable[[], Any]] = [
    _circular_list, _circular_dict, _Odd, object, lambda: {1, 2}, lambda: b"bytes", lambda: (1, "a"), lambda: 1j,
    lambda: range(3), lambda: decimal.Decimal("1.5"), lambda: datetime.date(2026, 1, 1), lambda: _Text("text"),
    lambda: _Number.ONE, lambda: np.arange(3), lambda: np.float64(1.5), lambda: np.int64(3), lambda: np.array("a"),
    lambda: np.str_("a"), lambda: 10**5000, lambda: -(10**4400), lambda: {10**5000}, lambda: {(10**5000,): 1},
    lambda: {None: 1, 1.5: 2, True: 3, b"x": 4}, lambda: {10**5000: None}, lambda: {frozenset(): 1},
    lambda: [math.nan, math.nan], lambda: {"a": _Odd()}, lambda: {_Text("a"): 1, "b": 2}, lambda: float("nan"),
    lambda: {"\ud800": "\udfff"}, lambda: ["a"] * 255, lambda: list(range(300)), lambda: [str(i) for i in range(2000)],
    lambda: {f"option {i}": "text " * (i % 60) for i in range(60)}, lambda: ["long " * 100] * 12, lambda: type,
    lambda: len, lambda: {"type": "noul"},
]  # fmt: skip
_RARE_VALUES: list[Callable[[], Any]] = [
    lambda: nested(100_000, lambda v: [v]), lambda: nested(100_000, lambda v: {"a": v}),
    lambda: nested(950, lambda v: [v]), lambda: nested(900, lambda v: {"a": v}), lambda: nested(300, lambda v: (v,)),
    lambda: {nested(300, lambda v: (v,)): 1}, lambda: nested(2000, lambda v: (v, 1)), lambda: [0] * 100_000,
    *BIG_TEXT,
]  # fmt: skip


def python_hostile(rng: random.Random) -> Any:
    """A value that a Python caller can hand over, whether or not JSON can hold it."""
    kind = rng.random()
    if kind < 0.6:
        return hostile(rng)
    return rng.choice(_PYTHON_VALUES if kind < 0.985 else _RARE_VALUES)()


_JSON_TEXTS: list[Callable[[], bytes]] = [
    lambda: b"[" * 100_000, lambda: b'{"state":' * 100_000,
    lambda: b'{"state":' + b"[" * 970 + b"]" * 970 + b',"questions":{}}', lambda: b"\xff",
    lambda: b'{"state":' + b"9" * 5000 + b',"questions":{}}', lambda: b"\xef\xbb\xbf{}", lambda: b"", lambda: b"\0" * 9,
    lambda: b"NaN", lambda: "{}".encode("utf-16"),
    lambda: b'{"state":"a","state":1e999,"questions":{"a":{},"a":{"type":"noul","instructions":"\\ud800"}}}',
]  # fmt: skip


class Requests:
    """Mutated requests, as Python objects and as the JSON text that the command line reads."""

    outcomes = ("answered", "refused")

    def __init__(self, work: Path) -> None:
        self.work = work
        sizes: list[dict[str, Any]] = [
            {},
            {"max_len": 24, "head_max_len": 8, **META},
            {"max_len": 512, "head_max_len": 192, "n_layers": 2},
            {"max_len": 24, "head_max_len": 16, "architecture": "s2", **META},
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.models = [skyinfer.load(paint(work / f"model{i}", **(TINY | size))) for i, size in enumerate(sizes)]

    def case(self, rng: random.Random) -> Any:
        names = rng.sample(list(QUESTIONS), rng.choice([1, 1, 2, 4]))
        body: Any = {
            "state": copy.deepcopy(rng.choice(STATES)),
            "questions": {name: copy.deepcopy(QUESTIONS[name]) for name in names},
        }
        if rng.random() < 0.1:
            body["model"] = hostile(rng)
        if rng.random() < 0.25:
            return self._text(rng, body)
        for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
            what = rng.random()
            if what < 0.15:
                body = mutate_json(rng, body, python_hostile)
            elif not (isinstance(body, dict) and isinstance(body.get("questions"), dict) and body["questions"]):
                break
            elif what < 0.25:
                body["state"] = python_hostile(rng)
            elif what < 0.3:
                with contextlib.suppress(TypeError):
                    body["questions"][python_hostile(rng)] = copy.deepcopy(rng.choice(list(QUESTIONS.values())))
            elif what < 0.32:
                body["questions"] |= {f"q{i}": copy.deepcopy(QUESTIONS["crash"]) for i in range(rng.choice([10, 100]))}
            else:
                key = rng.choice(list(body["questions"]))
                question = body["questions"][key]
                if isinstance(question, dict) and rng.random() < 0.6:
                    field = rng.choice(
                        ["type", "instructions", "criteria", "criteria", "criteria", "option_order", "labels"]
                    )
                    with contextlib.suppress(TypeError):
                        question[field] = (
                            python_hostile(rng)
                            if rng.random() < 0.5
                            else mutate_json(rng, question.get(field), python_hostile)
                        )
                else:
                    body["questions"][key] = mutate_json(rng, question, python_hostile)
        return body

    @staticmethod
    def _text(rng: random.Random, body: Any) -> bytes:
        if rng.random() < 0.05:
            return rng.choice(_JSON_TEXTS)()
        for _ in range(rng.choice([0, 1, 2])):
            body = mutate_json(rng, body)
        text = json.dumps(body, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
        for _ in range(rng.choice([0, 0, 1, 1, 3])):
            text = mutate_bytes(rng, text)
        return text

    def write(self, case: Any, path: Path) -> Path:
        if isinstance(case, bytes):
            path = path.with_suffix(".json")
            path.write_bytes(case)
            return path
        path = path.with_suffix(".txt")
        try:
            path.write_text(repr(case), encoding="utf-8", errors="backslashreplace")
        except Exception as error:
            path.write_text(f"cannot be written down: {error!r}\n", encoding="utf-8")
        return path

    def run(self, case: Any, rng: random.Random) -> Outcome:
        model = rng.choice(self.models)
        with only_documented_warnings():
            try:
                if isinstance(case, bytes):
                    case = read_request(str(self.write(case, self.work / "request")))
                parse_request(case)
                state, questions = case["state"], case["questions"]
                response = model.decide(state, questions)
            except RequestError as error:
                assert type(error.loc) is tuple and all(isinstance(part, (str, int)) for part in error.loc), error.loc
                assert error.message and str(error).endswith(error.message)
                return "refused"
        check_response(response, questions, model.name)
        if rng.random() < 0.2:
            for sequence in model.encode(state, questions).values():
                check_sequence(sequence, model.config)
        return "answered"
