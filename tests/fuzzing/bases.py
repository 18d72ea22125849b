"""The healthy models and requests that are damaged."""

from __future__ import annotations

from typing import Any

TINY = {
    "d_model": 4,
    "n_layers": 1,
    "n_heads": 1,
    "d_ff": 4,
    "head_layers": 1,
    "vocab": 272,
    "max_len": 64,
    "head_max_len": 40,
}
WIDE = {"d_model": 32, "n_heads": 2, "n_layers": 2, "d_ff": 32}
WIDEST = {"d_model": 256, "n_heads": 2, "d_ff": 256, "head_layers": 0}  # of whole blocks of every type
META: dict[str, Any] = {"tokenizer": "metaspace", "vocab": 384}

QUESTIONS: dict[str, Any] = {
    "action": {"type": "choice", "instructions": "Which input?", "criteria": {"up": "thrust", "dn": None,
    "x": {"a": 1}}},
    "risk": {"type": "score", "instructions": {"ask": "How high?"}, "criteria": ["none", "some", ["a", "lot"]]},
    "crash": {"type": "noul", "instructions": "Will it crash?", "criteria": {"true": "yes"}, "labels": {"true": "y",
    "false": "n"}},
    "list": {"type": "choice", "instructions": "Pick", "criteria": ["a", 2, True], "option_order": [2, 0, 1]},
}  # fmt: skip
STATES: list[Any] = [
    "vy -1.5, gap 20 [MASK]",
    {"role": "user", "n": [1.0, -0.0, 1e22]},
    [{"role": "user", "content": "a"}, {"b": "c"}] * 3,
]

Outcome = str
