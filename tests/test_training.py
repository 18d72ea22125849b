"""Training itself: what a run writes, interruptions, faults, and the command. Needs torch.

pip install '.[train,test]' && pytest tests/test_train*.py
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

# ruff: noqa: E402
from checkpoints import SIZES, paint
from networks import network_of, padded
from reference import Reference

import skyinfer
from skyinfer.command.main import main
from skyinfer.errors import FormatError, SkyinferError
from skyinfer.schema import QUESTION_TYPES
from skyinfer.train import RowsError, directory, fitting, options, train, train_rows, training
from skyinfer.train.encoding import Chunk
from skyinfer.train.fitting import batch_of
from skyinfer.train.options import OptionError
from skyinfer.train.report import plot_reliability

ROOT = Path(__file__).parents[1]
QUESTIONS: dict[str, Any] = {
    "act": {"type": "choice", "instructions": "What now?", "criteria": {"go": "drive on", "stop": "brake"}},
    "speed": {"type": "score", "instructions": "How fast?", "criteria": ["slow", "normal", "fast"]},
    "safe": {"type": "noul", "instructions": "Is it safe?"},
}
WEIGHT_FILES = ("model.safetensors", "rl_agent_config.json", "encoder/config.json", "tokenizer/tokenizer.json")


def teacher(state: dict[str, Any]) -> dict[str, Any]:
    red = state["light"] == "red"
    return {"act": "stop" if red else "go", "speed": 0 if red else min(2, state["car"]), "safe": 0.9 if red else 0.2}


STATES = [{"light": light, "car": car, "n": n} for light in ("red", "green") for car in range(3) for n in range(8)]
ROWS = [{"state": state, "questions": QUESTIONS, "answers": teacher(state)} for state in STATES]
# small enough for a second or two, and more than one epoch
QUICK: dict[str, Any] = {"epochs": 2.5, "batch_size": 16, "vocab_size": 300, "max_len": 96, "head_max_len": 48}


@pytest.fixture(autouse=True, scope="module")
def _without_plots() -> Any:
    """A plot takes longer than these trainings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "plot_reliability", lambda *_: False)
        yield


def contents(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in WEIGHT_FILES}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    out = tmp_path_factory.mktemp("trained") / "model"
    return out, train_rows(ROWS, out, **QUICK, held_out=0.4, threads=2)


# ------------------------------------------------------------------------------------ what a run writes


def test_what_is_written_opens_and_answers(trained: tuple[Path, Any], tmp_path: Path) -> None:
    out, report = trained
    model = skyinfer.load(out)
    network, reference = network_of(out), Reference.open(out)
    assert report.parameters == sum(values.numel() for values in network.weights.values())
    for state in [STATES[0], STATES[33], {"light": "amber", "car": 9, "unseen": "😀"}]:
        scores, sequences = model.logits(state, QUESTIONS), model.encode(state, QUESTIONS)
        for key, definition in QUESTIONS.items():
            one = (sequences[key].ids, sequences[key].markers, definition["type"])
            assert scores[key] == pytest.approx(reference.logits(*one), abs=1e-4)
            with torch.inference_mode():
                mine = network.logits(batch_of(padded([one])))[0].numpy()
            assert scores[key] == pytest.approx(mine, abs=1e-4)

    file = skyinfer.convert(out, tmp_path / "model.gguf", outtype="f16")
    converted = skyinfer.load(file)
    for state in STATES[::9]:
        assert converted.decide(state, QUESTIONS)["answers"] == model.decide(state, QUESTIONS)["answers"]


def test_the_report_tells_what_the_model_answers(trained: tuple[Path, Any]) -> None:
    out, report = trained
    assert json.loads((out / "training_report.json").read_text("utf-8")) == json.loads(report.as_json())
    assert report.held_out_states == 19
    assert report.steps == math.ceil(2.5 * 29 * 3 / 16)
    assert all(q.n == 19 for q in report.questions.values())
    agent = json.loads((out / "rl_agent_config.json").read_text("utf-8"))
    assert agent["temperature"] == [report.temperatures[kind] for kind in QUESTION_TYPES]
    by_options = {name: value for name, value in report.temperatures.items() if ":" in name}
    assert agent["temperature_by_options"] == by_options
    assert all(0.5 <= value <= 5 for value in report.temperatures.values())

    # the held-out states are those of which the loss is the one that is told
    from skyinfer.train.encoding import held_out_states
    from skyinfer.train.rows import gather

    dataset = gather((("", row) for row in ROWS), "")
    held = np.flatnonzero(held_out_states(dataset, 0.4, 0))
    model = skyinfer.load(out)
    loss = 0.0
    for number in held:
        answers: Any = model.decide(STATES[number], QUESTIONS)["answers"]
        p, q = answers["safe"]["noul"], teacher(STATES[number])["safe"]
        loss -= (q * np.log(p) + (1 - q) * np.log(1 - p)) / len(held)
    assert report.questions["safe"].log_loss == pytest.approx(loss, rel=1e-4)


