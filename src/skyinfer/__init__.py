"""skyinfer runs System One decision models on a CPU: a state and typed questions in, calibrated probabilities out.

    import skyinfer

    model = skyinfer.load("model.gguf")
    model.decide("the sky is grey", {"rain": {"type": "noul", "instructions": "Will it rain?"}})

Importing this package imports neither gguf, tokenizers nor jinja2: they come with the first model.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import FormatError, HubError, IsaError, RequestError, SkyinferError

if TYPE_CHECKING:
    from .compiled import CompiledQuestions
    from .files.conversion import convert
    from .model import Model, info, load

__version__ = "0.1.0"

__all__ = [
    "CompiledQuestions",
    "FormatError",
    "HubError",
    "IsaError",
    "Model",
    "RequestError",
    "SkyinferError",
    "__version__",
    "convert",
    "info",
    "load",
]

_ROOMS = {
    "CompiledQuestions": "compiled",
    "Model": "model",
    "load": "model",
    "info": "model",
    "convert": "files.conversion",
}


if not TYPE_CHECKING:  # a type checker would take it for a licence to any name

    def __getattr__(name: str) -> Any:
        if name not in _ROOMS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{_ROOMS[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
