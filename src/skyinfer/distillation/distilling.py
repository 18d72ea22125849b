"""From states and a teacher to a student: who is asked what, what it will cost, training, and how the two agree."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ..errors import FormatError, RequestError, SkyinferError, faults_named
from ..evaluation.evaluating import evaluate
from ..evaluation.labelled import LabelledRows, gather
from ..files.paths import byte_order_mark, checked_path, open_regular
from ..files.streams import read_lines
from ..model import Model, load
from ..runtime.precision import EXACT, PRECISIONS
from ..schema import render_state
from ..terminal import printable
from ..train.options import OptionError
from ..train.progress import ProgressCall, duration, shown
from ..train.rows import read_rows
from ..values import short
from .kept import KeptAnswers, key_of
from .teachers import LocalTeacher, RemoteTeacher, Teacher

# The fraction of the states that is held out for the comparison, and how many at most.
_HELD_OUT, _MOST_HELD_OUT = 0.1, 2000
# Of fewer, too few would be held out to compare anything.
LEAST_STATES = 40
# Answers that are timed, each by itself.
_TIMED = 16


@dataclass(frozen=True)
class Distillation:
    """What a distillation came to.

    Attributes:
        report: what `skyinfer distill --json` prints: names of `teacher` and `student`, the file of `answers`,
            `n_states`, `n_held_out`, `teacher_tokens` of all answers, `agreement` on the states that were held out
            (`all` together and by question in `questions`: numbers as in an evaluation's report, `kl`, the divergence
            from the teacher in nats, and `teacher_entropy`), `seconds` that the `teacher` and the `student` take for
            one state, and `training`, the report of the training.
    """

    report: dict[str, Any]

    def as_text(self) -> str:
        """The tables that the command prints."""
        return "\n".join(_lines(self.report))

    def __str__(self) -> str:
        return self.as_text()


def distill(
    states: Iterable[Any],
    questions: Mapping[str, Any],
    teacher: str | os.PathLike[str] | Model | Teacher,
    out: str | os.PathLike[str],
    *,
    answers: str | os.PathLike[str] | None = None,
    key: str | None = None,
    at_once: int = 4,
    rate: float | None = None,
    retries: int = 5,
    precision: str = EXACT,
    price: float | None = None,
    only_cost: bool = False,
    seed: int = 0,
    force: bool = False,
    progress: ProgressCall | bool | None = True,
    say: Callable[[str], None] | None = None,
    **training: Any,
) -> Distillation | None:
    """Ask a teacher about states, train a student on what it says, and compare them on states that were held out.

    Args:
        states: any JSON; those that come again are asked about once.
        questions: the same about every state, as in a request.
        teacher: a model, what `skyinfer.load` takes, or the address of an endpoint (http or https); or an object with
            `name` and `ask` (teachers.py).
        out: the directory that training writes.
        answers: the file that keeps what the teacher said, which is not asked again, but for a model a few states.
            Default: `out` with ".answers.jsonl" behind it.
        key, at_once, rate, retries: of an endpoint, as for `RemoteTeacher`.
        precision: of a teacher that is loaded here, as for `skyinfer.load`. One that is not "exact" is part of the
            teacher's name, with the instruction set. The student is trained, and compared, in floats.
        price: of a million tokens that an endpoint reads, for the cost.
        only_cost: end when the cost is known, for which the teacher is asked about one state, or a model about two.
        seed: of the states that are held out, and of training.
        force: replace a checkpoint in `out`.
        progress: as for `train_rows`.
        say: called with what the run will cost, before it begins.
        training: further arguments of `train_rows`, as `size`, `architecture`, `init`, `epochs`.

    Returns:
        None with `only_cost`.

    Raises:
        TeacherError: the teacher does not answer. What it has said is kept.
        RequestError: a question or a state is faulty; the path to a state is ("states", its number).
        SkyinferError: there are too few states; the answers that are kept are not those of this teacher, which may have
            been trained anew since; or as `KeptAnswers` and `train_rows`.
        OptionError: `precision` is unknown, or of a teacher that is not loaded here; or as `train_rows` (a ValueError).
        ImportError: the extra `train` is not installed.
        OSError: a file cannot be read or written.
    """
    from ..train.training import train_rows
    from ..train.writing import check_place

    place = checked_path(out, "a directory")
    check_place(place, force=force)
    different = {}
    for number, state in enumerate(states):
        try:
            text = render_state(state)
        except RequestError as error:
            raise RequestError(("states", number, *error.loc[1:]), error.message) from error
        # NumPy's numbers, which a state may hold, can be kept and sent as Python's
        plain = text if isinstance(state, str) else json.loads(text)
        different[key_of(plain)] = plain
    if len(different) < LEAST_STATES:
        raise SkyinferError(f"{len(different)} different states are too few; give {LEAST_STATES} or more")
    asked = _teacher(teacher, questions, key, at_once, rate, retries, precision)
    where = answers_path(place, answers)
    kept = KeptAnswers(where, asked.name, questions)
    if isinstance(asked, LocalTeacher):
        kept.check(asked)
    say = say or (lambda text: None)
    _ask_all(asked, kept, list(different.values()), price, only_cost, at_once, say, progress)
    if only_cost:
        return None

    rows = [kept.row(state) for state in different.values()]
    is_out = np.zeros(len(rows), bool)
    n_out = min(max(round(_HELD_OUT * len(rows)), 1), _MOST_HELD_OUT)
    is_out[np.random.Generator(np.random.PCG64(seed)).permutation(len(rows))[:n_out]] = True
    learned = [row for row, there in zip(rows, is_out.tolist(), strict=True) if not there]
    held_out = [row for row, there in zip(rows, is_out.tolist(), strict=True) if there]
    trained = train_rows(learned, place, seed=seed, force=force, progress=progress, **training)
    student = load(place)
    labelled = gather(((f"state {i}", row) for i, row in enumerate(held_out, 1)), "held-out states")
    found = evaluate(labelled, student, seed=seed).report["models"][0]
    entropies = _entropies(labelled)
    agreement = {
        "all": _with_divergence(found["all"], list(chain.from_iterable(entropies.values()))),
        "questions": {name: _with_divergence(own, entropies[name]) for name, own in found["questions"].items()},
    }
    own = _seconds(student, questions, [row["state"] for row in held_out[:_TIMED]])
    if isinstance(asked, LocalTeacher):
        theirs = _seconds(asked.model, questions, [row["state"] for row in held_out[:_TIMED]])
    else:
        theirs = median([kept.found[key_of(row["state"])].seconds for row in rows])
    report = {
        "teacher": asked.name, "student": os.fspath(place), "answers": os.fspath(where), "n_states": len(rows),
        "n_held_out": n_out, "teacher_tokens": sum(kept.found[key].n_tokens for key in different),
        "agreement": agreement, "seconds": {"teacher": theirs, "student": own}, "training": trained.as_dict(),
    }  # fmt: skip
    return Distillation(report)


def answers_path(out: str | os.PathLike[str], answers: str | os.PathLike[str] | None) -> Path:
    """The file that keeps what the teacher said, of `distill` with these arguments.

    Raises:
        FormatError: a path is empty or holds a NUL character.
    """
    if answers is not None:
        return checked_path(answers)
    return Path(f"{os.fspath(checked_path(out, 'a directory')).rstrip(os.sep)}.answers.jsonl")


def _teacher(
    teacher: str | os.PathLike[str] | Model | Teacher, questions: Mapping[str, Any], key: str | None, at_once: int,
    rate: float | None, retries: int, precision: str,
) -> Teacher:  # fmt: skip
    is_remote = isinstance(teacher, str) and teacher.startswith(("http://", "https://"))
    if precision not in PRECISIONS:
        raise OptionError(f"precision: expected one of {', '.join(PRECISIONS)}, got {short(precision)}")
    if precision != EXACT and (is_remote or not isinstance(teacher, (str, os.PathLike))):
        raise OptionError(f"precision: {precision} is for a teacher that is loaded here; this one has its own")
    if is_remote:
        return RemoteTeacher(str(teacher), questions, key=key, at_once=at_once, rate=rate, retries=retries)
    if isinstance(teacher, (str, os.PathLike)):
        teacher = load(teacher, precision=precision)
    return LocalTeacher(teacher, questions) if isinstance(teacher, Model) else teacher


def _ask_all(
    teacher: Teacher,
    kept: KeptAnswers,
    states: Sequence[Any],
    price: float | None,
    only_cost: bool,
    at_once: int,
    say: Callable[[str], None],
    progress: ProgressCall | bool | None,
) -> None:
    """Every state is answered then, unless only the cost is asked for."""
    left = [state for state in states if key_of(state) not in kept.found]
    known = f"{len(states) - len(left):,} of {len(states):,} states are answered in {kept.path}"
    if not left:
        say(f"{known}; the teacher is not asked for more")
        return
    is_remote = not isinstance(teacher, LocalTeacher)
    n_tried = 1 if is_remote else min(len(left), 2)
    with kept.adding() as file:
        for state, taught in zip(left[:n_tried], teacher.ask(left[:n_tried]), strict=True):
            file.add(state, taught)
        tried = [kept.found[key_of(state)] for state in left[:n_tried]]
        tokens = round(len(left) * sum(one.n_tokens for one in tried) / n_tried)
        seconds = len(left) * median([one.seconds for one in tried]) / (at_once if is_remote else 1)
        cost = "" if price is None or not is_remote else f", {price * tokens / 1e6:,.4g} for them"
        what = "requests to" if is_remote else "states for"
        say(
            f"{known}; {len(left):,} {what} {teacher.name}: about {tokens:,} tokens{cost}, about {duration(seconds)} "
            "where nothing else limits it"
        )
        if only_cost:
            return
        rest = left[n_tried:]
        with shown(progress) as call:
            for done, (state, taught) in enumerate(zip(rest, teacher.ask(rest), strict=True), n_tried + 1):
                file.add(state, taught)
                call("asking the teacher", done, len(left))


def _seconds(model: Model, questions: Any, states: Sequence[Any]) -> float:
    """Of an answer to all questions about one state: the median of single calls, after one that makes buffers."""
    taken = []
    for state in chain(states[:1], states):
        start = time.perf_counter()
        model.decide(state, questions)
        taken.append(time.perf_counter() - start)
    return median(taken[1:])


def _entropies(rows: LabelledRows) -> dict[str, list[float]]:
    """In nats, of each of the teacher's answers, by the id of its question."""
    found: dict[str, list[float]] = {}
    for answer in rows.answers:
        own = found.setdefault(str(rows.questions[answer.question].id), [])
        own.append(-sum(p * math.log(p) for p in answer.target if p > 0))
    return found


