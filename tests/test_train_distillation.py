"""Distilling: a teacher over HTTP and one in this process, what a second run asks, and how both are compared."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Run, saved
from trainings import QUESTIONS, QUICK, STATES, teacher

torch = pytest.importorskip("torch")

import skyinfer  # noqa: E402
from skyinfer.distillation import Distillation, LocalTeacher, distill, distilling  # noqa: E402
from skyinfer.distillation.teachers import Taught  # noqa: E402
from skyinfer.errors import RequestError, SkyinferError  # noqa: E402

PAINTED = Path(__file__).parents[1] / "examples" / "painted"


class Function:
    """A teacher that knows a rule, and counts whom it is asked about."""

    name = "rule"

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def ask(self, states: Any) -> Any:
        for state in states:
            self.asked.append(state)
            said = teacher(state)
            act = {"go": 0.9, "stop": 0.1} if said["act"] == "go" else {"go": 0.2, "stop": 0.8}
            speed = {str(i): 0.7 if i == said["speed"] else 0.15 for i in range(3)}
            yield Taught({"act": act, "speed": speed, "safe": said["safe"]}, 50, 0.25)


def test_a_student_learns_what_its_teacher_says(tmp_path: Path) -> None:
    rule, out, said = Function(), tmp_path / "student", []
    options: dict[str, Any] = {**QUICK, "epochs": 20, "progress": False, "say": said.append}
    found = distill([*STATES, *STATES[:5]], QUESTIONS, rule, out, **options)
    assert isinstance(found, Distillation)
    assert rule.asked == STATES  # each once
    assert "0 of 48 states are answered" in said[0]
    assert "48 requests to rule: about 2,400 tokens, about 3 s" in said[0]
    report = found.report
    assert (report["n_states"], report["n_held_out"], report["teacher_tokens"]) == (48, 5, 2400)
    # the numbers, from the student's own answers to the states that were held out
    is_out = np.random.Generator(np.random.PCG64(0)).permutation(48)[:5]
    student, kl, agreed = skyinfer.load(out), [], []
    for number in sorted(is_out.tolist()):
        answers: Any = student.decide(STATES[number], QUESTIONS)["answers"]
        right = next(iter(rule.ask([STATES[number]]))).answers
        p = answers["act"]["probabilities"]
        agreed.append(max(p, key=p.get) == max(right["act"], key=right["act"].get))
        kl.append(sum(q * math.log(q / p[name]) for name, q in right["act"].items()))
    act = report["agreement"]["questions"]["act"]
    assert act["accuracy"]["value"] == pytest.approx(np.mean(agreed))
    assert act["kl"] == pytest.approx(np.mean(kl), abs=1e-6)
    assert act["kl"] < 0.05
    assert report["agreement"]["all"]["n"] == 15
    assert report["seconds"]["teacher"] == 0.25
    assert 0 < report["seconds"]["student"] < 0.25
    assert "which were held out" in str(found)
    # a second run asks only about states that are new, and nobody where none are
    rule.asked.clear()
    new = {"light": "red", "car": 1, "n": 99}
    with pytest.raises(FileExistsError):
        distill(STATES, QUESTIONS, rule, out, **options)
    distill([*STATES, new], QUESTIONS, rule, out, force=True, **options | {"epochs": 1})
    assert rule.asked == [new]
    distill(
        [*STATES, new], QUESTIONS, rule, tmp_path / "other", answers=f"{out}.answers.jsonl", **options | {"epochs": 1}
    )
    assert rule.asked == [new]
    assert "not asked" in said[-1]


def test_what_is_said_before_an_interruption_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Function):
        def ask(self, states: Any) -> Any:
            for taught in super().ask(states):
                if len(self.asked) == 20:
                    raise KeyboardInterrupt
                yield taught

    with pytest.raises(KeyboardInterrupt):
        distill(STATES, QUESTIONS, Failing(), tmp_path / "out", **QUICK, progress=False)
    assert not (tmp_path / "out").exists()
    rule = Function()
    assert distill(STATES, QUESTIONS, rule, tmp_path / "out", only_cost=True, progress=False) is None
    assert rule.asked == STATES[19:20]
    with pytest.raises(SkyinferError, match="too few"):
        distill(STATES[:30], QUESTIONS, rule, tmp_path / "out")


def test_states_are_those_that_a_model_takes(tmp_path: Path) -> None:
    for wrong in (None, {"at": object()}):
        with pytest.raises(RequestError) as caught:
            distill([*STATES[:2], STATES[0], wrong], QUESTIONS, Function(), tmp_path / "out")
        assert caught.value.loc[:2] == ("states", 3)
    rule = Function()
    states = [{"light": "red", "car": np.int32(1), "n": np.float64(n)} for n in range(48)]
    distill(states, QUESTIONS, rule, tmp_path / "out", only_cost=True, progress=False)
    assert rule.asked == [{"light": "red", "car": 1, "n": 0.0}]
    assert json.loads((tmp_path / "out.answers.jsonl").read_text())["state"] == rule.asked[0]


def test_a_question_may_be_called_all(tmp_path: Path) -> None:
    questions = {"all": QUESTIONS["act"], "safe": QUESTIONS["safe"]}

    class Renamed(Function):
        def ask(self, states: Any) -> Any:
            for taught in super().ask(states):
                yield taught._replace(answers={"all": taught.answers["act"], "safe": taught.answers["safe"]})

    found = distill(STATES, questions, Renamed(), tmp_path / "out", **QUICK, progress=False)
    assert found is not None
    agreement = found.report["agreement"]
    assert (agreement["all"]["n"], agreement["questions"]["all"]["n"]) == (10, 5)
    # of 0.9 and 0.1, or 0.2 and 0.8, however many of each
    entropy = agreement["questions"]["all"]["teacher_entropy"]
    assert 0.325 < entropy < 0.501
    assert agreement["all"]["teacher_entropy"] == pytest.approx(
        (entropy + agreement["questions"]["safe"]["teacher_entropy"]) / 2
    )
    assert str(found).count("\n  all ") == 2


def test_the_command_asks_a_server(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uvicorn")
    from serving import serving

    states = tmp_path / "states.jsonl"
    states.write_text("".join(json.dumps({"state": state, "note": 1}) + "\n" for state in STATES))
    questions = saved(tmp_path / "questions.json", {"state": "", "questions": QUESTIONS})
    out = tmp_path / "student"
    command = ["distill", states, "-q", questions, "-o", out, "--epochs", "1", "--threads", "1"]
    monkeypatch.setenv("A_KEY", "secret")
    with serving(api_key="secret") as running:
        url = running.address
        cost = run(*command, "--teacher", url, "--api-key-env", "A_KEY", "--only-cost", "--price", "2")
        assert (cost.code, cost.out) == (0, "")
        assert f"48 requests to {url}/v1/systemone: about " in cost.err
        assert " for them, about " in cost.err
        assert "it wants a key" in run(*command, "--teacher", url, "--retries", "0").err
        found = run(*command, "--teacher", url, "--api-key-env", "A_KEY", "--json", "--rate", "1000")
    assert found.code == 0, found.err
    report = json.loads(found.out)
    assert report["teacher"] == f"{url}/v1/systemone"
    assert {"accuracy", "kl", "ece", "log_loss"} <= report["agreement"]["questions"]["speed"].keys()
    taught = [json.loads(line) for line in Path(f"{out}.answers.jsonl").read_text().splitlines()]
    painted: Any = list(LocalTeacher(skyinfer.load(PAINTED), QUESTIONS).ask(STATES))
    assert [row["answers"] for row in taught] == [one.answers for one in painted]
    # in process, where the same answers come from the model itself
    other = run(*command[:5], tmp_path / "b", *command[6:], "--teacher", PAINTED, "--architecture", "s2")
    assert other.code == 0, other.err
    assert "x as fast" in other.out
    assert run(*command, "--teacher", PAINTED, "--api-key-env", "NOT_SET").code == 2
    assert "checkpoint already; --force" in run(*command, "--teacher", PAINTED).err


def test_the_command_asks_a_teacher_in_8_bits(run: Run, tmp_path: Path) -> None:
    states = tmp_path / "states.jsonl"
    states.write_text("".join(json.dumps({"state": state}) + "\n" for state in STATES))
    questions = saved(tmp_path / "questions.json", {"state": "", "questions": QUESTIONS})
    out = tmp_path / "student"
    command = ("distill", states, "-q", questions, "-o", out, "--epochs", "1", "--threads", "1", "--json")
    refused = run(*command, "--teacher", "http://127.0.0.1:1", "--precision", "int8")
    assert refused.code == 2
    assert "precision: int8 is for a teacher that is loaded here" in refused.err
    found = run(*command, "--teacher", PAINTED, "--precision", "int8")
    assert found.code == 0, found.err
    model = skyinfer.load(PAINTED, precision="int8")
    name = f"{model.name} (int8, {model.isa})"
    assert json.loads(found.out)["teacher"] == name
    assert f"states for {name}: about " in found.err
    taught = [json.loads(line) for line in Path(f"{out}.answers.jsonl").read_text().splitlines()]
    assert [row["answers"] for row in taught] == [one.answers for one in LocalTeacher(model, QUESTIONS).ask(STATES)]
    assert "holds answers of" in run(*command, "--force", "--teacher", PAINTED).err


def test_the_command_says_that_an_interrupted_run_goes_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "states.txt").write_text("".join(f"state {i}\n" for i in range(50)))
    questions = saved(tmp_path / "questions.json", QUESTIONS)
    ask, interrupted = LocalTeacher.ask, [False]

    def asking(self: LocalTeacher, states: Any) -> Any:
        for number, taught in enumerate(ask(self, states)):
            if len(states) > 10 and number == 10 and not interrupted[0]:
                interrupted[0] = True
                raise KeyboardInterrupt
            yield taught

    monkeypatch.setattr(LocalTeacher, "ask", asking)
    command = ["distill", tmp_path / "states.txt", "-q", questions, "-o", tmp_path / "out", "--teacher", PAINTED,
               "--epochs", "0.2"]  # fmt: skip
    stopped = run(*command)
    assert stopped.code == 130
    assert "interrupted; the same command goes on from here" in stopped.err
    assert len((tmp_path / "out.answers.jsonl").read_text().splitlines()) == 12
    found = run(*command)
    assert found.code == 0
    assert "12 of 50 states are answered" in found.err


def test_few_states_are_timed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Counting:
        def decide(self, state: Any, questions: Any) -> None:
            calls.append(state)

    assert distilling._seconds(Counting(), QUESTIONS, [1, 2, 3]) >= 0  # type: ignore[arg-type]
    assert calls == [1, 1, 2, 3]


def test_the_cost_is_known_from_two_states_and_an_absent_teacher_leaves_nothing(run: Run, tmp_path: Path) -> None:
    distill(STATES, QUESTIONS, skyinfer.load(PAINTED), tmp_path / "out", only_cost=True, progress=False)
    assert len((tmp_path / "out.answers.jsonl").read_text().splitlines()) == 2
    states = tmp_path / "states.txt"
    states.write_text("\n".join(f"state {i}" for i in range(50)))
    questions = saved(tmp_path / "questions.json", QUESTIONS)
    command = ["distill", states, "-q", questions, "--teacher", "http://127.0.0.1:9", "-o", tmp_path / "b"]
    assert "cannot be asked" in run(*command, "--retries", "0").fault()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.answers.jsonl", "questions.json", "states.txt"]
    kept = tmp_path / "kept.jsonl"  # one of the user's own stays
    kept.touch()
    assert run(*command, "--retries", "0", "--answers", kept).code == 1
    assert kept.exists()
    found = run(*command, "--init", PAINTED, "--size", "nano")
    assert found.code == 2
    assert "leave --size out" in found.err
