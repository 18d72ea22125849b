"""Write s2.json: sequences of s2 made of the Laya runtime's tokens, and their scores by the float64 reference.

    python tests/golden/s2.py

Nothing but numpy is needed. No other runtime reads s2, but its texts are s1's: text.json has the runtime's tokens of
each part of a request, and the same parts lie in s2's sequences as `text/option_sequences.py` says. Requests of which
the runtime had to leave something out are passed over.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from recipes import S2, fingerprint, from_literal, painted, recorded, write  # noqa: E402
from reference import SetReference  # noqa: E402

MOST_OPTIONS = 12


def parts(sequence: dict[str, Any]) -> tuple[list[int], list[list[int]], list[int]] | None:
    """Tokens of the question, of each option with its marker, and of the state; None where any was cut."""
    ids, markers, used = sequence["ids"], sequence["markers"], sequence["state_tokens_used"]
    if used < sequence["state_tokens"] or sequence["tokens_per_option"] is not None or len(markers) > MOST_OPTIONS:
        return None
    ends = [*markers[1:], len(ids) - used - 2]
    return (
        ids[1 : markers[0] - 1],
        [ids[a:b] for a, b in zip(markers, ends, strict=True)],
        ids[len(ids) - used - 1 : -1],
    )


def laid_out(sequence: dict[str, Any], most: int) -> dict[str, Any] | None:
    """The state's sequence of s2, those of the options, and where their markers are."""
    found = parts(sequence)
    if found is None:
        return None
    question, options, state = found
    cls, sep = sequence["ids"][0], sequence["ids"][-1]
    if len(question) + sum(map(len, options)) >= most:  # the question may have been cut
        return None
    return {
        "ids": [cls, *state, sep],
        "option_ids": [[cls, *question, sep, *option, sep] for option in options],
        "markers": [len(question) + 2] * len(options),
    }


def cases(name: str, as_in: str) -> list[dict[str, Any]]:
    reference, found = SetReference.open(painted(name)), []
    for case in recorded("text.json")["cases"]:
        if case["checkpoint"] != as_in or "sequences" not in case:
            continue
        sequences = [laid_out(sequence, 192) for sequence in case["sequences"]]
        if sequences and None not in sequences:
            found.append({"name": case["name"], "checkpoint": name, "request": case["request"], "sequences": sequences})
    found = found[::2]
    for case in found:
        questions = from_literal(case["request"])["questions"]
        for question, sequence in zip(questions.values(), case["sequences"], strict=True):
            options = reference.options(sequence["option_ids"], sequence["markers"], question["type"])
            sequence["logits"] = [float(f"{x:.9g}") for x in reference.scores(sequence["ids"], options)]
    return found


if __name__ == "__main__":
    content: dict[str, Any] = {
        "fingerprints": {name: fingerprint(name) for name in S2},
        "cases": [case for name, recipe in S2.items() for case in cases(name, recipe.get("tokenizer", "byte"))],
    }
    write("s2.json", content, packages=("numpy",))
