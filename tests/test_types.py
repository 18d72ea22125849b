"""What type checkers say of a user's program: the README's own, and one that reads every type of answer.

mypy comes with the extra `test`. pyright is taken where it is installed, or basedpyright, which is the same checker
with its JavaScript in the wheel; the workflow installs the one and .ci/run the other.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from programs import need_package

import skyinfer

ROOT = Path(__file__).parents[1]

PROGRAM = """
import json

import skyinfer
from skyinfer import Answer, ChoiceQuestion, Questions, Response


def shown(answer: Answer) -> str:
    if answer["type"] == "choice":
        return f"{answer['choice']} {answer['confidence']:.2f}"
    if answer["type"] == "score":
        return f"{answer['score']:.1f} of {len(answer['legend'])}"
    return f"{answer['noul']:.2f}"


model = skyinfer.load()
questions: Questions = {
    "action": {"type": "choice", "instructions": "Which?", "criteria": ["thrust", "glide"], "option_order": [1, 0]},
    "margin": {"type": "score", "instructions": {"task": "How much?"}, "criteria": ["none", {"some": 1}]},
    "danger": {"type": "noul", "instructions": "Will it?", "criteria": {"true": "it hits"}, "labels": None},
}
response: Response = model.decide({"alt": 3}, questions)
lines: list[str] = [f"{name}: {shown(answer)}" for name, answer in response["answers"].items()]
p: float = skyinfer.choice_answer(response, "action")["probabilities"]["thrust"]
level: float = skyinfer.score_answer(response, "margin")["score"]
cut = skyinfer.noul_answer(response, "danger").get("x_truncated")
ignored: list[str] = skyinfer.noul_answer(response, "danger").get("x_ignored", [])
read: int | None = cut["state_tokens_used"] if cut else None
labels: list[str] = sorted(["a", "b"])
one: ChoiceQuestion = {"type": "choice", "instructions": "Which?", "criteria": labels}
alike = {"a": one, "b": one}
for answered in model.decide_many(["s", {"t": 1}], alike):
    print(json.dumps(answered["usage"]["input_tokens"]))
"""

# each line has a fault that only the types tell
WRONG = """
import skyinfer

model = skyinfer.load()
response = model.decide("s", {"q": {"type": "noul", "instructions": "?"}})
skyinfer.noul_answer(response, "q")["choice"]
response["answers"]["q"]["probabilities"]
model.decide("s", {"q": {"type": "maybe", "instructions": "?"}})
model.decide("s", {"q": {"type": "noul", "instructions": "?", "critera": None}})
model.decide("s", {"q": {"type": "score", "instructions": "?"}})
"""
FIRST_WRONG, LAST_WRONG = 6, 10


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the programs, as a user has them."""
    directory = tmp_path_factory.mktemp("programs")
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    (directory / "readme.py").write_text("\n".join(blocks), encoding="utf-8")
    (directory / "program.py").write_text(PROGRAM, encoding="utf-8")
    (directory / "wrong.py").write_text(WRONG, encoding="utf-8")
    return directory


def mypy(directory: Path, *files: str) -> str:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        f"--cache-dir={ROOT / '.mypy_cache'}",
        *files,
    ]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, check=False).stdout


def test_mypy(programs: Path) -> None:
    need_package("mypy")
    assert mypy(programs, "readme.py", "program.py").startswith("Success")
    found = [int(line) for line in re.findall(r"^wrong\.py:(\d+): error", mypy(programs, "wrong.py"), re.MULTILINE)]
    assert sorted(set(found)) == list(range(FIRST_WRONG, LAST_WRONG + 1))


def test_pyright(programs: Path) -> None:
    name = "pyright" if importlib.util.find_spec("pyright") else "basedpyright"
    need_package(name)
    (programs / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}', encoding="utf-8")
    command = [sys.executable, "-m", name, "--outputjson", "--pythonpath", sys.executable]
    output = subprocess.run(command, cwd=programs, capture_output=True, text=True, timeout=300, check=False)
    found = [
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1)
        for one in json.loads(output.stdout)["generalDiagnostics"]
        if one["severity"] == "error"
    ]
    assert sorted(set(found)) == [("wrong.py", line) for line in range(FIRST_WRONG, LAST_WRONG + 1)]


def test_the_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(PROGRAM, "program.py", "exec"), {})
    assert capsys.readouterr().out.count("\n") == 2


def test_an_answer_of_another_type_is_told() -> None:
    response = skyinfer.load().decide("s", {"q": {"type": "noul", "instructions": "?"}})
    assert skyinfer.noul_answer(response, "q") is response["answers"]["q"]
    for read in (skyinfer.choice_answer, skyinfer.score_answer):
        with pytest.raises(TypeError, match="'q' is that of a noul"):
            read(response, "q")
    with pytest.raises(KeyError, match="other"):
        skyinfer.noul_answer(response, "other")


def test_names_of_the_package() -> None:
    assert set(dir(skyinfer)) == set(skyinfer.__all__)
    for name in skyinfer.__all__:
        assert getattr(skyinfer, name) is not None
