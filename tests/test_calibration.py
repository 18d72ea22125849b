"""Temperatures fitted to labelled rows: against scikit-learn's regression, and copies that differ in nothing else."""

from __future__ import annotations

import errno
import filecmp
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Run
from gguf import GGUFReader
from sklearn.linear_model import LogisticRegression

import skyinfer
from skyinfer.errors import FormatError, SkyinferError
from skyinfer.evaluation import calibrate
from skyinfer.files.gguf import GGUFFile, write_with_floats
from skyinfer.files.recalibration import ModelCopy

PAINTED = Path(__file__).parents[1] / "examples" / "painted"
QUESTIONS: dict[str, Any] = {
    "pair": {"type": "choice", "instructions": "Left or right?", "criteria": ["left", "right"]},
    "action": {"type": "choice", "instructions": "Which?", "criteria": {"thrust": "fire", "glide": None, "wait": None}},
    "danger": {"type": "noul", "instructions": "Will it crash?"},
    "margin": {"type": "score", "instructions": "How much room?", "criteria": ["none", "tight", "a lot", "all"]},
    "rare": {"type": "score", "instructions": "How much?", "criteria": list("abcdefg")},
}
TEMPERATURE = 0.75  # by which the labels are drawn
N = 500


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return skyinfer.convert(PAINTED, tmp_path_factory.mktemp("model") / "painted.gguf", outtype="f32")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labels drawn from the model's own scores at another temperature."""
    draw = np.random.default_rng(2)
    compiled = skyinfer.load(PAINTED).compile(QUESTIONS)
    lines = []
    for i in range(N):
        state = f"vy {i % 23 - 9} dx {i} up {i % 11} alt {i * 7 % 31}"
        answers: dict[str, Any] = {}
        for name, logits in compiled.logits(state).items():
            p = np.exp(logits.astype(float) / TEMPERATURE)
            label = int(draw.choice(len(p), p=p / p.sum()))
            kind = QUESTIONS[name]["type"]
            options = list(QUESTIONS[name].get("criteria", ()))
            answers[name] = options[label] if kind == "choice" else bool(label) if kind == "noul" else label
        if i % 25:
            del answers["rare"]
        lines.append(json.dumps({"state": state, "questions": QUESTIONS, "answers": answers}) + "\n")
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("".join(lines), "utf-8")
    return path


def test_a_temperature_is_that_of_a_regression() -> None:
    """With two options, 1 / T is the one coefficient of a logistic regression on the difference of the scores."""
    from skyinfer.metrics import fit_joint_temperature

    draw = np.random.default_rng(0)
    z = draw.normal(0, 3, (2000, 2))
    true = draw.random(2000) < 1 / (1 + np.exp((z[:, 0] - z[:, 1]) / 1.7))
    weights = draw.random(2000) + 0.5
    fitted = LogisticRegression(C=1e12, fit_intercept=False, tol=1e-10).fit((z[:, 1] - z[:, 0])[:, None], true, weights)
    targets = np.eye(2)[true.astype(int)]
    parts = [(z[:800], targets[:800], weights[:800])]
    # the rest with a third option that nothing speaks for
    wide = np.hstack([z[800:], np.full((1200, 1), -1e6)]), np.hstack([targets[800:], np.zeros((1200, 1))])
    parts.append((*wide, weights[800:]))
    assert fit_joint_temperature(parts) == pytest.approx(1 / fitted.coef_[0, 0], rel=1e-3)


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_copy_answers_with_the_fitted_temperatures(kind: str, gguf: Path, rows: Path, tmp_path: Path) -> None:
    source = gguf if kind == "file" else PAINTED
    out = tmp_path / ("out.gguf" if kind == "file" else "out")
    model = skyinfer.load(source)
    report = calibrate(rows, model, out).report
    fitted = report["temperatures"]
    for name in ("choice", "choice:2", "choice:3-5", "noul", "noul:2", "score:3-5"):
        assert fitted[name] == pytest.approx(TEMPERATURE, rel=0.5)
        assert fitted[name] == np.float32(fitted[name])
    assert report["kept"].keys() == {"score:6-10"}
    assert report["kept"]["score:6-10"] < 30
    assert report["n_learned"] + report["n_held_out"] == report["n_answers"] == 4 * N + N // 25
    for numbers in report["held_out"].values():
        assert numbers["after"]["log_loss"] < numbers["before"]["log_loss"]
        assert numbers["after"]["accuracy"] == numbers["before"]["accuracy"]

    copy = skyinfer.load(out)
    state = "vy 3 dx 41 up 9"
    logits, answers = model.logits(state, QUESTIONS), copy.decide(state, QUESTIONS)["answers"]
    own = {"pair": "choice:2", "action": "choice:3-5", "danger": "noul:2", "margin": "score:3-5"}
    for name, temperature in own.items():
        p = np.exp(logits[name].astype(float) / fitted[temperature])
        p /= p.sum()
        said = answers[name]
        assert (said["noul"] if name == "danger" else list(said["probabilities"].values())) == pytest.approx(
            p[1] if name == "danger" else p.tolist(), abs=1e-6
        )
    # the same copy by the same seed, and never over another one
    with pytest.raises(FileExistsError):
        calibrate(rows, model, out)
    again = tmp_path / ("again.gguf" if kind == "file" else "again")
    assert calibrate(rows, model, again).report == report | {"path": str(again)}


