"""skyinfer runs System One decision models on a CPU: a state and typed questions in, calibrated probabilities out.

    import skyinfer

    model = skyinfer.load("model.gguf")
    response = model.decide("the sky is grey", {"rain": {"type": "noul", "instructions": "Will it rain?"}})
    print(skyinfer.noul_answer(response, "rain")["noul"])

Importing this package imports nothing else: what a name needs comes with the name, and gguf, tokenizers and jinja2 with
the first model.
"""

from __future__ import annotations

# Nothing else is imported: a command's start is guarded against Ctrl-C only once this is done (__main__.py).
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from .compiled import CompiledQuestions
    from .errors import FormatError, HubError, IsaError, RequestError, SkyinferError
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
    "FormatError": "errors",
    "HubError": "errors",
    "IsaError": "errors",
    "Model": "model",
    "RequestError": "errors",
    "SkyinferError": "errors",
    "convert": "files.conversion",
    "info": "model",
    "load": "model",
}


if not TYPE_CHECKING:  # a type checker would take it for a licence to any name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(f".{_MODULES.get(name, 'schema')}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
