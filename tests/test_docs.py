"""What the documentation shows is what happens: its Python runs, its requests are accepted, answers look so."""

from __future__ import annotations

import importlib.metadata
import json
import re
from pathlib import Path
from typing import Any

import pytest
from commands import Run

import skyinfer
from skyinfer.schema import parse_questions
from skyinfer.train.rows import gather

ROOT = Path(__file__).parents[1]


def blocks(file: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / file).read_text("utf-8"), re.MULTILINE | re.DOTALL)


def shape(answer: dict[str, Any]) -> list[str]:
    return [field for field in answer if not field.startswith("x_")]


def test_the_readmes_python_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    for code in blocks("README.md", "python"):
        exec(compile(code, "README.md", "exec"), names)
    assert capsys.readouterr().out
    assert names["responses"][-1] == names["response"]
    assert names["thrust"] + names["glide"] == pytest.approx(1)


def test_requests_and_answers_are_as_described() -> None:
    model = skyinfer.load(ROOT / "examples" / "painted")
    request, *questions, response = map(json.loads, blocks("docs/requests.md", "json"))
    assert [question["type"] for question in questions] == ["choice", "score", "noul"]
    asked = {question["type"]: question for question in questions} | request["questions"]
    assert len(parse_questions(asked)) == 5

    ours = model.decide(request["state"], asked, timing=True)
    assert list(ours) == list(response)
    by_type = {answer["type"]: answer for answer in ours["answers"].values()}
    for answer in response["answers"].values():
        assert shape(answer) == shape(by_type[answer["type"]])
        assert sum(answer.get("probabilities", {"": 1}).values()) == pytest.approx(1)
    cut = model.decide("word " * 300, {"q": questions[1]})["answers"]["q"]
    assert cut["x_truncated"].keys() == response["answers"]["anger"]["x_truncated"].keys()


def test_the_row_that_is_shown_is_one() -> None:
    (row,) = map(json.loads, blocks("docs/training.md", "json"))
    found = gather([("line 1", row)], "rows")
    assert [(found.questions[example.question].id, example.target) for example in found.examples] == [
        ("action", (0, 1)),
        ("clear", pytest.approx((0.1, 0.9))),
    ]


@pytest.mark.parametrize(
    "file",
    [
        "README.md",
        "csrc/README.md",
        "docs/requests.md",
        "docs/formats.md",
        "docs/compat.md",
        "docs/training.md",
        "docs/serving.md",
        "docs/web.md",
        "docs/s1-pico.md",
        "docs/s2-pico.md",
        "docs/models.md",
        "docs/rows.md",
        "docs/evaluation.md",
        "examples/README.md",
    ],
)
def test_links_lead_somewhere(file: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / file).read_text("utf-8")):
        assert (ROOT / file).parent.joinpath(target).exists(), target


def test_links_of_the_package_lead_to_its_repository() -> None:
    """What a package index shows has no files beside it."""
    metadata = importlib.metadata.metadata("skyinfer")
    urls = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL") or [])
    assert {"Repository", "Documentation", "Issues"} <= set(urls)
    description = metadata.get_payload()
    assert isinstance(description, str)
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", description)
    files = f"{urls['Repository']}/blob/v{skyinfer.__version__}/"
    assert len(links) > 10
    for link in links:
        assert link.startswith("https://"), link
        assert not link.startswith(files) or (ROOT / link.removeprefix(files)).exists(), link


@pytest.mark.parametrize(
    "file", ["README.md", "docs/training.md", "docs/s1-pico.md", "docs/s2-pico.md", "examples/traffic_light.py"]
)
def test_what_is_to_be_installed_can_be(file: str) -> None:
    """There is no skyinfer on a package index yet, so an extra is one of this checkout, and one that it has."""
    extras = set(importlib.metadata.metadata("skyinfer").get_all("Provides-Extra") or [])
    asked = re.findall(r"pip install (?:-\S+ )*'?([^\s`']+)", (ROOT / file).read_text("utf-8"))
    assert asked
    for what in asked:
        if what == "torch":  # it is on one
            continue
        found = re.fullmatch(r"\.(?:\[(.*)\])?|skyinfer-.*\.whl\[(.*)\]", what)
        assert found, what
        assert set((found[1] or found[2] or "serve").split(",")) <= extras


def test_the_page_on_evaluation_runs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    for code in blocks("docs/evaluation.md", "python"):
        exec(compile(code, "docs/evaluation.md", "exec"), names)
    assert 0.5 < names["accuracy"] <= 1
    page = (ROOT / "docs" / "evaluation.md").read_text("utf-8")
    commands = re.findall(r"^    skyinfer (evaluate examples/.*)$", page, re.MULTILINE)
    assert commands
    for command in commands:
        assert run(*command.split()).code == 0
