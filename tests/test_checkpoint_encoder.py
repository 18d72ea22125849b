"""encoder/config.json: every entry that a release of transformers knows, against what the Laya runtime made of it.

golden/encoder_config.py records both; an entry that a new release brings shows in the first test once it is recorded.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skyinfer
from skyinfer.errors import FormatError

sys.path.append(str(Path(__file__).parent / "golden"))
import encoder_config

CASES = list(encoder_config.read_cases())

# The runtime computes these, and the core does not: they are refused by name. Everything else is answered as there.
NOT_COMPUTED: dict[str, list[Any]] = {
    "sliding_window": [-1],
    "local_attention": [-1],
    "rope_scaling": [
        {"rope_type": kind, **more}
        for kind, more in {
            "linear": {"factor": 4.0},
            "dynamic": {"factor": 2.0},
            "yarn": {"factor": 2.0},
            "proportional": {"partial_rotary_factor": 0.5},
            "llama3": {
                "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32
            },
        }.items()
    ] + [{"type": "linear", "factor": 2.0}],
    "rope_parameters": [
        {"full_attention": {"rope_theta": 5000.0, kind: "linear", "factor": 2.0}} for kind in ("type", "rope_type")
    ],
    "is_causal": [True],
    "norm_eps": [0.0, -1e-7, 5.0],
    "dtype": ["bfloat16", "float16"],
    "torch_dtype": ["bfloat16", "half"],
    "num_attention_heads": [64],
}  # fmt: skip


def shown(changes: dict[str, Any]) -> str:
    return ", ".join(f"{key}={'(removed)' if value is ... else json.dumps(value)}" for key, value in changes.items())


def is_not_computed(changes: dict[str, Any]) -> bool:
    if changes.get("dtype") not in (None, ...):
        changes = {"dtype": changes["dtype"]}  # which wins over the older spelling
    return any(value is not ... and value in NOT_COMPUTED.get(key, ()) for key, value in changes.items())


def test_every_entry_of_every_release_has_a_case() -> None:
    record = json.loads(encoder_config.RECORD.read_text(encoding="utf-8"))
    tried = {key for changes, _ in CASES for key in changes}
    assert sorted(set(record["keys"]) - tried) == []
    assert record["releases"][0] == "4.48.0"
    assert record["versions"]["transformers"] == record["releases"][-1]


def test_an_installed_release_brings_no_entry_that_is_unknown() -> None:
    transformers = pytest.importorskip("transformers")
    record = json.loads(encoder_config.RECORD.read_text(encoding="utf-8"))
    assert sorted(encoder_config.entries_of(Path(transformers.__file__).parent) - set(record["keys"])) == []


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoder") / "painted"


@pytest.mark.parametrize(("changes", "expected"), CASES, ids=[shown(changes) or "as painted" for changes, _ in CASES])
def test_an_entry_is_honoured_as_the_runtime_does(
    changes: dict[str, Any], expected: list[float] | str, place: Path
) -> None:
    directory = encoder_config.changed(place, changes)
    refusal = found = None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*layer_norm_eps is not ModernBERT's spelling", RuntimeWarning)
        try:
            found = skyinfer.load(directory).logits(encoder_config.STATE, encoder_config.QUESTIONS)["a"]
        except FormatError as error:
            refusal = str(error)
    if isinstance(expected, str) or is_not_computed(changes):
        assert refusal is not None, f"answered, and the runtime gives {expected}"
        # sizes show where the weights differ from them
        assert "tensor" in refusal or any(f"config.json: {key}" in refusal for key in changes), refusal
    else:
        assert refusal is None
        np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)


def test_an_epsilon_in_another_models_spelling_is_named(place: Path) -> None:
    directory = encoder_config.changed(place, {"norm_eps": ..., "layer_norm_eps": 0.1})
    with pytest.warns(RuntimeWarning, match=r"layer_norm_eps is not ModernBERT's spelling and is ignored"):
        skyinfer.load(directory)
