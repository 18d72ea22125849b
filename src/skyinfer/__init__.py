"""skyinfer runs System One decision models on a CPU: a state and typed questions in, calibrated probabilities out.

    import skyinfer

    model = skyinfer.load("model.gguf")
    response = model.decide("the sky is grey", {"rain": {"type": "noul", "instructions": "Will it rain?"}})
    print(skyinfer.noul_answer(response, "rain")["noul"])

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
    from .runtime.arrays import AnswerArrays
    from .schema import (
        Answer,
        ChoiceAnswer,
        ChoiceQuestion,
        NoulAnswer,
        NoulQuestion,
        Questions,
        Request,
        Response,
        ScoreAnswer,
        ScoreQuestion,
        choice_answer,
        noul_answer,
        score_answer,
    )

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "AnswerArrays",
    "ChoiceAnswer",
    "ChoiceQuestion",
    "CompiledQuestions",
    "FormatError",
    "HubError",
    "IsaError",
    "Model",
    "NoulAnswer",
    "NoulQuestion",
    "Questions",
    "Request",
    "RequestError",
    "Response",
    "ScoreAnswer",
    "ScoreQuestion",
    "SkyinferError",
    "__version__",
    "choice_answer",
    "convert",
    "info",
    "load",
    "noul_answer",
    "score_answer",
]

# where names of `__all__` are that are not in schema.py
_MODULES = {
    "AnswerArrays": "runtime.arrays",
    "CompiledQuestions": "compiled",
    "Model": "model",
    "convert": "files.conversion",
    "info": "model",
    "load": "model",
}


if not TYPE_CHECKING:  # a type checker would take it for a licence to any name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{_MODULES.get(name, 'schema')}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
