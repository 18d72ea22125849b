"""Training that starts from a GGUF file: the same tokens and answers at first, and better ones than from nothing."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import SIZES, paint
from requests_of import flight
from trainings import QUESTIONS, QUICK, ROWS, STATES

torch = pytest.importorskip("torch")

import skyinfer  # noqa: E402
from skyinfer.errors import FormatError  # noqa: E402
from skyinfer.files.checkpoint.initial import read_initial  # noqa: E402
from skyinfer.files.gguf import GGUFFile  # noqa: E402
from skyinfer.files.places import SHIPPED, shipped  # noqa: E402
from skyinfer.games.flappy import QUESTIONS as FLAPPY  # noqa: E402
from skyinfer.train import train_rows  # noqa: E402
from skyinfer.train.restoring import restore  # noqa: E402

TEXTS = ["vy 0 dx 36 up 9 dn 7 nxt 10 alt 32", {"a": [1, "ümläut  x"]}, "[MASK] \u6c34\n\n\t<|x|>", "word " * 200]


@pytest.mark.parametrize("name", list(SHIPPED))
def test_a_shipped_models_file_becomes_the_checkpoint_it_was(name: str, tmp_path: Path) -> None:
    restore(shipped(name), tmp_path)
    model, other = skyinfer.load(name), skyinfer.load(tmp_path)
    for text in TEXTS:
        first, second = model.encode(text, FLAPPY), other.encode(text, FLAPPY)
        assert [one.ids for one in first.values()] == [one.ids for one in second.values()]
        assert model.decide(text, FLAPPY)["answers"] == other.decide(text, FLAPPY)["answers"]
    again = skyinfer.convert(tmp_path, tmp_path / "again.gguf", outtype="f16", name=name)
    with GGUFFile.open(shipped(name)) as was, GGUFFile.open(again) as now:
        noted = {key: value for key, value in was.metadata.items() if not key.startswith("skyinfer.training")}
        assert noted == now.metadata
        assert list(was.tensors) == list(now.tensors)
        for tensor in was.tensors:
            np.testing.assert_array_equal(was.tensor(tensor), now.tensor(tensor))


@pytest.mark.parametrize(
    "changes",
    [{}, {"layer_types": ["sliding_attention", "full_attention", "full_attention"], "hidden_activation": "relu"},
     {"global_attn_every_n_layers": 2, "local_attention": 62, "global_rope_theta": 5e3, "max_position_embeddings": 99}],
)  # fmt: skip
def test_every_kind_of_file_is_restored(changes: dict[str, Any], tmp_path: Path) -> None:
    painted = paint(tmp_path / "painted", **SIZES["pico"], temperature=[1.5, 0.75, 2.0], temperature_by_options={})
    config = painted / "encoder" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skyinfer.files.conversion.warn", lambda message: None)
        file = skyinfer.convert(painted, tmp_path / "painted.gguf", outtype="f32")
    (tmp_path / "restored").mkdir()
    restore(file, tmp_path / "restored")
    first, second = read_initial(painted), read_initial(tmp_path / "restored")
    assert dataclasses.replace(second.config, name=first.config.name) == first.config
    for name, values in first.weights.items():
        np.testing.assert_array_equal(second.weights[name], values)
    model, other = skyinfer.load(painted), skyinfer.load(tmp_path / "restored")
    for text in TEXTS:
        for key, scores in model.logits(text, FLAPPY).items():
            np.testing.assert_array_equal(other.logits(text, FLAPPY)[key], scores)


def test_a_training_that_learns_nothing_answers_as_the_file(tmp_path: Path) -> None:
    options = QUICK | {"vocab_size": None, "max_len": None, "head_max_len": None, "progress": False, "lr": 1e-9}
    report = train_rows(ROWS, tmp_path / "out", init="s1-pico", **options)
    assert report.size is None
    model, other = skyinfer.load("s1-pico"), skyinfer.load(tmp_path / "out")
    for state in STATES[:5]:
        for key, scores in model.logits(state, QUESTIONS).items():
            np.testing.assert_allclose(other.logits(state, QUESTIONS)[key], scores, atol=0.02)
            assert model.encode(state, QUESTIONS)[key].ids == other.encode(state, QUESTIONS)[key].ids


def test_files_that_cannot_be_started_from(tmp_path: Path) -> None:
    painted = paint(tmp_path / "painted", **SIZES["pico"])
    file = skyinfer.convert(painted, tmp_path / "painted.gguf")
    data = file.read_bytes()
    (tmp_path / "bare.gguf").write_bytes(data.replace(b"tokenizer.huggingface.json", b"tokenizer.huggingface.jsox"))
    with pytest.raises(FormatError, match=r"has no tokenizer\.huggingface\.json"):
        train_rows(ROWS, tmp_path / "out", init=tmp_path / "bare.gguf", progress=False)
    with pytest.raises(FileNotFoundError):
        train_rows(ROWS, tmp_path / "out", init=tmp_path / "none.gguf", progress=False)
    assert not (tmp_path / "out").exists()


def test_500_rows_adapt_a_model_better_than_they_make_one(tmp_path: Path) -> None:
    """A pilot that thrusts sooner than s1-pico does: learned from s1-pico on, and from nothing, in as many epochs."""
    question = {"action": FLAPPY["action"]}
    states = list(dict.fromkeys(flight(6000, seed=11)))
    random.Random(1).shuffle(states)
    rows = [
        {"state": state, "questions": question, "answers": {"action": "thrust" if p[0] > 0.1 else "glide"}}
        for state, p in zip(states, skyinfer.load().compile(question).step_many(states), strict=True)
    ]
    known, unseen = rows[:500], rows[500:1500]
    right = {}
    for init in ("s1-pico", None):
        out = tmp_path / str(init)
        train_rows(known, out, init=init, epochs=5, progress=False)
        found: Any = skyinfer.load(out).decide_many([row["state"] for row in unseen], question)
        answers = [one["answers"]["action"]["choice"] for one in found]
        right[init] = sum(answer == row["answers"]["action"] for answer, row in zip(answers, unseen, strict=True))
    print(right)
    always = sum(row["answers"]["action"] == "glide" for row in unseen)
    assert right["s1-pico"] > max(right[None], always) + 100
