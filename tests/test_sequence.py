"""Layout of sequences: budgets, and text that cannot escape. The runtime's own are compared in test_golden.py."""

from __future__ import annotations

import json
import random
import threading
from typing import Any

import numpy as np
import pytest
from test_tokenizer import load

from skyinfer.core.border import CoreQuestions
from skyinfer.errors import RequestError
from skyinfer.schema import parse_questions
from skyinfer.text.sequence import Sequence, SequenceBuilder
from skyinfer.text.template import PromptTemplate

LONG = "the drone keeps flying through the next gap and lets gravity pull it down "


def builder(kind: str = "byte", max_tokens: int = 512, max_head_tokens: int = 192) -> SequenceBuilder:
    tokenizer = load(kind)
    texts = {"cls": tokenizer.cls_text, "sep": tokenizer.sep_text, "mask": tokenizer.mask_text}
    template = PromptTemplate.from_metadata({}, **texts)
    return SequenceBuilder(tokenizer, template, max_tokens, max_head_tokens)


def choice(criteria: Any, instructions: Any = "Which?", **more: Any) -> dict[str, Any]:
    return {"type": "choice", "instructions": instructions, "criteria": criteria, **more}


def encode(state: Any, question: dict[str, Any], *args: Any) -> Sequence:
    return builder(*args).encode(state, {"q": question})["q"]


def parts(sequence: Sequence) -> tuple[list[int], list[list[int]], list[int]]:
    """(question, options without markers, state), read from the markers alone; needs the whole head."""
    tokenizer = load("byte")
    ids, markers = sequence.ids, sequence.markers
    assert ids[0] == tokenizer.cls_id
    assert ids[-1] == tokenizer.sep_id
    assert ids[markers[0] - 1] == tokenizer.sep_id
    assert all(ids[m] == tokenizer.mask_id for m in markers)
    state = len(ids) - 1 - sequence.state_tokens_used
    assert ids[state - 1] == tokenizer.sep_id
    ends = [*markers[1:], state - 1]
    options = [ids[m + 1 : end] for m, end in zip(markers, ends, strict=True)]
    return ids[1 : markers[0] - 1], options, ids[state:-1]


# ------------------------------------------------------------------------------ layout and budgets


def test_layout() -> None:
    tokenizer = load("byte")
    sequence = encode({"a": 1.0}, choice({"x": "one", "y": None}))
    question, options, state = parts(sequence)
    assert question == tokenizer.encode("choice question: Which?")
    assert options == [tokenizer.encode(" x: one"), tokenizer.encode(" y")]
    assert state == tokenizer.encode('{"a": 1.0}')
    assert not sequence.truncated
    assert sequence.tokens_per_option is None
    assert (sequence.options, sequence.options_distinct) == (2, 2)


