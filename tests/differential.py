"""Random requests, laid out by the Laya runtime and by skyinfer: token ids, markers and refusals.

    python tests/differential.py [--rounds 2000] [--seed 0] [--only NAME]

Needs laya 0.4.15 and transformers 5 beside skyinfer, so it is not part of the test suite. Each
round takes one of several tokenizer directories (the painted ones of checkpoints.py, and variants
of their tokenizer_config.json that transformers treats in its own way), random budgets, a random
state and a random question; both sides must give the same ids and markers, or both must refuse.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from checkpoints import byte_tokenizer, metaspace_tokenizer

from skyinfer.errors import FormatError, RequestError
from skyinfer.files.checkpoint.hf_tokenizer import canonical_tokenizer_json, special_token_text, tokenizer_config
from skyinfer.text.sequence import SequenceBuilder
from skyinfer.text.template import PromptTemplate
from skyinfer.text.tokenizer import Tokenizer

# tokenizer.json, tokenizer_config.json
Files = tuple[dict[str, Any], dict[str, Any]]


# ---------------------------------------------------------------------- tokenizer directories


# A key of the painted configuration that holds further files by name.
OTHER_FILES = "other files"


def _decoder(tokenizer: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """added_tokens_decoder with tokenizer.json's own tokens, some flags changed."""
    entries = {}
    for token in tokenizer["added_tokens"]:
        entry = {key: value for key, value in token.items() if key != "id"}
        entries[str(token["id"])] = entry | changes
    return entries


def byte_plain() -> Files:
    return _with_roles(*byte_tokenizer(1024))


def meta_plain() -> Files:
    return _with_roles(*metaspace_tokenizer(1024))


def _with_roles(tokenizer: dict[str, Any], roles: dict[str, str]) -> Files:
    config = {f"{role}_token": text for role, text in roles.items() if role != "unused"}
    return tokenizer, config | {"tokenizer_class": "PreTrainedTokenizerFast"}


def byte_decoder_flips() -> Files:
    tokenizer, config = byte_plain()
    changes = {"lstrip": False, "rstrip": True, "normalized": True}
    return tokenizer, config | {"added_tokens_decoder": _decoder(tokenizer, **changes)}


def byte_decoder_partial() -> Files:
    tokenizer, config = byte_plain()
    entries = dict(list(_decoder(tokenizer, lstrip=True).items())[:3])
    return tokenizer, config | {"added_tokens_decoder": entries}