def test_a_rule_is_learned(tmp_path: Path) -> None:
    report = train(
        teacher, QUESTIONS, STATES, tmp_path / "model", epochs=60, batch_size=16, vocab_size=300, held_out=0.25
    )
    for q in report.questions.values():
        assert q.accuracy == 1.0
    # 0.9 and 0.2 were said to be the probabilities
    model = skyinfer.load(tmp_path / "model")
    unseen: Any = model.decide({"light": "red", "car": 1, "n": 20}, QUESTIONS)["answers"]
    assert unseen["act"]["choice"] == "stop"
    assert unseen["safe"]["noul"] == pytest.approx(0.9, abs=0.1)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_same_seed_gives_the_same_bytes(trained: tuple[Path, Any], tmp_path: Path, threads: int) -> None:
    out, report = trained
    again = train_rows(iter(ROWS), tmp_path / "model", **QUICK, held_out=0.4, threads=threads)
    assert contents(tmp_path / "model") == contents(out)
    assert again.questions == report.questions


def test_another_seed_gives_another_model(trained: tuple[Path, Any], tmp_path: Path) -> None:
    train_rows(ROWS, tmp_path / "model", **QUICK, held_out=0.4, seed=1)
    name = "model.safetensors"
    assert contents(tmp_path / "model")[name] != contents(trained[0])[name]


def test_one_question_and_weights(tmp_path: Path) -> None:
    """Answers may cover some of the questions; what all rows say the same of is warned of."""
    rows = [row | {"answers": {"act": "go"}, "weight": 1 + i % 3} for i, row in enumerate(ROWS)]
    report = train_rows(rows, tmp_path / "model", **(QUICK | {"epochs": 12}), held_out=0)
    assert report.questions == {}
    assert report.held_out_states == 0
    assert set(report.temperatures.values()) == {1.0}
    assert any("every answer is the same" in warning for warning in report.warnings)
    answers: Any = skyinfer.load(tmp_path / "model").decide("anything", QUESTIONS)["answers"]
    assert answers["act"]["choice"] == "go"


# ----------------------------------------------------------------------------------------- interruptions


class Stop(Exception):
    pass


def stopping_at(step: int, how: Callable[[], None]) -> Callable[[str, int, int], None]:
    def progress(what: str, done: int, total: int) -> None:
        if done == step and total > 1:
            how()

    return progress


def stop() -> None:
    raise Stop


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "_SNAPSHOT_SECONDS", 0.0)
    monkeypatch.setattr(fitting, "_SNAPSHOT_SHARE", 1e9)


@pytest.mark.usefixtures("every_step")
@pytest.mark.parametrize("step", [1, 4])
def test_a_resumed_training_ends_the_same(trained: tuple[Path, Any], tmp_path: Path, step: int) -> None:
    out = tmp_path / "model"
    with pytest.raises(Stop):
        train_rows(ROWS, out, **QUICK, held_out=0.4, progress=stopping_at(step, stop))
    assert sorted(path.name for path in out.iterdir()) == ["training"]
    with pytest.raises(FormatError):
        skyinfer.load(out)
    seen = []
    train_rows(ROWS, out, **QUICK, held_out=0.4, progress=lambda _, done, total: seen.append(done))
    assert seen[1] == step + 1  # the first is the tokenizer's
    assert contents(out) == contents(trained[0])
    assert not (out / "training").exists()


