"""How a report says which model its numbers are of: its name, and how it ran, without which they cannot be found again.

Answers in 8 bits differ from the exact ones and between instruction sets (docs/compat.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..model import Model


def identity(model: Model) -> dict[str, str]:
    """The fields of a report that say which model ran, and how."""
    return {"model": model.name, "precision": model.precision, "isa": model.isa}


def runs_as(fields: Mapping[str, Any]) -> str:
    return f"{fields['precision']} on {fields['isa']}"


def said_as(fields: Mapping[str, Any]) -> str:
    """The model of `identity`'s fields, as a heading: "s1-pico (int8 on avx512vnni)"."""
    return f"{fields['model']} ({runs_as(fields)})"


def told_apart(models: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of models that stand beside each other, with what else tells them apart: "s1-pico (int8)"."""

    def differ(key: str) -> bool:
        return len({model[key] for model in models}) > 1

    keys = [key for key in ("precision", "isa") if differ(key)]
    if not keys and not differ("model") and differ("path"):
        keys = ["path"]
    more = [", ".join(model[key] for key in keys) for model in models]
    return [f"{model['model']} ({said})" if said else model["model"] for model, said in zip(models, more, strict=True)]
