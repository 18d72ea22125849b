"""The network that training uses against the executable specification, and its optimizer. Needs torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

# ruff: noqa: E402
from checkpoints import SIZES, paint
from networks import network_of, padded
from reference import Reference

from skyinfer.schema import QUESTION_TYPES
from skyinfer.train.batches import Chunk
from skyinfer.train.fitting import batch_of, cross_entropy
from skyinfer.train.network import Network, Shape, initial_weights
from skyinfer.train.optimizer import Optimizer, orthogonal


def some_sequences(vocab: int, lengths: list[int], seed: int = 5) -> list[tuple[list[int], list[int], str]]:
    random = np.random.default_rng(seed)
    out = []
    for i, length in enumerate(lengths):
        n_markers = (1, 2, 9)[i % 3] if length > 20 else 2
        markers = sorted(random.choice(np.arange(1, length), n_markers, replace=False).tolist())
        out.append((random.integers(0, vocab, length).tolist(), markers, QUESTION_TYPES[i % 3]))
    return out


@pytest.mark.parametrize(
    ("size", "paints"),
    [
        ("golden", {}),
        ("golden", {"activation": "silu", "local_attention": 64, "seed": 3}),
        ("pico", {}),
    ],
)
def test_the_network_is_the_specification(tmp_path: Path, size: str, paints: dict[str, Any]) -> None:
    """Lengths around the window, all types, one sequence and padded batches, with and without a table by token."""
    directory = paint(tmp_path / "painted", **SIZES[size], **paints)
    network, reference = network_of(directory), Reference.open(directory)
    sequences = some_sequences(SIZES[size]["vocab"], [7, 33, 65, 66, 129])
    expected = [reference.logits(*sequence) for sequence in sequences]
    for batch in ([[i] for i in range(5)], [[0, 1, 2], [3, 4]], [[0, 1, 2, 3, 4]]):
        for some in batch:
            with torch.inference_mode():
                logits = network.logits(batch_of(padded([sequences[i] for i in some])))
            for row, i in zip(logits.numpy(), some, strict=True):
                n = len(expected[i])
                assert row[:n] == pytest.approx(expected[i], abs=2e-4)
                assert np.isneginf(row[n:]).all()


def gradients(network: Network, chunk: Chunk) -> dict[str, np.ndarray]:
    weights = list(network.weights.values())
    for values in weights:
        values.requires_grad_(True)
    found = torch.autograd.grad(cross_entropy(network.logits(batch_of(chunk)), chunk), weights)
    return {name: values.numpy() for name, values in zip(network.weights, found, strict=True)}


def test_a_seed_goes_on_meaning_the_same_weights() -> None:
    """Matrices are drawn one after the other, in this order since the first release."""
    shape = Shape(64, 2, 1, 96, 1, 50, layer_is_global=(True, False))
    assert [name.removesuffix(".weight") for name, size in shape.tensors() if len(size) == 2] == [
        "encoder.embeddings.tok_embeddings", "encoder.layers.0.attn.Wqkv", "encoder.layers.0.attn.Wo",
        "encoder.layers.0.mlp.Wi", "encoder.layers.0.mlp.Wo", "encoder.layers.1.attn.Wqkv", "encoder.layers.1.attn.Wo",
        "encoder.layers.1.mlp.Wi", "encoder.layers.1.mlp.Wo", "head.layers.0.self_attn.in_proj_weight",
        "head.layers.0.self_attn.out_proj", "head.layers.0.linear1", "head.layers.0.linear2", "type_emb", "scorer.1",
        "scorer.3",
    ]  # fmt: skip


def test_padding_has_no_part_in_gradients() -> None:
    shape = Shape(64, 4, 1, 96, 2, 50, window=8, layer_is_global=(True, False, False, True))
    network = Network(shape, initial_weights(shape, 1))
    sequences = some_sequences(50, [5, 12, 33, 60])
    together = gradients(network, padded(sequences))
    apart: dict[str, np.ndarray] = {}
    for i, sequence in enumerate(sequences):
        chunk = padded([sequence])._replace(weights=np.array([i + 1], np.float32))
        for name, values in gradients(network, chunk).items():
            apart[name] = apart.get(name, 0) + values
    for name, values in together.items():
        assert np.isfinite(values).all()
        assert values == pytest.approx(apart[name], abs=1e-4 * max(1.0, float(np.abs(values).max()))), name


def test_gradients_are_the_slope_of_the_specification(tmp_path: Path) -> None:
    """Along a random direction, against central differences of the loss that the specification gives in float64."""
    sizes = SIZES["pico"] | {"vocab": 300}
    directory = paint(tmp_path / "painted", **sizes)
    network, reference = network_of(directory), Reference.open(directory)
    sequences = some_sequences(300, [9, 30, 70])
    chunk = padded(sequences)
    found = gradients(network, chunk)
    random = np.random.default_rng(2)
    direction = {name: random.normal(size=values.shape) for name, values in found.items()}

    def loss(step: float) -> float:
        moved = Reference(
            reference.config, {name: reference.tensors[name] + step * along for name, along in direction.items()}
        )
        total = 0.0
        for weight, (ids, markers, kind) in zip(chunk.weights, sequences, strict=True):
            z = moved.logits(ids, markers, kind)
            total -= weight * (z[0] - z.max() - np.log(np.exp(z - z.max()).sum()))
        return float(total)

    slope = sum(float((values * direction[name]).sum()) for name, values in found.items())
    assert slope == pytest.approx((loss(1e-6) - loss(-1e-6)) / 2e-6, rel=1e-3)


@pytest.mark.parametrize("size", [(3, 64, 64), (2, 64, 128), (2, 256, 64)])
def test_muon_makes_matrices_orthogonal(size: tuple[int, ...]) -> None:
    matrices = torch.randn(size, generator=torch.Generator().manual_seed(1)) * 1e-3
    found = orthogonal(matrices)
    assert found.shape == size
    for one, made in zip(matrices, found, strict=True):
        # of the same singular vectors, each with a value near 1, or a small one's that grows towards it
        left, values, right = torch.linalg.svd(one, full_matrices=False)
        inside = left.T @ made @ right.T
        large = inside.diagonal()[values > 0.03 * values.max()]
        assert 0.6 < large.min() <= inside.diagonal().max() < 1.25
        assert (inside - inside.diagonal().diag()).abs().max() < 1e-3


def test_updates_of_both_kinds() -> None:
    """The embedding goes as torch's AdamW takes it; each third of Wqkv moves along its own gradient's directions."""
    shape = Shape(64, 1, 1, 128, 1, 40, layer_is_global=(True,))
    weights, qkv, embedding = (
        initial_weights(shape, 1), "encoder.layers.0.attn.Wqkv.weight", "encoder.embeddings.tok_embeddings.weight"
    )  # fmt: skip
    random = torch.Generator().manual_seed(2)
    gradients = {name: torch.randn(values.shape, generator=random) for name, values in weights.items()}
    before = {name: values.clone() for name, values in weights.items()}
    twin = torch.nn.Parameter(weights[embedding].clone())
    adam = torch.optim.AdamW([twin], lr=1e-3, betas=(0.9, 0.98), weight_decay=0.1)
    optimizer = Optimizer(weights, 64, 0.1)
    for _ in range(3):
        optimizer.step(list(gradients.values()), 1e-3)
        twin.grad = gradients[embedding].clone()
        adam.step()
    assert torch.allclose(weights[embedding], twin.detach(), atol=1e-7)
    # the same gradient three times is the same update three times, in the proportion of the rates
    rate, kept = 6e-3, (1 - 6e-3 * 0.1)
    for i in range(3):
        rows = slice(64 * i, 64 * (i + 1))
        update = orthogonal(gradients[qkv][rows][None])[0]
        expected = before[qkv][rows]
        for _ in range(3):
            expected = expected * kept - rate * update
        assert torch.allclose(weights[qkv][rows], expected, atol=1e-4)
    for name, values in weights.items():
        assert not torch.equal(values, before[name]), name