def byte_cut_and_padded() -> Files:
    tokenizer, config = byte_plain()
    tokenizer["truncation"] = {
        "direction": "Left", "max_length": 10, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    tokenizer["padding"] = {
        "strategy": {"Fixed": 20}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "[PAD]",
    }  # fmt: skip
    return tokenizer, config


def byte_left() -> Files:
    tokenizer, config = byte_plain()
    return tokenizer, config | {"truncation_side": "left", "padding_side": "left"}


def byte_prefix_space() -> Files:
    tokenizer, config = byte_plain()
    tokenizer["pre_tokenizer"]["add_prefix_space"] = True
    return tokenizer, config | {"add_prefix_space": True}


def byte_unregistered() -> Files:
    """Special tokens that only the vocabulary knows, and objects in the config."""
    tokenizer, config = byte_plain()
    tokens = tokenizer["added_tokens"]
    tokens.sort(key=lambda token: token["content"] in ("[CLS]", "[SEP]", "[PAD]"))
    first = min(token["id"] for token in tokens)
    for i, token in enumerate(tokens):
        token["id"] = first + i
    for token in tokens[:-3]:
        tokenizer["model"]["vocab"][token["content"]] = token["id"]
    del tokens[:-3]
    mask = {"__type": "AddedToken", "content": "[MASK]", "lstrip": True, "rstrip": False,
            "normalized": False, "single_word": False}  # fmt: skip
    return tokenizer, config | {"mask_token": mask, "extra_special_tokens": ["[unused1]"]}


def byte_no_class() -> Files:
    tokenizer, config = byte_plain()
    del config["tokenizer_class"]
    return tokenizer, config | {"extra_special_tokens": ["[unused0]"], "model_max_length": 8192}


def byte_older_files() -> Files:
    """special_tokens_map.json and added_tokens.json, which count where added_tokens_decoder lacks."""
    tokenizer, config = byte_plain()
    mask = {"content": "[MASK]", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}
    return tokenizer, config | {
        OTHER_FILES: {
            "special_tokens_map.json": {"mask_token": mask, "bos_token": "[BOS]", "sep_token": "[PAD]"},
            "added_tokens.json": {"drone": 1024, "[BOS]": 1025, "[SEP]": 1019},
        }
    }


def meta_gemma() -> Files:
    tokenizer, config = meta_plain()
    tokenizer["pre_tokenizer"] = None
    return tokenizer, config | {"tokenizer_class": "GemmaTokenizerFast"}


def meta_gemma_decoder() -> Files:
    tokenizer, config = meta_plain()
    config["added_tokens_decoder"] = _decoder(tokenizer, lstrip=True)
    return tokenizer, config | {"tokenizer_class": "GemmaTokenizer"}


def meta_always() -> Files:
    tokenizer, config = meta_plain()
    tokenizer["pre_tokenizer"] = {
        "type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True,
    }  # fmt: skip
    return tokenizer, config


DIRECTORIES: list[Callable[[], Files]] = [
    byte_plain, meta_plain, byte_decoder_flips, byte_decoder_partial, byte_cut_and_padded, byte_left,
    byte_prefix_space, byte_unregistered, byte_no_class, byte_older_files, meta_gemma, meta_gemma_decoder, meta_always,
]  # fmt: skip


# ------------------------------------------------------------------------------ random requests

_PIECES = [
    "the drone", " a ", "  ", "    ", "\n", "\n\n", "\t", "", "x", "level 0: ", "no", "yes", "true", ": ",
    "[MASK]", " [MASK]", "[MASK] ", "[SEP]", "[CLS]", "[PAD]", "[UNK]", "[unused0]", "<mask>", " <mask>",
    "<eos>", "<bos>", "<table>", "\u2581", "e\u0301", "\u1112\u1161\u11ab", "\u212b", "caf\u00e9", "\u65e5\u672c",
    "\U0001f469\u200d\U0001f680", "{}", "{0}", "%s", "'a'", '"', "\\", "\u2028", "\u00a0", "fire the rotors",
    "\x00", "0.1", "[MA", "SK]", "\ufb01", "\u0130",
]  # fmt: skip


class Draw:
    """Random values, mostly legal ones, from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def text(self, longest: int = 6) -> str:
        r = self.random
        if r.random() < 0.05:
            longest *= 20
        if r.random() < 0.002:
            return "a\ud800b"
        return "".join(r.choice(_PIECES) for _ in range(r.randint(0, longest)))

    def json(self, depth: int = 3) -> Any:
        r = self.random
        kind = r.randrange(10 if depth else 6)
        if kind < 3:
            return self.text()
        if kind < 6:
            return r.choice(
                [0, 1, -1, True, False, None, 1.0, -0.0, 1e22, 0.1 + 0.2, 5e-324, 12345678901234567890,
                 float("nan"), float("inf"), -3.5]
            )  # fmt: skip
        if kind < 8:
            return [self.json(depth - 1) for _ in range(r.randint(0, 4))]
        return {self.key(): self.json(depth - 1) for _ in range(r.randint(0, 4))}

    def key(self) -> Any:
        r = self.random
        return self.text(3) if r.random() < 0.95 else r.choice([1, True, None, 2.5, 7, (1, 2)])

    def odd(self) -> Any:
        """A value that no part of a request should be, or nearly."""
        return self.random.choice([None, (), ("a",), b"x", {1, 2}, object, 1j, "", " ", [], {}, 0, [None]])

    def state(self) -> Any:
        r = self.random
        if r.random() < 0.03:
            return self.odd()
        if r.random() < 0.2:
            return [self.json(2) for _ in range(r.randint(0, 30))]
        return self.text(30) if r.random() < 0.4 else self.json()

    def description(self) -> Any:
        r = self.random
        if r.random() < 0.2:
            return r.choice([None, "", 0, False, [], {}, 0.0, " "])
        if r.random() < 0.02:
            return r.choice([SimpleNamespace(a=1), {"a": (1, 2)}, {1, 2}, 1j])
        return self.text(8) if r.random() < 0.7 else self.json(2)

    def label(self) -> Any:
        r = self.random
        if r.random() < 0.85:
            return self.text(3)
        return r.choice([1, 1.0, True, False, 0, 2, -1, 2.5, None, (1,), b"x", 10**30, float("nan")])

    def question(self) -> tuple[Any, Any]:
        r = self.random
        key = self.text(2) or "q" if r.random() < 0.95 else r.choice([1, 0, True, "", " ", None, 1.5])
        question: dict[str, Any] = {"type": r.choice(["choice", "score", "noul"])}
        question["instructions"] = self.text(12) if r.random() < 0.7 else self.json()
        n = r.choice([1, 2, 2, 3, 3, 4, 5, 8, 12, 40])
        if question["type"] == "choice":
            if r.random() < 0.7:
                question["criteria"] = {
                    self.label() if r.random() < 0.05 else self.text(3): self.description() for _ in range(n)
                }
            else:
                labels = [self.label() for _ in range(n)]
                if r.random() < 0.7:
                    labels = [f"{x}{i}" if isinstance(x, str) else i for i, x in enumerate(labels)]
                question["criteria"] = labels
        elif question["type"] == "score":
            question["criteria"] = [self.description() for _ in range(n)]
            if r.random() < 0.9:
                question["criteria"] = ["x" if c is None else c for c in question["criteria"]]
        else:
            n = 2
            if r.random() < 0.6:
                keys = r.sample(["true", "false", "true", True, False, "FALSE", "yes"], r.randint(0, 2))
                question["criteria"] = {k: self.description() for k in keys}
            if r.random() < 0.3:
                question["labels"] = r.choice(
                    [{"false": self.text(2), "true": self.text(2)}, {"false": "B ", "true": " A"}, None, {},
                     {"true": "a"}, {"false": "a", "true": "a"}, {"false": 1, "true": "a"}, "ab"]
                )  # fmt: skip
        if r.random() < 0.2:
            order = list(range(n))
            r.shuffle(order)
            question["option_order"] = r.choice([order] * 6 + [None, tuple(order), order[:-1], [True]])
        if r.random() < 0.1:
            question[r.choice(["type", "instructions", "criteria", "labels", "extra"])] = self.odd()
        if r.random() < 0.03:
            question.pop(r.choice(list(question)))
        return key, question if r.random() < 0.99 else self.odd()


# ------------------------------------------------------------------------------ the two sides


def load(make: Callable[[], Files], directory: Path) -> tuple[Any, Tokenizer, PromptTemplate]:
    """(the runtime's tokenizer, ours, the Laya template) on one directory."""
    from laya.agent import _fix_tokenizer_config, _load_tokenizer

    tokenizer, config = make()
    inner = directory / "tokenizer"
    inner.mkdir(parents=True)
    files = config.pop(OTHER_FILES, {})
    files |= {"tokenizer.json": tokenizer, "tokenizer_config.json": config}
    for name, content in files.items():
        (inner / name).write_text(json.dumps(content), encoding="utf-8")
    text = canonical_tokenizer_json(inner)
    settings = tokenizer_config(inner)
    _fix_tokenizer_config(str(directory))
    theirs = _load_tokenizer(str(inner), {})
    special = {
        f"{role}_id": theirs.convert_tokens_to_ids(special_token_text(settings, role))
        for role in ("cls", "sep", "mask")
    }
    ours = Tokenizer.from_metadata(
        {"tokenizer.huggingface.json": text}, SimpleNamespace(vocab_size=len(theirs), **special)
    )
    template = PromptTemplate.from_metadata({}, cls=ours.cls_text, sep=ours.sep_text, mask=ours.mask_text)
    return theirs, ours, template


def laya_layout(tok: Any, budgets: tuple[int, int], state: Any, key: Any, question: Any) -> Any:
    """[ids, markers, state tokens, used, distinct, per option] of the runtime, or its exception."""
    from laya.agent import Agent

    try:
        if state is None:
            raise TypeError("state must not be None")
        Agent._check_question(key, question)
        internal = {key: Agent._to_internal(question)}
        agent = SimpleNamespace(cfg={}, tok=tok, parallel_options=False)
        item = Agent._encode_state(agent, state, [key], internal, *budgets)[0]
    except Exception as error:
        return error
    cut, options = item["state_stats"], item["options"]
    return [
        item["ids"], item["markers"], cut["state_tokens"], cut["state_tokens_used"],
        options["options_distinct"], options["tokens_per_option"],
    ]  # fmt: skip


def sky_layout(builder: SequenceBuilder, state: Any, key: Any, question: Any) -> Any:
    try:
        s = builder.encode(state, {key: question})[key]
    except RequestError as error:
        return error
    return [
        s.ids, s.markers, s.state_tokens, s.state_tokens_used, s.options_distinct, s.tokens_per_option,
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2000, help="for each tokenizer directory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="run one tokenizer directory")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    failures = 0
    for make in DIRECTORIES:
        if args.only not in (None, make.__name__):
            continue
        draw, tally = Draw(args.seed), Counter[str]()
        with tempfile.TemporaryDirectory() as root:
            try:
                theirs, ours, template = load(make, Path(root) / make.__name__)
            except FormatError as error:
                print(f"{make.__name__}: FormatError: {error}")
                failures += 1
                continue
        for number in range(args.rounds):
            budgets = draw.random.choice([(512, 192), (256, 96), (64, 40), (128, 256), (32, 16), (20, 8)])
            state, (key, question) = draw.state(), draw.question()
            expected = laya_layout(theirs, budgets, state, key, question)
            found = sky_layout(SequenceBuilder(ours, template, *budgets), state, key, question)
            refused = isinstance(expected, Exception)
            tally["refused" if refused else "equal"] += 1
            if refused != isinstance(found, Exception) or (not refused and expected != found):
                failures += 1
                print(f"{make.__name__} round {number}: budgets {budgets}\n  state {state!r}")
                print(f"  {key!r}: {question!r}\n  laya {expected!r}\n  ours {found!r}")
                if failures > 5:
                    return 1
        print(f"{make.__name__}: {dict(tally)}", flush=True)
    print("failures:", failures)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
