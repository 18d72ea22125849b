"""Training, as far as it needs no torch: rows and what is wrong with them, tokenizers, calibration, reports.

What needs torch is in test_training.py.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference import read_safetensors

import skyinfer
from skyinfer.errors import RequestError, SkyinferError
from skyinfer.files import streams
from skyinfer.metrics import (
    area_under_curve,
    effective_number,
    expected_calibration_error,
    fit_temperature,
    log_loss,
    measure,
    reliability,
    wilson_interval,
)
from skyinfer.schema import QUESTION_TYPES, parse_questions
from skyinfer.train import RowsError
from skyinfer.train.batches import CHUNK_TOKENS, chunks_of
from skyinfer.train.encoding import builder_of, encode, example_weights, halves, held_out_states
from skyinfer.train.rows import Dataset, gather, read_rows, target_of
from skyinfer.train.sizes import SIZES
from skyinfer.train.variants import canonical
from skyinfer.train.vocabulary import LEAST_SIZE, learn_tokenizer, tokenizer_config
from skyinfer.train.writing import check_place, write_weights

ROOT = Path(__file__).parents[1]
QUESTIONS: dict[str, Any] = {
    "act": {"type": "choice", "instructions": "What now?", "criteria": {"go": "drive on", "stop": "brake"}},
    "speed": {"type": "score", "instructions": "How fast?", "criteria": ["slow", "normal", "fast"]},
    "safe": {"type": "noul", "instructions": "Is it safe?"},
}
MIXED = {"type": "choice", "instructions": "Which?", "criteria": ["1", 1, 2.5]}
CONFUSING = {"type": "score", "instructions": "How many?", "criteria": ["1", "2", "3", "3"]}


def question(definition: dict[str, Any]) -> Any:
    return parse_questions({"q": definition})[0]


def row(state: Any = "light red", **changes: Any) -> dict[str, Any]:
    return {"state": state, "questions": QUESTIONS, "answers": {"act": "stop", "speed": 0, "safe": True}} | changes


def dataset(*rows: Any) -> Dataset:
    return gather(((f"row {i}", one) for i, one in enumerate(rows, 1)), "rows")


# ---------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("definition", "answer", "target"),
    [
        (QUESTIONS["act"], "stop", (0, 1)),
        (QUESTIONS["act"], {"stop": 0.25, "go": 0.75}, (0.75, 0.25)),
        (QUESTIONS["act"], {"go": 1}, (1, 0)),
        (MIXED, "1", (1, 0, 0)),
        (MIXED, 1, (0, 1, 0)),
        (MIXED, 2.5, (0, 0, 1)),
        (MIXED, "2.5", (0, 0, 1)),
        (QUESTIONS["speed"], 2, (0, 0, 1)),
        (QUESTIONS["speed"], 2.0, (0, 0, 1)),
        (QUESTIONS["speed"], "1", (0, 1, 0)),
        (QUESTIONS["speed"], "fast", (0, 0, 1)),
        (QUESTIONS["speed"], [0.5, 0.25, 0.25], (0.5, 0.25, 0.25)),
        (QUESTIONS["speed"], {"0": 0.5, "fast": 0.5}, (0.5, 0, 0.5)),
        (CONFUSING, 1, (0, 1, 0, 0)),
        (QUESTIONS["safe"], True, (0, 1)),
        (QUESTIONS["safe"], "false", (1, 0)),
        (QUESTIONS["safe"], 0.25, (0.75, 0.25)),
        (QUESTIONS["safe"], 1, (0, 1)),
        (QUESTIONS["safe"], {"true": 0.25}, (0.75, 0.25)),
        (QUESTIONS["safe"], {"false": 0.25, "true": 0.75}, (0.25, 0.75)),
    ],
)
def test_an_answer_is_a_distribution(definition: Any, answer: Any, target: tuple[float, ...]) -> None:
    assert target_of(question(definition), answer) == pytest.approx(target, abs=0)


def test_rounded_distributions_are_made_to_sum_to_one() -> None:
    assert target_of(question(QUESTIONS["speed"]), [0.33, 0.33, 0.33]) == pytest.approx((1 / 3,) * 3, abs=1e-15)


@pytest.mark.parametrize(
    ("definition", "answer", "message"),
    [
        (QUESTIONS["act"], "halt", "'halt' is no answer; give one of 'go', 'stop'"),
        (QUESTIONS["act"], 1, "1 is no answer"),
        (QUESTIONS["act"], None, "None is no answer"),
        (QUESTIONS["act"], [0.5, 0.5], "a list of probabilities answers a score only"),
        (QUESTIONS["act"], {"go": 0.5, "stop": 0.3}, "probabilities sum to 0.8, not to 1"),
        (QUESTIONS["act"], {"go": 0.5}, "probabilities sum to 0.5, not to 1"),
        (QUESTIONS["act"], {}, "probabilities sum to 0, not to 1"),
        (QUESTIONS["act"], {"go": math.nan, "stop": 1}, "nan is not a probability"),
        (QUESTIONS["act"], {"go": -0.1, "stop": 1.1}, "-0.1 is not a probability"),
        (QUESTIONS["act"], {"go": True}, "True is not a probability"),
        (QUESTIONS["act"], {"go": "1"}, "'1' is not a probability"),
        (QUESTIONS["speed"], 3, "a level from 0 to 2"),
        (QUESTIONS["speed"], -1, "a level from 0 to 2"),
        (QUESTIONS["speed"], 1.5, "give a list of probabilities"),
        (QUESTIONS["speed"], math.nan, "a level from 0 to 2"),
        (QUESTIONS["speed"], math.inf, "a level from 0 to 2"),
        (QUESTIONS["speed"], True, "a level from 0 to 2"),
        (QUESTIONS["speed"], [0.5, 0.5], "has 2 probabilities for 3 levels"),
        (QUESTIONS["speed"], {"0": 0.5, "slow": 0.5}, "names option '0' twice"),
        (CONFUSING, "2", "'2' may be any of the levels [1, 2]; give the level's number"),
        (QUESTIONS["safe"], 1.5, "1.5 is not a probability"),
        (QUESTIONS["safe"], math.nan, "nan is not a probability"),
        (QUESTIONS["safe"], "yes", "give true, false, or the probability of true"),
        (QUESTIONS["safe"], {"true": 0.5, "false": 0.2}, "probabilities sum to 0.7, not to 1"),
    ],
)
def test_what_is_no_answer_is_refused(definition: Any, answer: Any, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        target_of(question(definition), answer)
    assert message in str(refused.value)
    assert refused.value.loc[:2] == ("answers", "q")


# ------------------------------------------------------------------------------------------------- rows


def test_every_faulty_row_is_told_at_once(tmp_path: Path) -> None:
    good = json.dumps(row())
    faults: list[tuple[str | bytes, str]] = [
        ("{", "is not JSON: column 2"),
        ("[]", "a row must be an object, not a list"),
        ('{"state": "s", "questions": {}}', "answers: is missing"),
        (json.dumps(row(state=None)), "state: must not be null"),
        (json.dumps(row(questions={})), "questions: is empty"),
        (json.dumps(row(questions={"q": {"type": "choise"}})), "questions.q.type: must be choice, score or noul"),
        (json.dumps(row(answers={})), "answers: is empty"),
        (json.dumps(row(answers=[])), "answers: must be an object"),
        (json.dumps(row(answers={"act": "fly"})), "answers.act: 'fly' is no answer"),
        (json.dumps(row(answers={"acts": "go"})), "answers.'acts': no question has this id"),
        (json.dumps(row(answers={"act": {"go": 0.7}})), "answers.act: probabilities sum to 0.7"),
        (json.dumps(row(answers={"safe": math.nan})), "answers.safe: nan is not a probability"),
        (json.dumps(row(weight=0)), "weight: must be a positive number below 1e30, not 0"),
        (json.dumps(row(weight=math.inf)), "weight: must be a positive number below 1e30, not inf"),
        (json.dumps(row(weight=1e30)), "weight: must be a positive number below 1e30, not 1e+30"),
        (json.dumps(row(weight="2")), "weight: must be a positive number below 1e30, not '2'"),
        (json.dumps(row(wieght=2)), "unknown field 'wieght'"),
        (good[:-1] + ', "state": "again"}', "an object has the key 'state' twice"),
        (good.replace('"go": "drive on"', '"go": "a", "go": "b"'), "an object has the key 'go' twice"),
        (json.dumps(row(state="\ud800")), "state: holds the lone surrogate U+D800"),
        (good.encode().replace(b"red", b"r\xff"), "is not UTF-8 (byte 0xff at offset 18)"),
        ('{"state": ' + "9" * 5000 + "}", "cannot be read: Exceeds the limit"),
        ("[" * 100_000, "is nested too deeply"),
    ]
    lines = [good.encode(), b""]
    for text, _ in faults:
        lines += [text if isinstance(text, bytes) else text.encode(), good.encode()]
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(RowsError) as refused:
        gather(read_rows(file), str(file))
    error = refused.value
    assert error.n_rows == 2 * len(faults) + 1
    assert error.summary == f"{file}: {len(faults)} of {2 * len(faults) + 1} rows are faulty"
    # the blank line counts as a line and is no row
    assert [fault.place for fault in error.faults] == [f"line {3 + 2 * i}" for i in range(len(faults))]
    for fault, (_, message) in zip(error.faults, faults, strict=True):
        assert message in fault.reason
    shown = str(error).splitlines()
    assert len(shown) == 22
    assert shown[-1].strip() == f"... and {len(faults) - 20} more"


@pytest.mark.parametrize(
    ("start", "mark"),
    [(b"\xef\xbb\xbf", "UTF-8 byte order mark"), (b"\xff\xfe", "UTF-16"), (b"\x00\x00\xfe\xff", "UTF-32")],
)
def test_a_byte_order_mark_is_named(tmp_path: Path, start: bytes, mark: str) -> None:
    (tmp_path / "rows.jsonl").write_bytes(start + json.dumps(row()).encode())
    with pytest.raises(RowsError, match=mark):
        gather(read_rows(tmp_path / "rows.jsonl"), "rows.jsonl")


@pytest.mark.parametrize("content", [b"", b"\n  \n"])
def test_a_file_without_rows_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rows.jsonl").write_bytes(content)
    with pytest.raises(SkyinferError, match="there are no rows"):
        gather(read_rows(tmp_path / "rows.jsonl"), "rows.jsonl")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        list(read_rows(tmp_path))
    with pytest.raises(FileNotFoundError):
        list(read_rows(tmp_path / "none.jsonl"))
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(skyinfer.FormatError, match="a pipe"):
            list(read_rows(tmp_path / "pipe"))


def test_a_line_without_an_end_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_REQUEST_BYTES", 1 << 20)
    path = tmp_path / "rows.jsonl"
    row = json.dumps({"state": "s", "questions": {"q": QUESTIONS["safe"]}, "answers": {"q": True}})
    with open(path, "wb") as file:
        file.write(f"{row}\n".encode())
        file.truncate(1 << 40)  # no blocks of a disk
    rows = read_rows(path)
    assert next(rows)[0] == "line 1"
    with pytest.raises(skyinfer.FormatError, match="line 2: is longer than 1 MB"):
        next(rows)


def test_rows_about_the_same_are_one_example() -> None:
    found = dataset(
        row(answers={"act": "go"}, weight=3),
        row(answers={"act": "stop"}),
        row(answers={"safe": 0.5}),
        row({"light": "red"}, answers={"act": "go"}),
    )
    assert [state.text for state in found.states] == ["light red", '{"light": "red"}']
    assert len(found.questions) == 3
    assert [(e.state, e.question, e.target, e.weight) for e in found.examples] == [
        (0, 0, (0.75, 0.25), 4.0),
        (0, 2, (0.5, 0.5), 1.0),
        (1, 0, (1.0, 0.0), 1.0),
    ]


def test_what_differs_is_kept_apart() -> None:
    other = QUESTIONS | {"act": QUESTIONS["act"] | {"instructions": "And now?"}}
    lists = [{"type": "choice", "instructions": "?", "criteria": [label, "x"]} for label in (1, True, "1")]
    found = dataset(
        row(["a"]),
        row('["a"]'),  # the same text, but a list keeps its end
        row(questions=other),
        *(row(questions={"q": one}, answers={"q": "x"}) for one in lists),
    )
    assert [state.is_list for state in found.states] == [True, False, False]
    assert len(found.questions) == 3 + 1 + 3


def test_fields_of_ones_own_are_left_alone() -> None:
    assert dataset(row(x_source="a game")).n_rows == 1


# ------------------------------------------------------------------------------------------- calibration


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.5])
def test_a_known_temperature_is_found_again(temperature: float) -> None:
    random = np.random.default_rng(7)
    logits = random.normal(0, 3, (40_000, 4))
    p = np.exp(logits / temperature)
    p /= p.sum(1, keepdims=True)
    drawn = (p.cumsum(1) > random.random((len(p), 1))).argmax(1)
    targets, weights = np.eye(4)[drawn], np.ones(len(p))
    assert fit_temperature(logits, targets, weights) == pytest.approx(temperature, rel=0.02)
    # against the distribution itself the minimum is exact
    assert fit_temperature(logits, p, weights) == pytest.approx(temperature, rel=1e-4)


def test_a_temperature_stays_within_what_the_runtime_applies() -> None:
    logits, weights = np.array([[4.0, 0.0], [0.0, 4.0]]), np.ones(2)
    assert fit_temperature(logits, np.eye(2), weights) == pytest.approx(0.5)
    assert fit_temperature(logits, np.eye(2)[::-1], weights) == pytest.approx(5.0)


def test_options_that_a_question_lacks_do_not_count() -> None:
    logits, targets, weights = np.array([[1.0, -2.0], [0.5, 3.0]]), np.array([[0.8, 0.2], [0.1, 0.9]]), np.array([1, 2])
    wide = np.pad(logits, ((0, 0), (0, 2)), constant_values=-np.inf)
    padded = np.pad(targets, ((0, 0), (0, 2)))
    assert log_loss(wide, padded, weights, 1.3) == pytest.approx(log_loss(logits, targets, weights, 1.3), rel=1e-14)


def test_log_loss_by_hand() -> None:
    # p = (1/4, 3/4) and (1/2, 1/2)
    logits = np.array([[0.0, math.log(3)], [5.0, 5.0]])
    targets = np.array([[0.0, 1.0], [0.3, 0.7]])
    expected = (3 * -math.log(3 / 4) + 1 * math.log(2)) / 4
    assert log_loss(logits, targets, np.array([3.0, 1.0])) == pytest.approx(expected, rel=1e-14)


def test_reliability_by_hand() -> None:
    said = np.array([0.05, 0.09, 0.95, 0.99, 1.0])
    found = np.array([0.0, 1.0, 1.0, 1.0, 0.5])
    table = reliability(said, found, np.array([1.0, 1.0, 2.0, 1.0, 1.0]), n_bins=10)
    assert [(row.low, row.high, row.n) for row in table] == [(0.0, 0.1, 2.0), (0.9, 1.0, 4.0)]
    assert [row.said for row in table] == pytest.approx([0.07, (1.9 + 0.99 + 1.0) / 4])
    assert [row.found for row in table] == pytest.approx([0.5, 3.5 / 4])
    assert expected_calibration_error(table) == pytest.approx((2 * 0.43 + 4 * abs(3.89 / 4 - 3.5 / 4)) / 6)


def test_area_under_curve_is_that_of_all_pairs() -> None:
    random = np.random.default_rng(3)
    said = np.round(random.random(60), 1)  # with ties
    true, weights = (random.random(60) < said).astype(float), random.integers(1, 4, 60).astype(float)
    above = total = 0.0
    for i in np.flatnonzero(true == 1):
        for j in np.flatnonzero(true == 0):
            pair = weights[i] * weights[j]
            above += pair * ((said[i] > said[j]) + 0.5 * (said[i] == said[j]))
            total += pair
    assert area_under_curve(said, true, weights) == pytest.approx(above / total, rel=1e-12)
    assert area_under_curve(said, np.ones(60), weights) is None


def test_intervals_are_wilsons() -> None:
    """Against the roots of the equation that defines them: (p - share)^2 = z^2 p (1 - p) / n."""
    for share, n in ((0.5, 10), (0.97, 300), (1.0, 20), (0.0, 7.5)):
        for bound in wilson_interval(share, n):
            assert (bound - share) ** 2 == pytest.approx(1.959963984540054**2 * bound * (1 - bound) / n, abs=1e-12)
    assert wilson_interval(0.5, 0) == (0, 1)
    assert effective_number(np.ones(7)) == pytest.approx(7)
    assert effective_number(np.array([2.0, 2.0, 0.0])) == pytest.approx(2)
    assert [effective_number(np.full(7, size)) for size in (1e-300, 1e300)] == pytest.approx([7, 7])


def test_each_answer_may_have_a_temperature_of_its_own() -> None:
    logits, targets, weights = np.array([[1.0, -2.0], [0.5, 3.0]]), np.array([[1.0, 0], [0, 1.0]]), np.ones(2)
    both = measure("choice", logits, targets, weights, np.array([[0.5], [2.0]]))
    apart = [measure("choice", logits[i : i + 1], targets[i : i + 1], np.ones(1), t) for i, t in enumerate((0.5, 2.0))]
    for key in ("log_loss", "confidence"):
        assert both[key] == pytest.approx((apart[0][key] + apart[1][key]) / 2)
    assert (both["base_accuracy"], both["accuracy"]) == (0.5, 1.0)


def test_measures_of_a_score() -> None:
    logits = np.log(np.array([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]]))
    found = measure("score", logits, np.array([[1.0, 0, 0], [0, 0.5, 0.5]]), np.ones(2), 1.0)
    assert found["accuracy"] == 1.0
    assert found["mean_error"] == pytest.approx((0.4 + 0.1) / 2)
    assert found["ece"] == pytest.approx(abs(0.7 - 0.75))
    assert found["base_log_loss"] == pytest.approx(-(0.5 * math.log(0.5) + 2 * 0.25 * math.log(0.25)))
    assert found["auc"] is None


# -------------------------------------------------------------------------------------------- tokenizers


# enough different words for the merges that the tests ask for
WORDS = [f"{first}{second}ing" for first in ("climb", "hover", "glid", "turn") for second in ("ab", "ec", "if", "od")]
TEXTS = [
    *WORDS,
    "vy -3 dx 17 up 9 dn 7",
    "vy 12 dx 36 up 90 dn 71",
    "choice question: What now?",
    " go: drive on",
    "Größe 😀",
]


def written(directory: Path, tokenizer: dict[str, Any]) -> Path:
    directory.mkdir()
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(8192)), "utf-8")
    return directory


def test_a_tokenizer_is_of_the_form_that_every_reader_knows(tmp_path: Path) -> None:
    tokenizer = learn_tokenizer(TEXTS * 5, 320)
    assert len(tokenizer["model"]["vocab"]) == 320 - 5
    assert [token["id"] for token in tokenizer["added_tokens"]] == list(range(315, 320))
    builder, pad = builder_of(written(tmp_path / "tokenizer", tokenizer), 320, 64, 32)
    assert pad == 318

    import tokenizers

    plain = tokenizers.Tokenizer.from_str(json.dumps(tokenizer))
    for text in [*TEXTS, "never seen before: ~", "Gro\u0308\u00dfe", "tab\tnewline\n"]:
        ids = builder.state(text).ids.tolist()
        assert ids == plain.encode(text, add_special_tokens=False).ids
        # NFC, as ModernBERT's
        assert plain.decode(ids, skip_special_tokens=False) == text.replace("o\u0308", "ö")
    # the mask takes in the space on its left
    letter, mask = tokenizer["model"]["vocab"]["a"], tokenizer["added_tokens"][-1]["id"]
    assert plain.encode("a [MASK]", add_special_tokens=False).ids == [letter, mask]


def test_a_tokenizer_depends_on_the_texts_alone() -> None:
    texts = [f"vy {i % 40 - 20} dx {i * 7 % 300} nxt {i % 9}" for i in range(600)]
    assert learn_tokenizer(texts, 500) == learn_tokenizer(reversed(texts), 500)
    code = (
        "from skyinfer.train.vocabulary import learn_tokenizer; import hashlib, json;"
        f"print(hashlib.sha256(json.dumps(learn_tokenizer({TEXTS!r}, 300)).encode()).hexdigest())"
    )
    # another process hashes with another seed
    runs = {subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in range(3)}
    assert len(runs) == 1


def test_a_tokenizer_has_no_more_tokens_than_there_are() -> None:
    assert len(learn_tokenizer(["ab ab"], 1000)["model"]["vocab"]) == 256 + 2
    assert LEAST_SIZE == 261


# ------------------------------------------------------------------------------------------ what is read


@pytest.fixture
def many() -> Dataset:
    return dataset(
        *(row(f"light {('red', 'green')[i % 2]} " + "far " * (i % 23)) for i in range(80)),
        *(row(["turn"] * (i + 1), answers={"safe": i % 2 == 0}) for i in range(30)),
    )


def test_training_reads_what_answers_are_given_from(many: Dataset, tmp_path: Path) -> None:
    tokenizer = written(tmp_path / "tokenizer", learn_tokenizer(TEXTS * 5, 320))
    builder, pad = builder_of(tokenizer, 320, 64, 48)
    encoded = encode(many, builder, pad, 64)
    examples = many.examples
    assert encoded.n_cut > 0
    expected = []
    for example in examples:
        state = many.states[example.state]
        asked = many.questions[example.question].id
        value = json.loads(state.text) if state.is_list else state.text
        expected.append(builder.encode(value, {asked: QUESTIONS[asked]})[asked])
    chunks = chunks_of(encoded, np.arange(len(examples)), np.arange(len(examples), dtype=float), tokens=500)
    assert sorted(np.concatenate([chunk.examples for chunk in chunks])) == list(range(len(examples)))
    assert len(chunks_of(encoded, np.arange(8), np.ones(len(examples)))) == 1
    for chunk in chunks:
        assert chunk.ids.size <= 500
        for i, number in enumerate(chunk.examples):
            sequence = expected[number]
            assert chunk.ids[i].tolist() == sequence.ids + [pad] * (chunk.ids.shape[1] - len(sequence.ids))
            assert chunk.lengths[i] == len(sequence.ids)
            assert chunk.markers[i][chunk.options[i]].tolist() == sequence.markers
            assert not chunk.markers[i][~chunk.options[i]].any()
            assert chunk.targets[i][chunk.options[i]] == pytest.approx(examples[number].target)
            assert chunk.weights[i] == number
            assert QUESTION_TYPES[chunk.kinds[i]] == QUESTIONS[many.questions[examples[number].question].id]["type"]


def test_chunks_are_of_about_the_same_work(many: Dataset, tmp_path: Path) -> None:
    builder, pad = builder_of(written(tmp_path / "tokenizer", learn_tokenizer(TEXTS, 300)), 300, 128, 64)
    encoded = encode(many, builder, pad, 128)
    assert chunks_of(encoded, np.arange(0), encoded.weights) == []
    chunks = chunks_of(encoded, np.arange(len(encoded.weights)), encoded.weights)
    assert sum(chunk.ids.size for chunk in chunks) > 2 * CHUNK_TOKENS
    assert len(chunks) % 4 == 0
    sizes = [int(chunk.lengths.sum()) for chunk in chunks]
    assert max(sizes) < 1.1 * min(sizes)


def test_a_question_that_leaves_no_room_is_cut_as_in_an_answer(tmp_path: Path) -> None:
    wide = {"q": {"type": "choice", "instructions": "Which one?", "criteria": ["one", "two", "three " * 20]}}
    builder, pad = builder_of(written(tmp_path / "tokenizer", learn_tokenizer(TEXTS, 300)), 300, 40, 90)
    encoded = encode(dataset(row("state", questions=wide, answers={"q": "two"})), builder, pad, 40)
    (chunk,) = chunks_of(encoded, np.arange(1), np.ones(1))
    assert chunk.ids[0].tolist() == builder.encode("state", wide)["q"].ids
    assert chunk.ids.shape == (1, 40)


def test_question_types_count_the_same(many: Dataset, tmp_path: Path) -> None:
    builder, pad = builder_of(written(tmp_path / "tokenizer", learn_tokenizer(TEXTS, 300)), 300, 128, 64)
    encoded = encode(many, builder, pad, 128)
    learned = np.arange(0, len(encoded.weights), 2)
    weights = example_weights(encoded, learned)
    kinds = encoded.kinds[encoded.question]
    assert weights[1::2].sum() == 0
    assert weights.sum() == pytest.approx(len(learned))
    for kind in range(3):
        assert weights[kinds == kind].sum() == pytest.approx(len(learned) / 3)


def test_options_that_do_not_fit_are_told_with_their_row(tmp_path: Path) -> None:
    wide = {"q": {"type": "choice", "instructions": "?", "criteria": [f"label {i}" for i in range(40)]}}
    builder, pad = builder_of(written(tmp_path / "tokenizer", learn_tokenizer(TEXTS, 300)), 300, 64, 32)
    with pytest.raises(RowsError, match=r"row 2: questions\.q\.criteria: only \d+ of 40 options fit"):
        encode(dataset(row(), row(questions=wide, answers={"q": "label 3"})), builder, pad, 64)


def test_held_out_states_are_few_and_stay_where_they_are(many: Dataset) -> None:
    texts = [canonical(state) for state in many.states]
    held = held_out_states(texts, None, 0)
    assert held.sum() == round(len(texts) / 10)
    assert held_out_states(texts, 0.5, 0).sum() == round(len(texts) / 2)
    assert held_out_states(texts, 0, 0).sum() == 0
    assert held.tolist() != held_out_states(texts, None, 1).tolist()
    again = held_out_states(texts[5:], held[5:].sum() / len(texts[5:]), 0)
    names = [{text for text, kept in zip(of, kept_back, strict=True) if kept}
             for of, kept_back in ((texts, held), (texts[5:], again))]  # fmt: skip
    assert len(names[0] - names[1]) <= 5
    assert held_out_states(["a", "b"], 0.01, 0).sum() == 1


def test_states_that_say_the_same_are_held_out_together() -> None:
    """In another order of keys or spelling of numbers a state would be learned from and measured on."""
    values = [{"a": i % 20, "b": 1} if i < 20 else {"b": 1.0, "a": float(i % 20)} for i in range(40)]
    found = dataset(*map(row, values))
    texts = [canonical(state) for state in found.states]
    for fraction in (0.05, 0.1, 0.5, 0.9):
        held = held_out_states(texts, fraction, 0)
        assert held[:20].tolist() == held[20:].tolist()
        assert 2 <= held.sum() <= max(2, 40 * fraction)
    parts = halves([f"state {i}" for i in range(1000)], 0)
    assert 400 < parts.sum() < 600


# ---------------------------------------------------------------------------------------------- the rest


def test_sizes_suit_llama_cpp() -> None:
    for size in SIZES.values():
        assert size.d_model % 64 == 0
        assert size.n_heads == size.d_model // 64


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path) -> None:
    check_place(tmp_path, force=False)
    check_place(tmp_path / "new", force=False)
    (tmp_path / "thesis.tex").write_text("years of work")
    for force in (False, True):
        with pytest.raises(SkyinferError, match=r"holds 'thesis\.tex', which is no part of a checkpoint"):
            check_place(tmp_path, force=force)
    with pytest.raises(NotADirectoryError):
        check_place(tmp_path / "thesis.tex", force=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "training").write_text("how to run faster")
    with pytest.raises(NotADirectoryError):
        check_place(tmp_path / "out", force=True)
    with pytest.raises(FileNotFoundError, match="there is no directory"):
        check_place(tmp_path / "no" / "where", force=True)


@pytest.mark.skipif(sys.platform == "win32", reason="files have no such permissions there")
@pytest.mark.parametrize("umask", [0o022, 0o007])
def test_weights_are_for_those_that_the_umask_says(tmp_path: Path, umask: int) -> None:
    pytest.importorskip("safetensors")
    tensors = {"b": np.arange(6, dtype=np.float16).reshape(2, 3).T, "a": np.ones(5, np.float16)}
    before = os.umask(umask)
    try:
        write_weights(tmp_path / "model.safetensors", tensors)
    finally:
        os.umask(before)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert stat.S_IMODE((tmp_path / "model.safetensors").stat().st_mode) == 0o666 & ~umask
    found = read_safetensors(tmp_path / "model.safetensors")
    assert found.keys() == tensors.keys()
    assert all(np.array_equal(found[name], values) for name, values in tensors.items())


@pytest.mark.parametrize("missing", ["torch", "safetensors", "safetensors.numpy"])
def test_without_what_training_needs_the_error_names_the_extra(missing: str) -> None:
    code = f"""
