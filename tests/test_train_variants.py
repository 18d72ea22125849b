"""The same state in other words: what may differ, what may not, and that a batch is laid out as a request would be."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skyinfer.schema import parse_questions
from skyinfer.train.batches import chunks_of
from skyinfer.train.encoding import Drawn, builder_of, encode
from skyinfer.train.options import OptionError, augmentations
from skyinfer.train.rows import Dataset, State, gather
from skyinfer.train.variants import applicable, are_spaces_free, canonical, draw_of, respelt, shuffled, varied
from skyinfer.train.vocabulary import learn_tokenizer, tokenizer_config

CHOICE = {"type": "choice", "instructions": "What now?", "criteria": {"go": "drive on", "stop": "brake", "wait": None}}
SCORE = {"type": "score", "instructions": "How fast?", "criteria": ["slow", "normal", "fast"]}
NOUL = {"type": "noul", "instructions": "Is it safe?"}
QUESTIONS: dict[str, Any] = {"act": CHOICE, "speed": SCORE, "safe": NOUL}
ALL = ("keys", "numbers", "spaces")


def dataset(*states: Any) -> Dataset:
    answers = {"act": {"go": 0.7, "stop": 0.2, "wait": 0.1}, "speed": 1, "safe": 0.9}
    rows = [{"state": state, "questions": QUESTIONS, "answers": answers} for state in states]
    return gather(((f"row {i}", row) for i, row in enumerate(rows, 1)), "rows")


def state_of(value: Any) -> State:
    (state,) = dataset(value).states
    return state


VALUES = [
    {"hp": 57, "distance": 12, "ammo": 0},
    {"a": 1.0, "b": [3, 2, 1], "c": {"y": -7, "x": "7", "z": None, "w": True}},
    [{"turn": 1, "said": "go  on"}, {"turn": 2, "said": "57"}],
    {"big": 2**70, "float": 1e300, "half": 0.5, "zero": -0.0, "flag": False},
    {"n": math.inf, "m": -math.inf},
    [], {}, 17, 2.0, "vy 0 dx 36 up 9", "", "one",
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_variants_say_the_same(value: Any) -> None:
    """To Python's own json and ==, in which the order of keys and the spelling of a whole number do not count."""
    state = state_of(value)
    texts = {varied(state, ALL, draw_of(state, i, 0)) for i in range(60)}
    for text in texts:
        if isinstance(value, str):
            assert text.split() == value.split()
        else:
            assert json.loads(text) == value
            assert canonical(State(text, state.is_list, True)) == canonical(state)
    assert texts == {varied(state, ALL, draw_of(state, i, 0)) for i in range(60)}
    assert varied(state, (), draw_of(state, 0, 0)) == state.text
    if value == VALUES[0]:
        assert len(texts) > 15


def test_every_kind_varies_what_it_says_and_nothing_else() -> None:
    state = state_of({"b": 2, "a": 1.0})
    keys = {varied(state, ["keys"], draw_of(state, i, 0)) for i in range(50)}
    assert keys == {'{"b": 2, "a": 1.0}', '{"a": 1.0, "b": 2}'}
    numbers = {varied(state, ["numbers"], draw_of(state, i, 0)) for i in range(200)}
    assert numbers == {f'{{"b": {b}, "a": {a}}}' for b in ("2", "2.0") for a in ("1.0", "1")}
    assert {varied(state, ["spaces", "options"], draw_of(state, i, 0)) for i in range(50)} == {state.text}
    text = state_of("dx 36 up 9")
    spaces = {varied(text, ["spaces"], draw_of(text, i, 0)) for i in range(400)}
    assert {"dx 36 up 9", "dx  36 up 9", "dx 36 up 9 ", "dx 36 up 9\n"} <= spaces
    assert {varied(text, ["keys", "numbers"], draw_of(text, i, 0)) for i in range(50)} == {text.text}


def test_a_shuffled_object_has_every_order() -> None:
    orders = {tuple(shuffled({"a": 1, "b": 2, "c": 3}, random.Random(i))) for i in range(200)}
    assert orders == set(itertools.permutations("abc"))
    assert shuffled([3, 1, 2], random.Random(0)) == [3, 1, 2]


def test_numbers_have_two_spellings_where_both_are_exact() -> None:
    value = [57, 57.0, 2**53, -(2**53) + 1, 1e22, 0.5, True, "57", None, -0.0, math.nan]
    found = respelt(value)
    assert [repr(one) for one in found] == [
        "57.0", "57", str(2**53), repr(float(-(2**53) + 1)), "1e+22", "0.5", "True", "'57'", "None", "-0.0", "nan",
    ]  # fmt: skip


def test_a_key_that_means_nothing_is_one_more() -> None:
    state = state_of({"hp": 57, "far": 12})
    texts = [varied(state, ["extra"], draw_of(state, i, 0)) for i in range(200)]
    more = [json.loads(text) for text in texts if text != state.text]
    assert 20 < len(more) < 80
    assert all(len(one) == 3 and list(one.items())[:2] == [("hp", 57), ("far", 12)] for one in more)
    assert len({list(one)[2] for one in more}) > 10


