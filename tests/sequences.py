"""Whole sequences for the core as they are: prefixes that take all of their tokens, so no state comes behind them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

import skyinfer
from skyinfer.core.border import CoreModel, CoreQuestions

if TYPE_CHECKING:
    from skyinfer.core.border import Ask

# token ids, marker positions, question type
Item = tuple[list[int], list[int], int]


def ask_of(core: CoreModel, items: Iterable[Item]) -> Ask:
    prefixes = [(ids, markers, kind, len(ids)) for ids, markers, kind in items]
    orders = [list(range(len(markers))) for _, markers, _, _ in prefixes]
    return CoreQuestions(core, prefixes, orders, sep_id=0), 0, len(prefixes), np.zeros(0, np.int32), False


def run(model: skyinfer.Model, items: list[Item], trace: dict[str, np.ndarray] | None = None) -> list[np.ndarray]:
    """Logits of each sequence: float32 [n_markers]."""
    ask = ask_of(model.engine.core, items)
    return np.split(model.engine.run([ask], trace=trace), ask[0].offsets[1:-1])
