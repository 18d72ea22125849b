"""Tables answered: every row as `decide` answers its state, and what each Arrow type becomes in a state."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_compiled import QUESTIONS

import skyinfer
from skyinfer import RequestError

pa = pytest.importorskip("pyarrow")
ds = pytest.importorskip("pyarrow.dataset")
pq = pytest.importorskip("pyarrow.parquet")

from skyinfer.rows import ColumnError, StateColumns, answer_rows  # noqa: E402

N = 2500


@pytest.fixture(scope="module")
def model() -> skyinfer.Model:
    return skyinfer.load()


@pytest.fixture(scope="module")
def table() -> Any:
    return pa.table(
        {
            "id": pa.array(range(N), pa.int64()),
            "speed": pa.array([i % 7 for i in range(N)], pa.int16()),
            "note": pa.array([f"vy {i % 11}" for i in range(N)]),
        }
    )


def expected(model: skyinfer.Model, states: list[Any]) -> list[Any]:
    return [response["answers"] for response in model.decide_many(states, QUESTIONS)]


def test_a_table_is_answered_as_decide_answers_its_rows(model: skyinfer.Model, table: Any) -> None:
    found = answer_rows(model, QUESTIONS, table, state=["speed", "note"]).read_all()
    assert found.select(table.column_names).equals(table)
    answers = expected(model, [{"speed": i % 7, "note": f"vy {i % 11}"} for i in range(N)])
    rows = found.to_pylist()
    for row, answer in zip(rows, answers, strict=True):
        assert row["action"] == answer["action"]["choice"]
        assert row["sure"] == ("true" if answer["sure"]["noul"] > 0.5 else "false")
        assert row["sure_noul"] == np.float32(answer["sure"]["noul"])
        assert row["level_score"] == pytest.approx(answer["level"]["score"], rel=1e-6)
        assert row["level_confidence"] == pytest.approx(answer["level"]["confidence"], rel=1e-5, abs=1e-6)
        p = answer["turned"]["probabilities"]
        assert row["turned_probabilities"] == [np.float32(value) for value in p.values()]
        assert row["turned_truncated"] is False
    assert found.schema.field("action").type == pa.dictionary(pa.int32(), pa.string())
    assert found.schema.field("action_probabilities").type == pa.list_(pa.float32(), 3)
    wide = answer_rows(model, QUESTIONS, table, state=["speed", "note"], probabilities="columns", prefix="a_")
    assert wide.schema.names[3:9] == [
        "a_action", "a_action_confidence", "a_action_truncated", "a_action_p_go", "a_action_p_stay", "a_action_p_ask",
    ]  # fmt: skip
    np.testing.assert_array_equal(
        np.stack([column.to_numpy() for column in wide.read_all().columns[6:9]], 1),
        np.stack(found["action_probabilities"].to_pylist()),
    )


def test_every_kind_of_source_gives_the_same(model: skyinfer.Model, table: Any, tmp_path: Path) -> None:
    whole = answer_rows(model, QUESTIONS, table, state="note", threads=1).read_all()
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=700)
    for source in (
        table.combine_chunks().to_batches()[0],
        ds.dataset(tmp_path / "a.parquet"),
        table.to_reader(300),
        pa.Table.from_batches(table.to_batches(77)),
    ):
        assert answer_rows(model, QUESTIONS, source, state="note").read_all().equals(whole)
    empty = answer_rows(model, QUESTIONS, table.slice(0, 0), state="note")
    assert empty.read_all().schema == whole.schema
    with pytest.raises(TypeError, match="RecordBatch"):
        answer_rows(model, QUESTIONS, [1, 2])


MOMENT = datetime.datetime(2026, 1, 31, 12, 30)
TYPES: list[tuple[Any, Any, Any]] = [
    (pa.bool_(), [True, None], [True, None]),
    (pa.uint64(), [2**64 - 1], [2**64 - 1]),
    (pa.float32(), [0.1], [float(np.float32(0.1))]),
    (pa.large_string(), ["a", None], ["a", None]),
    (pa.string_view(), ["a"], ["a"]),
    (pa.dictionary(pa.int8(), pa.string()), ["x", "y", None], ["x", "y", None]),
    (pa.timestamp("s"), [MOMENT, None], ["2026-01-31T12:30:00", None]),
    (pa.timestamp("ns"), [MOMENT], ["2026-01-31T12:30:00.000000000"]),
    (pa.timestamp("ms", "UTC"), [MOMENT], ["2026-01-31T12:30:00.000Z"]),
    (pa.date32(), [MOMENT.date()], ["2026-01-31"]),
    (pa.date64(), [MOMENT.date()], ["2026-01-31"]),
    (pa.time32("s"), [MOMENT.time()], ["12:30:00"]),
    (pa.duration("ms"), [datetime.timedelta(seconds=1.5), None], [1.5, None]),
    (pa.decimal128(5, 2), [Decimal("1.50"), None], [1.5, None]),
    (pa.list_(pa.timestamp("s")), [[MOMENT], [], None], [["2026-01-31T12:30:00"], [], None]),
    (pa.list_(pa.int8(), 2), [[1, 2], None, [3, 4]], [[1, 2], None, [3, 4]]),
    (pa.struct([("d", pa.date32()), ("n", pa.list_(pa.int8()))]),
     [{"d": MOMENT.date(), "n": [1]}, None], [{"d": "2026-01-31", "n": [1]}, None]),
    (pa.map_(pa.string(), pa.int8()), [[("a", 1)], None], [{"a": 1}, None]),
    (pa.null(), [None], [None]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "given", "states"), TYPES, ids=[str(kind) for kind, _, _ in TYPES])
def test_what_types_become(kind: Any, given: list[Any], states: list[Any]) -> None:
    array = pa.array([*given, *given], kind)
    for part in (array, array.slice(len(given))):  # one that begins in the middle of its buffers
        batch = pa.record_batch([part, part], ["v", "w"])
        found = StateColumns(batch.schema, "v").states(batch)
        assert found == states * (len(part) // len(given))
        assert json.dumps(StateColumns(batch.schema, ["w", "v"]).states(batch)[0]) == json.dumps(
            {"w": states[0], "v": states[0]}
        )


@pytest.mark.parametrize("threads", [0, 257, True, "2"])
def test_threads_that_no_call_takes(model: skyinfer.Model, threads: Any) -> None:
    """The limit of `load` and of `skyinfer rows --threads` (csrc/skyinfer.h)."""
    table = pa.table({"state": ["a"]})
    compiled = model.compile(QUESTIONS)
    for call in (
        lambda: answer_rows(model, QUESTIONS, table, threads=threads),
        lambda: compiled.arrays(["a"], threads=threads),
        lambda: compiled.batches(["a"], 1, threads=threads),
        lambda: skyinfer.load(model.path, threads=threads),
    ):
        with pytest.raises(ValueError, match="threads: expected 1 to 256, got"):
            call()
    assert answer_rows(model, QUESTIONS, table, threads=256).read_all().num_rows == 1


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"on_error": "ignore"}, ValueError, "on_error: expected 'raise' or 'keep', got 'ignore'"),
        ({"on_error": None}, ValueError, "on_error: expected"),
        ({"probabilities": "rows"}, ValueError, "probabilities: expected 'list' or 'columns'"),
        ({"prefix": 5}, TypeError, "the prefix: expected text, got int"),
        ({"prefix": b"x"}, TypeError, "the prefix: expected text, got bytes"),
        ({"state": 5}, TypeError, "state: expected a column's name or a list of names, got int"),
        ({"state": b"note"}, TypeError, "state: expected a column's name or a list of names, got bytes"),
        ({"state": ["note", 5]}, TypeError, "the state's column: expected text, got int"),
    ],
)
def test_options_that_mean_nothing(
    model: skyinfer.Model, table: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        answer_rows(model, QUESTIONS, table, **{"state": "note", **options})


def test_columns_that_cannot_be_used_are_refused(model: skyinfer.Model, table: Any) -> None:
    blob = table.append_column("blob", pa.array([b"x"] * N)).append_column("action_confidence", table["id"])
    for state, message in (
        (None, "column 'state': there is none; name the state's columns; the table has 'id'"),
        ("nothing", "column 'nothing': there is none"),
        (["id", "id"], "named twice"),
        ([], "at least one"),
        ("blob", "a state cannot hold binary; decode it to text"),
        ("note", "column 'action_confidence': the table has it already; rename it or the question, or give a prefix"),
    ):
        with pytest.raises(ColumnError, match=message):
            answer_rows(model, QUESTIONS, blob, state=state)  # type: ignore[arg-type]
    twice = pa.table([table["id"], table["id"]], ["id", "id"])
    with pytest.raises(ColumnError, match="2 of this name"):
        answer_rows(model, QUESTIONS, twice, state="id")
    clashing = {"a": QUESTIONS["sure"], "a_noul": QUESTIONS["sure"]}
    with pytest.raises(ColumnError, match="two answers would have this column"):
        answer_rows(model, clashing, table, state="note")
    with pytest.raises(ColumnError, match="one column of text"):
        answer_rows(model, QUESTIONS, table, state="id", parse_json=True)


def test_faulty_rows(model: skyinfer.Model) -> None:
    texts = [json.dumps({"n": i}) for i in range(1500)]
    texts[1100], texts[1300] = "{not json", None  # type: ignore[call-overload]
    table = pa.table({"state": texts})
    with pytest.raises(RequestError, match=r"rows\.1100\.state: is not JSON") as caught:
        answer_rows(model, QUESTIONS, table, parse_json=True).read_all()
    assert caught.value.loc == ("rows", 1100, "state")
    with pytest.raises(RequestError, match=r"rows\.1300: must not be null"):
        answer_rows(model, QUESTIONS, table).read_all()
    kept = answer_rows(model, QUESTIONS, table, parse_json=True, on_error="keep").read_all()
    assert [i for i, said in enumerate(kept["x_error"].to_pylist()) if said is not None] == [1100, 1300]
    for name in kept.column_names[1:-1]:
        assert [i for i, value in enumerate(kept[name].to_pylist()) if value is None] == [1100, 1300], name
    assert kept["action"][1301].as_py() == model.decide({"n": 1301}, QUESTIONS)["answers"]["action"]["choice"]  # type: ignore[typeddict-item]
    all_faulty = pa.table({"state": pa.array([None] * 3, pa.string())})
    assert answer_rows(model, QUESTIONS, all_faulty, on_error="keep").read_all()["action"].null_count == 3


def test_answers_that_abstain_are_those_of_decide(model: skyinfer.Model) -> None:
    """At thresholds that an answer's probability meets exactly, and at those beside it, which float32 does not tell."""
    states = [f"vy {i % 13} dx {i}" for i in range(300)]
    table = pa.table({"state": [*states[:100], None, *states[100:]]})
    decided: Any = model.decide(states[17], QUESTIONS)["answers"]
    p = max(decided["action"]["probabilities"].values())
    noul = max(decided["sure"]["noul"], 1 - decided["sure"]["noul"])
    for least in (p, np.nextafter(p, 1), np.nextafter(p, 0), noul, 0, 1, {"choice:3-5": p, "default": 0.6}):
        found = answer_rows(model, QUESTIONS, table, min_confidence=least, on_error="keep", prefix="a_").read_all()
        answers: list[Any] = [
            response["answers"] for response in model.decide_many(states, QUESTIONS, min_confidence=least)
        ]
        for name in QUESTIONS:
            abstained = found[f"a_{name}_abstained"].to_pylist()
            assert abstained.pop(100) is None
            assert abstained == ["x_abstained" in answer[name] for answer in answers], (least, name)
    names = answer_rows(model, QUESTIONS, table, min_confidence=0.5).schema.names
    assert names[1:6] == [
        "action", "action_confidence", "action_truncated", "action_abstained", "action_probabilities",
    ]  # fmt: skip
    with pytest.raises(RequestError, match="min_confidence: must be a number from 0 to 1"):
        answer_rows(model, QUESTIONS, table, min_confidence=2)


def test_memory_is_bounded(model: skyinfer.Model) -> None:
    taken = 0

    def endless() -> Any:
        nonlocal taken
        while True:
            taken += 1
            yield pa.record_batch([pa.array(["a"] * 500)], ["state"])

    source = pa.RecordBatchReader.from_batches(pa.schema([("state", pa.string())]), endless())
    reader = answer_rows(model, {"sure": QUESTIONS["sure"]}, source, threads=2)
    for number in range(1, 10):
        assert len(reader.read_next_batch()) == 500
        assert taken <= number + 5
