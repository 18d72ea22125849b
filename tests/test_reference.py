"""The float64 reference against the real runtime's recorded scores and activations, and its parts
against slower or independent spellings of the same mathematics."""

from __future__ import annotations

import functools
import math
import re
import warnings
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import reference
from checkpoints import SIZES, paint
from golden.recipes import painted, recorded, sample_of
from reference import Reference

import skyinfer

CHECKPOINTS = ("byte", "metaspace", "silu")
# The runtime computes in float32. Scores reach 8 here; activations are compared relative to their
# root mean square. Measured: 1.6e-5 and 6e-6.
SCORE_BOUND, ACTIVATION_BOUND = 4e-5, 2e-5


@functools.cache
def _reference(name: str) -> Reference:
    return Reference.open(painted(name))


def _forward(name: str) -> dict[str, Any]:
    return next(c for c in recorded("forward.json")["checkpoints"] if c["checkpoint"] == name)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_scores_are_the_runtimes(name: str) -> None:
    cases = _forward(name)["cases"]  # each sequence with all three types: one of them in turn
    for case in [cases[i + i // 3 % 3] for i in range(0, len(cases), 3)]:
        scores = _reference(name).logits(case["ids"], case["markers"], case["type"])
        np.testing.assert_allclose(scores, case["logits"], rtol=0, atol=SCORE_BOUND)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_scores_do_not_depend_on_the_batch(name: str) -> None:
    """The runtime pads; what it then computes must still be what one sequence gives alone."""
    forward = _forward(name)
    for batch in forward["batches"]:
        for index, logits in zip(batch["cases"], batch["logits"], strict=True):
            np.testing.assert_allclose(logits, forward["cases"][index]["logits"], rtol=0, atol=SCORE_BOUND)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_activations_are_the_runtimes(name: str) -> None:
    forward = _forward(name)
    case = forward["cases"][forward["activations"]["case"]]
    ours: reference.Activations = {}
    _reference(name).logits(case["ids"], case["markers"], case["type"], ours)
    theirs = forward["activations"]["values"]
    unseen = {"head.0.attn_qkv", "head.1.attn_qkv"}  # inside a function of torch
    assert theirs.keys() == ours.keys() - unseen - {"logits"}
    for activation, value in theirs.items():
        a = ours[activation]
        assert list(a.shape) == value["shape"], activation
        sample = a[np.ix_(*sample_of(a.shape))].ravel()
        bound = ACTIVATION_BOUND * value["rms"]
        np.testing.assert_allclose(sample, value["sample"], rtol=0, atol=bound, err_msg=activation)
        assert np.sqrt(np.square(a).mean()) == pytest.approx(value["rms"], rel=ACTIVATION_BOUND)


def test_layer_norm() -> None:
    x = [1.0, 2.0, 3.0, 6.0]
    mean, variance = 3.0, 3.5
    expected = [(v - mean) / math.sqrt(variance + 0.5) * 2.0 + 1.0 for v in x]
    got = reference.layer_norm([x], [2.0] * 4, [1.0] * 4, eps=0.5)
    np.testing.assert_allclose(got, [expected], rtol=1e-15)


def test_activation_functions() -> None:
    x = [-800.0, -3.0, -0.0, 0.5, 40.0, 800.0]
    gelu = [v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in x]
    np.testing.assert_allclose(reference.gelu_erf(x), gelu, rtol=0, atol=1e-15)
    silu = [v / (1.0 + math.exp(-v)) if v > -700 else 0.0 for v in x]
    np.testing.assert_allclose(reference.silu(x), silu, rtol=1e-15)


def test_rope_is_a_rotation_by_position() -> None:
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 1, 1, 8))

    def product(p: int, r: int) -> float:
        turned = reference.rope(q, 10000.0, [p]), reference.rope(k, 10000.0, [r])
        return float((turned[0] * turned[1]).sum())

    assert product(3, 8) == pytest.approx(product(103, 108), rel=1e-12)
    assert product(0, 0) == pytest.approx(float((q * k).sum()), rel=1e-12)
    pair = reference.rope(np.eye(8)[None, :1], 10000.0, [2])[0, 0]
    np.testing.assert_allclose(pair[[0, 4]], [math.cos(2), math.sin(2)], rtol=1e-15)


