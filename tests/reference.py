"""The models in float64 numpy: the executable specification, a line of code per line of mathematics.

It reads a checkpoint by the checkpoint's own tensor names, so that it depends on none of the
code it judges (not the converter, not the GGUF reader, not the C core). Whole matrices, every row,
no tricks; the plain functions are the oracle of the kernel tests. Source: the Laya runtime 0.4.15
and ModernBERT as transformers 5 computes it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

F64 = NDArray[np.float64]
Activations = dict[str, F64]

QUESTION_TYPES = {"choice": 0, "score": 1, "noul": 2}
HEAD_EPS = 1e-5  # torch's LayerNorm default, whatever the encoder uses


def layer_norm(x: ArrayLike, weight: ArrayLike, bias: ArrayLike | float = 0.0, eps: float = 1e-5) -> F64:
    """Each row of x [..., d] at mean 0 and (biased) variance 1, then scaled and shifted by [d]."""
    x = np.asarray(x, np.float64)
    centred = x - x.mean(-1, keepdims=True)
    variance = np.square(centred).mean(-1, keepdims=True)
    return centred / np.sqrt(variance + eps) * np.asarray(weight, np.float64) + np.asarray(bias, np.float64)


def gelu_erf(x: ArrayLike) -> F64:
    """x Phi(x), the exact GELU."""
    x = np.asarray(x, np.float64)
    erf = np.fromiter(map(math.erf, (x / math.sqrt(2.0)).ravel().tolist()), np.float64, x.size)
    return 0.5 * x * (1.0 + erf.reshape(x.shape))


def silu(x: ArrayLike) -> F64:
    """x sigmoid(x), without overflow on either side."""
    x = np.asarray(x, np.float64)
    e = np.exp(-np.abs(x))
    return x * np.where(x >= 0, 1.0, e) / (1.0 + e)


def relu(x: ArrayLike) -> F64:
    return np.maximum(np.asarray(x, np.float64), 0.0)


def sigmoid(x: ArrayLike) -> F64:
    x = np.asarray(x, np.float64)
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


def gelu_tanh(x: ArrayLike) -> F64:
    """x/2 (1 + tanh u), without the cancellation below 0."""
    x = np.asarray(x, np.float64)
    return x * sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))


# transformers 5.24's ACT2FN by the names that are read, as its classes there compute them
ACTIVATIONS: dict[str, Callable[[ArrayLike], F64]] = {
    **dict.fromkeys(("gelu", "gelu_python"), gelu_erf),
    **dict.fromkeys(("silu", "swish"), silu),
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_python_tanh", "gelu_accurate"), gelu_tanh),
    "quick_gelu": lambda x: np.asarray(x, np.float64) * sigmoid(1.702 * np.asarray(x, np.float64)),
    "gelu_10": lambda x: np.clip(gelu_erf(x), -10.0, 10.0),
    "relu": relu,
    "relu2": lambda x: relu(x) ** 2,
    "relu6": lambda x: np.clip(np.asarray(x, np.float64), 0.0, 6.0),
    "leaky_relu": lambda x: np.where(np.asarray(x) < 0.0, 0.01, 1.0) * np.asarray(x, np.float64),
    "tanh": lambda x: np.tanh(np.asarray(x, np.float64)),
    "sigmoid": sigmoid,
    "linear": lambda x: np.asarray(x, np.float64),
    "hardswish": lambda x: np.asarray(x, np.float64) * np.clip(np.asarray(x, np.float64) + 3.0, 0.0, 6.0) / 6.0,
    "mish": lambda x: np.asarray(x, np.float64) * np.tanh(np.logaddexp(0.0, np.asarray(x, np.float64))),
}


def softmax(x: ArrayLike) -> F64:
    """Over the last axis; -inf entries get exactly 0."""
    x = np.asarray(x, np.float64)
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rope(x: ArrayLike, base: float, positions: ArrayLike | None = None) -> F64:
    """Rotate x [n, heads, dh] by its positions [n] (default 0 .. n-1): the pair (j, j + dh/2) turns
    by p * base ** (-2 j / dh), the rotate-half (NeoX) layout."""
    x = np.asarray(x, np.float64)
    n, _, dh = x.shape
    p = np.arange(n) if positions is None else np.asarray(positions)
    angle = p[:, None, None] * base ** (-2.0 * np.arange(dh // 2) / dh)
    a, b = x[..., : dh // 2], x[..., dh // 2 :]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    window: int | None = None,
    q_positions: ArrayLike | None = None,
    layout: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
) -> F64:
    """softmax(q k^T / sqrt(dh)) v for q [m, heads, dh], k and v [n, heads, dh]: [m, heads * dh].

    With a window, a query at position p sees the keys at |p - position| <= window only;
    `q_positions` [m] says where the queries stand (default 0 .. m-1). `layout` has the position and the option of each
    token, query and key; a token of one option (0 is none) does not see those of another.
    """
    q, k, v = (np.asarray(t, np.float64).swapaxes(0, 1) for t in (q, k, v))  # heads first
    (_, m, dh), n = q.shape, k.shape[1]
    scores = q @ k.swapaxes(1, 2) / math.sqrt(dh)
    if layout is not None:
        p, option = layout
        others = (option[:, None] > 0) & (option > 0) & (option[:, None] != option)
        far = np.abs(p[:, None] - p) > (np.inf if window is None else window)
        scores = np.where(others | far, -np.inf, scores)
    elif window is not None:
        p = np.arange(m) if q_positions is None else np.asarray(q_positions)
        scores = np.where(np.abs(p[:, None] - np.arange(n)) <= window, scores, -np.inf)
    return (softmax(scores) @ v).swapaxes(0, 1).reshape(m, -1)


def parallel_layout(markers: Sequence[int], prefix_tokens: int, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Position and option (from 1 on; 0 is none) of the n tokens of a sequence whose options all begin at one position,
    where the first does; what follows them goes on behind the longest. `prefix_tokens`: up to and with the [SEP]
    behind the options."""
    ends = [*markers[1:], prefix_tokens - 1]
    after = markers[0] + max(end - begin for begin, end in zip(markers, ends, strict=True))
    tokens = [(i, 0) for i in range(markers[0])]
    for option, (begin, end) in enumerate(zip(markers, ends, strict=True), 1):
        tokens += [(markers[0] + i, option) for i in range(end - begin)]
    tokens += [(after + i, 0) for i in range(n - len(tokens))]
    position, option_of = np.array(tokens[:n]).T
    return position, option_of


