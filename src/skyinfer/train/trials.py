"""What a trained model says of states and questions that are written in other ways than those it was trained on.

The answers to held-out states are known; each trial changes something that should not change them, and compares. What
lies beyond the trained numbers is answered by the teacher, or, where there is none, as the state whose outermost number
was moved.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import RequestError
from ..metrics import is_accurate, log_softmax
from ..schema import render_state
from .encoding import Drawn, Encoded, reworded
from .judging import Scored, by_question, names_of, temperature_of
from .report import Trial
from .rows import Dataset, target_of
from .variants import respelt, shuffled, value_of, with_extra_key

OPTIONS_REVERSED = "options reversed"
KEYS_SHUFFLED = "keys shuffled"
NUMBERS_RESPELT = "57.0 for 57"
EXTRA_KEY = "an extra key"
BEYOND = "numbers beyond"
# what `augment` has against a drop
REMEDIES = {OPTIONS_REVERSED: "options", KEYS_SHUFFLED: "keys", NUMBERS_RESPELT: "numbers", EXTRA_KEY: "extra"}

# Trials of large sets take long, and these are enough for two digits.
_MOST_STATES = 2_000
# Numbers of a key that has fewer different ones are taken for names.
_LEAST_NUMBERS = 8
# Those in this outermost part of a key's range are moved, by up to this part of the range beyond it.
_OUTERMOST, _FURTHEST = 0.1, 0.5

Score = Callable[[Encoded, np.ndarray, "Drawn | None"], dict[int, np.ndarray]]
Teacher = Callable[[Any], Mapping[Any, Any]]


class Trials:
    """Tries a model on held-out states."""

    def __init__(
        self,
        dataset: Dataset,
        encoded: Encoded,
        builder: Any,
        held_back: np.ndarray,
        temperatures: Mapping[str, float],
        seed: int,
        score: Score,
    ) -> None:
        """
        Args:
            builder: the SequenceBuilder that `encoded` was made with.
            held_back: bool [n_states].
            score: logits [n_options] by example, for examples [n] of an `Encoded`, as they are drawn.
        """
        self._dataset, self._encoded, self._builder, self._held_back = dataset, encoded, builder, held_back
        self._temperatures, self._seed, self._score = temperatures, seed, score
        states = np.flatnonzero(held_back)[:_MOST_STATES]
        self._states = states.tolist()
        self._examples = np.flatnonzero(np.isin(encoded.state, states))

    def run(self, given: Mapping[int, np.ndarray], teacher: Teacher | None) -> Iterator[Trial]:
        """Each trial that applies, question by question.

        Args:
            given: logits [n_options] by example, of the held-out states as they are.
            teacher: knows the answers to any state.
        """
        encoded = self._encoded
        chosen = self._examples[self._may_be_reversed()]
        if len(chosen):
            k = encoded.n_options[encoded.question[chosen]]
            places = np.arange(k.max())
            orders = np.where(places < k[:, None], k[:, None] - 1 - places, places)
            found = self._score(encoded, chosen, Drawn(np.zeros(len(chosen), np.int64), orders))
            yield from self._compare(OPTIONS_REVERSED, encoded, found, given)
        changes: tuple[tuple[str, Callable[[Any, random.Random], Any]], ...] = (
            (KEYS_SHUFFLED, _in_another_order),
            (NUMBERS_RESPELT, lambda value, _: respelt(value)),
            (EXTRA_KEY, with_extra_key),
        )
        for name, change in changes:
            texts = self._changed(name, change)
            if texts:
                yield from self._compare(name, *self._reworded(encoded, texts), given)
        yield from self._beyond(given, teacher)

    def _may_be_reversed(self) -> np.ndarray:
        questions = self._encoded.question[self._examples]
        found: np.ndarray = self._encoded.takes_any_order[questions] & (self._encoded.n_options[questions] > 1)
        return found

    def _draw(self, name: str, state: int) -> random.Random:
        return random.Random(f"{self._seed} {name} {self._dataset.states[state].text}")

    def _changed(self, name: str, change: Callable[[Any, random.Random], Any]) -> dict[int, str]:
        """Texts of the states that are others after `change`."""
        texts = {}
        for number in self._states:
            state = self._dataset.states[number]
            if state.is_json:
                text = render_state(change(value_of(state), self._draw(name, number)))
                if text != state.text:
                    texts[number] = text
        return texts

    def _reworded(self, encoded: Encoded, texts: Mapping[int, str]) -> tuple[Encoded, dict[int, np.ndarray]]:
        changed = reworded(encoded, self._builder, texts)
        examples = self._examples[np.isin(encoded.state[self._examples], list(texts))]
        return changed, self._score(changed, examples, None)

    def _compare(
        self, name: str, encoded: Encoded, found: Mapping[int, np.ndarray], given: Mapping[int, np.ndarray]
    ) -> Iterator[Trial]:
        before = by_question(self._encoded, {example: given[example] for example in found})
        names = names_of(encoded)
        for number, after in by_question(encoded, found).items():
            temperature = temperature_of(encoded.prefixes[number].question, self._temperatures)
            accuracy, confidence = _numbers(after, temperature)
            yield Trial(name, names[number], len(after.examples), accuracy, _numbers(before[number], temperature)[0],
                        confidence)  # fmt: skip

    # ------------------------------------------------------------------------------------- other numbers

    def _beyond(self, given: Mapping[int, np.ndarray], teacher: Teacher | None) -> Iterator[Trial]:
        """Numbers further out than any that was learned from, one in each state."""
        ranges = self._ranges()
        texts: dict[int, str] = {}
        answers: dict[int, Mapping[Any, Any]] = {}
        for number in self._states:
            state, draw = self._dataset.states[number], self._draw(BEYOND, number)
            value = value_of(state)
            moved = _moved(value, ranges, draw, anywhere=teacher is not None)
            if moved is None:
                continue
            if teacher is not None:
                try:
                    answers[number] = dict(teacher(moved))
                except Exception:  # a rule need not be made for such numbers
                    continue
            texts[number] = render_state(moved)
        if not texts:
            return
        encoded, found = self._reworded(self._encoded, texts)
        if teacher is not None:
            targets, found = self._told(answers, found)
            encoded = replace(encoded, targets=targets)
        yield from self._compare(BEYOND, encoded, found, given)

    def _told(
        self, answers: Mapping[int, Mapping[Any, Any]], found: Mapping[int, np.ndarray]
    ) -> tuple[list[tuple[float, ...]], dict[int, np.ndarray]]:
        """Targets with the teacher's in place of those of `found`, and those of `found` that it has an answer to."""
        targets, kept = list(self._encoded.targets), {}
        for example, logits in found.items():
            question = self._encoded.prefixes[self._encoded.question[example]].question
            try:
                targets[example] = target_of(question, answers[int(self._encoded.state[example])][question.id])
            except (KeyError, RequestError):
                continue
            kept[example] = logits
        return targets, kept

    def _ranges(self) -> dict[tuple[Any, ...], tuple[float, float]]:
        """Least and greatest number at each place of the states that were learned from."""
        values: dict[tuple[Any, ...], set[float]] = {}
        for state, is_held in zip(self._dataset.states, self._held_back.tolist(), strict=True):
            if state.is_json and not is_held:
                for path, number in _numbers_in(value_of(state)):
                    values.setdefault(path, set()).add(number)
        return {path: (min(own), max(own)) for path, own in values.items() if len(own) >= _LEAST_NUMBERS}