@pytest.mark.parametrize("window", [None, 0, 2, 64])
def test_attention(window: int | None) -> None:
    n, heads, dh = 9, 2, 4
    q, k, v = np.random.default_rng(1).standard_normal((3, n, heads, dh))
    expected = np.zeros((n, heads, dh))
    for h in range(heads):
        for p in range(n):
            seen = [r for r in range(n) if window is None or abs(p - r) <= window]
            weights = [math.exp(float(q[p, h] @ k[r, h]) / math.sqrt(dh)) for r in seen]
            for w, r in zip(weights, seen, strict=True):
                expected[p, h] += w / sum(weights) * v[r, h]
    got = reference.attention(q, k, v, window)
    np.testing.assert_allclose(got, expected.reshape(n, -1), rtol=0, atol=1e-14)
    some = [7, 2]
    rows = reference.attention(q[some], k, v, window, some)
    np.testing.assert_allclose(rows, got[some], rtol=0, atol=1e-14)


def test_the_window_first_bites_at_a_distance_of_65() -> None:
    """In one local layer, the first token moves the scores of markers up to 64 away only."""
    config = reference.ReferenceConfig(
        n_heads=1, eps=1e-5, window=64, layer_is_global=(False,), rope_base_global=160000.0,
        rope_base_local=10000.0, activation="gelu", n_decision_blocks=0,
    )  # fmt: skip
    model = Reference(config, _reference("byte").tensors)
    ids = [5] * 80
    changed = [6, *ids[1:]]
    before, after = (model.logits(x, [63, 64, 65, 66], "choice") for x in (ids, changed))
    assert (before != after).tolist() == [True, True, False, False]


def test_every_storage_form_reads_alike(tmp_path: Path) -> None:
    """Shards, older and newer spellings: one model. F16 and BF16 are its values rounded."""
    ids, markers = list(range(5, 45)), [3, 9]
    expected = _reference("byte").logits(ids, markers, "score")
    for options in (
        {"shards": 3},
        {"rope": "parameters", "layers": "layer_types"},
        {"eps_keys": ["layer_norm_eps"], "special_tokens": "object"},
    ):
        paint(tmp_path, **(SIZES["golden"] | options))
        assert (Reference.open(tmp_path).logits(ids, markers, "score") == expected).all(), options
        for file in tmp_path.glob("*.safetensors"):
            file.unlink()
    for dtype, bound in (("F16", 2**-11), ("BF16", 2**-8)):
        paint(tmp_path, **(SIZES["golden"] | {"dtype": dtype}))
        for name, value in Reference.open(tmp_path).tensors.items():
            exact = _reference("byte").tensors[name]
            assert (np.abs(value - exact) <= bound * np.abs(exact) + 2.0**-25).all(), name


def test_the_example_is_what_its_command_paints(tmp_path: Path) -> None:
    examples = Path(__file__).parents[1] / "examples"
    (command,) = re.findall(r"`python tests/checkpoints.py (.*)`", (examples / "README.md").read_text("utf-8"))
    arguments = [str(tmp_path) if part == "examples/painted" else part for part in command.split()]
    assert str(tmp_path) in arguments
    checkpoints.main(arguments)
    files = sorted(f.relative_to(tmp_path) for f in tmp_path.rglob("*") if f.is_file())
    assert len(files) == 5
    for file in files:
        assert (examples / "painted" / file).read_bytes() == (tmp_path / file).read_bytes(), file
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the first thing a newcomer sees is no warning
        skyinfer.load(examples / "painted")