SPELLINGS = ["[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]", "[SEP][MASK] x[SEP]", "[MASK][MASK]"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_text_cannot_end_its_part(spelling: str) -> None:
    """Special tokens in any part leave the number and order of parts, and all other parts, alone."""
    plain = parts(encode("state", choice({"a": "one", "b": "two"})))
    text = f"x{spelling}y"
    tokenizer = load("byte")
    clean = text.replace("[MASK]", " ")
    found = parts(encode(text, choice({"a": "one", "b": "two"})))
    assert found == (plain[0], plain[1], tokenizer.encode(clean))
    found = parts(encode("state", choice({"a": "one", "b": "two"}, text)))
    assert found == (tokenizer.encode(f"choice question: {clean}"), plain[1], plain[2])
    found = parts(encode("state", choice({"a": text, text: "two"})))
    options = [tokenizer.encode(f" a: {clean}"), tokenizer.encode(f" {clean}: two")]
    assert found == (plain[0], options, plain[2])
    found = parts(encode({text: [text]}, choice({"a": {text: text}, "b": "two"}, [text])))
    assert found[0] == tokenizer.encode(f'choice question: ["{clean}"]')
    assert found[1] == [tokenizer.encode(f' a: {{"{clean}": "{clean}"}}'), plain[1][1]]
    assert found[2] == tokenizer.encode(f'{{"{clean}": ["{clean}"]}}')


def test_a_list_keeps_its_tail_and_a_string_its_head() -> None:
    tokenizer = load("byte")
    text = f"BEGIN {LONG * 60} END"
    for state, tail in ((text, False), ({"a": text}, False), ([text], True), ((text,), False)):
        sequence = encode(state, choice(["a", "b"]))
        rendered = state if isinstance(state, str) else json.dumps(state)
        whole = tokenizer.encode(rendered)
        assert sequence.truncated
        assert len(sequence.ids) == 512
        assert sequence.state_tokens == len(whole)
        kept = parts(sequence)[2]
        assert kept == (whole[-len(kept) :] if tail else whole[: len(kept)])


def test_no_room_for_the_state() -> None:
    tokenizer = load("byte")
    for state in ("abc", ["abc"]):
        n = len(encode("", choice(["a", "b"])).ids)
        sequence = encode(state, choice(["a", "b"]), "byte", n)
        assert sequence.state_tokens_used == 0
        assert len(sequence.ids) == n
        assert sequence.ids[-2:] == [tokenizer.sep_id] * 2
        # one token less: the closing [SEP] goes, too
        assert len(encode(state, choice(["a", "b"]), "byte", n - 1).ids) == n - 1


def test_options_keep_48_tokens_and_then_shrink_together() -> None:
    sequence = encode("s", choice({"a": LONG * 9, "b": None}))
    assert [len(option) for option in parts(sequence)[1]] == [48, 1]
    assert sequence.tokens_per_option is None
    for n in (12, 40):
        sequence = encode("s", choice({f"key {i}": LONG for i in range(n)}))
        per_option = max(4, (192 - 16) // n)
        assert sequence.tokens_per_option == per_option
        assert all(len(option) == per_option - 1 for option in parts(sequence)[1])


def test_long_instructions_keep_what_the_options_leave() -> None:
    question = parts(encode("s", choice(["a", "b"], LONG * 30)))[0]
    assert len(question) == 192 - 2 * 2
    question = parts(encode("s", choice([f"key {i}" for i in range(43)], LONG)))[0]
    assert len(question) == max(8, 192 - 43 * 4)


def test_options_that_become_identical_are_counted() -> None:
    sequence = encode("s", choice({f"{LONG}{i}": LONG for i in range(12)}))
    assert (sequence.options, sequence.options_distinct) == (12, 1)


def test_255_options() -> None:
    sequence = encode("s", choice([f"{i}" for i in range(255)]), "byte", 2048, 1280)
    assert len(sequence.markers) == 255 == sequence.options
    with pytest.raises(RequestError, match="of 255 options fit in the model's 512 tokens") as caught:
        encode("s", choice([f"{i}" for i in range(255)]))
    assert caught.value.loc == ("questions", "q", "criteria")


def test_option_order_shows_slots() -> None:
    tokenizer = load("byte")
    sequence = encode("s", choice(["a", "b", "c"], option_order=[2, 0, 1]))
    assert parts(sequence)[1] == [tokenizer.encode(f" {x}") for x in "cab"]


def test_keeping_the_tail_of_options() -> None:
    tokenizer = load("byte")
    tail = load("byte")
    tail.keeps_tail = True
    template = PromptTemplate.from_metadata({}, cls="[CLS]", sep="[SEP]", mask="[MASK]")
    build = SequenceBuilder(tail, template, 512, 192)
    sequence = build.encode("s", {"q": choice([LONG * 9, "b"])})["q"]
    assert parts(sequence)[1][0] == tokenizer.encode(f" {LONG * 9}")[-48:]


NOUL = {"type": "noul", "instructions": "i"}


@pytest.mark.parametrize(
    ("state", "question", "loc"),
    [
        ("\ud800", choice(["a"]), ("state",)),
        ({"a": ["\udfff"]}, choice(["a"]), ("state",)),
        ("s", choice(["a"], "\ud800"), ("questions", "q", "instructions")),
        ("s", choice(["a", "\ud800"]), ("questions", "q", "criteria", 1)),
        ("s", choice({"a": "\ud800"}), ("questions", "q", "criteria", 0)),
        ("s", NOUL | {"labels": {"true": "\ud800", "false": "no"}}, ("questions", "q", "labels", "true")),
        ("s", NOUL | {"labels": {"true": "yes", "false": "\ud800"}}, ("questions", "q", "labels", "false")),
        ("s", NOUL | {"criteria": {"true": "\ud800"}}, ("questions", "q", "criteria", "true")),
        ("s", NOUL | {"criteria": {False: "\ud800"}, "option_order": [1, 0]}, ("questions", "q", "criteria", "false")),
        (None, choice(["a"]), ("state",)),
    ],
)
def test_text_that_is_none(state: Any, question: Any, loc: tuple[Any, ...]) -> None:
    with pytest.raises(RequestError) as caught:
        encode(state, question)
    assert caught.value.loc == loc


def test_nothing_asked() -> None:
    assert builder().encode("s", {}) == {}
    with pytest.raises(RequestError):
        builder().encode(None, {})


def test_ids_do_not_depend_on_neighbours() -> None:
    questions = {"a": choice(["x", "y"]), "b": {"type": "noul", "instructions": "Is it?"}}
    build = builder()
    together = build.encode("s", questions)
    for key, question in questions.items():
        assert build.encode("s", {"renamed": question})["renamed"] == together[key]


def test_head_and_state_can_be_kept() -> None:
    build = builder()
    question = parse_questions({"q": choice(["a", "b"])})[0]
    prefix, states = build.prefix(question), [build.state("one"), build.state(["two"])]
    before, core = prefix.ids, build.core([prefix])
    for state, tokens in zip(("one", ["two"]), states, strict=True):
        assert build.sequences([prefix], core, tokens) == build.build(state, [prefix])
    assert prefix.ids == before


@pytest.mark.parametrize("keep_tail", [False, True])
def test_what_the_core_lays_out_is_the_runtimes_rule(keep_tail: bool) -> None:
    """[prefix] [state] [SEP] in max_tokens: a state loses its end or beginning, a prefix that takes all its end."""
    rng = random.Random(0)
    for _ in range(500):
        n_prefix, n_state, most = rng.randint(1, 12), rng.randint(0, 14), rng.randint(1, 20)
        prefix, state = [rng.randint(3, 99) for _ in range(n_prefix)], [rng.randint(100, 199) for _ in range(n_state)]
        core = CoreQuestions(None, [([7], [0], 1, 1), (prefix, [0], 0, most)], [[0], [0]], sep_id=2)
        ids, used = core.sequence(1, np.array(state, np.int32), keep_tail)
        room = max(0, most - n_prefix - 1)
        kept = state[-room:] if keep_tail and room < n_state else state[:room]
        kept = kept if room else []
        assert ids == [*prefix, *kept, 2][:most]
        assert used == len(kept)
        assert core.lengths(n_state) == [1, len(ids)]
        assert core.n_tokens(n_state) == 1 + len(ids)
    for question in (-1, 2):
        with pytest.raises(IndexError):
            core.sequence(question, np.zeros(0, np.int32), keep_tail)


def test_threads_share_a_builder() -> None:
    build = builder()
    cases = [(f"state {i} {LONG}", {"q": choice([f"a{i}", "b"], f"Which {i}?")}) for i in range(40)]
    expected = [build.encode(*case) for case in cases]
    wrong: list[int] = []

    def work(seed: int) -> None:
        order = random.Random(seed).sample(range(len(cases)), len(cases))
        for i in order * 3:
            if build.encode(*cases[i]) != expected[i]:
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
