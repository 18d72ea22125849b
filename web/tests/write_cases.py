"""Writes what the tests of the browser's host compare with: what Python does with golden texts and with random ones.

    python web/tests/write_cases.py DIR [--rounds 500] [--seed 0]

DIR gets the golden models as GGUF files, and files of JSON lines: bodies.jsonl (requests: token ids, markers,
refusals), answers.jsonl (requests: scores and whole answers), tokenizers.jsonl (texts: token ids, for many kinds of
tokenizers) and json.jsonl (JSON texts as Python reads and writes them). Needs skyinfer and its tests, not torch.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from checkpoints import SIZES, byte_tokenizer, metaspace_tokenizer, paint
from differential import DIRECTORIES, Draw
from golden.inputs import PLAIN
from golden.recipes import RECIPES, S2, VARIANTS, from_literal, painted, recorded
from test_gguf_quantized import write as write_gguf

import skyinfer
from skyinfer.errors import RequestError
from skyinfer.files.activations import ACTIVATIONS
from skyinfer.files.conversion import convert
from skyinfer.files.gguf import GGUFFile
from skyinfer.files.tensors import without_ones
from skyinfer.runtime.thresholds import thresholds_of
from skyinfer.schema import unknown_extensions
from skyinfer.text.tokenizer import HUGGINGFACE_JSON, Tokenizer

# of all golden models those that a browser reads
GOLDEN = [*(name for name in RECIPES | VARIANTS if name in RECIPES or name.startswith("parallel")), *S2]
# and one of s2 with one block of the decision, heads of another number and hardly any room
TIGHT: dict[str, Any] = {
    "d_model": 128, "n_heads": 4, "head_layers": 1, "tokenizer": "metaspace", "max_len": 24, "head_max_len": 20,
    "local_attention": 12, "global_every": 2, "activation": "silu", "seed": 5, "architecture": "s2",
}  # fmt: skip
OF_S2 = [*S2, "s2_tight"]
LAYA_FIELDS = (
    "ids",
    "markers",
    "state_tokens",
    "state_tokens_used",
    "options",
    "options_distinct",
    "tokens_per_option",
)


class Lines:
    """A file of JSON lines; lone surrogates are escapes in it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def write(self, **entry: Any) -> None:
        self._file.write(json.dumps(entry) + "\n")

    def close(self) -> None:
        self._file.close()


# ---- JSON


def as_json(value: Any) -> str | None:
    """A JSON text of the value if it is one that comes back unchanged, lists as lists."""
    try:
        text = json.dumps(value)
        return text if repr(json.loads(text)) == repr(value) else None
    except (TypeError, ValueError):
        return None


NUMBERS = [
    "0", "-0", "1", "-1", "1.0", "-0.0", "0.0", "1e5", "1E5", "1e+5", "1e-5", "1e-05", "1.50", "100", "1e16", "1e15",
    "123456789012345678", "12345678901234567890", "1e22", "1e21", "1e23", "5e-324", "2.2250738585072014e-308", "1e400",
    "-1e400", "0.1", "0.30000000000000004", "1e-4", "0.0001", "0.00001", "9007199254740993", "9007199254740993.0",
    "1.7976931348623157e308", "NaN", "Infinity", "-Infinity", "1e-7", "123456.789e3", "-12.5e-3", "4" * 60, "0.1e1",
]  # fmt: skip
BROKEN = [
    "", " ", "01", "1.", ".5", "+1", "1e", "--1", "0x10", "nan", "True", "nul", "[1,]", "[,1]", "{,}", '{"a":1,}',
    '{"a"}',
    '{"a":}', "{1:2}", "{'a':1}", '"a', '"\\x"', '"\\u12"', '"\\u12g4"', '"\n"', '"\t"', "[1 2]", "[1", "{", "}", "]",
    "1 2", '"a" "b"', "\ufeff1", "\u00a01", "[1]x", '{"a":1 "b":2}', "/*a*/1", "1//", '"\\', "-",
    "[" * 20000,
    '{"a":' * 20000,
    "Infinity1", "-NaN", "9" * 5000, "tru", "[true false]", '"\x00"', "\x0c1", "1_000", "٣", '"\\ud83d', "\x00",
]  # fmt: skip


