"""The same state in other words: what training varies so that a model answers by what a state says, not by how it is
written, and what a report tries afterwards.

Of a state that was no string the order of its objects' keys and the spelling of its numbers are varied (57 and 57.0
are one number), and it may get a key more; of a string its white space. Options are varied in batches.py, as tokens. A
variant depends on the text, its number and the seed alone.
"""

from __future__ import annotations

import json
import math
import random
import re
import string
from collections.abc import Callable, Iterable
from typing import Any

from ..schema import render_state
from .rows import Dataset, State

AUGMENTATIONS = ("options", "keys", "numbers", "spaces", "extra")

# Above this a float does not hold every whole number.
_EXACT = 1 << 53

# How often a variant keeps the order of keys, spells no number otherwise, or all of them; else each number by itself.
_KEPT_ORDER, _NO_NUMBER, _ALL_NUMBERS, _EACH_NUMBER = 0.2, 0.5, 0.25, 0.3
# of the gaps between words
_WIDER_GAPS = 0.1
# of the variants that get a key which means nothing
_EXTRA_KEY = 0.2


def applicable(kinds: Iterable[str], dataset: Dataset) -> tuple[str, ...]:
    """Those of `kinds` that change anything about the dataset."""
    states = dataset.states
    some_json, some_text = any(state.is_json for state in states), any(not state.is_json for state in states)
    some_choice = any(question.type == "choice" and len(question.options) > 1 for question in dataset.questions)
    spaces = some_text and are_spaces_free(states)
    # where states have different keys, a key may be what is asked about
    key_sets = {tuple(sorted(value)) if isinstance(value, dict) else None for value in map(value_of, states)}
    fixed = len(key_sets) == 1 and None not in key_sets
    has = {"options": some_choice, "keys": some_json, "numbers": some_json, "spaces": spaces, "extra": fixed}
    return tuple(kind for kind in kinds if has[kind])


def varied(state: State, kinds: Iterable[str], draw: random.Random) -> str:
    """The text of `state` with the kinds of variation of `AUGMENTATIONS` that apply to it."""
    kinds = set(kinds)
    if not state.is_json:
        return _spaced(state.text, draw) if "spaces" in kinds else state.text
    value = value_of(state)
    if "extra" in kinds and draw.random() < _EXTRA_KEY:
        value = with_extra_key(value, draw)
    if "keys" in kinds and draw.random() >= _KEPT_ORDER:
        value = shuffled(value, draw)
    if "numbers" in kinds:
        chance = draw.random()
        if chance >= _NO_NUMBER:
            every = chance < _NO_NUMBER + _ALL_NUMBERS
            value = respelt(value, lambda: every or draw.random() < _EACH_NUMBER)
    return render_state(value)


def value_of(state: State) -> Any:
    """What a state was before it was text."""
    if not state.is_json:
        return state.text
    try:
        return json.loads(state.text)
    except (ValueError, RecursionError):  # an integer of thousands of digits; what nests too deeply is varied in no way
        return state.text


def draw_of(state: State, number: int, seed: int) -> random.Random:
    """The random numbers of variant `number` of a state."""
    return random.Random(f"{seed} {number} {state.text}")


def canonical(state: State) -> str:
    """A text that states have in common that say the same, whatever the order of keys and the spelling of numbers."""
    if not state.is_json:
        return state.text
    return json.dumps(_respell(value_of(state), _as_whole), sort_keys=True, ensure_ascii=False)


def are_spaces_free(states: Iterable[State]) -> bool:
    """Whether white space may be varied: in no string state does it say anything by its width or place."""
    return not any(_MEANT_SPACES.search(state.text) for state in states if not state.is_json)


# at a line's end or beginning, a tab, or more than one in a row: an indentation, a table, a map
_MEANT_SPACES = re.compile(r"^\s|\s$|[^\S \n]|  ", re.M)


def _spaced(text: str, draw: random.Random) -> str:
    if draw.random() < 0.5:
        return text
    text = re.sub(" ", lambda _: "  " if draw.random() < _WIDER_GAPS else " ", text)
    return text + draw.choice(("", "", " ", "\n"))


def shuffled(value: Any, draw: random.Random) -> Any:
    """`value` with the keys of all its objects in random order."""
    if isinstance(value, dict):
        items = [(key, shuffled(item, draw)) for key, item in value.items()]
        draw.shuffle(items)
        return dict(items)
    return [shuffled(item, draw) for item in value] if isinstance(value, list) else value


def with_extra_key(value: Any, draw: random.Random) -> Any:
    """An object with one key more, of random letters, at its end; its value is a number, a word or a truth value."""
    if not isinstance(value, dict):
        return value

    def word() -> str:
        return "".join(draw.choices(string.ascii_lowercase, k=draw.randint(2, 8)))

    key = word()
    if key in value:
        return value
    kind = draw.randrange(4)
    extra: Any = word() if kind == 0 else draw.random() < 0.5 if kind == 1 else draw.randrange(10 ** draw.randint(1, 3))
    return value | {key: extra}


def respelt(value: Any, chosen: Callable[[], bool] = lambda: True) -> Any:
    """`value` with whole numbers written as floats and the other way round, those that `chosen` says."""
    return _respell(value, lambda number: _other_spelling(number) if chosen() else number)


def _respell(value: Any, spell: Callable[[int | float], int | float]) -> Any:
    if isinstance(value, dict):
        return {key: _respell(item, spell) for key, item in value.items()}
    if isinstance(value, list):
        return [_respell(item, spell) for item in value]
    return spell(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _other_spelling(number: int | float) -> int | float:
    if not abs(number) < _EXACT:  # NaN is not
        return number
    return float(number) if isinstance(number, int) else _as_whole(number)


def _as_whole(number: int | float) -> int | float:
    """57 for 57.0. -0.0 has no such spelling."""
    if not isinstance(number, float) or not abs(number) < _EXACT or not number.is_integer():
        return number
    return number if number == 0 and math.copysign(1.0, number) < 0 else int(number)
