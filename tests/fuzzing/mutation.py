"""Values that have hurt somebody before, and ways to damage JSON, text and bytes."""

from __future__ import annotations

import contextlib
import copy
import math
import random
import struct
from collections.abc import Callable
from typing import Any

WHOLE = [
    0, 1, -1, 2, 3, 7, 64, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1,
]  # fmt: skip
REAL = [-0.0, 0.5, -1.5, 1e-320, 1e-45, 1e-30, 3.4e38, 1e39, 1e300, math.inf, -math.inf, math.nan]
TEXT = [
    "", " ", "a", "\0", "\n", "0", "true", "false", "null", "NaN", "choice", "score", "noul", "level 0: ", "{}", "{0}",
    "%s", "[MASK]", "[SEP]", "[CLS]", "[PAD]", "[MA[MASK]SK]", "<mask>", "<eos>", "<bos>", "\u2581", "\u212b",
    "e\u0301", "\u1100\u1161", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u202e", "\ufeff", "\uffff", "\U0010ffff",
    "\ue000", "a" * 300, "\ufdfa" * 40, " " * 100, "\u0301" * 200, "<0x00>", "modern-bert", "gpt-2", "mmbert", "gelu",
    "swish", "silu", "laya", "../../x",
]  # fmt: skip
BIG_TEXT: list[Callable[[], str]] = [
    lambda: "a" * 200_000, lambda: "word " * 20_000, lambda: "\U0001f600" * 20_000, lambda: "[MASK]" * 20_000,
    lambda: "e\u0301\u0327" * 20_000, lambda: "\n" * 50_000,
]  # fmt: skip


def nested(depth: int, make: Callable[[Any], Any]) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = make(value)
    return value


def hostile(rng: random.Random) -> Any:
    """A value that JSON can hold."""
    kind = rng.randrange(12)
    if kind < 3:
        return rng.choice(WHOLE)
    if kind < 5:
        return rng.choice(REAL)
    if kind < 8:
        return rng.choice(TEXT)
    if kind == 8:
        return rng.choice([None, True, False, 10**30, "\ud800", "a\udfffb"])
    if kind == 9:
        return rng.choice([[], {}, [[]], [None], {"": None}, {"a": 1, "b": [2]}, [0, 1], ["a", "a"], [1, 1.0, True]])
    if kind == 10:
        return [hostile(rng) for _ in range(rng.randrange(4))]
    return {rng.choice(TEXT): hostile(rng) for _ in range(rng.randrange(4))}


def mutate_json(rng: random.Random, value: Any, odd: Callable[[random.Random], Any] = hostile) -> Any:
    """`value` with one place changed: replaced, removed, repeated, moved or wrapped. Changes containers in place."""
    if not isinstance(value, (dict, list)) or not value:
        return _changed_leaf(rng, value, odd)
    key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
    if rng.random() < 0.62:  # go deeper
        changed = mutate_json(rng, value[key], odd)
        with contextlib.suppress(IndexError):  # a list that holds itself may have lost this place
            value[key] = changed
        return value
    what = rng.randrange(6)
    if what == 0:
        del value[key]
    elif what == 1 and isinstance(value, list):
        value.insert(rng.randrange(len(value) + 1), copy.copy(value[key]))
    elif what == 1:
        with contextlib.suppress(TypeError):
            value[odd(rng)] = value[key]
    elif what == 2:
        other = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        value[key], value[other] = value[other], value[key]
    elif what == 3:
        value[key] = rng.choice(
            [[value[key]], {"type": "Sequence", "content": value[key]}, rng.choice(TEXT), [value[key]] * 3]
        )
    elif what == 4 and isinstance(value, list):
        rng.shuffle(value)
    else:
        value[key] = odd(rng)
    return value


def _changed_leaf(rng: random.Random, value: Any, odd: Callable[[random.Random], Any]) -> Any:
    if isinstance(value, bool) or value is None or rng.random() < 0.5:
        return (not value) if isinstance(value, bool) and rng.random() < 0.5 else odd(rng)
    if isinstance(value, int):
        return rng.choice([value + 1, value - 1, -value, value * 2, value << 32, 0.5 * (value & 0xFFFF), hex(value)])
    if isinstance(value, float):
        return rng.choice([-value, value * 1e30, value / 1e30, math.nan, str(value)])
    if isinstance(value, str):
        return mutate_text(rng, value)
    return odd(rng)


def mutate_text(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    to = min(len(text), at + rng.choice([0, 0, 1, 2, 8]))
    return text[:at] + rng.choice([*TEXT, text, "\n", "\\"]) + text[to:]


def mutate_bytes(rng: random.Random, data: bytes, where: int | None = None) -> bytes:
    """`data` with some bytes flipped, overwritten, cut, repeated or added; within the first `where` bytes, if given."""
    out = bytearray(data)
    top = min(len(out), where or len(out))
    if not top:
        return rng.randbytes(20)
    at, run = rng.randrange(top), rng.choice([1, 1, 2, 4, 8, 16, 100])
    what = rng.randrange(8)
    if what == 0:
        for _ in range(rng.choice([1, 1, 2, 8, 64])):
            out[rng.randrange(top)] ^= 1 << rng.randrange(8)
    elif what == 1:
        out[at : at + run] = rng.randbytes(run)
    elif what == 2:
        out[at : at + run] = bytes([rng.choice([0, 1, 127, 128, 255])]) * run
    elif what == 3:
        out[at : at + 8] = struct.pack("<Q", rng.choice(WHOLE) & 0xFFFFFFFFFFFFFFFF)
    elif what == 4:
        del out[at:]
    elif what == 5:
        del out[at : at + run]
    elif what == 6:
        out[at:at] = out[at : at + run]
    else:
        out += rng.randbytes(run)
    return bytes(out)