def test_an_interruption_in_a_step_is_kept(
    trained: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, steps = tmp_path / "model", 0
    original = fitting.Fit._gradients

    def interrupted(fit: Any, chunk: Chunk) -> Any:
        nonlocal steps
        steps += 1
        if steps == 6:
            raise KeyboardInterrupt
        return original(fit, chunk)

    monkeypatch.setattr(fitting.Fit, "_gradients", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_rows(ROWS, out, **QUICK, held_out=0.4)
    monkeypatch.undo()
    assert (out / "training" / "snapshot.pt").exists()
    train_rows(ROWS, out, **QUICK, held_out=0.4)
    assert contents(out) == contents(trained[0])


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_a_killed_training_can_be_resumed(trained: tuple[Path, Any], tmp_path: Path) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "model"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
    code = f"""
import os, signal
from skyinfer.train import fitting, train_rows
fitting._SNAPSHOT_SECONDS = 0.0
def kill(what, done, total):
    if done == 5:
        os.kill(os.getpid(), signal.SIGKILL)
train_rows({str(rows)!r}, {str(out)!r}, **{QUICK!r}, held_out=0.4, progress=kill)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=False)
    assert result.returncode == -signal.SIGKILL, result.stderr.decode()
    train_rows(rows, out, **QUICK, held_out=0.4)
    assert contents(out) == contents(trained[0])


def test_two_trainings_do_not_mix(trained: tuple[Path, Any], tmp_path: Path) -> None:
    """Neither in one process nor of two; the second one is refused before it reads a row or touches anything."""
    out, refused = tmp_path / "model", 0
    code = f"""
from skyinfer.train import train_rows
train_rows(iter([]), {str(out)!r}, force=True)
"""

    def never() -> Any:
        raise AssertionError("read")
        yield

    def another() -> None:
        nonlocal refused
        before = sorted(out.rglob("*"))
        with pytest.raises(SkyinferError, match=f"^another training is at work in {re.escape(str(out))}$"):
            train_rows(never(), out, force=True)
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert f"another training is at work in {out}" in result.stderr
        assert sorted(out.rglob("*")) == before
        refused += 1

    train_rows(ROWS, out, **QUICK, held_out=0.4, progress=stopping_at(3, another))
    assert refused == 1
    assert contents(out) == contents(trained[0])
    assert not (out / "training").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be removed there")
def test_a_lock_of_a_file_that_is_gone_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that ends between another's opening and locking of the file takes the file along."""
    out, original, calls = tmp_path / "model", directory._lock, 0

    def late(file: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            (out / "training" / "lock").unlink()
            (out / "training").rmdir()
        original(file)

    monkeypatch.setattr(directory, "_lock", late)
    with directory.alone_in(out):
        assert calls == 2
        monkeypatch.undo()
        with pytest.raises(SkyinferError, match="another training"), directory.alone_in(out):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_appears_meanwhile_is_not_replaced(
    trained: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, original = tmp_path / "model", directory._lock

    def late(file: int) -> None:
        original(file)
        shutil.copytree(trained[0], out, dirs_exist_ok=True)

    monkeypatch.setattr(directory, "_lock", late)
    with pytest.raises(FileExistsError, match="holds a checkpoint already"):
        train_rows(ROWS, out, **QUICK, seed=1)
    assert contents(out) == contents(trained[0])
    assert not (out / "training").exists()


@pytest.mark.usefixtures("every_step")
def test_an_unfinished_training_is_not_lost_by_mistake(tmp_path: Path) -> None:
    out = tmp_path / "model"
    with pytest.raises(Stop):
        train_rows(ROWS, out, **QUICK, progress=stopping_at(3, stop))
    before = (out / "training" / "snapshot.pt").read_bytes()
    with pytest.raises(FormatError, match="of other rows or options"):
        train_rows(ROWS[:-1], out, **QUICK)
    with pytest.raises(FormatError, match="of other rows or options"):
        train_rows(ROWS, out, **QUICK, lr=1e-3)
    with pytest.raises(FileExistsError, match="holds an unfinished training"):
        train_rows(ROWS, out, **QUICK, resume=False)
    with pytest.raises(RowsError):
        train_rows([{}], out, **QUICK)
    assert (out / "training" / "snapshot.pt").read_bytes() == before
    (out / "training" / "snapshot.pt").write_bytes(before[: len(before) // 2])
    with pytest.raises(FormatError, match="not a snapshot of a training"):
        train_rows(ROWS, out, **QUICK)
    train_rows(ROWS, out, **QUICK, force=True)
    assert skyinfer.load(out)


# ------------------------------------------------------------------------------------------------ faults


def test_a_checkpoint_is_replaced_only_when_forced(trained: tuple[Path, Any], tmp_path: Path) -> None:
    out = tmp_path / "model"
    shutil.copytree(trained[0], out)
    with pytest.raises(FileExistsError, match="replaced only when forced"):
        train_rows(ROWS, out, **QUICK)
    with pytest.raises(SkyinferError, match="all rows are about one state"):
        train_rows(ROWS[:1], out, **QUICK, force=True)
    assert contents(out) == contents(trained[0])
    train_rows(ROWS, out, **QUICK, held_out=0.4, seed=1, force=True)
    assert contents(out) != contents(trained[0])
    assert skyinfer.load(out)


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RowsError):
        train_rows([{}], tmp_path / "model")
    with pytest.raises(SkyinferError, match="one state"):
        train_rows(ROWS[:1], tmp_path / "model")
    with pytest.raises(RowsError, match="options fit"):
        train_rows(ROWS, tmp_path / "model", **(QUICK | {"max_len": 16, "head_max_len": 16}))
    monkeypatch.setattr(fitting, "cross_entropy", lambda logits, _: logits.sum() * torch.inf)
    with pytest.raises(FloatingPointError, match="try a lower learning rate"):
        train_rows(ROWS, tmp_path / "model", **QUICK)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("size", "huge"), ("vocab_size", 100), ("vocab_size", 1e3), ("epochs", 0), ("epochs", float("nan")),
        ("lr", -1e-3), ("lr", 2), ("held_out", 1.0), ("held_out", "0.1"), ("batch_size", 0), ("seed", -1),
        ("threads", 0), ("max_len", 4), ("init", "there"),
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused(tmp_path: Path, option: str, value: Any) -> None:
    changes = {option: value}
    if option == "init":
        changes["vocab_size"] = 400
    with pytest.raises(OptionError, match="vocab_size" if option == "init" else option):
        train_rows(ROWS, tmp_path / "model", **changes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 1e30}, "epochs: expected more than 0 and at most 1000000, got 1e+30"),
        ({"head_max_len": 5000}, "head_max_len: expected at most max_len, which is 256, got 5000"),
        ({"head_max_len": 257}, "head_max_len: expected at most max_len, which is 256, got 257"),
        ({"head_max_len": 65, "max_len": 64}, "head_max_len: expected at most max_len, which is 64, got 65"),
        (
            {"head_max_len": 65, "max_len": 64, "init": "."},
            "head_max_len: expected at most max_len, which is 64, got 65",
        ),
        ({"head_max_len": 513, "size": "nano"}, "head_max_len: expected at most max_len, which is 512, got 513"),
    ],
)
def test_a_limit_is_told_before_a_row_is_read(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as refused:
        train_rows(tmp_path / "missing.jsonl", tmp_path / "model", **options)
    assert str(refused.value) == message


def test_a_head_longer_than_the_checkpoint_reads_is_refused(trained: tuple[Path, Any], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="head_max_len: expected at most max_len, which is 96, got 97"):
        train_rows(ROWS, tmp_path / "more", init=trained[0], head_max_len=97)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["out", "init"])
def test_an_empty_path_of_a_directory_asks_for_one(tmp_path: Path, option: str) -> None:
    with pytest.raises(FormatError, match=r"^'': the path is empty; name a directory$"):
        train_rows(ROWS, **({"out": tmp_path / "model"} | {option: ""}))


def test_a_teachers_bad_answers_are_told_at_once(tmp_path: Path) -> None:
    def bad(state: dict[str, Any]) -> dict[str, Any]:
        return teacher(state) | ({"act": "fly"} if state["car"] == 1 else {})

    with pytest.raises(RowsError) as refused:
        train(bad, QUESTIONS, STATES, tmp_path / "model")
    assert len(refused.value.faults) == 16
    assert str(refused.value.faults[0]) == "row 9: answers.act: 'fly' is no answer; give one of 'go', 'stop'"


def test_the_plot(tmp_path: Path, trained: tuple[Path, Any]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "reliability.png"
    assert plot_reliability(trained[1], path)
    assert path.read_bytes().startswith(b"\x89PNG")
    plot_reliability(trained[1], tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == path.read_bytes()
    (question, *_) = trained[1].questions.values()
    odd = dataclasses.replace(trained[1], questions={"cost $a_$ in $\\b$": question, "\x1b[2J": question})
    assert plot_reliability(odd, tmp_path / "odd.png")


def test_the_documented_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
    monkeypatch.setattr(options, "_EXAMPLES", 1)
    monkeypatch.setattr(options, "_LEAST_EPOCHS", 0.1)
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "training.md").read_text("utf-8"), re.M | re.S)
    exec(compile(code.replace("epochs=20", "epochs=0.1"), "training.md", "exec"), {})
    assert skyinfer.load("even-model").config.d_model == skyinfer.load("my-model").config.d_model == 64


# ---------------------------------------------------------------------------------- going on from another


def test_training_goes_on_from_a_checkpoint(trained: tuple[Path, Any], tmp_path: Path) -> None:
    out, before = trained
    after = train_rows(ROWS, tmp_path / "more", init=out, epochs=8, batch_size=16, held_out=0.4)
    assert contents(tmp_path / "more")["tokenizer/tokenizer.json"] == contents(out)["tokenizer/tokenizer.json"]
    assert after.vocab_size == before.vocab_size
    assert after.final_loss < before.final_loss
    assert after.questions["act"].log_loss < before.questions["act"].log_loss
    model = skyinfer.load(tmp_path / "more")
    assert (model.config.max_tokens, model.config.max_head_tokens) == (96, 48)


def test_a_painted_checkpoint_can_be_trained_further(tmp_path: Path) -> None:
    """One of another shape and tokenizer, in BF16."""
    painted = paint(tmp_path / "painted", **SIZES["golden"], dtype="BF16", tokenizer="metaspace", activation="silu",
                    temperature_by_options={})  # fmt: skip
    report = train_rows(ROWS, tmp_path / "more", init=painted, epochs=0.3, lr=1e-9)
    assert report.size is None
    ours, theirs = skyinfer.load(tmp_path / "more"), skyinfer.load(painted)
    for key, scores in ours.logits(STATES[3], QUESTIONS).items():
        # F16 in place of BF16 loses nothing here
        assert scores == pytest.approx(theirs.logits(STATES[3], QUESTIONS)[key], abs=1e-2)
    with pytest.raises(FormatError, match="only a Laya checkpoint"):
        train_rows(ROWS, tmp_path / "other", init=tmp_path)


# --------------------------------------------------------------------------------------------- the command


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C cannot be sent to one process there")
def test_ctrl_c_leaves_something_to_resume(trained: tuple[Path, Any], tmp_path: Path) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "model"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
    command = [sys.executable, "-m", "skyinfer", "train", str(rows), "-o", str(out), "--held-out", "0.4"]
    for name, value in QUICK.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    # every step takes a while, or it might be over before the signal comes
    code = f"""
import sys, time
from skyinfer.command.main import main
from skyinfer.train import fitting
step = fitting.Fit.step
def slow(*arguments):
    if "--resume" not in sys.argv:
        print("step", flush=True)
        time.sleep(0.2)
    return step(*arguments)
fitting.Fit.step = slow
sys.exit(main({command[3:]!r} + sys.argv[1:]))
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said == "skyinfer: interrupted; --resume goes on from here\n"
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode == 1
    assert "holds an unfinished training; --resume goes on with it, --force starts over" in again.stderr
    resumed = [sys.executable, "-c", code, "--resume"]
    subprocess.run(resumed, capture_output=True, timeout=60, check=True)
    assert contents(out) == contents(trained[0])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "model"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
    command = ["train", str(rows), "-o", str(out), "--epochs", "1", "--vocab-size", "300", "--max-len", "64"]
    assert main(command) == 0
    captured = capsys.readouterr()
    assert f"{out}: pico, " in captured.out
    assert captured.err == ""
    for given in ("--json", "--resume"):
        assert main([*command, given]) == 1
        assert capsys.readouterr().err == f"skyinfer: {out}: holds a checkpoint already; --force replaces it\n"
    assert main([*command, "--json", "--force", "--seed", "3"]) == 0
    assert json.loads(capsys.readouterr().out)["seed"] == 3

    snapshot = tmp_path / "unfinished" / "training" / "snapshot.pt"
    snapshot.parent.mkdir(parents=True)
    snapshot.write_bytes(b"")
    unfinished = [str(tmp_path / "unfinished") if word == str(out) else word for word in command]
    assert main([*unfinished, "--resume"]) == 1
    assert capsys.readouterr().err == f"skyinfer: {snapshot}: not a snapshot of a training; --force starts over\n"
    assert snapshot.exists()

    rows.write_text('{"state": 1}\n' * 30 + json.dumps(ROWS[0]) + "\n", "utf-8")
    assert main(["train", str(rows), "-o", str(tmp_path / "other")]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 22
    assert lines[0] == "skyinfer: line 1: questions: is missing; add 'questions'"
    assert lines[-1] == f"skyinfer: {rows}: 30 of 31 rows are faulty; nothing was trained"
    with pytest.raises(SystemExit) as exit_code:
        main([*command, "--lr", "7"])
    assert exit_code.value.code == 2
    assert "lr: expected more than 0" in capsys.readouterr().err