def test_the_numbers_after_are_those_of_the_copy(gguf: Path, rows: Path, tmp_path: Path) -> None:
    """An evaluation of the copy on the held-out rows, chosen here by what the report counts, agrees."""
    from skyinfer.evaluation import evaluate
    from skyinfer.evaluation.calibrating import _drawn
    from skyinfer.evaluation.labelled import read_labelled

    model, out = skyinfer.load(gguf), tmp_path / "out.gguf"
    report = calibrate(rows, model, out, held_out=0.4, seed=3).report
    lines = rows.read_text("utf-8").splitlines(keepends=True)
    kept = _drawn(len(read_labelled(rows).states), 0.4, 3)
    some = tmp_path / "held_out.jsonl"
    some.write_text("".join(line for line, there in zip(lines, kept, strict=True) if there), "utf-8")
    found = evaluate(some, model, skyinfer.load(out), samples=0).report["models"]
    assert found[0]["all"]["n"] == report["n_held_out"]
    for which, models in (("before", found[0]), ("after", found[1])):
        for name, value in report["held_out"]["all"][which].items():
            assert models["all"][name]["value"] == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("keys", [{}, {"new.key": 1.5}, {"skyinfer.x": 2.0, "general.name": 0.25}])
def test_a_file_differs_in_the_keys_alone(keys: dict[str, float], gguf: Path, tmp_path: Path) -> None:
    """By the gguf package's reader; and a file whose values are those that it has is the same, byte for byte."""
    out = tmp_path / "out.gguf"
    with GGUFFile.open(gguf) as source, out.open("wb") as file:
        write_with_floats(source, file, keys)
        own = {key: value for key, value in source.metadata.items() if ".temperature." in key}
        assert len(own) >= 3
        with (tmp_path / "same.gguf").open("wb") as same:
            write_with_floats(source, same, own)  # type: ignore[arg-type]
    assert filecmp.cmp(gguf, tmp_path / "same.gguf", shallow=False)
    old, new = GGUFReader(gguf), GGUFReader(out)
    names = [name for name in old.fields if not name.startswith("GGUF.")]
    assert [name for name in new.fields if not name.startswith("GGUF.")] == [
        *names,
        *(k for k in keys if k not in names),
    ]
    for name, value in new.fields.items():
        if name in keys:
            assert value.contents() == keys[name]
        elif not name.startswith("GGUF."):
            assert value.contents() == old.fields[name].contents()
            assert value.types == old.fields[name].types
    for one, other in zip(old.tensors, new.tensors, strict=True):
        assert (one.name, one.tensor_type, one.shape.tolist()) == (other.name, other.tensor_type, other.shape.tolist())
        assert one.data.tobytes() == other.data.tobytes()


