"""What a loaded model promises beyond its answers: how it fails on faulty weights, and that it stays in its process."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import SIZES, paint
from safetensors.numpy import load_file, save_file

import skyinfer

QUESTIONS: dict[str, Any] = {
    "a": {"type": "choice", "instructions": "i", "criteria": ["x", "y"]},
    "b": {"type": "noul", "instructions": "i"},
}
PLAIN = SIZES["pico"] | {"temperature": [1.0, 1.0, 1.0], "temperature_by_options": {}}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paint(tmp_path_factory.mktemp("model") / "tiny", **PLAIN)


def test_scores_that_are_not_finite_are_refused_by_every_call(checkpoint: Path, tmp_path: Path) -> None:
    """Each weight is a number, but their products are none."""
    directory = paint(tmp_path / "faulty", **PLAIN)
    weights = load_file(directory / "model.safetensors")
    weights["scorer.3.weight"] = np.full_like(weights["scorer.3.weight"], 3e38)
    weights["scorer.0.weight"] = np.full_like(weights["scorer.0.weight"], 1e30)
    save_file(weights, directory / "model.safetensors")
    model = skyinfer.load(directory)
    compiled = model.compile(QUESTIONS)
    calls: list[Callable[[], Any]] = [
        lambda: model.decide("s", QUESTIONS),
        lambda: model.decide_many(["s", "t"], QUESTIONS),
        lambda: model.logits("s", QUESTIONS),
        lambda: compiled("s"),
        lambda: compiled.many(["s"]),
        lambda: compiled.logits("s"),
        lambda: compiled.step("s"),
    ]
    for call in calls:
        with pytest.raises(skyinfer.FormatError, match="scores are not finite"):
            call()
    assert not np.isfinite(model.activations("s", QUESTIONS)["logits"]).all()
    # and of good weights they are numbers
    for row in skyinfer.load(checkpoint).logits("s", QUESTIONS).values():
        assert np.isfinite(row).all()


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_model_stays_in_its_process(take: Callable[[Any], Any], checkpoint: Path) -> None:
    model = skyinfer.load(checkpoint)
    with pytest.raises(
        TypeError, match=r"skyinfer\.Model cannot be pickled or copied; load it in each process"
    ) as caught:
        take(model)
    assert repr(str(checkpoint)) in str(caught.value)
    with pytest.raises(TypeError, match=r"skyinfer\.CompiledQuestions cannot be pickled or copied; load the model in"):
        take(model.compile(QUESTIONS))