class JsonText:
    """Random JSON texts, in every spelling that the grammar allows."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.draw = Draw(seed)

    def space(self) -> str:
        r = self.random
        return "" if r.random() < 0.7 else "".join(r.choice(" \t\n\r") for _ in range(r.randint(1, 3)))

    def number(self) -> str:
        r = self.random
        kind = r.randrange(4)
        if kind == 0:
            return r.choice(NUMBERS)
        if kind == 1:
            return str(r.choice([r.randint(-1000, 1000), r.getrandbits(r.randint(1, 200))]))
        if kind == 2:
            return repr(r.uniform(-1, 1) * 10.0 ** r.randint(-330, 308))
        return f"{r.randint(-9999, 9999)}.{r.randint(0, 10**6)}{r.choice(['', 'e', 'E+', 'e-'])}".rstrip("eE+-") + (
            f"e{r.randint(-30, 30)}" if r.random() < 0.5 else ""
        )

    def string(self) -> str:
        out = '"'
        for c in self.text():
            if c in '"\\' or c < " ":
                out += json.dumps(c)[1:-1]
            elif self.random.random() < 0.1:
                out += json.dumps(c)[1:-1] if self.random.random() < 0.8 or c != "/" else "\\/"
            else:
                out += c
        return out + '"'

    def text(self) -> str:
        r = self.random
        kind = r.random()
        if kind < 0.6:
            return self.draw.text(10)
        if kind < 0.8:
            return "".join(chr(r.randrange(32, 127)) for _ in range(r.randint(0, 40)))
        return unicode_text(r)

    def value(self, depth: int = 3) -> str:
        r = self.random
        kind = r.randrange(10 if depth else 6)
        if kind < 3:
            return self.string()
        if kind < 5:
            return self.number()
        if kind < 6:
            return r.choice(["true", "false", "null", "NaN", "Infinity", "-Infinity", "[]", "{}", '""'])
        inner = [self.value(depth - 1) for _ in range(r.randint(0, 5))]
        if kind < 8:
            return "[" + ",".join(self.space() + one + self.space() for one in inner) + "]"
        keys = [r.choice(["1", "0", "10", "2", "a", "__proto__", "constructor"]) for _ in inner]
        members = [
            f"{self.space()}{self.string() if r.random() < 0.6 else json.dumps(key)}{self.space()}:{self.space()}{one}"
            for key, one in zip(keys, inner, strict=True)
        ]
        return "{" + ",".join(members) + self.space() + "}"


def unicode_text(r: random.Random) -> str:
    """Characters of every kind: assigned or not, marks in any order, Hangul, white space, private and odd ones."""
    ranges = [
        (0x20, 0x7F), (0x80, 0x250), (0x300, 0x370), (0x370, 0x600), (0x600, 0x900), (0x900, 0x1100), (0x1100, 0x1200),
        (0x1E00, 0x2100), (0x2000, 0x2070), (0x3040, 0x3100), (0xAC00, 0xAC80), (0xF900, 0xFB50), (0xFE00, 0xFFFE),
        (0x10000, 0x12000), (0x1D100, 0x1D200), (0x1F300, 0x1F700), (0x1DC0, 0x1E00), (0xA600, 0xAC00),
        (0x1AB0, 0x1B00), (0x16000, 0x17000), (0x1E000, 0x1E900), (0x2F800, 0x2FA20), (0, 0xD800), (0xE000, 0x110000),
    ]  # fmt: skip
    out = ""
    for _ in range(r.randint(0, 25)):
        begin, end = r.choice(ranges)
        out += chr(r.randrange(begin, end))
        if r.random() < 0.2:
            out += r.choice(["a", "e", "\u0301", "\u0323", "\u0345", " ", "\u1161", "\u11a8", "1", "\u0334", "o\u0302"])
    return out


def write_json(path: Path, rounds: int, seed: int) -> None:
    lines, texts = Lines(path), JsonText(seed)
    candidates = [*NUMBERS, *BROKEN, *(texts.value() for _ in range(rounds))]
    for text in list(candidates[len(NUMBERS) + len(BROKEN) :]):
        if text and texts.random.random() < 0.5:  # one character more, less or other
            at = texts.random.randrange(len(text))
            candidates.append(
                text[:at] + texts.random.choice(["", "0", ",", '"', "\\", "}", "e", "."]) + text[at + 1 :]
            )
    for text in candidates:
        try:
            lines.write(text=text, written=json.dumps(json.loads(text), ensure_ascii=False))
        except (ValueError, RecursionError):
            lines.write(text=text, written=None)
    lines.close()


# ---- requests


def write_models(directory: Path) -> dict[str, Any]:
    """The golden models as files, and open."""
    models = {}
    for name in GOLDEN:
        path = directory / f"{name}.gguf"
        if not path.exists():
            convert(painted(name), path, outtype="f32", name=name)
        models[name] = skyinfer.load(path)
    path = directory / "s2_tight.gguf"
    convert(paint(directory / "painted" / "s2", **(SIZES["golden"] | TIGHT)), path, name=path.stem, force=True)
    models["s2_tight"] = skyinfer.load(path)
    for outtype in ("f16", "bf16", "q8_0"):
        path = directory / f"{outtype}.gguf"
        convert(painted("byte"), path, outtype=outtype, name=outtype, force=True)
        models[outtype] = skyinfer.load(path)
    path = directory / "squeezed.gguf"  # no dimensions of 1, as llama-quantize writes them
    with GGUFFile.open(models["byte"].path) as file:
        write_gguf(file, path, {}, {name: [*without_ones(info.shape)][::-1] for name, info in file.tensors.items()})
    models["squeezed"] = skyinfer.load(path)
    for entry in ACTIVATIONS:
        checkpoint = paint(directory / "painted" / entry.name, **SIZES["pico"], activation=entry.transformers[0])
        path = directory / f"{entry.name}.gguf"
        convert(checkpoint, path, outtype="f32", name=entry.name, force=True)
        models[entry.name] = skyinfer.load(path)
    return models


def write_refused(directory: Path) -> None:
    """Models that Python reads and a browser refuses."""
    for name in ("wordpiece", "bert_cased"):
        convert(painted(name), directory / f"{name}.gguf", outtype="f16", name=name, force=True)


def golden_bodies() -> Iterator[tuple[str, str, str, Any]]:
    """(model, name, body, recorded sequences or None) of the golden inputs that JSON can hold."""
    for case in recorded("s2.json")["cases"]:
        body = as_json(from_literal(case["request"]))
        if body is not None:
            yield case["checkpoint"], case["name"], body, None
    for case in [*recorded("text.json")["cases"], *recorded("variants.json")["texts"]]:
        body = as_json(from_literal(case["request"]))
        if body is not None and case["checkpoint"] in GOLDEN:
            yield case["checkpoint"], case["name"], body, case.get("sequences")


def random_bodies(
    rounds: int, seed: int, names: Sequence[str] = (*GOLDEN, "s2_tight")
) -> Iterator[tuple[str, str, str, Any]]:
    draw, texts = Draw(seed), JsonText(seed)
    for i in range(rounds):
        r = draw.random
        kind = r.randrange(4)
        if kind == 0:
            state: str | None = as_json(draw.state())
        elif kind == 1:
            state = texts.value()
        elif kind == 2:
            state = json.dumps(unicode_text(r) + draw.text(8) + unicode_text(r), ensure_ascii=False)
        else:
            words = [r.choice(["vy", "dx", str(r.randint(-99, 99)), texts.number(), draw.text(2)]) for _ in range(20)]
            state = json.dumps(" ".join(words) * r.choice([1, 1, 1, 30]))
        if r.random() < 0.5:
            questions: str | None = json.dumps(PLAIN)
        else:
            questions = as_json(dict(draw.question() for _ in range(r.choice([1, 1, 2]))))
        if state is None or questions is None:
            continue
        yield r.choice(names), f"random {i}", f'{{"state": {state}, "questions": {questions}}}', None


def write_bodies(path: Path, models: dict[str, Any], rounds: int, seed: int) -> None:
    lines = Lines(path)
    for name, case, body, sequences in [*golden_bodies(), *random_bodies(rounds, seed)]:
        request = json.loads(body)
        try:
            found = models[name].encode(request["state"], request["questions"])
        except RequestError as error:
            assert sequences is None, case
            lines.write(model=name, name=case, body=body, refused={"loc": list(error.loc), "reason": error.message})
            continue
        expected = [{field: getattr(sequence, field) for field in LAYA_FIELDS} for sequence in found.values()]
        # what the Laya runtime was recorded to do is the authority where it is known
        assert sequences is None or sequences == expected, case
        for sequence, fields in zip(found.values(), expected, strict=True):
            fields["option_ids"] = sequence.option_ids
        lines.write(model=name, name=case, body=body, sequences=expected)
    lines.close()


THRESHOLDS: list[Any] = [
    None, 0, 1, 0.7, 1.0, 1e-9, {"default": 0.9}, {"choice:2": 0.9, "choice:3-5": 0.4, "score:3-5": 1, "noul:2": 0.99},
    {"choice:11+": 0.5, "score:6-10": 0.1, "default": 0}, -0.1, 1.01, float("nan"), True, "0.5", [], [0.5], {}, 10**30,
    {"choice": 0.5}, {"noul:2": "0.5"}, {"noul:2": None}, {"default": -1}, {"choice:3_5": 0.5}, {"": 0.5},
]  # fmt: skip


def write_answers(path: Path, models: dict[str, Any], rounds: int, seed: int) -> None:
    lines = Lines(path)
    cases = [
        (case["checkpoint"], case["name"], as_json(from_literal(case["request"])))
        for case in [*recorded("answers.json")["cases"], *recorded("variants.json")["answers"]]
        if case["checkpoint"] in GOLDEN
    ]
    drawn = [*random_bodies(rounds, seed + 1), *random_bodies(rounds, seed + 2, OF_S2)]
    cases += [(model, name, body) for model, name, body, _ in drawn]
    plain = {"state": "The customer asks about a refund of order 20", "questions": PLAIN}
    cases += [(model, "each model", json.dumps(plain)) for model in models]
    cases += [("byte", "thresholds", json.dumps(plain | {"x_min_confidence": least})) for least in THRESHOLDS]
    odd = {"x_min": 1, "x_long": False, "x_": None, "model": "m", "other": 2, "x_Min_confidence": {"x_a": 1}}
    cases += [("byte", "misspelt fields", json.dumps(plain | odd))]
    for name, case, body in cases:
        if body is None:
            continue
        request = json.loads(body)
        least = request.get("x_min_confidence")
        try:
            thresholds_of(least, "x_min_confidence")
        except RequestError as error:
            lines.write(model=name, name=case, body=body, refused={"loc": list(error.loc), "reason": error.message})
            continue
        try:
            response = models[name].decide(request["state"], request["questions"], min_confidence=least)
            if ignored := unknown_extensions(request):
                response["x_ignored"] = ignored
            logits = models[name].logits(request["state"], request["questions"])
        except RequestError:
            continue
        rows = {question: row.tolist() for question, row in logits.items()}
        lines.write(model=name, name=case, body=body, response=json.dumps(response, ensure_ascii=False), logits=rows)
    lines.close()


# ---- tokenizers


def tokenizer_files() -> Iterator[tuple[str, dict[str, Any]]]:
    """tokenizer.json of many kinds, none of which a browser refuses."""
    for make in DIRECTORIES:
        yield make.__name__, make()[0]
    byte, meta = byte_tokenizer(1024)[0], metaspace_tokenizer(1024)[0]

    def changed(base: dict[str, Any], **parts: Any) -> dict[str, Any]:
        return copy.deepcopy(base) | parts

    def model(base: dict[str, Any], **parts: Any) -> dict[str, Any]:
        return changed(base, model=base["model"] | parts)

    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        yield form, changed(byte, normalizer={"type": form})
    byte_level = byte["pre_tokenizer"]
    yield "no regex", changed(byte, pre_tokenizer=byte_level | {"use_regex": False})
    split = {"type": "Split", "pattern": {"String": "an"}, "invert": False}
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            step = split | {"behavior": behavior, "invert": invert}
            steps = [step, byte_level]
            yield f"{behavior} {invert}", changed(byte, pre_tokenizer={"type": "Sequence", "pretokenizers": steps})
            yield f"meta {behavior} {invert}", changed(meta, pre_tokenizer=step | {"pattern": {"String": "\u2581"}})
    for scheme in ("first", "always", "never"):
        for is_split in (True, False):
            step = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": is_split}
            yield f"metaspace {scheme} {is_split}", changed(meta, pre_tokenizer=step, normalizer=None)
    yield (
        "prepend",
        changed(
            meta,
            normalizer={
                "type": "Sequence",
                "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, meta["normalizer"]],
            },
        ),
    )
    yield "replace two", changed(byte, normalizer={"type": "Replace", "pattern": {"String": "aa"}, "content": "b"})
    yield "no pre-tokenizer", changed(byte, pre_tokenizer=None)
    yield "ignore merges", model(byte, ignore_merges=True)
    yield "unknown, fused", model(meta, byte_fallback=False)
    yield "unknown, each", model(meta, byte_fallback=False, fuse_unk=False)
    yield "no unknown", model(meta, byte_fallback=False, unk_token=None)
    few = {token: i for token, i in meta["model"]["vocab"].items() if token != "<0xC3>"}
    yield "bytes missing", model(meta, vocab=few)
    strings = [" ".join(pair) for pair in byte["model"]["merges"]]
    yield "merges as strings", model(byte, merges=strings)
    for key in ("lstrip", "rstrip", "normalized"):
        for value in (True, False):
            tokens = [token | {key: value} for token in byte["added_tokens"]]
            yield f"{key} {value}", changed(byte, added_tokens=tokens)
    flags = {"id": 9, "single_word": False, "lstrip": False, "rstrip": False}
    nested = [
        flags | {"content": text, "normalized": normalized, "special": special}
        for text, normalized, special in [
            ("the drone", True, False), ("the", False, False), ("drone keeps", False, True), ("Caf\u00e9", True, False),
            ("cafe\u0301", True, True), (" a", False, False), ("aa", True, False), ("aaa", False, True),
            ("", True, True),
        ]
    ]  # fmt: skip
    yield "tokens in tokens", changed(byte, added_tokens=byte["added_tokens"] + nested)


def ggml_metadata(kind: str, pre: str) -> dict[str, Any]:
    """tokenizer.ggml.* as llama.cpp's converter would write it, without the whole tokenizer.json."""
    data = {"byte": byte_tokenizer, "metaspace": metaspace_tokenizer}[kind](1024)[0]
    tokens, types = [f"[PAD{i}]" for i in range(1024)], [5] * 1024
    for text, i in data["model"]["vocab"].items():
        tokens[i], types[i] = text, 1
    for token in data["added_tokens"]:
        tokens[token["id"]] = token["content"]
        types[token["id"]] = 3 if token["special"] else 4
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in data["model"]["merges"]],
        "tokenizer.ggml.unknown_token_id": next(t["id"] for t in data["added_tokens"] if "unk" in t["content"].lower()),
    }


