"""The models in torch, as training needs them: what architectures share, and s1 (set_network.py has s2).

Reads like tests/reference.py, by the checkpoint's own tensor names. What is done for speed at small sizes: weights of
the queries and keys are reordered so that rotation is one complex product; where a batch has more tokens than the
vocabulary, what depends on the token alone is computed for the vocabulary; the last head block is computed at the
markers only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.border import tensor_shapes
from ..files.checkpoint.weights import checkpoint_name
from .architectures import DEFAULT

_HEAD_EPS = 1e-5  # torch's LayerNorm default, whatever the encoder uses


# by the core's names (files/activations.py)
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "silu": F.silu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_quick": lambda x: x * torch.sigmoid(1.702 * x),
    "gelu_clipped": lambda x: F.gelu(x).clamp(-10.0, 10.0),
    "relu": F.relu,
    "relu_squared": lambda x: F.relu(x).square(),
    "relu6": F.relu6,
    "relu_leaky": F.leaky_relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "linear": lambda x: x,
    "hardswish": F.hardswish,
    "mish": F.mish,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes and constants of a network (`config.ModelConfig` describes them)."""

    d_model: int
    n_layers: int
    n_heads: int
    d_ff: int
    n_decision_blocks: int
    vocab_size: int
    norm_eps: float = 1e-5
    window: int = 64
    layer_is_global: tuple[bool, ...] = ()
    rope_base_global: float = 160000.0
    rope_base_local: float = 10000.0
    activation: str = "gelu"
    architecture: str = DEFAULT

    @property
    def n_decision_heads(self) -> int:
        return max(1, self.d_model // 64)

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Every tensor that answers depend on, by the checkpoint's name.

        In the order in which initial weights are drawn, so that a seed means the same weights for good: a decision
        block's norms come after its matrices, and the type embedding after the blocks.
        """
        shapes = tensor_shapes(
            d_model=self.d_model,
            d_ff=self.d_ff,
            n_vocab=self.vocab_size,
            n_layers=self.n_layers,
            n_decision_blocks=self.n_decision_blocks,
            architecture=self.architecture,
        )
        for name in sorted(shapes, key=self._turn):
            yield checkpoint_name(name, self.n_layers, self.architecture), shapes[name]

    def _turn(self, name: str) -> tuple[int, int, bool]:
        """What `tensors` is sorted by: part of the model, block, whether it is a norm. Equal ones stay in place."""
        block = int(name.split(".")[1]) if name.startswith("blk.") else 0
        if block >= self.n_layers:
            return 1, block, "norm" in name
        part = 2 if name.startswith("token_types") else 3 if name.startswith("cls") else 0
        return part, 0, False


class Batch(NamedTuple):
    """Sequences of one forward pass, padded to the longest.

    ids: int64 [n, length]. keys: bool [n, length], False at padding; None where nothing is padded. markers: int64
    [n, n_markers] positions, 0 where a question has fewer. options: bool [n, n_markers]. kinds: int64 [n].
    """

    ids: Tensor
    keys: Tensor | None
    markers: Tensor
    options: Tensor
    kinds: Tensor


class Encoder:
    """Weights by name, and what the functions have in common that they are the weights of."""

    def __init__(self, shape: Shape, weights: Mapping[str, Tensor]) -> None:
        """`weights` are used as they are, not copied: float32, in the shapes of `Shape.tensors`."""
        self.shape = shape
        self.weights = dict(weights)
        self._rotations: dict[tuple[int, float], Tensor] = {}
        dh = shape.d_model // shape.n_heads
        # (j, j + dh / 2) are a pair in the checkpoint; here pairs lie side by side, as complex numbers do
        pairs = torch.arange(dh).view(2, dh // 2).T.reshape(-1)
        self._qk_rows = torch.arange(2 * shape.d_model).view(2, shape.n_heads, dh)[:, :, pairs].reshape(-1)

    def encoded(self, ids: Tensor, keys: Tensor | None) -> Tensor:
        """float32 [n, length, d] of int64 [n, length]. keys: as in a `Batch`."""
        shape, w = self.shape, self.weights
        d, eps = shape.d_model, shape.norm_eps
        n, length = ids.shape
        act = _ACTIVATIONS[shape.activation]
        masks = self._masks(keys, length)
        embedding, norm = w["encoder.embeddings.tok_embeddings.weight"], w["encoder.embeddings.norm.weight"]
        by_token = shape.vocab_size <= n * length
        if by_token:
            table = F.layer_norm(embedding, (d,), norm, None, eps)
            x = F.embedding(ids, table)
        else:
            table = x = F.layer_norm(F.embedding(ids, embedding), (d,), norm, None, eps)
        for i, is_global in enumerate(shape.layer_is_global):
            layer = f"encoder.layers.{i}"
            # products apart, here and below, in place of one that is split: its halves would lie scattered in memory
            wqkv = w[f"{layer}.attn.Wqkv.weight"]
            wqk, wv = wqkv[self._qk_rows], wqkv[2 * d :]
            a = table if i == 0 else F.layer_norm(x, (d,), w[f"{layer}.attn_norm.weight"], None, eps)
            qk, v = F.linear(a, wqk), F.linear(a, wv)
            if i == 0 and by_token:
                qk, v = F.embedding(ids, qk), F.embedding(ids, v)
            base = shape.rope_base_global if is_global else shape.rope_base_local
            a = self._attention(qk, v, length, base, masks[0 if is_global else 1])
            x = x + F.linear(a, w[f"{layer}.attn.Wo.weight"])
            f = F.layer_norm(x, (d,), w[f"{layer}.mlp_norm.weight"], None, eps)
            up, gate = w[f"{layer}.mlp.Wi.weight"].view(2, shape.d_ff, d)
            x = x + F.linear(act(F.linear(f, up)) * F.linear(f, gate), w[f"{layer}.mlp.Wo.weight"])
        return F.layer_norm(x, (d,), w["encoder.final_norm.weight"], None, eps)

    def _attention(self, qk: Tensor, v: Tensor, length: int, base: float, mask: Tensor | None) -> Tensor:
        """[n, length, 2 d] with pairs side by side, and [n, length, d] -> [n, length, d]."""
        h = self.shape.n_heads
        n, _, d = v.shape
        pairs = torch.view_as_complex(qk.view(n, length, 2 * h, d // h // 2, 2))
        turned = torch.view_as_real(pairs * self._rotation(length, base)).view(n, length, 2, h, d // h)
        q, k = turned.transpose(1, 3).unbind(2)
        a = F.scaled_dot_product_attention(q, k, v.view(n, length, h, d // h).transpose(1, 2), attn_mask=mask)
        return a.transpose(1, 2).reshape(n, length, d)

    def _rotation(self, length: int, base: float) -> Tensor:
        """complex64 [length, 1, dh / 2]."""
        found = self._rotations.get((length, base))
        if found is None:
            dh = self.shape.d_model // self.shape.n_heads
            rates = base ** (-2.0 * torch.arange(dh // 2, dtype=torch.float64) / dh)
            angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
            found = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)[:, None]
            self._rotations[length, base] = found
        return found

    def _masks(self, keys: Tensor | None, length: int) -> tuple[Tensor | None, Tensor | None]:
        """What global and local layers add to their scores; None for nothing."""
        everywhere = only(keys)
        if length - 1 <= self.shape.window:
            return everywhere, everywhere
        place = torch.arange(length)
        far = (place[:, None] - place).abs() > self.shape.window
        local = torch.zeros(length, length).masked_fill(far, -math.inf)
        # a padded row may be left without a key, and would be NaN; it is read by nobody but has a gradient
        if everywhere is not None:
            nearby = everywhere + local
            return everywhere, torch.where(nearby.isneginf().all(-1, keepdim=True), local, nearby)
        return None, local

    def scored(self, x: Tensor) -> Tensor:
        """The scorer: [n, d] -> [n]."""
        z = F.gelu(F.linear(self.normed(x, "scorer.0"), *self.affine("scorer.1")))
        return F.linear(z, *self.affine("scorer.3"))[:, 0]

    def fed_forward(self, x: Tensor, block: str) -> Tensor:
        """[..., d] and what the feed-forward part of a decision block adds to it."""
        f = F.relu(F.linear(self.normed(x, f"{block}.norm2"), *self.affine(f"{block}.linear1")))
        return x + F.linear(f, *self.affine(f"{block}.linear2"))

    def normed(self, x: Tensor, name: str) -> Tensor:
        """A norm of the decision head over [..., d]."""
        return F.layer_norm(x, (self.shape.d_model,), *self.affine(name), _HEAD_EPS)

    def affine(self, name: str, joint: str = ".") -> tuple[Tensor, Tensor]:
        return self.weights[f"{name}{joint}weight"], self.weights[f"{name}{joint}bias"]


class Network(Encoder):
    """s1: question, options and state in one sequence."""

    def logits(self, batch: Batch) -> Tensor:
        """[n, n_markers] scores before any temperature, -inf where there is no option."""
        d = self.shape.d_model
        x = self.encoded(batch.ids, batch.keys)
        n, length, _ = x.shape
        x = x + self.weights["type_emb.weight"][batch.kinds][:, None]
        at = batch.markers + torch.arange(0, n * length, length)[:, None]
        for j in range(self.shape.n_decision_blocks):
            x = self._decision_block(x, j, batch, at if j == self.shape.n_decision_blocks - 1 else None)
        if self.shape.n_decision_blocks == 0:
            x = x.reshape(-1, d)[at.reshape(-1)]
        return self.scored(x.reshape(-1, d)).view(n, -1).masked_fill(~batch.options, -math.inf)

    def _decision_block(self, x: Tensor, j: int, batch: Batch, at: Tensor | None) -> Tensor:
        """One block over every row, or, with `at` [n, n_markers], its output at those rows of [n * length] only."""
        block, d, h = f"head.layers.{j}", self.shape.d_model, self.shape.n_decision_heads
        n, length, _ = x.shape
        weight, bias = self.affine(f"{block}.self_attn.in_proj", "_")
        a = self.normed(x, f"{block}.norm1")
        if at is None:
            q, k, v = F.linear(a, weight, bias).view(n, length, 3, h, d // h).permute(2, 0, 3, 1, 4)
        else:
            k, v = F.linear(a, weight[d:], bias[d:]).view(n, length, 2, h, d // h).permute(2, 0, 3, 1, 4)
            rows = at.reshape(-1)
            q = F.linear(F.embedding(rows, a.reshape(-1, d)), weight[:d], bias[:d])
            q = q.view(n, -1, h, d // h).transpose(1, 2)
            x = F.embedding(rows, x.reshape(-1, d)).view(n, -1, d)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=only(batch.keys))
        x = x + F.linear(a.transpose(1, 2).reshape(x.shape), *self.affine(f"{block}.self_attn.out_proj"))
        return self.fed_forward(x, block)


def only(keys: Tensor | None) -> Tensor | None:
    """What attention adds to its scores so that none but these keys, bool [n, length], are seen: [n, 1, 1, length]."""
    return None if keys is None else torch.zeros(keys.shape).masked_fill(~keys, -math.inf)[:, None, None]


def initial_weights(shape: Shape, seed: int) -> dict[str, Tensor]:
    """Weights to begin with: norms that do nothing, no biases, normal matrices cut off at two deviations."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, size in shape.tensors():
        if len(size) == 1:
            is_norm = name.endswith("weight")
            weights[name] = torch.ones(size) if is_norm else torch.zeros(size)
            continue
        deviation = _deviation(name, size, shape)
        values = torch.empty(size)
        torch.nn.init.trunc_normal_(values, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)
        weights[name] = values
    return weights


def _deviation(name: str, size: tuple[int, ...], shape: Shape) -> float:
    if name.startswith("type_emb"):
        return 0.02
    if "tok_embeddings" in name:
        return 1.0
    fan_in = 1.0 / math.sqrt(size[1])
    # what writes into the residual stream is the smaller the deeper the model, as in ModernBERT
    if name.endswith((".Wo.weight", ".out_proj.weight", ".linear2.weight")):
        return fan_in / math.sqrt(2.0 * (shape.n_layers + shape.n_decision_blocks))
    return fan_in