def _numbers(scored: Scored, temperature: float) -> tuple[float, float]:
    """Accuracy and mean confidence."""
    total = scored.weights.sum()
    confidence = np.exp(log_softmax(scored.logits / temperature)).max(-1)
    accurate = is_accurate(scored.logits, scored.targets)
    return float((scored.weights * accurate).sum() / total), float((scored.weights * confidence).sum() / total)


def _in_another_order(value: Any, draw: random.Random) -> Any:
    text = render_state(value)
    for _ in range(8):
        found = shuffled(value, draw)
        if render_state(found) != text:
            return found
    return value


def _numbers_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], float]]:
    """Every finite number in the objects of `value`, with its keys. What stands in lists has no place of its own."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers_in(item, (*path, key))
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15:
        yield path, value


def _moved(
    value: Any, ranges: Mapping[tuple[Any, ...], tuple[float, float]], draw: random.Random, *, anywhere: bool
) -> Any:
    """`value` with one of its numbers beyond its range: any of them, or only one that is among the outermost."""
    candidates = []
    for path, number in _numbers_in(value):
        if path in ranges:
            low, high = ranges[path]
            width = high - low
            if anywhere or number >= high - _OUTERMOST * width:
                candidates.append((path, high, width))
            # what was never negative is taken for something that cannot be
            if low < 0 and (anywhere or number <= low + _OUTERMOST * width):
                candidates.append((path, low, -width))
    if not candidates:
        return None
    path, edge, width = draw.choice(candidates)
    further = edge + width * draw.uniform(0.05, _FURTHEST)

    def put(item: Any, keys: tuple[Any, ...]) -> Any:
        if not keys:
            is_whole = isinstance(item, int) or item.is_integer()
            found = (np.ceil(further) if width > 0 else np.floor(further)) if is_whole else round(further, 3)
            return type(item)(found)
        return {key: put(own, keys[1:]) if key == keys[0] else own for key, own in item.items()}

    return put(value, path)


def drops(trials: Iterable[Trial]) -> Iterator[Trial]:
    """Those that cost more than five points of accuracy."""
    return (trial for trial in trials if trial.accuracy < trial.accuracy_as_given - 0.05)
