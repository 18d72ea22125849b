"""Models of one layer, of which tests ask the core alone."""

from __future__ import annotations

from typing import Any

# all but the sizes, for any of them whose d_model is even
CONSTANTS: dict[str, Any] = {
    "n_heads": 1, "n_decision_heads": 1, "window": 4, "max_positions": 16, "norm_eps": 1e-5,
    "rope_base_global": 1e4, "rope_base_local": 1e4, "activation": "gelu", "layer_is_global": [True],
}  # fmt: skip