import sys
sys.modules[{missing!r}] = None
import skyinfer.train
assert skyinfer.train.Report and skyinfer.train.SIZES and "numpy" in sys.modules
try:
    from skyinfer.train import train_rows
except ImportError as error:
    assert "skyinfer[train]" in str(error), error
else:
    raise AssertionError("imported")
from skyinfer.command.main import main
raise SystemExit(main(["train", "rows.jsonl", "-o", "out"]))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert result.returncode == 1, result.stderr
    needs = "skyinfer: training needs torch and safetensors: pip install 'skyinfer[train]'"
    assert result.stderr.decode().splitlines() == [needs]


def test_the_extra_brings_what_training_imports() -> None:
    """Of the packages of others: those of skyinfer itself, and of its extra `train`."""
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    listed = re.findall(r"^dependencies = \[(.*?)\]$|^train = \[(.*?)\]$", project, re.M | re.S)
    brought = set(re.findall(r'"([a-z0-9-]+)', " ".join(map("".join, listed))))
    imported = set()
    for file in (ROOT / "src" / "skyinfer" / "train").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(str(node.module).split(".")[0])
    assert imported - sys.stdlib_module_names == {"numpy", "tokenizers", "safetensors", "torch", "matplotlib"}
    assert {"numpy", "tokenizers", "safetensors", "torch", "matplotlib"} <= brought