class Special:
    """The ids that a tokenizer is checked with."""

    def __init__(self, vocab: dict[str, int]) -> None:
        self.vocab_size = 1 << 20
        names = ("[CLS]", "[SEP]", "[MASK]") if "[CLS]" in vocab else ("<bos>", "<eos>", "<mask>")
        self.cls_id, self.sep_id, self.mask_id = (vocab[name] for name in names)


def write_tokenizers(path: Path, rounds: int, seed: int) -> None:
    lines, texts = Lines(path), JsonText(seed)
    metadata = [(name, {HUGGINGFACE_JSON: json.dumps(data)}) for name, data in tokenizer_files()]
    for kind, pre in (("byte", "modern-bert"), ("byte", "gpt-2"), ("metaspace", "mmbert")):
        metadata.append((f"rebuilt {pre}", ggml_metadata(kind, pre)))
        extra = {"skycmd.tokenizer.normalizer": "NFKC", "skycmd.tokenizer.rstrip": [1, 2, 1020]}
        metadata.append((f"rebuilt {pre}, more", ggml_metadata(kind, pre) | extra))
    for name, keys in metadata:
        if HUGGINGFACE_JSON in keys:
            vocab = Backend.from_str(keys[HUGGINGFACE_JSON]).get_vocab()
        else:
            vocab = {token: i for i, token in enumerate(keys["tokenizer.ggml.tokens"])}
        special = Special(vocab)
        tokenizer = Tokenizer.from_metadata(keys, special)
        cases = ["", " ", "a" * 3000, "ab" * 2000, "the drone " * 200, "aaaa aaa aa a", "\u00c3\u00df\u4e2d" * 5]
        cases += [texts.text() for _ in range(rounds)]
        cases += [" ".join(texts.draw.text(3) for _ in range(3)) for _ in range(rounds)]
        cases = [text for text in cases if text.encode("utf-8", "ignore").decode() == text]
        lines.write(
            name=name, metadata=keys, special=vars(special),
            texts=cases, ids=[tokenizer.encode(text) for text in cases],
        )  # fmt: skip
    lines.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rounds", type=int, default=500, help="random requests and JSON texts")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # clamped temperatures are meant
    directory, rounds, seed = options.directory, options.rounds, options.seed
    directory.mkdir(parents=True, exist_ok=True)
    models = write_models(directory)
    write_refused(directory)
    write_json(directory / "json.jsonl", rounds, seed)
    write_bodies(directory / "bodies.jsonl", models, rounds, seed)
    write_answers(directory / "answers.jsonl", models, max(20, rounds // 20), seed)
    write_tokenizers(directory / "tokenizers.jsonl", max(10, rounds // 20), seed)


if __name__ == "__main__":
    main()
