"""How to answer more options than a model's limits hold: two ways, held against a model that is given room.

    python benchmarks/many_options.py CHECKPOINT_DIR [--options 64 128 255] [--states 20]

The checkpoint is loaded three times with the same weights: as it is, for `groups` and `tournament`; with grow=True; and
from a copy whose max_len and head_max_len hold everything, which is the model given room. Printed for each way: how
often its choice is that of the model given room, how far its probabilities are from those (total variation), its time.

    grow         one sequence with all options, longer than max_len
    groups       as many options at a time as fit; the scores of all groups go into one softmax
    tournament   the same groups; the best of each meet again: p = p(in its group) * p(its group's best among the best)

With --truth, a question whose right answer is written in the state is asked instead, and how often each way finds it is
printed too: that is what counts for a trained model, whose positions beyond max_len no training ever saw.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import skyinfer
from skyinfer.files.temperatures import Temperatures

_SUBJECTS = [
    "billing",
    "shipping",
    "refund",
    "urgent order",
    "customer",
    "role",
    "message",
    "system",
    "content",
    "text",
]


def options_of(n: int) -> dict[str, str | None]:
    """n labels with short descriptions, no two alike."""
    return {f"{_SUBJECTS[i % 10]} {i:03d}": f"asks about {_SUBJECTS[i // 10 % 10]} {i}" for i in range(n)}


def question_of(options: dict[str, str | None]) -> dict[str, Any]:
    return {"type": "choice", "instructions": "Which of these does the customer ask for?", "criteria": options}


def softmax(scores: np.ndarray, temperature: float) -> np.ndarray:
    p = np.exp((scores.astype(np.float64) - scores.max()) / temperature)
    return p / p.sum()


class Ways:
    """Each way's distribution over the options."""

    def __init__(self, checkpoint: Path, folder: Path) -> None:
        self.plain = skyinfer.load(checkpoint)
        self.growing = skyinfer.load(checkpoint, grow=True)
        roomy = shutil.copytree(checkpoint, folder / "roomy")
        path = next(roomy.glob("*_config.json"))
        config = json.loads(path.read_text())
        more = 16_384
        config["max_len"], config["head_max_len"] = config["max_len"] + more, config["head_max_len"] + more
        path.write_text(json.dumps(config))
        self.roomy = skyinfer.load(roomy)
        self.temperatures = Temperatures(self.plain.config.temperatures)

    def room(self, state: str, options: dict[str, str | None]) -> np.ndarray:
        return self._of(self.roomy, state, options)

    def grow(self, state: str, options: dict[str, str | None]) -> np.ndarray:
        return self._of(self.growing, state, options)

    def groups(self, state: str, options: dict[str, str | None]) -> np.ndarray:
        scores = np.concatenate([scores for _, scores in self._grouped(state, options)])
        return softmax(scores, self.temperatures.of("choice", len(options)))

    def tournament(self, state: str, options: dict[str, str | None]) -> np.ndarray:
        grouped = self._grouped(state, options)
        if len(grouped) == 1:
            return softmax(grouped[0][1], self.temperatures.of("choice", len(options)))
        inside = [softmax(scores, self.temperatures.of("choice", len(scores))) for _, scores in grouped]
        best = [labels[int(p.argmax())] for (labels, _), p in zip(grouped, inside, strict=True)]
        among = self.tournament(state, {label: options[label] for label in best})
        return np.concatenate([p * q for p, q in zip(inside, among, strict=True)])

    @staticmethod
    def _of(model: skyinfer.Model, state: str, options: dict[str, str | None]) -> np.ndarray:
        answer: Any = model.decide(state, {"q": question_of(options)})["answers"]["q"]
        return np.array(list(answer["probabilities"].values()))

    def _grouped(self, state: str, options: dict[str, str | None]) -> list[tuple[list[str], np.ndarray]]:
        """Labels and raw scores of groups that fit whole, of even sizes."""
        labels = list(options)
        for n_groups in range(1, len(labels) + 1):
            groups = [list(part) for part in np.array_split(labels, n_groups)]
            if all(self._fits([str(label) for label in group], options) for group in groups):
                break
        grouped = []
        for group in groups:
            asked = {str(label): options[str(label)] for label in group}
            grouped.append((list(asked), self.plain.logits(state, {"q": question_of(asked)})["q"]))
        return grouped

    def _fits(self, group: list[str], options: dict[str, str | None]) -> bool:
        try:
            found = self.plain.encode("", {"q": question_of({label: options[label] for label in group})})["q"]
        except skyinfer.RequestError:
            return False
        return len(group) <= 2 or found.tokens_per_option is None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--options", type=int, nargs="+", default=[64, 128, 255])
    parser.add_argument("--states", type=int, default=20)
    parser.add_argument("--truth", action="store_true", help="write the right option into the state, and count")
    parsed = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        ways = Ways(parsed.checkpoint, Path(folder))
        named: dict[str, Callable[[str, dict[str, str | None]], np.ndarray]] = {
            "room": ways.room, "grow": ways.grow, "groups": ways.groups, "tournament": ways.tournament,
        }  # fmt: skip
        found = " found" if parsed.truth else ""
        print(f"{'options':>7} {'way':<11} {'same choice':>11} {'distance':>9} {'ms':>7}{found}")
        for n in parsed.options:
            options = options_of(n)
            states, right = [], []
            for _ in range(parsed.states):
                right.append(int(random.integers(n)))
                said = list(options)[right[-1]] if parsed.truth else " ".join(random.choice(_SUBJECTS, 6))
                states.append(f"the customer says: {said}, please")
            expected = [ways.room(state, options) for state in states]
            for name, way in named.items():
                start = perf_counter()
                given = [way(state, options) for state in states]
                taken = 1000 * (perf_counter() - start) / len(states)
                same = np.mean([p.argmax() == q.argmax() for p, q in zip(given, expected, strict=True)])
                distance = np.mean([np.abs(p - q).sum() / 2 for p, q in zip(given, expected, strict=True)])
                hits = f" {np.mean([p.argmax() == i for p, i in zip(given, right, strict=True)]):>5.2f}"
                print(f"{n:>7} {name:<11} {same:>11.2f} {distance:>9.3f} {taken:>7.1f}{hits if found else ''}")


if __name__ == "__main__":
    main()
