"""Training itself: what a run writes, interruptions, faults, and the command. Needs torch.

pip install '.[train,test]' && pytest tests/test_train*.py
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import math
import pydoc
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Run

torch = pytest.importorskip("torch")

# ruff: noqa: E402
from checkpoints import SIZES, paint
from networks import network_of, padded
from reference import Reference
from trainings import QUESTIONS, QUICK, ROWS, STATES, contents, teacher

import skyinfer
from skyinfer.command.main import main
from skyinfer.errors import FormatError, SkyinferError
from skyinfer.schema import QUESTION_TYPES
from skyinfer.train import RowsError, train, train_rows, training
from skyinfer.train.fitting import batch_of
from skyinfer.train.options import OptionError
from skyinfer.train.reliability_plot import plot

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.usefixtures("without_plots")


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
    from skyinfer.train.variants import canonical

    dataset = gather((("", row) for row in ROWS), "")
    held = np.flatnonzero(held_out_states([canonical(state) for state in dataset.states], 0.4, 0))
    model = skyinfer.load(out)
    loss = 0.0
    for number in held:
        answers: Any = model.decide(STATES[number], QUESTIONS)["answers"]
        p, q = answers["safe"]["noul"], teacher(STATES[number])["safe"]
        loss -= (q * np.log(p) + (1 - q) * np.log(1 - p)) / len(held)
    assert report.questions["safe"].log_loss == pytest.approx(loss, rel=1e-4)


def test_a_rule_is_learned(tmp_path: Path) -> None:
    states = [state | {"n": n} for state in STATES if state["n"] == 0 for n in range(40)]
    report = train(teacher, QUESTIONS, states, tmp_path / "model", epochs=25, batch_size=24, vocab_size=300)
    for q in report.questions.values():
        assert q.accuracy >= 0.95
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


def gguf_metadata(file: Path) -> dict[str, Any]:
    """As the gguf package reads it."""
    from gguf import GGUFReader

    return {key: field.contents() for key, field in GGUFReader(file).fields.items()}


def test_what_was_varied_is_noted_and_can_be_switched_off(trained: tuple[Path, Any], tmp_path: Path) -> None:
    """In the report, in the checkpoint, and in the GGUF file that is made of it; None of it where nothing was."""
    out, report = trained
    kinds = ["options", "keys", "numbers", "extra"]  # there is no string among the states
    assert report.augmentation == kinds
    assert "varied: options, keys, numbers, extra" in report.as_text()
    agent = json.loads((out / "rl_agent_config.json").read_text("utf-8"))
    assert agent["training"] == {"augmentation": kinds}
    file = skyinfer.convert(out, tmp_path / "varied.gguf")
    assert gguf_metadata(file)["skyinfer.training.augmentation"] == "options, keys, numbers, extra"

    some = train_rows(ROWS, tmp_path / "some", **QUICK, augment="numbers,spaces")
    assert some.augmentation == ["numbers"]
    none = train_rows(ROWS, tmp_path / "none", **QUICK, augment=False, init=None)
    assert none.augmentation == []
    assert "training" not in json.loads((tmp_path / "none" / "rl_agent_config.json").read_text("utf-8"))
    file = skyinfer.convert(tmp_path / "none", tmp_path / "none.gguf")
    assert not [key for key in gguf_metadata(file) if key.startswith("skyinfer.")]
    # of a further training the last one counts
    again = train_rows(ROWS, tmp_path / "again", init=out, epochs=0.1, augment=False)
    assert again.augmentation == []
    assert "training" not in json.loads((tmp_path / "again" / "rl_agent_config.json").read_text("utf-8"))


def test_order_and_spelling_do_not_change_what_is_answered(tmp_path: Path) -> None:
    """The rule of a small table, asked in every order of options and keys, and with floats for whole numbers."""

    def rule(state: dict[str, Any]) -> dict[str, Any]:
        return {"move": "back" if state["far"] < 4 else "wait" if state["low"] else "go"}

    questions = {"move": {"type": "choice", "instructions": "Where to?", "criteria": ["go", "wait", "back"]}}
    states = [{"far": far, "low": low, "n": n} for far in range(10) for low in (False, True) for n in range(20)]
    train(rule, questions, states, tmp_path / "model", epochs=20, vocab_size=400, held_out=0.2)
    model = skyinfer.load(tmp_path / "model")
    asked = right = 0
    for i, state in enumerate(states[::9]):
        for order in itertools.permutations(["go", "wait", "back"]):
            turned = dict(list(state.items())[::-1] if i % 2 else list(state.items())[1:] + list(state.items())[:1])
            turned |= {"far": float(state["far"]), "n": float(state["n"])}
            answers: Any = model.decide(turned, {"move": questions["move"] | {"criteria": list(order)}})["answers"]
            right += answers["move"]["choice"] == rule(state)["move"]
            asked += 1
    assert right >= 0.97 * asked


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


# ------------------------------------------------------------------------------------------------ faults


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("size", "huge"), ("vocab_size", 100), ("vocab_size", 1e3), ("epochs", 0), ("epochs", float("nan")),
        ("lr", -1e-3), ("lr", 2), ("held_out", 1.0), ("held_out", "0.1"), ("batch_size", 0), ("seed", -1),
        ("threads", 0), ("max_len", 4), ("init", "there"), ("augment", "order"),
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


@pytest.mark.parametrize(("option", "wanted"), [("out", "a directory"), ("init", "a model")])
def test_an_empty_path_says_what_to_name(tmp_path: Path, option: str, wanted: str) -> None:
    with pytest.raises(FormatError, match=rf"^'': the path is empty; name {wanted}$"):
        train_rows(ROWS, **({"out": tmp_path / "model"} | {option: ""}))


def test_both_ways_to_train_show_the_same_options() -> None:
    """As `help` does: none is hidden behind a `**`."""
    shown = {
        function: {
            name: (one.default, one.annotation)
            for name, one in inspect.signature(function).parameters.items()
            if one.kind is inspect.Parameter.KEYWORD_ONLY
        }
        for function in (train, train_rows)
    }
    # what `train` is given in any case
    del shown[train_rows]["questions"]
    assert shown[train] == shown[train_rows]
    assert {"size", "epochs", "progress"} <= shown[train].keys()
    for function, named in shown.items():
        text = pydoc.render_doc(function)
        assert "**" not in text
        for name in named:
            assert re.search(rf"^        (\w+, )*{name}\b(, \w+)*: ", text, re.M), name


def test_a_teachers_bad_answers_are_told_at_once(tmp_path: Path) -> None:
    def bad(state: dict[str, Any]) -> dict[str, Any]:
        return teacher(state) | ({"act": "fly"} if state["car"] == 1 else {})

    with pytest.raises(RowsError) as refused:
        train(bad, QUESTIONS, STATES, tmp_path / "model")
    assert len(refused.value.faults) == 16
    assert str(refused.value.faults[0]) == "row 9: answers.act: 'fly' is no answer; give one of 'go', 'stop'"


def test_the_plot(tmp_path: Path, trained: tuple[Path, Any]) -> None:
    """Drawn again later, of a report, its file or its directory."""
    pytest.importorskip("matplotlib")
    path = plot(trained[1], tmp_path / "reliability.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    shutil.copy(trained[0] / "training_report.json", tmp_path)
    before = path.read_bytes()
    path.unlink()
    assert plot(tmp_path) == path
    assert path.read_bytes() == before
    assert plot(tmp_path / "training_report.json", tmp_path / "other").read_bytes() == before
    (question, *_) = trained[1].questions.values()
    odd = dataclasses.replace(trained[1], questions={"cost $a_$ in $\\b$": question, "\x1b[2J": question})
    assert plot(odd, tmp_path / "odd.png").exists()
    with pytest.raises(SkyinferError, match="nothing was held out"):
        plot(dataclasses.replace(odd, questions={}), tmp_path / "none.png")


def test_a_training_draws_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.undo()
    train_rows(ROWS, tmp_path / "model", **QUICK | {"epochs": 0.1})
    assert (tmp_path / "model" / "reliability.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_a_training_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "plot", plot)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    report = train_rows(ROWS, tmp_path / "model", **QUICK | {"epochs": 0.1})
    assert any("plots need matplotlib: pip install 'skyinfer[plot]'" in warning for warning in report.warnings)
    assert skyinfer.load(tmp_path / "model")


def test_the_guides_first_example_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Word for word, with the accuracy and in the time that a reader expects; of two cores each computes a part."""
    monkeypatch.chdir(tmp_path)
    first, _ = documented_python()
    names: dict[str, Any] = {}
    before = time.process_time()
    exec(compile(first, "training.md", "exec"), names)
    assert time.process_time() - before < 60
    assert names["report"].questions["alarm"].accuracy >= 0.95
    for change in names["report"].trials:
        if change.change != "numbers beyond":
            assert change.accuracy >= 0.95, change
    model = names["model"]
    for state, alarm in (({"smoke": 85, "heat": 10}, True), ({"heat": 15.0, "smoke": 20}, False)):
        assert (model.decide(state, names["questions"])["answers"]["alarm"]["noul"] > 0.5) is alarm
    said = capsys.readouterr().out
    assert "alarm: keys shuffled" in said


