"""The border to the core: its table of tensors, its limits, number types. Kernels have test_kernels.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoints import SIZES, paint

from skyinfer.core import border
from skyinfer.files.checkpoint.weights import checkpoint_name
from skyinfer.files.safetensors import map_tensors
from skyinfer.schema import QUESTION_TYPES

ONE_OF_EACH = {"d_model": 8, "d_ff": 6, "n_vocab": 5, "n_layers": 1, "n_decision_blocks": 1}


@pytest.mark.parametrize("size", SIZES)
def test_tensors_are_those_of_a_checkpoint(size: str, tmp_path: Path) -> None:
    directory = tmp_path
    paint(directory, **SIZES[size])
    stored = {name: tensor.shape for name, tensor in map_tensors(directory / "model.safetensors")}
    embedding, up = stored["encoder.embeddings.tok_embeddings.weight"], stored["encoder.layers.0.mlp.Wi.weight"]
    shapes = border.tensor_shapes(
        d_model=embedding[1],
        d_ff=up[0] // 2,
        n_vocab=embedding[0],
        n_layers=sum(name.endswith("attn.Wqkv.weight") for name in stored),
        n_decision_blocks=sum(name.endswith("in_proj_weight") for name in stored),
    )
    n_layers = sum(name.endswith("ffn_up.weight") and f"{name[:-6]}bias" not in shapes for name in shapes)
    found = {checkpoint_name(name, n_layers, "s1"): shape for name, shape in shapes.items()}
    assert found == {name: shape for name, shape in stored.items() if not name.startswith(("act_head.", "temperature"))}


def test_tensors_of_s2_are_those_of_s1_and_cross_attention() -> None:
    d, sizes = 8, {"d_model": 8, "d_ff": 6, "n_vocab": 5, "n_layers": 3, "n_decision_blocks": 2}
    s1, s2 = (border.tensor_shapes(**sizes, architecture=name) for name in ("s1", "s2"))
    cross = {
        "cross_attn_norm.weight": (d,), "cross_attn_norm.bias": (d,),
        "cross_attn_kv_norm.weight": (d,), "cross_attn_kv_norm.bias": (d,),
        "cross_attn_q.weight": (d, d), "cross_attn_q.bias": (d,),
        "cross_attn_kv.weight": (2 * d, d), "cross_attn_kv.bias": (2 * d,),
        "cross_attn_output.weight": (d, d), "cross_attn_output.bias": (d,),
    }  # fmt: skip
    assert s2 == s1 | {f"blk.{blk}.{name}": shape for blk in (3, 4) for name, shape in cross.items()}
    assert [name for name in s2 if name in s1] == list(s1)
    assert list(s2).index("blk.3.cross_attn_norm.weight") + len(cross) == list(s2).index("blk.3.attn_norm.weight")
    with pytest.raises(ValueError, match="sizes"):
        border.tensor_shapes(**sizes | {"n_decision_blocks": 0}, architecture="s2")


@pytest.mark.parametrize(
    ("size", "least", "most"),
    [
        ("d_model", 2, border.MAX_D_MODEL),
        ("d_ff", 1, border.MAX_D_FF),
        ("n_vocab", 1, border.MAX_VOCAB),
        ("n_layers", 1, border.MAX_BLOCKS),
        ("n_decision_blocks", 0, border.MAX_BLOCKS),
    ],
)
def test_sizes_have_limits(size: str, least: int, most: int) -> None:
    for possible in (least, most):
        assert border.tensor_shapes(**ONE_OF_EACH | {size: possible})
    for impossible in (least - 1, most + 1):
        with pytest.raises(ValueError, match="sizes"):
            border.tensor_shapes(**ONE_OF_EACH | {size: impossible})


def test_the_core_knows_the_types_of_questions() -> None:
    assert len(QUESTION_TYPES) == border.N_QUESTION_TYPES


def test_every_bfloat16_number() -> None:
    half = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    wide = border.widen_bf16(half)
    exponent, fraction = half >> 7 & 255, half & 127
    with np.errstate(over="ignore"):
        size = np.where(
            exponent, np.ldexp(1 + fraction / 128, exponent.astype(int) - 127), np.ldexp(fraction / 128, -126)
        )
    expected = np.where(half >> 15, -size, size)
    expected[(exponent == 255) & (fraction == 0)] = np.inf
    expected[half == 0xFF80] = -np.inf
    expected[(exponent == 255) & (fraction > 0)] = np.nan
    np.testing.assert_array_equal(wide, expected.astype(np.float32))
    assert wide.shape == half.shape
    assert border.widen_bf16(half[:, ::2]).tobytes() == wide[:, ::2].tobytes()
    assert border.widen_bf16(half[:0]).shape == (0, 256)
    with pytest.raises(ValueError, match="Buffer dtype"):
        border.widen_bf16(half.astype(np.float32))