def _with_divergence(numbers: Mapping[str, Any], entropies: Sequence[float]) -> dict[str, Any]:
    """Numbers of an evaluation, and the Kullback-Leibler divergence from the teacher: the cross entropy less the
    teacher's own entropy."""
    mean = sum(entropies) / len(entropies)
    kept = {name: numbers[name] for name in ("n", "accuracy", "log_loss", "ece", "confidence") if name in numbers}
    return {**kept, "kl": max(0.0, numbers["log_loss"]["value"] - mean), "teacher_entropy": mean}


def _lines(report: Mapping[str, Any]) -> list[str]:
    agreement = report["agreement"]
    rows = [
        (printable(name), numbers) for name, numbers in (("all", agreement["all"]), *agreement["questions"].items())
    ]
    width = max(8, *(len(name) for name, _ in rows))
    lines = [
        f"{printable(report['student'])}: as {printable(report['teacher'])} answers, on {report['n_held_out']:,} of "
        f"{report['n_states']:,} states, which were held out",
        f"  {'':<{width}}  {'n':>7}  same answer, 95 %         KL, nats  ECE",
    ]
    for name, numbers in rows:
        accuracy = numbers["accuracy"]
        bounds = "" if accuracy["low"] is None else f" ({accuracy['low']:.4f}, {accuracy['high']:.4f})"
        shown_accuracy = f"{accuracy['value']:.4f}{bounds}"
        lines.append(
            f"  {name:<{width}}  {numbers['n']:>7,}  {shown_accuracy:<24}  {numbers['kl']:8.4f}  "
            f"{numbers['ece']['value']:.4f}"
        )
    theirs, own = report["seconds"]["teacher"], report["seconds"]["student"]
    lines.append(
        f"  one state: teacher {1000 * theirs:,.3g} ms, student {1000 * own:,.3g} ms, {theirs / own:,.3g} x as fast"
    )
    return lines