@dataclass(frozen=True)
class ReferenceConfig:
    """The numbers that the mathematics needs; sizes themselves are read off the tensors."""

    n_heads: int
    eps: float
    window: int  # tokens on each side, local_attention / 2
    layer_is_global: tuple[bool, ...]
    rope_base_global: float
    rope_base_local: float
    activation: str
    n_decision_blocks: int

    @classmethod
    def read(cls, directory: Path) -> ReferenceConfig:
        encoder = json.loads((directory / "encoder" / "config.json").read_text("utf-8"))
        agent = next(
            json.loads((directory / name).read_text("utf-8"))
            for name in ("rl_agent_config.json", "julia_config.json")
            if (directory / name).exists()
        )
        every, n_layers = encoder.get("global_attn_every_n_layers", 3), encoder["num_hidden_layers"]
        by_number = ["sliding_attention" if i % every else "full_attention" for i in range(n_layers)]
        rope_parameters = encoder.get("rope_parameters", {})

        def base(kind: str, older_key: str, default: float) -> float:
            return rope_parameters.get(kind, {}).get("rope_theta", encoder.get(older_key, default))

        return cls(
            n_heads=encoder["num_attention_heads"],
            eps=encoder.get("norm_eps", encoder.get("layer_norm_eps", 1e-5)),
            window=encoder.get("local_attention", 128) // 2,
            layer_is_global=tuple(t == "full_attention" for t in encoder.get("layer_types") or by_number),
            rope_base_global=base("full_attention", "global_rope_theta", 160000.0),
            rope_base_local=base("sliding_attention", "local_rope_theta", 10000.0),
            activation=encoder.get("hidden_activation", "gelu"),
            n_decision_blocks=agent.get("head_layers", agent.get("decision_blocks")),
        )


