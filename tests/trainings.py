"""A small set of rows and how to train on it in a second or two, for the tests of training. Needs no torch itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

QUESTIONS: dict[str, Any] = {
    "act": {"type": "choice", "instructions": "What now?", "criteria": {"go": "drive on", "stop": "brake"}},
    "speed": {"type": "score", "instructions": "How fast?", "criteria": ["slow", "normal", "fast"]},
    "safe": {"type": "noul", "instructions": "Is it safe?"},
}
WEIGHT_FILES = ("model.safetensors", "rl_agent_config.json", "encoder/config.json", "tokenizer/tokenizer.json")


def teacher(state: dict[str, Any]) -> dict[str, Any]:
    red = state["light"] == "red"
    return {"act": "stop" if red else "go", "speed": 0 if red else min(2, state["car"]), "safe": 0.9 if red else 0.2}


STATES = [{"light": light, "car": car, "n": n} for light in ("red", "green") for car in range(3) for n in range(8)]
ROWS = [{"state": state, "questions": QUESTIONS, "answers": teacher(state)} for state in STATES]
# small enough for a second or two, and more than one epoch
QUICK: dict[str, Any] = {"epochs": 2.5, "batch_size": 16, "vocab_size": 300, "max_len": 96, "head_max_len": 48}


def contents(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in WEIGHT_FILES}
