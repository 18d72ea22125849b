"""Answers about states that come again: tables repeat their rows, and of equal tokens the answers have equal bits.

They are kept by the state's tokens, the oldest dropped first, in bounded memory; none are where next to nothing
repeats.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..text.sequence import StateTokens

_MOST_BYTES = 16 << 20
# A key, its place in a dict and in a list; of a key longer than that a digest, which no two texts have in common.
_KEY_BYTES, _LONGEST_KEY = 256, 128
# Of so many different states that follow each other this share has to have been there before, or all is given up.
_TRIED, _LEAST_SHARE = 1 << 14, 1 / 128

Columns = Sequence["NDArray[np.generic]"]


def key_of(tokens: StateTokens) -> bytes:
    """What states have in common whose answers are equal."""
    ids = tokens.ids.tobytes()
    if len(ids) > _LONGEST_KEY:
        ids = hashlib.blake2b(ids, digest_size=32).digest()
    return ids + b"t" if tokens.keep_tail else ids


class Repeats:
    """Rows of some arrays by the tokens of their states. Safe to share between threads."""

    def __init__(self, like: Columns, most: int | None = None) -> None:
        """`like`: arrays [.., width] of the types and widths to be kept. `most`: rows, where there are no more."""
        n_bytes = _KEY_BYTES + sum(array.itemsize * array.shape[1] for array in like)
        self._n_slots = max(1, _MOST_BYTES // n_bytes if most is None else min(most, _MOST_BYTES // n_bytes))
        self._kept = [np.empty((self._n_slots, array.shape[1]), array.dtype) for array in like]
        self._slots: dict[bytes, int] = {}
        self._keys: list[bytes] = []  # by slot
        self._next = 0
        self._n_asked = self._n_found = 0
        self._given_up = False
        self._lock = threading.Lock()

    def take(self, keys: Sequence[bytes], rows: Sequence[int], out: Columns) -> list[int]:
        """Of the keys that are there writes key i's row to out[rows[i]]; gives the numbers of those that are not."""
        if self._given_up:
            return list(range(len(keys)))
        with self._lock:
            slots = [self._slots.get(key, -1) for key in keys]
            missing = [i for i, slot in enumerate(slots) if slot < 0]
            self._n_asked += len(keys)
            self._n_found += len(keys) - len(missing)
            if len(missing) < len(keys):
                there = [row for row, slot in zip(rows, slots, strict=True) if slot >= 0]
                from_slots = [slot for slot in slots if slot >= 0]
                for array, kept in zip(out, self._kept, strict=True):
                    array[there] = kept[from_slots]
            if self._n_asked >= _TRIED:
                if self._n_found < self._n_asked * _LEAST_SHARE:
                    self._given_up = True
                    self._slots, self._keys, self._kept = {}, [], []
                self._n_asked = self._n_found = 0
        return missing

    def put(self, keys: Sequence[bytes], rows: Columns) -> None:
        """Keeps rows [n, ..] under n keys, of which each may be there already."""
        if self._given_up:
            return
        with self._lock:
            if self._given_up:
                return
            new, slots = [], []
            for i, key in enumerate(keys[: self._n_slots]):
                if key in self._slots:
                    continue
                slot = self._next
                if slot == len(self._keys):
                    self._keys.append(key)
                else:
                    del self._slots[self._keys[slot]]
                    self._keys[slot] = key
                self._slots[key] = slot
                self._next = (slot + 1) % self._n_slots
                new.append(i)
                slots.append(slot)
            if new:
                for kept, array in zip(self._kept, rows, strict=True):
                    kept[slots] = array[new]