def states_of(path: str | os.PathLike[str]) -> list[Any]:
    """The states of a file: of JSON Lines the field `state` of each object, of a .txt file a text a line.

    Raises:
        SkyinferError: the file has another name; or there are no states.
        FormatError: a line has no state, or is no JSON or no UTF-8.
        OSError: the file cannot be read.
    """
    where = checked_path(path)
    kind = where.suffix.lower()
    if kind not in (".jsonl", ".ndjson", ".txt"):
        raise SkyinferError(f"{where}: states are in .jsonl, the field state of each object, or .txt, a text a line")
    found = list(_texts(where) if kind == ".txt" else _states_of_rows(where))
    if not found:
        raise SkyinferError(f"{where}: there are no states")
    return found


def _texts(path: Path) -> Iterator[str]:
    with faults_named(path), open_regular(path) as file:
        for number, line in enumerate(read_lines(file, path), 1):
            if number == 1 and (mark := byte_order_mark(line)):
                raise FormatError(f"{path}: line 1: begins with {mark}; save the file as UTF-8 without one")
            try:
                text = line.decode().strip()
            except UnicodeDecodeError as error:
                bad = f"byte 0x{line[error.start]:02x} at offset {error.start}"
                raise FormatError(f"{path}: line {number}: is not UTF-8 ({bad})") from None
            if text:
                yield text


def _states_of_rows(path: Path) -> Iterator[Any]:
    for place, row in read_rows(path):
        if isinstance(row, RequestError):
            raise FormatError(f"{path}: {place}: {row}")
        if not isinstance(row, dict) or row.get("state") is None:
            raise FormatError(f'{path}: {place}: has no state; write {{"state": ...}} on each line')
        yield row["state"]
