"""Write long.json: what the Laya runtime answers with `min_confidence` and in `predict_long`.

The command is in README.md beside this file, with this file's name in place of regenerate.py's.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from laya.agent import Agent

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from inputs import LONG, PLAIN, choice, noul, score  # noqa: E402
from recipes import fingerprint, painted, to_literal  # noqa: E402
from regenerate import write  # noqa: E402

CHECKPOINTS = ("byte", "metaspace", "byte_tight")

_MANY = {"many": choice({f"label {i}": f"description number {i} of the drone" for i in range(12)})}
_TWO = {"pick": choice(["stay", "leave"]), "truth": noul(labels={"false": "no", "true": "yes"})}
_WIDE = {"level": score([f"level of urgency {i}" for i in range(7)]), "truth": noul()}
_NEWS = (
    "The drone left the yard at noon. Its rotors hummed, 12.5 m above ground; nobody saw it. At 12:40 it hit a tree! "
    "The customer wrote: \u201cI want my money back, and I want it now\u201d \u2014 caf\u00e9, na\u00efve, "
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u65e5\u672c\u8a9e\u306e\u6587\u7ae0. [SEP] [MASK] the end.\n"
)

STATES: dict[str, Any] = {
    "short": "The customer asks about a refund of order 20",
    "news": _NEWS * 2,
    "object": {"log": [{"t": i, "vy": i * 0.25 - 3, "note": "gap \u00fc" if i % 7 == 0 else None} for i in range(20)]},
    "turns": [{"role": "user" if i % 2 else "agent", "text": f"turn {i}: {LONG}"} for i in range(6)],
    "spaces": "  a   b\n\n\tc    d  " * 20,
}
QUESTIONS: dict[str, Any] = {"plain": PLAIN, "many": _MANY, "two": _TWO, "wide": _WIDE}
WINDOWS: list[tuple[int | None, int | None]] = [(None, None), (33, 33), (30, 7), (4000, 60)]
THRESHOLDS: list[Any] = [
    0.0, 0.35, 0.5, 0.75, 1.0, {"default": 0.5}, {"choice:3-5": 0.9},
    {"noul:2": 0.99, "score:3-5": 0.2, "default": 0.4},
    {"choice:11+": 0.1, "choice:2": 1.0},
]  # fmt: skip
REFUSED: list[Any] = [-0.1, 1.5, float("nan"), True, "0.5", [], {}, {"choice:3": 0.5}, {"choice:2": 2}, {1: 0.5}]


def long_cases(agents: dict[str, Agent]) -> list[dict[str, Any]]:
    """Whole states in windows, or the refusal."""
    cases = []
    for checkpoint, agent in agents.items():
        for state_name, state in STATES.items():
            for question_name, questions in QUESTIONS.items():
                for window, stride in WINDOWS:
                    if window == 30 and state_name != "news":
                        continue  # many windows
                    asked = {"state": state, "questions": questions, "window": window, "stride": stride}
                    name = f"{checkpoint}: {state_name}, {question_name}, {window}, {stride}"
                    case: dict[str, Any] = {"name": name, "checkpoint": checkpoint, "asked": to_literal(asked)}
                    try:
                        found = agent.predict_long(state, questions, window=window, stride=stride, batch_size=32)
                    except ValueError as error:  # every refusal is data here
                        case["refused"] = str(error)
                    else:
                        case["envelope"] = to_literal(found)
                    cases.append(case)
    return cases


def threshold_cases(agent: Agent) -> list[dict[str, Any]]:
    """What is marked, by each threshold; or that it is refused."""
    questions = {**PLAIN, **_MANY, "two": choice(["stay", "leave"]), "one": choice(["only"])}
    cases = []
    for least in [*THRESHOLDS, *REFUSED]:
        case: dict[str, Any] = {"min_confidence": to_literal(least)}
        try:
            found = agent.predict(STATES["short"], questions, min_confidence=least)
        except ValueError as error:
            case["refused"] = str(error)
        else:
            case["asked"] = to_literal({"state": STATES["short"], "questions": questions})
            case["answers"] = to_literal(found["answers"])
        cases.append(case)
    return cases


def main() -> None:
    warnings.simplefilter("ignore")  # of windows that are too wide
    torch.set_num_threads(1)
    agents = {name: Agent(str(painted(name)), device="cpu") for name in CHECKPOINTS}
    prints = {name: fingerprint(name) for name in CHECKPOINTS}
    content = {"long": long_cases(agents), "thresholds": threshold_cases(agents["byte"])}
    write("long.json", {"fingerprints": prints, **content})


if __name__ == "__main__":
    main()
