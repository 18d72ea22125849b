"""The torch network of a checkpoint directory, and sequences as s1 reads them, for the tests of training."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from reference import read_safetensors

from skyinfer.schema import QUESTION_TYPES
from skyinfer.train.batches import Chunk
from skyinfer.train.network import Network, Shape
from skyinfer.train.set_network import SetNetwork


def network_of(directory: Path) -> Network:
    shape, weights = _read(directory)
    return Network(shape, weights)


def set_network_of(directory: Path) -> SetNetwork:
    shape, weights = _read(directory)
    return SetNetwork(shape, weights)


def _read(directory: Path) -> tuple[Shape, dict[str, torch.Tensor]]:
    encoder = json.loads((directory / "encoder" / "config.json").read_text("utf-8"))
    agent = json.loads((directory / "rl_agent_config.json").read_text("utf-8"))
    shape = Shape(
        encoder["hidden_size"], encoder["num_hidden_layers"], encoder["num_attention_heads"],
        encoder["intermediate_size"], agent.get("head_layers", agent.get("decision_blocks")), encoder["vocab_size"],
        layer_is_global=tuple(i % 3 == 0 for i in range(encoder["num_hidden_layers"])),
        activation=encoder["hidden_activation"], window=encoder["local_attention"] // 2,
        architecture=agent.get("architecture", "s1"),
    )  # fmt: skip
    tensors = read_safetensors(directory / "model.safetensors")
    return shape, {name: torch.tensor(tensors[name], dtype=torch.float32) for name, _ in shape.tensors()}


def padded(sequences: list[tuple[list[int], list[int], str]], pad: int = 0) -> Chunk:
    """Sequences of (ids, markers, type) as one chunk whose targets are the first option."""
    n, longest = len(sequences), max(len(ids) for ids, _, _ in sequences)
    n_markers = max(len(markers) for _, markers, _ in sequences)
    ids = np.full((n, longest), pad, np.int64)
    markers, options = np.zeros((n, n_markers), np.int64), np.zeros((n, n_markers), bool)
    for i, (own, at, _) in enumerate(sequences):
        ids[i, : len(own)] = own
        markers[i, : len(at)], options[i, : len(at)] = at, True
    targets = np.zeros((n, n_markers), np.float32)
    targets[:, 0] = 1
    kinds = np.array([QUESTION_TYPES.index(kind) for _, _, kind in sequences])
    lengths = np.array([len(own) for own, _, _ in sequences])
    return Chunk(ids, lengths, markers, options, kinds, targets, np.arange(1, n + 1, dtype=np.float32), np.arange(n))
