"""What must hold of every answer, and of what is warned of."""

# ruff: noqa: PT018 (assertions here are checks of the fuzzer, not of pytest)

from __future__ import annotations

import contextlib
import math
import re
import warnings
from typing import Any

# what loading and compiling may say; anything else that is warned of is a fault
_DOCUMENTED_WARNINGS = re.compile(
    "temperature|is not an option bucket|layer_norm_eps is not ModernBERT's|no question has such a field"
)


def check_response(response: Any, questions: dict[Any, Any], name: str) -> None:
    """Assert that an envelope is well formed: every question answered, in order, by finite probabilities of sum 1."""
    assert list(response) == ["model", "answers", "usage"], list(response)
    assert response["model"] == name
    usage = response["usage"]
    assert list(usage) == ["input_tokens", "output_tokens"] and usage["output_tokens"] == 0
    assert type(usage["input_tokens"]) is int and usage["input_tokens"] >= 3 * len(questions)
    assert list(response["answers"]) == list(questions)
    for key, answer in response["answers"].items():
        kind = questions[key]["type"]
        extra = set(answer) - {"type", kind, "probabilities", "confidence", "legend"}
        assert answer["type"] == kind and all(field.startswith("x_") for field in extra), answer
        if kind == "noul":
            p = [answer["noul"], 1 - answer["noul"]]
        else:
            p = list(answer["probabilities"].values())
            assert len(p) == len(questions[key]["criteria"])
            assert type(answer["confidence"]) is float and 0 <= answer["confidence"] <= 1 + 1e-9
        assert all(type(value) is float and 0 <= value <= 1 for value in p), p
        assert abs(math.fsum(p) - 1) < 1e-9, p
        if kind == "score":
            assert 0 <= answer["score"] <= len(p) - 1 + 1e-9
        if kind == "choice":
            assert answer["probabilities"][answer["choice"]] == max(p)


def check_sequence(sequence: Any, config: Any) -> None:
    """Assert that markers are where the mask tokens are, and nowhere else, in s2 in each option's own sequence."""
    found = [sequence.ids] if sequence.option_ids is None else sequence.option_ids
    markers = [sequence.markers] if sequence.option_ids is None else [[marker] for marker in sequence.markers]
    assert len(sequence.ids) <= config.max_tokens
    for ids in (sequence.ids, *found):
        assert ids[0] == config.cls_id
    for ids, own in zip(found, markers, strict=True):
        assert [i for i, token in enumerate(ids) if token == config.mask_id] == own
    assert sequence.option_ids is None or config.mask_id not in sequence.ids


@contextlib.contextmanager
def only_documented_warnings() -> Any:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
    for warning in said:
        if warning.category is not RuntimeWarning or not _DOCUMENTED_WARNINGS.search(str(warning.message)):
            raise AssertionError(
                f"warned: {warning.category.__name__}: {warning.message} ({warning.filename}:{warning.lineno})"
            )