def test_a_directory_differs_in_two_entries_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    ModelCopy(PAINTED, out).write({"choice": 1.25, "noul.2": 0.75})
    names = sorted(path.relative_to(PAINTED) for path in PAINTED.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file())
    changed = [name for name in names if not filecmp.cmp(PAINTED / name, out / name, shallow=False)]
    assert [str(name) for name in changed] == ["rl_agent_config.json"]
    old, new = (json.loads((place / "rl_agent_config.json").read_text("utf-8")) for place in (PAINTED, out))
    assert new["temperature"] == [1.25, *old.get("temperature", [1, 1, 1])[1:]]
    assert new["temperature_by_options"] == {**old.get("temperature_by_options", {}), "noul:2": 0.75}
    entries = {"temperature", "temperature_by_options"}
    assert {k: v for k, v in new.items() if k not in entries} == {k: v for k, v in old.items() if k not in entries}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"e": "x", "temperature": [1, 2, 3]}', '{"temperature_by_options": {}, "e": "x", "temperature": [9, 2, 3]}'),
        ('{\r\n "temperature":[NaN,true,"2.5"],\r\n "temperature_by_options" : {"choice:2": 4}, "z": 1e5\r\n}',
         '{\r\n "temperature":[9, true, "2.5"],\r\n "temperature_by_options" : {"choice:2": 4}, "z": 1e5\r\n}'),
        ('{"a": 1}', '{"temperature": [9, 1.0, 1.0], "temperature_by_options": {}, "a": 1}'),
    ],
)  # fmt: skip
def test_the_text_around_the_temperatures_stays(text: str, expected: str, tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    (source / "rl_agent_config.json").write_bytes(text.encode())
    ModelCopy(source, out).write({"choice": 9})
    assert (out / "rl_agent_config.json").read_bytes().decode() == expected


@pytest.mark.parametrize("text", ['{"temperature": 3}', '{"temperature": [1], "a": 2}', "[]", "{", ""])
def test_a_faulty_configuration_leaves_nothing(text: str, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "rl_agent_config.json").write_text(text, "utf-8")
    with pytest.raises(FormatError, match="rl_agent_config"):
        ModelCopy(source, tmp_path / "out").write({"choice": 1.0})
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_too_few_rows_are_refused(gguf: Path, rows: Path, tmp_path: Path) -> None:
    lines = rows.read_text("utf-8").splitlines(keepends=True)
    few, out = tmp_path / "few.jsonl", tmp_path / "out.gguf"
    few.write_text("".join(lines[:20]), "utf-8")
    with pytest.raises(SkyinferError, match="held out"):
        calibrate(few, skyinfer.load(gguf), out)
    few.write_text("".join(lines[:30]), "utf-8")
    with pytest.raises(SkyinferError, match="to learn from"):
        calibrate(few, skyinfer.load(gguf), out, held_out=0.9)
    assert not out.exists()


def test_the_command(run: Run, gguf: Path, rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    found = run("calibrate", rows, "-m", gguf, "-o", out)
    assert (found.code, found.err) == (0, "")
    for text in ("held out", "log loss", "choice:3-5", "score:6-10"):
        assert text in found.out
    assert run("calibrate", rows, "-m", gguf, "-o", out).fault() == f"{out}: exists already; --force replaces it"
    again = run("calibrate", rows, "-m", gguf, "-o", out, "--force", "--json")
    assert again.code == 0
    assert json.loads(again.out)["held_out"]["noul"]["n"] > 30
    isa = skyinfer.info()["isa"]["selected"]
    for precision in ("int8", "exact"):
        command = ["calibrate", rows, "-m", gguf, "-o", out, "--force", "--precision", precision]
        assert f" ({precision} on {isa}), temperatures from " in run(*command).out
        report = json.loads(run(*command, "--json").out)
        assert (report["precision"], report["isa"]) == (precision, isa)
    assert run("evaluate", rows, "-m", gguf, "-m", out, "--samples", "0").code == 0
    assert run("calibrate", rows, "-m", gguf, "-o", out, "--held-out", "1").code == 2
    assert run("calibrate", rows, "-m", gguf).code == 2
    bare, questions = tmp_path / "bare.jsonl", tmp_path / "questions.json"
    lines = (json.loads(line) for line in rows.read_text("utf-8").splitlines())
    bare.write_text("".join(json.dumps({"state": one["state"], "answers": one["answers"]}) + "\n" for one in lines))
    questions.write_text(json.dumps(QUESTIONS), "utf-8")
    same = run("calibrate", bare, "-q", questions, "-m", gguf, "-o", tmp_path / "same.gguf")
    assert (same.code, same.err) == (0, "")
    assert (tmp_path / "same.gguf").read_bytes() == out.read_bytes()
    assert run("calibrate", tmp_path / "none.jsonl", "-m", gguf, "-o", tmp_path / "x.gguf").code == 1


def test_a_temperature_at_its_limit_is_told(run: Run, gguf: Path, tmp_path: Path) -> None:
    """Where the model is always right, it could be surer without end."""
    model = skyinfer.load(gguf)
    rows = tmp_path / "right.jsonl"
    with rows.open("w", encoding="utf-8") as file:
        for i in range(200):
            state = f"vy {i % 23 - 9} dx {i}"
            answer = model.decide(state, {"pair": QUESTIONS["pair"]})["answers"]["pair"]["choice"]  # type: ignore[typeddict-item]
            questions = {"pair": QUESTIONS["pair"]}
            file.write(json.dumps({"state": state, "questions": questions, "answers": {"pair": answer}}) + "\n")
    found = run("calibrate", rows, "-m", gguf, "-o", tmp_path / "out.gguf", "--json")
    assert found.code == 0
    assert json.loads(found.out)["temperatures"] == {"choice": 0.5, "choice:2": 0.5}
    for name in ("choice", "choice:2"):
        assert f"temperature of {name}: 0.5 is the limit that the runtime applies" in found.err


def test_the_model_itself_is_not_replaced(run: Run, gguf: Path, rows: Path) -> None:
    before = gguf.read_bytes()
    said = run("calibrate", rows, "-m", gguf, "-o", gguf, "--force").fault()
    assert said == f"{gguf}: is read by this command, too; name another file to write"
    assert gguf.read_bytes() == before


def test_force_replaces_no_directory(run: Run, rows: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    said = run("calibrate", rows, "-m", PAINTED, "-o", tmp_path / "out", "--force").fault()
    assert said.endswith("out: exists already, and a directory is never replaced; name a new one")


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit")
@pytest.mark.parametrize("limit", [100, 100_000])  # in the configuration, and in the weights
def test_a_copy_of_a_directory_on_a_full_disk_says_so(limit: int, tmp_path: Path) -> None:
    """Held to a small size, a file fails as on a full disk; shutil.copytree would say it in a list of texts."""
    import resource

    out = tmp_path / "copy"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(OSError, match="large") as caught:
            ModelCopy(PAINTED, out).write({"choice": 2.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(out))
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="no such files")
def test_what_of_a_directory_cannot_be_copied_is_named(tmp_path: Path) -> None:
    source, out = shutil.copytree(PAINTED, tmp_path / "model"), tmp_path / "copy"
    odd = source / "notes"
    odd.symlink_to("nowhere")
    with pytest.raises(FileNotFoundError) as caught:
        ModelCopy(source, out).write({"choice": 2.0})
    assert caught.value.filename == str(odd)
    odd.unlink()
    os.mkfifo(odd)
    with pytest.raises(OSError, match=f"{odd}. is a named pipe") as caught:
        ModelCopy(source, out).write({"choice": 2.0})
    assert caught.value.filename == str(out)
    assert list(tmp_path.iterdir()) == [source]