@pytest.mark.parametrize(
    ("states", "fixed"),
    [
        ([{"a": 1, "b": 2}, {"b": 1, "a": {"c": 3}}], True),
        # where keys differ they may be what is asked about
        ([{"orc": 1}, {"orc": 2, "elf": 1}], False),
        ([{"a": 1}, [1]], False),
        ([{"a": 1}, "a"], False),
        ([1, 2], False),
    ],
)
def test_further_keys_only_beside_fixed_ones(states: list[Any], fixed: bool) -> None:
    assert ("extra" in applicable(("extra",), dataset(*states))) is fixed


@pytest.mark.parametrize(
    ("texts", "free"),
    [
        (["dx 36 up 9", "one"], True),
        (["two lines\nof words"], True),
        (["dx 36", "XO  X O"], False),
        (["def f():\n    return 1"], False),
        (["a\tb"], False),
        ([" X"], False),
        (["X \nO"], False),
    ],
)
def test_white_space_that_may_mean_something_is_left_alone(texts: list[str], free: bool) -> None:
    assert are_spaces_free(dataset(*texts).states) is free
    assert ("spaces" in applicable(("spaces",), dataset(*texts))) is free
    # in objects nobody may change it
    assert "spaces" not in applicable(("spaces",), dataset(*({"text": text} for text in texts)))


def test_states_that_say_the_same_have_one_canonical_text() -> None:
    same = [{"a": 1, "b": {"x": 2, "y": 3.0}}, {"b": {"y": 3, "x": 2.0}, "a": 1.0}]
    assert len({canonical(state_of(value)) for value in same}) == 1
    assert len({canonical(state_of(value)) for value in [{"a": 1}, {"a": "1"}, {"a": True}, {"a": 1.5}, [1], 1]}) == 6


@pytest.mark.parametrize(
    ("given", "kinds"),
    [
        (True, ("options", "keys", "numbers", "spaces", "extra")),
        (False, ()),
        ("all", ("options", "keys", "numbers", "spaces", "extra")),
        ("none", ()),
        ("numbers, options", ("options", "numbers")),
        (["keys"], ("keys",)),
        ([], ()),
    ],
)
def test_kinds_are_named(given: Any, kinds: tuple[str, ...]) -> None:
    assert augmentations(given) == kinds


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("order", "unknown"),
        ("options,", "unknown"),
        ("all,keys", "all and none stand alone"),
        (["keys", "none"], "alone"),
    ],
)
def test_unknown_kinds_are_refused(given: Any, words: str) -> None:
    with pytest.raises(OptionError, match=f"augment: .*{words}"):
        augmentations(given)


def test_a_drawn_batch_is_laid_out_as_a_request_would_be(tmp_path: Path) -> None:
    """Every view of a state and every order of options, against the builder of requests."""
    data = dataset({"hp": 57, "distance": 12}, {"hp": 3, "distance": 4.0}, [{"turn": 1}] * 30)
    texts = [state.text for state in data.states]
    (tmp_path / "tokenizer.json").write_text(json.dumps(learn_tokenizer(texts, 300)), "utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(8192)), "utf-8")
    builder, pad = builder_of(tmp_path, 300, 160, 120)

    def views(number: int) -> list[str]:
        state = data.states[number]
        return [varied(state, ALL, draw_of(state, i, 0)) for i in range(4)]

    encoded = encode(data, builder, pad, 160, views)
    assert encoded.n_cut == 1
    examples = np.repeat(np.arange(9), 40)
    drawn = encoded.drawn(examples, np.random.default_rng(3), options=True)
    assert drawn.orders is not None
    assert set(drawn.views.tolist()) == set(range(5))
    seen = set()
    weights = np.ones(9)
    # in the order of the batch, which chunks of one sequence keep to the examples' numbers
    for i, example in enumerate(examples):
        (chunk,) = chunks_of(
            encoded, examples[i : i + 1], weights, Drawn(drawn.views[i : i + 1], drawn.orders[i : i + 1])
        )
        state, (asked, definition) = data.states[example // 3], list(QUESTIONS.items())[example % 3]
        view = int(drawn.views[i])
        text = state.text if view == 0 else views(example // 3)[view - 1]
        order = drawn.orders[i, : len(parse_questions({"q": definition})[0].options)].tolist()
        target = np.array(encoded.targets[example])
        if asked == "act":
            items = list(CHOICE["criteria"].items())
            definition = CHOICE | {"criteria": dict(items[place] for place in order)}
            target = target[order]
            seen.add(tuple(order))
        else:
            assert order == sorted(order)
        expected = builder.encode(json.loads(text), {asked: definition})[asked]
        assert chunk.ids[0].tolist() == expected.ids
        assert chunk.markers[0].tolist() == expected.markers
        assert chunk.targets[0] == pytest.approx(target)
    assert seen == set(itertools.permutations(range(3)))
    together = chunks_of(encoded, examples, weights, drawn)
    assert sum(len(chunk.ids) for chunk in together) == len(examples)
    plain = encoded.drawn(examples, np.random.default_rng(3), options=False)
    assert plain.orders is None