def read_safetensors(path: Path) -> dict[str, F64]:
    """Every tensor of one file, widened to float64 (F32, F16 and BF16 are exact in it)."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        first, last = (start + offset for offset in entry["data_offsets"])
        raw = data[first:last]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[entry["dtype"]])
        tensors[name] = values.astype(np.float64).reshape(entry["shape"])
    return tensors


class Reference:
    """A Laya model: token ids, markers and a question type in; one score per marker out."""

    def __init__(self, config: ReferenceConfig, tensors: Mapping[str, ArrayLike]) -> None:
        self.config = config
        self.tensors = {name: np.asarray(value, np.float64) for name, value in tensors.items()}

    @classmethod
    def open(cls, directory: str | Path) -> Reference:
        """Read a checkpoint directory, sharded or not."""
        directory = Path(directory)
        tensors: dict[str, F64] = {}
        for path in sorted(directory.glob("*.safetensors")):
            tensors |= read_safetensors(path)
        return cls(ReferenceConfig.read(directory), tensors)

    def logits(
        self,
        ids: Sequence[int],
        markers: Sequence[int],
        question_type: str,
        activations: Activations | None = None,
        prefix_tokens: int | None = None,
    ) -> F64:
        """Scores [n_markers], before any temperature; with `prefix_tokens`, of options in parallel.

        Pass a dict to keep every activation by name: those of layer i as `layer.i.*`, of head block j as `head.j.*`;
        `*_output` is the residual stream after the addition, `attn` and `ffn` are what enters the closing projection.
        """
        keep: Activations = {} if activations is None else activations
        layout = None if prefix_tokens is None else parallel_layout(markers, prefix_tokens, len(ids))
        h = self._head(self._encoder(ids, keep, layout), QUESTION_TYPES[question_type], keep)
        return self._scores(h[list(markers)], keep)

    def _encoder(
        self, ids: Sequence[int], keep: Activations, layout: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    ) -> F64:
        c, w = self.config, self.tensors
        embedded = w["encoder.embeddings.tok_embeddings.weight"][list(ids)]
        x = keep["embd_norm"] = layer_norm(embedded, w["encoder.embeddings.norm.weight"], 0.0, c.eps)
        act = ACTIVATIONS[c.activation]
        for i, is_global in enumerate(c.layer_is_global):
            name, layer = f"layer.{i}", f"encoder.layers.{i}"
            base = c.rope_base_global if is_global else c.rope_base_local

            a = x
            if i > 0:
                keep[f"{name}.attn_norm"] = a = layer_norm(x, w[f"{layer}.attn_norm.weight"], 0.0, c.eps)
            keep[f"{name}.attn_qkv"] = qkv = self.times(a, f"{layer}.attn.Wqkv.weight")
            q, k, v = self._heads(qkv, c.n_heads)
            p = None if layout is None else layout[0]
            a = attention(rope(q, base, p), rope(k, base, p), v, None if is_global else c.window, layout=layout)
            keep[f"{name}.attn"] = a
            keep[f"{name}.attn_output"] = x = x + self.times(a, f"{layer}.attn.Wo.weight")

            keep[f"{name}.ffn_norm"] = f = layer_norm(x, w[f"{layer}.mlp_norm.weight"], 0.0, c.eps)
            u, g = np.split(self.times(f, f"{layer}.mlp.Wi.weight"), 2, axis=-1)
            keep[f"{name}.ffn"] = f = act(u) * g
            keep[f"{name}.ffn_output"] = x = x + self.times(f, f"{layer}.mlp.Wo.weight")
        keep["output_norm"] = x = layer_norm(x, w["encoder.final_norm.weight"], 0.0, c.eps)
        return x

    def _head(self, h: F64, question_type: int, keep: Activations) -> F64:
        keep["typed"] = h = h + self.tensors["type_emb.weight"][question_type]
        for j in range(self.config.n_decision_blocks):
            h = self._block(h, f"head.{j}", f"head.layers.{j}", keep)
        return h

    def _block(self, h: F64, name: str, block: str, keep: Activations) -> F64:
        keep[f"{name}.attn_norm"] = a = layer_norm(h, *self._affine(f"{block}.norm1"), HEAD_EPS)
        keep[f"{name}.attn_qkv"] = qkv = self._linear(a, f"{block}.self_attn.in_proj", "_")
        keep[f"{name}.attn"] = a = attention(*self._heads(qkv, self._n_decision_heads(h)))
        keep[f"{name}.attn_output"] = h = h + self._linear(a, f"{block}.self_attn.out_proj")

        keep[f"{name}.ffn_norm"] = f = layer_norm(h, *self._affine(f"{block}.norm2"), HEAD_EPS)
        keep[f"{name}.ffn"] = f = relu(self._linear(f, f"{block}.linear1"))
        keep[f"{name}.ffn_output"] = h = h + self._linear(f, f"{block}.linear2")
        return h

    def _scores(self, x: F64, keep: Activations) -> F64:
        keep["cls.norm"] = z = layer_norm(x, *self._affine("scorer.0"), HEAD_EPS)
        z = gelu_erf(self._linear(z, "scorer.1"))
        keep["logits"] = z = self._linear(z, "scorer.3")[:, 0]
        return z

    @staticmethod
    def _n_decision_heads(x: F64) -> int:
        return max(1, x.shape[1] // 64)

    def _affine(self, name: str, joint: str = ".") -> tuple[F64, F64]:
        return self.tensors[f"{name}{joint}weight"], self.tensors[f"{name}{joint}bias"]

    def times(self, x: F64, name: str) -> F64:
        """x [n, k] @ w^T for the matrix w of this name."""
        return x @ self.tensors[name].T

    def _linear(self, x: F64, name: str, joint: str = ".") -> F64:
        return self.times(x, f"{name}{joint}weight") + self.tensors[f"{name}{joint}bias"]

    @staticmethod
    def _heads(qkv: F64, n_heads: int, parts: int = 3) -> F64:
        """[n, 3 d] -> q, k, v of [n, heads, dh] each; or another number of parts."""
        n, width = qkv.shape
        return qkv.reshape(n, parts, n_heads, width // parts // n_heads).swapaxes(0, 1)


class SetReference(Reference):
    """s2: a question's options once, whatever the state; then the ids of a state in, and one score per option out."""

    def options(self, option_ids: Sequence[Sequence[int]], markers: Sequence[int], question_type: str) -> F64:
        """[n_options, d] of the options' own sequences, whose mask tokens are at `markers`."""
        type_emb = self.tensors["type_emb.weight"][QUESTION_TYPES[question_type]]
        return np.array([self._encoder(ids, {})[at] for ids, at in zip(option_ids, markers, strict=True)]) + type_emb

    def scores(self, state_ids: Sequence[int], options: F64, activations: Activations | None = None) -> F64:
        """[n_options], before any temperature, of one question's `options`.

        Activations are named as `Reference.logits` names them; those of layers are the state's.
        """
        keep: Activations = {} if activations is None else activations
        keep["options"] = x = options
        h = self._encoder(state_ids, keep)  # once for each state
        for b in range(self.config.n_decision_blocks):
            name, block = f"head.{b}", f"decision.layers.{b}"
            n_heads = self._n_decision_heads(x)

            keep[f"{name}.cross_attn_kv_norm"] = kv = layer_norm(h, *self._affine(f"{block}.cross_kv_norm"), HEAD_EPS)
            k, v = self._heads(self._linear(kv, f"{block}.cross_attn.kv_proj"), n_heads, 2)

            keep[f"{name}.cross_attn_norm"] = a = layer_norm(x, *self._affine(f"{block}.cross_norm"), HEAD_EPS)
            (q,) = self._heads(self._linear(a, f"{block}.cross_attn.q_proj"), n_heads, 1)
            keep[f"{name}.cross_attn"] = a = attention(q, k, v)
            keep[f"{name}.cross_attn_output"] = x = x + self._linear(a, f"{block}.cross_attn.out_proj")
            x = self._block(x, name, block, keep)
        return self._scores(x, keep)
