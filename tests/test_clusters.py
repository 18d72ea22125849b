"""Rows answered by Ray Data, Dask and Spark on this machine, by what the documents show: the same as without them.

Two workers of Ray, one of them killed in the middle. Needs packages that no extra installs, and Spark Java:

    pip install 'ray[data]' 'dask[dataframe]' pyspark && pytest tests/test_clusters.py
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_compiled import QUESTIONS

import skyinfer
from skyinfer.command.main import main

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from programs import need, need_package  # noqa: E402

from skyinfer.rows import ColumnError, answer_rows  # noqa: E402
from skyinfer.rows.ray import AnswerBatches  # noqa: E402

ROOT = Path(__file__).parents[1]
N = 30_000
ENVIRONMENT = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYSPARK_PYTHON": sys.executable}

# The example in a program, with workers that note when they load the model and when they answer, one of which dies by
# SIGKILL while it answers.
_KILLED = """
import json, os, pathlib, signal, sys, time, uuid
sys.path.insert(0, sys.argv[1])
import ray
from ray_rows import answer_parquet
from skyinfer.rows.ray import AnswerBatches

notes = pathlib.Path(sys.argv[2])

class Dying(AnswerBatches):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        (notes / f"load-{os.getpid()}-{uuid.uuid4()}").touch()
        self.calls = 0

    def __call__(self, table):
        self.calls += 1
        if self.calls == 2:
            try:
                (notes / "killed").touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        found = super().__call__(table)
        (notes / f"call-{os.getpid()}-{uuid.uuid4()}").touch()
        return found

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
options = json.loads(sys.argv[3])
answer_parquet("in", "out", options, actors=2, answering=Dying)
"""


def a_table() -> Any:
    return pa.table({"id": range(N), "speed": [i % 7 for i in range(N)], "note": [f"vy {i % 11}" for i in range(N)]})


def test_two_workers_of_which_one_is_killed_answer_as_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_package("ray")
    monkeypatch.chdir(tmp_path)
    table, notes = a_table(), tmp_path / "notes"
    notes.mkdir()
    Path("in").mkdir()
    for number in range(4):
        pq.write_table(table.slice(number * N // 4, N // 4), f"in/{number}.parquet")
    pq.write_table(table, "in.parquet")
    Path("q.json").write_text(json.dumps(QUESTIONS))
    options = {"questions": QUESTIONS, "state": ["speed", "note"], "min_confidence": 0.5}
    subprocess.run(
        [sys.executable, "-c", _KILLED, ROOT / "examples", notes, json.dumps(options)],
        check=True,
        timeout=120,
        env=ENVIRONMENT,
    )
    assert (notes / "killed").exists()
    loads = [path.name.split("-")[1] for path in notes.glob("load-*")]
    assert len(set(loads)) == len(loads) == 3  # two workers, and one in place of the one that died
    calls = [path.name.split("-")[1] for path in notes.glob("call-*")]
    assert len(set(calls)) >= 2
    assert len(calls) > len(loads)
    command = ["rows", "in.parquet", "-q", "q.json", "-o", "one.parquet", "--state", "speed", "--state", "note",
               "--min-confidence", "0.5"]  # fmt: skip
    assert main(command) == 0
    # what the lost worker had may come later
    assert pq.read_table("out").sort_by("id").to_pylist() == pq.read_table("one.parquet").to_pylist()


@pytest.mark.parametrize("package", ["ray", "dask", "pyspark"])
def test_what_the_page_shows_answers_as_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    need_package(package)
    if package == "pyspark":
        need("java")
    page = (ROOT / "docs" / "rows.md").read_text("utf-8")
    codes = re.findall(r"^```python\n(.*?)^```", page.partition("## Many machines")[2], re.MULTILINE | re.DOTALL)
    (code,) = [code for code in codes if f"import {package}" in code or f"from {package}" in code]
    monkeypatch.chdir(tmp_path)
    table = a_table().slice(0, 3000).select(["id", "note"])
    Path("events").mkdir()
    for number in range(3):
        pq.write_table(table.slice(number * 1000, 1000), f"events/{number}.parquet")
    Path("shown.py").write_text(f"questions = {QUESTIONS!r}\n{code}")
    subprocess.run([sys.executable, "shown.py"], check=True, timeout=120, env=ENVIRONMENT)
    found = {row["id"]: row for row in pq.read_table("answers").to_pylist()}
    expected = answer_rows(skyinfer.load(), QUESTIONS, table, state="note", probabilities="columns")
    assert len(found) == len(table)
    for row in expected.read_all().to_pylist():
        for name in ("note", "sure", "sure_noul", "sure_confidence", "sure_truncated"):
            assert found[row["id"]][name] == row[name]


def test_the_class_by_itself() -> None:
    """As any program that has tables of pyarrow may call it."""
    answering = AnswerBatches(QUESTIONS, state=["speed", "note"])
    found = answering(a_table().slice(0, 100))
    assert found.column_names[:4] == ["id", "speed", "note", "action"]
    assert len(found) == 100
    assert answering(a_table().slice(0, 0)).schema == found.schema
    with pytest.raises(ColumnError, match="'note': there is none"):
        answering(pa.table({"speed": [1]}))


FAULTY_OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"precision": "int4"}, ValueError, "precision: expected one of exact, int8"),
    ({"presision": "int8"}, TypeError, "presision"),
    ({"threads": 0}, ValueError, "threads"),
    ({"on_error": "skip"}, ValueError, "on_error: expected"),
    ({"probabilities": "rows"}, ValueError, "probabilities: expected"),
    ({"min_confidence": 2}, skyinfer.RequestError, "min_confidence"),
    ({"prefix": 5}, TypeError, "prefix"),
    ({"prefix": "\ud800"}, ColumnError, "lone surrogate"),
    ({"state": 5}, TypeError, "state: expected"),
    ({"state": b"note"}, TypeError, "state: expected"),
    ({"state": []}, ColumnError, "state: no column is named"),
    ({"state": ["a", "a"]}, ColumnError, "'a'"),
    ({"state": ["a", 5]}, TypeError, "expected text"),
    ({"state": "\ud800"}, ColumnError, "lone surrogate"),
    ({"state": "action"}, ColumnError, "column 'action': the table has it already"),
    ({"state": ["a", "b"], "parse_json": True}, ColumnError, "only one column of text"),
    ({"questions": {"q": {"type": "noul"}}}, skyinfer.RequestError, "questions"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "kind", "message"), FAULTY_OPTIONS, ids=[str(a) for a, *_ in FAULTY_OPTIONS])
def test_a_faulty_option_is_told_at_once(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    """And not by every worker, with its first table."""
    with pytest.raises(kind, match=message):
        AnswerBatches(**{"questions": QUESTIONS, **options})


def test_the_class_in_8_bits() -> None:
    table = a_table().slice(0, 50)
    found = AnswerBatches(QUESTIONS, state=iter(["speed", "note"]), precision="int8")
    expected = answer_rows(skyinfer.load(precision="int8"), QUESTIONS, table, state=["speed", "note"]).read_all()
    assert found(table) == found(table) == expected
    exact = AnswerBatches(QUESTIONS, state=["speed", "note"])(table)
    assert exact["sure_noul"] != expected["sure_noul"]
