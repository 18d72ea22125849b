"""s2 models of odd sizes from end to end: sequences as the architecture's description lays them out, written down here
once more on the tokenizers package alone, and the float64 reference's probabilities for them by every way to ask."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import paint
from reference import SetReference, softmax
from tokenizers import Tokenizer

import skyinfer

# d_model, heads, d_ff, layers, blocks, max_len, head_max_len; one head and one layer, halves of heads that fill no
# register, heads of the decision blocks that are no power of two, budgets that cut everything
SHAPES = [
    (2, 1, 1, 1, 1, 16, 20), (6, 3, 17, 1, 1, 64, 33), (10, 1, 3, 2, 3, 65, 24), (66, 1, 33, 4, 1, 129, 96),
    (90, 3, 129, 3, 2, 200, 64), (110, 5, 7, 2, 1, 20, 192), (130, 13, 64, 1, 2, 256, 96), (198, 3, 31, 3, 1, 100, 48),
]  # fmt: skip
DEFAULTS = {"false": "no, the statement does not hold", "true": "yes, the statement holds"}
PIECES = ["vy 0", "drone", "gap", "\u00fcber", "\u65e5\u672c\u8a9e", "\U0001f642", "[MASK]", "[SEP] x", "0.1", "\n\n",
          "  ", "'s", "q" * 30]  # fmt: skip


class Layout:
    """Token ids of states and options by the description of s2: no code of skyinfer's."""

    def __init__(self, directory: Path, max_len: int, head_max_len: int) -> None:
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer" / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.max_len, self.head_max_len = max_len, head_max_len
        names = json.loads((directory / "tokenizer" / "tokenizer_config.json").read_text("utf-8"))
        self.mask_text = names["mask_token"]
        self.cls, self.sep, self.mask = (
            self.tokenizer.token_to_id(names[f"{role}_token"]) for role in ("cls", "sep", "mask")
        )

    def ids(self, value: Any, before: str = "") -> list[int]:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return list(self.tokenizer.encode(before + text.replace(self.mask_text, " "), add_special_tokens=False).ids)

    def state(self, state: Any) -> list[int]:
        ids, room = self.ids(state), self.max_len - 2
        kept = ids[max(0, len(ids) - room) :] if isinstance(state, list) else ids[:room]
        return [self.cls, *kept, self.sep]

    def options(self, question: dict[str, Any]) -> Iterator[tuple[list[int], int]]:
        """Each option's sequence, and where its mask token is."""
        for text in self.texts(question):
            option = self.ids(text, " ")[:48]
            asked = self.ids(question["instructions"], f"{question['type']} question: ")
            asked = asked[: max(8, self.head_max_len - len(option) - 1)]
            yield [self.cls, *asked, self.sep, self.mask, *option, self.sep], len(asked) + 2

    def texts(self, question: dict[str, Any]) -> list[str]:
        criteria = question.get("criteria")
        if question["type"] == "noul":
            return [f"{word}: {(criteria or {}).get(word) or DEFAULTS[word]}" for word in ("false", "true")]
        if question["type"] == "score":
            return [f"level {i}: {level}" for i, level in enumerate(criteria)]
        if isinstance(criteria, list):
            return criteria
        return [f"{label}: {text}" if text else label for label, text in criteria.items()]


def requests(rng: random.Random) -> tuple[list[Any], dict[str, Any]]:
    def text(least: int, most: int) -> str:
        return " ".join(rng.choice(PIECES) for _ in range(rng.randint(least, most)))

    states = ["", text(1, 4), text(90, 120), [text(1, 9) for _ in range(20)], {"at": [1.0, None, text(1, 3)]}, -0.0]
    questions: dict[str, Any] = {}
    for i, n in enumerate([1, 2, 11]):
        criteria = {f"k{k} {text(0, 1)}": text(0, 24) for k in range(n)}
        questions[f"choice {i}"] = {"type": "choice", "instructions": f"why {text(0, 90)}", "criteria": criteria}
    questions["score"] = {"type": "score", "instructions": "how", "criteria": [f"level {text(0, 2)}" for _ in range(6)]}
    questions["noul"] = {"type": "noul", "instructions": "is it", "criteria": {"true": text(1, 9), "false": None}}
    questions["list"] = {"type": "choice", "instructions": [1, {"a": "b"}], "criteria": ["x", "y", "z"]}
    return states, questions


@pytest.mark.parametrize(("shape", "isa"), [*zip(SHAPES, itertools.cycle([None, "portable"]), strict=False)], ids=str)
def test_every_way_to_ask_gives_what_the_description_says(
    shape: tuple[int, ...], isa: str | None, tmp_path: Path
) -> None:
    d_model, n_heads, d_ff, n_layers, n_blocks, max_len, head_max_len = shape
    directory = paint(
        tmp_path / "odd", d_model=d_model, n_heads=n_heads, d_ff=d_ff, n_layers=n_layers, head_layers=n_blocks,
        vocab=600, max_len=max_len, head_max_len=head_max_len, local_attention=6, architecture="s2", seed=d_model,
        temperature=[1.0, 1.0, 1.0], temperature_by_options={},
    )  # fmt: skip
    layout, reference = Layout(directory, max_len, head_max_len), SetReference.open(directory)
    model = skyinfer.load(directory, isa=isa, threads=2 if isa else 1)
    states, questions = requests(random.Random(d_model))

    ready = {}
    for name, question in questions.items():
        ids, markers = zip(*layout.options(question), strict=True)
        shown = model.encode(states[0], {name: question})[name]
        assert shown.option_ids is not None
        assert ([*map(list, shown.option_ids)], list(shown.markers)) == ([*ids], [*markers])
        ready[name] = reference.options(ids, markers, question["type"])

    compiled = model.compile(questions)
    expected = []
    for state in states:
        ids = layout.state(state)
        assert list(model.encode(state, questions)["noul"].ids) == ids
        scores = {name: reference.scores(ids, ready[name]) for name in questions}
        found = model.logits(state, questions)
        for name, logits in scores.items():
            assert np.abs(found[name] - logits).max() < 1e-4 * max(1.0, np.abs(logits).max())
        expected.append(np.concatenate([softmax(logits) for logits in scores.values()]))
        assert np.abs(compiled.step(state) - expected[-1]).max() < 1e-5
        answers = model.decide(state, questions)["answers"]
        for name, begin in zip(questions, compiled.offsets, strict=False):
            said = answers[name].get("probabilities", {"true": answers[name].get("noul")})
            at = begin + int(name == "noul")
            assert np.abs(np.array([*said.values()]) - expected[-1][at : at + len(said)]).max() < 1e-5
    assert np.abs(compiled.arrays(states).probabilities - expected).max() < 1e-5

    turned = {name: one | {"criteria": dict(reversed(one["criteria"].items()))} for name, one in questions.items()
              if isinstance(one.get("criteria"), dict) and one["type"] == "choice"}  # fmt: skip
    there, back = model.decide(states[1], questions)["answers"], model.decide(states[1], turned)["answers"]
    for name in turned:
        p, q = there[name]["probabilities"], back[name]["probabilities"]
        assert max(abs(p[label] - q[label]) for label in p) < 1e-5