def test_the_rest_of_the_documented_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
    _, second = documented_python()
    exec(compile(second.replace("epochs=20", "epochs=0.1"), "training.md", "exec"), {})
    assert skyinfer.load("my-model").config.d_model == 64
    assert Path("calibration.png").exists()


def documented_python() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "training.md").read_text("utf-8"), re.M | re.S)


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
    with pytest.raises(FormatError, match="not a checkpoint of an s1"):
        train_rows(ROWS, tmp_path / "other", init=tmp_path)


def test_other_tensors_and_stray_files_do_not_matter(trained: tuple[Path, Any], tmp_path: Path) -> None:
    """Tensors that no answer depends on may be of any number type, and files that nothing names are not read."""
    from safetensors.numpy import load_file, save_file

    plain, odd = tmp_path / "plain", tmp_path / "odd"
    shutil.copytree(trained[0], plain)
    shutil.copytree(trained[0], odd)
    tensors = load_file(odd / "model.safetensors")
    assert not tensors["act_head.2.bias"].any()
    tensors["temperature"] = tensors["temperature"].astype(np.float64) * 1e300
    tensors["act_head.0.bias"] = tensors["act_head.0.bias"].astype(np.int64) + 7
    halves = [{k: v for i, (k, v) in enumerate(sorted(tensors.items())) if i % 2 == half} for half in range(2)]
    (odd / "model.safetensors").unlink()
    for half, name in zip(halves, ("model-00001.safetensors", "model-00002.safetensors"), strict=True):
        save_file(half, odd / name)
    index = {name: f"model-0000{i + 1}.safetensors" for i, half in enumerate(halves) for name in half}
    (odd / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}), "utf-8")
    save_file({"scorer.3.bias": np.full(1, 9.0, np.float32)}, odd / "stray.safetensors")
    short: dict[str, Any] = {"epochs": 0.5, "held_out": 0.4}
    train_rows(ROWS, tmp_path / "a", init=plain, **short)
    train_rows(ROWS, tmp_path / "b", init=odd, **short)
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("b", "a"))
    for name, values in theirs.items():
        if name not in ("temperature", "act_head.0.bias"):
            assert np.array_equal(ours[name], values), name
    assert np.isinf(ours["temperature"]).all()
    assert (ours["act_head.0.bias"] == 7).all()


# --------------------------------------------------------------------------------------------- the command


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


def test_options_that_contradict_each_other_are_refused(run: Run, tmp_path: Path) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out"
    rows.write_text('{"state": "a", "answers": {"q": true}}\n' * 3)
    for options, said in (
        (["--init", "s1-pico", "--size", "nano"], "leave --size out"),
        (["--init", "s1-pico", "--size", "pico"], "leave --size out"),
        (["--resume", "--force"], "give one of them"),
        (["--augment", "options,none"], "all and none stand alone"),
    ):
        found = run("train", rows, "-o", out, *options)
        assert (found.code, found.out) == (2, "")
        assert said in found.err
    # no row has questions: said once
    lines = run("train", rows, "-o", out).err.splitlines()
    assert lines[0] == "skyinfer: no row holds questions; give them, in a file of their own, with --questions"
    assert len(lines) == 2
    assert not out.exists()
