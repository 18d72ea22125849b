"""Which tokenizer a file stands for, and that faulty ones are refused when they are loaded."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from checkpoints import SIZES, paint
from hypothesis import given
from hypothesis import strategies as st
from painted_tokenizers import JSON, VOCAB, painted
from tokenizers import Tokenizer as Backend

import skyinfer
from skyinfer.core import scanners
from skyinfer.errors import FormatError
from skyinfer.files.conversion import convert
from skyinfer.text.tokenizer import Tokenizer, parse

TEXTS = [
    "", " ", "the drone", "  two  spaces   and    four ", "cafe\u0301 \u212b \u1112\u1161\u11ab",
    "a [MASK]b [SEP][CLS] [PAD]", "x <mask>y <eos>", "\n\nnew\nline\t", "日本 \U0001f469\u200d\U0001f680",
    "[unused0] \u2581\u2581 <table>", "The request is 12345678901234567890 and 0.30000000000000004",
]  # fmt: skip


def load(kind: str) -> Tokenizer:
    data, special = painted(kind)
    return Tokenizer.from_metadata({JSON: json.dumps(data)}, special)


def ggml(kind: str) -> dict[str, Any]:
    """tokenizer.ggml.* as llama.cpp's converter would write it, without the whole tokenizer.json."""
    data, _ = painted(kind)
    tokens, types = [f"[PAD{i}]" for i in range(VOCAB)], [5] * VOCAB
    for text, i in data["model"]["vocab"].items():
        tokens[i], types[i] = text, 1
    for token in data["added_tokens"]:
        tokens[token["id"]] = token["content"]
        types[token["id"]] = 3 if token["special"] else 4
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": {"byte": "modern-bert", "metaspace": "mmbert"}[kind],
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in data["model"]["merges"]],
    }
    if kind == "metaspace":
        metadata["tokenizer.ggml.unknown_token_id"] = tokens.index("<unk>")
    return metadata


# ------------------------------------------------------------------------------ encoding


def test_special_tokens_have_texts_and_no_token_is_added() -> None:
    tokenizer = load("byte")
    assert (tokenizer.cls_text, tokenizer.sep_text, tokenizer.mask_text) == (
        "[CLS]", "[SEP]", "[MASK]",
    )  # fmt: skip
    assert tokenizer.encode("") == []
    assert tokenizer.encode("[CLS]") == [tokenizer.cls_id]
    assert tokenizer.encode("a [MASK]") == [*tokenizer.encode("a"), tokenizer.mask_id]


def test_canonical_equivalents_meet_in_nfc() -> None:
    tokenizer = load("byte")
    assert tokenizer.encode("cafe\u0301") == tokenizer.encode("caf\u00e9")
    assert tokenizer.encode("\u212b") == tokenizer.encode("\u00c5")
    assert tokenizer.encode("\u1112\u1161\u11ab") == tokenizer.encode("\ud55c")


@pytest.mark.parametrize("kind", ["byte", "metaspace"])
def test_ways_to_encode_agree(kind: str) -> None:
    tokenizer = load(kind)
    expected = [tokenizer.encode(text) for text in TEXTS]
    for _ in range(2):  # the second time from memory
        assert [list(tokenizer.encode_repeated(text)) for text in TEXTS] == expected
    long = "the drone " * 200
    assert list(tokenizer.encode_repeated(long)) == tokenizer.encode(long)


def test_remembered_tokens_cannot_be_changed() -> None:
    assert isinstance(load("byte").encode_repeated("the drone"), tuple)


def test_padding_and_truncation_of_the_file_are_dropped() -> None:
    data, special = painted("byte")
    expected = [load("byte").encode(text) for text in TEXTS]
    data["truncation"] = {
        "direction": "Left", "max_length": 2, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    data["padding"] = {
        "strategy": {"Fixed": 64}, "direction": "Left", "pad_to_multiple_of": 8, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "[PAD]",
    }  # fmt: skip
    tokenizer = Tokenizer.from_metadata({JSON: json.dumps(data)}, special)
    assert [tokenizer.encode(text) for text in TEXTS] == expected
    assert tokenizer.keeps_tail
    assert not load("byte").keeps_tail


def test_a_lone_surrogate_is_the_callers_fault() -> None:
    tokenizer = load("byte")
    for encode in (tokenizer.encode, tokenizer.encode_repeated):
        with pytest.raises(UnicodeEncodeError):
            encode("a\ud800b")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
def test_no_threads_are_started() -> None:
    code = (
        "import os, test_tokenizer as t; n = lambda: len(os.listdir('/proc/self/task'));"
        "tokenizer = t.load('byte'); before = n(); found = [*map(tokenizer.encode, t.TEXTS * 9)]; print(n() - before)"
    )
    tests = str(Path(__file__).parent)
    path = os.pathsep.join([tests, *filter(None, sys.path)])
    found = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert found.stdout == "0\n", found.stderr


@pytest.mark.parametrize("kind", ["byte", "metaspace"])
def test_long_texts_have_the_ids_of_their_parts(kind: str) -> None:
    """Lengths around the border between the two ways to encode, against the package itself."""
    data, _ = painted(kind)
    backend = Backend.from_str(json.dumps(data))
    tokenizer = load(kind)
    text = "".join(f"{text} " for text in TEXTS) * 200
    for length in (16_000, 16_383, 16_384, 16_385, 20_000, len(text)):
        expected = backend.encode(text[:length], add_special_tokens=False).ids
        assert tokenizer.encode(text[:length]) == expected
        assert list(tokenizer.encode_repeated(text[:length])) == expected
    with pytest.raises(UnicodeEncodeError):
        tokenizer.encode(text + "\ud800")


def test_other_threads_go_on_while_a_long_text_is_tokenized() -> None:
    tokenizer = load("byte")
    text = "the drone 12 cafe\u0301 \u65e5\u672c\n" * 40_000
    done = threading.Event()
    gaps: list[float] = []

    def watch() -> None:
        last = time.perf_counter()
        while not done.is_set():
            time.sleep(0.001)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    watcher = threading.Thread(target=watch)
    watcher.start()
    begun = time.perf_counter()
    tokenizer.encode(text)
    took = time.perf_counter() - begun
    done.set()
    watcher.join()
    assert max(gaps) < took / 2  # holding the GIL it is nearly all of it


def test_what_is_remembered_is_bounded() -> None:
    """Texts of which a normalizer makes many tokens would fill the memory, remembered."""
    data, special = painted("byte")
    grow = {"type": "Replace", "pattern": {"String": "a"}, "content": "bcdefghi"}
    data["normalizer"] = {"type": "Sequence", "normalizers": [grow]}
    tokenizer = Tokenizer.from_metadata({JSON: json.dumps(data)}, special)
    tokenizer.encode_repeated("warm")
    tracemalloc.start()
    try:
        for i in range(3000):
            text = f"{i} {'a' * (i % 512)}"
            assert list(tokenizer.encode_repeated(text)) == tokenizer.encode(text)
        assert tracemalloc.get_traced_memory()[0] < 10e6
    finally:
        tracemalloc.stop()


def test_threads_share_a_tokenizer() -> None:
    tokenizer = load("byte")
    expected = [tokenizer.encode(text) for text in TEXTS]
    wrong: list[Any] = []

    def work(seed: int) -> None:
        order = list(range(len(TEXTS)))
        shuffle = random.Random(seed).shuffle
        for _ in range(100):
            shuffle(order)
            for i in order:
                for encode in (tokenizer.encode, tokenizer.encode_repeated):
                    if list(encode(TEXTS[i])) != expected[i]:
                        wrong.append(TEXTS[i])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# ------------------------------------------------------------------------------ rebuilding


def test_rebuilt_byte_level_tokenizer_is_the_same() -> None:
    whole, special = load("byte"), painted("byte")[1]
    rebuilt = Tokenizer.from_metadata(ggml("byte"), special)
    for text in TEXTS:
        assert rebuilt.encode(text) == whole.encode(text), text


def test_rebuilt_metaspace_tokenizer_is_the_same() -> None:
    data, special = painted("metaspace")
    # mmBERT's own split; the painted tokenizer has Gemma's
    data["pre_tokenizer"] = {
        "type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True,
    }  # fmt: skip
    whole = Tokenizer.from_metadata({JSON: json.dumps(data)}, special)
    rebuilt = Tokenizer.from_metadata(ggml("metaspace"), special)
    for text in TEXTS:
        assert rebuilt.encode(text) == whole.encode(text), text


@pytest.mark.parametrize("kind", ["byte", "metaspace"])
def test_a_rebuilt_tokenizer_writes_the_text_that_the_whole_one_does(kind: str) -> None:
    whole, rebuilt = load(kind), Tokenizer.from_metadata(ggml(kind), painted(kind)[1])
    for text in TEXTS:
        ids = whole.encode(text)
        for part in (ids, ids[1:], ids[: len(ids) // 2]):
            assert rebuilt.decode(part) == whole.decode(part), text


def test_the_whole_tokenizer_is_preferred() -> None:
    data, special = painted("byte")
    metadata = {JSON: json.dumps(data), "tokenizer.ggml.pre": "nobody-knows"}
    assert Tokenizer.from_metadata(metadata, special).encode("the drone")


def test_gpt2_has_no_normalizer_and_strips_nothing() -> None:
    special = painted("byte")[1]
    metadata = ggml("byte") | {"tokenizer.ggml.pre": "gpt-2"}
    plain = Tokenizer.from_metadata(metadata, special)
    assert plain.encode("cafe\u0301") != plain.encode("caf\u00e9")
    space = plain.encode(" ")
    assert plain.encode(" [MASK]") == [*space, special.mask_id]
    keys = {"skycmd.tokenizer.normalizer": "NFC", "skycmd.tokenizer.lstrip": [special.mask_id]}
    keyed = Tokenizer.from_metadata(metadata | keys, special)
    assert keyed.encode("cafe\u0301") == plain.encode("caf\u00e9")
    assert keyed.encode(" [MASK]") == [special.mask_id]
    keys = {"skycmd.tokenizer.rstrip": [special.sep_id]}
    keyed = Tokenizer.from_metadata(metadata | keys, special)
    assert keyed.encode("[SEP] a") == [special.sep_id, *plain.encode("a")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.pre": "kimi-k2"}, "skyinfer convert"),
        ({"tokenizer.ggml.pre": None}, "tokenizer.ggml.pre"),
        ({"tokenizer.ggml.model": "bert"}, "tokenizer.ggml.pre"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokenizer.ggml.tokens": "abc"}, "list of strings"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "list of strings"),
        ({"tokenizer.ggml.tokens": ["a"] * VOCAB}, "repeat"),
        ({"tokenizer.ggml.tokens": []}, "token_type"),
        ({"tokenizer.ggml.token_type": [1]}, "token_type"),
        ({"tokenizer.ggml.token_type": [5] * VOCAB}, "tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["a"]}, "entry 0"),
        ({"tokenizer.ggml.merges": ["a b", "a b c"]}, "entry 1"),
        ({"tokenizer.ggml.merges": ["zz qq"]}, "tokenizer.ggml.merges"),
        ({"skycmd.tokenizer.normalizer": "NFX"}, "skycmd.tokenizer.normalizer"),
        ({"skycmd.tokenizer.normalizer": 5}, "skycmd.tokenizer.normalizer"),
        ({"skycmd.tokenizer.lstrip": [VOCAB]}, "skycmd.tokenizer.lstrip"),
        ({"skycmd.tokenizer.rstrip": "x"}, "skycmd.tokenizer.rstrip"),
    ],
)
def test_faulty_ggml_keys(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        Tokenizer.from_metadata(ggml("byte") | changes, painted("byte")[1])


def test_a_large_vocabulary_loads_quickly() -> None:
    n, n_merges = 256_000, 500_000
    letters = [chr(0x4E00 + i) for i in range(800)]
    pairs = [(a, b) for a in letters for b in letters][:n_merges]
    tokens = ["[CLS]", "[SEP]", "[MASK]", *letters]
    made = [a + b for a, b in pairs][: n - len(tokens)]
    tokens += made
    metadata = {
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (n - 3),
        "tokenizer.ggml.merges": [f"{a} {b}" for a, b in pairs[: len(made)]] * 2,
    }
    special = SimpleNamespace(vocab_size=n, cls_id=0, sep_id=1, mask_id=2)
    start = time.perf_counter()
    Tokenizer.from_metadata(metadata, special)
    assert time.perf_counter() - start < 10  # about 1 s; the bound is for busy machines


# ------------------------------------------------------------------------------ large files


@pytest.mark.parametrize("kind", ["byte", "metaspace"])
def test_no_work_is_done_for_each_token(kind: str, tmp_path: Path) -> None:
    """Four times the vocabulary and merges: no more calls in Python, one tokenizer, and no list of its tokens."""
    calls = []
    for n in (1000, 4000):
        size = SIZES["pico"] | {"vocab": n, "max_len": 64}
        path = paint(tmp_path / f"{kind}{n}", **size, tokenizer=kind, merges=n, temperature_by_options={})
        convert(path, path.with_suffix(".gguf"))
        calls.append(calls_of(lambda path=path: skyinfer.load(path.with_suffix(".gguf"), token_table_bytes=0)))
    assert max((calls[1] - calls[0]).values(), default=0) < 100, calls[1] - calls[0]
    assert calls[1]["from_str"] == 1
    assert not {"get_vocab", "to_str"} & set(calls[1])


def calls_of(work: Callable[[], object]) -> Counter[str]:
    """How often what was called, Python functions and others, the second time that `work` is done."""
    work()
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, called: Any) -> None:
        if event.endswith("call"):
            calls[called.__name__ if event == "c_call" else frame.f_code.co_name] += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def random_tokenizer(rng: random.Random) -> dict[str, Any]:
    """Models of every kind whose ids leave gaps, repeat and lie anywhere, with added tokens inside and beside them."""
    letters = "abcdef"[: rng.randrange(1, 7)]
    vocab: Any = {letter: rng.choice([i, i, i, rng.randrange(12)]) for i, letter in enumerate(letters)}
    models: list[dict[str, Any]] = [
        {"type": "WordLevel", "vocab": vocab, "unk_token": "a"},
        {"type": "Unigram", "unk_id": 0, "vocab": [[letter, -1.0] for letter in rng.choices(letters, k=5)]},
        {"type": "WordPiece", "vocab": vocab, "unk_token": "a", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 10},
        *[{"type": "BPE", "vocab": vocab, "merges": []}] * 3,
    ]  # fmt: skip
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    added = [
        {"id": rng.randrange(12), "content": text, "normalized": bool(i % 2), "special": rng.random() < 0.5, **flags}
        for i, text in enumerate(rng.sample("abcdefghij", rng.randrange(4)))
    ]
    parts = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return {"version": "1.0", **parts, "added_tokens": added, "model": rng.choice(models)}


def test_the_largest_id_is_that_of_the_whole_vocabulary() -> None:
    rng = random.Random(0)
    told = 0
    for _ in range(400):
        text = json.dumps(random_tokenizer(rng), ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1]))
        # a repeated key counts as the last one says
        text = text.replace('"vocab":', '"vocab": {"z": 40}, "vocab":', rng.randrange(2))
        text = text.replace('"a": 0', '"a": 40, "a": 0', rng.randrange(2))
        try:
            backend = Backend.from_str(text)
        except Exception:
            continue
        _, largest = parse(text, JSON)
        told += largest is not None
        largest_of_all = max(backend.get_vocab(with_added_tokens=True).values())
        special = SimpleNamespace(vocab_size=largest_of_all, cls_id=0, sep_id=0, mask_id=0)
        with pytest.raises(FormatError, match=f"token id {largest_of_all} lies outside"):
            Tokenizer.from_metadata({JSON: text}, special)
        special.vocab_size += 1
        with contextlib.suppress(FormatError):  # of roles
            Tokenizer.from_metadata({JSON: text}, special)
    assert told > 100


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text() | st.sampled_from(["a", '"', "\\", "}"]), JSON_VALUES, max_size=6), st.data())
def test_places_in_json_are_those_of_its_values(content: dict[str, Any], data: Any) -> None:
    dumped = json.dumps(content, ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from([None, 0, 3])))
    text = f" \n\t{dumped}\r\n "
    places = scanners.json_members(text, content)
    assert {key: json.loads(text[begin:end]) for key, (begin, end) in places.items()} == content
    assert scanners.json_members(text, ()) == {}
    cut = data.draw(st.integers(0, len(text.rstrip()) - 1))
    with pytest.raises(ValueError, match=" at character "):  # no shorter text is an object
        scanners.json_members(text[:cut], content)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '"a"', "{", "}", "{}{}", "{} x", '{"a"}', '{"a":}', '{"a":1,}', '{"a":1 "b":2}', '{a:1}', '{"a":[1}',
     '{"a":"\\"}', '{"a":1]', '{,"a":1}', '{"\\x":1}', "\0{}"],
)  # fmt: skip
def test_what_is_no_json_object_has_no_places(text: str) -> None:
    with pytest.raises(ValueError, match=r"character|escape|Expecting"):
        scanners.json_members(text, ("a",))


def test_numbers_in_json() -> None:
    assert scanners.json_numbers(' { "a" : 7 , "}" : 0,"\\"":123456789012345678} ') == (3, 123456789012345678)
    assert scanners.json_numbers("{}") == (0, 0)
    for number in ("-1", "1.0", "1e3", "1234567890123456789", '"1"', "null", "[1]", "1x", ""):
        with pytest.raises(ValueError, match="at character"):
            scanners.json_numbers(f'{{"a":1,"b":{number}}}')


# ------------------------------------------------------------------------------ faulty files


def test_an_id_beyond_the_embedding_is_found_at_load() -> None:
    data, special = painted("byte")
    special.vocab_size = VOCAB - 1
    with pytest.raises(FormatError, match="embedding table of 1023"):
        Tokenizer.from_metadata({JSON: json.dumps(data)}, special)
    with pytest.raises(FormatError, match="embedding table of 1023"):
        Tokenizer.from_metadata(ggml("byte"), special)


@pytest.mark.parametrize(("role", "value"), [("cls", VOCAB + 5), ("sep", -1), ("mask", 2**40)])
def test_special_ids_must_be_tokens(role: str, value: int) -> None:
    data, special = painted("byte")
    setattr(special, f"{role}_id", value)
    with pytest.raises(FormatError, match=role):
        Tokenizer.from_metadata({JSON: json.dumps(data)}, special)


def test_the_mask_token_has_one_role() -> None:
    data, special = painted("byte")
    special.mask_id = special.sep_id
    with pytest.raises(FormatError, match="mask"):
        Tokenizer.from_metadata({JSON: json.dumps(data)}, special)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", "[" * 100_000, '{"version":"1.0"}', "\x00", '{"model":{"type":"BPE"}}', 5],
)
def test_not_a_tokenizer(text: Any) -> None:
    with pytest.raises(FormatError, match=JSON):
        Tokenizer.from_metadata({JSON: text}, painted("byte")[1])


@pytest.mark.parametrize("part", ["content", "prepend"])
def test_growing_normalizer(part: str) -> None:
    data, special = painted("byte")
    grow: dict[str, Any] = {"type": "Prepend", "prepend": "x" * 17}
    if part == "content":
        grow = {"type": "Replace", "pattern": {"String": "a"}, "content": "x" * 17}
    data["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}, grow]}
    with pytest.raises(FormatError, match=part):
        Tokenizer.from_metadata({JSON: json.dumps(data)}, special)


def test_random_tokens_are_refused() -> None:
    data, special = painted("byte")
    data["model"]["dropout"] = 0.1
    with pytest.raises(FormatError, match="dropout"):
        Tokenizer.from_metadata({JSON: json.dumps(data)}, special)


def test_mutated_files_raise_format_errors_only() -> None:
    """Each value of tokenizer.json in turn becomes something else; vocab and merges are sampled."""
    data, special = painted("metaspace")
    draw = random.Random(1)
    paths: list[list[Any]] = []

    def collect(value: Any, path: list[Any]) -> None:
        if path:
            paths.append(path)
        items = enumerate(value) if isinstance(value, list) else ()
        items = value.items() if isinstance(value, dict) else items
        items = list(items)
        for key, child in draw.sample(items, min(len(items), 12)):
            collect(child, [*path, key])

    collect(data, [])
    loaded = 0
    for path in paths:
        for junk in (None, -1, 2**40, "", "\U0001f600" * 3, [], {}, True, 0.5):
            mutant = json.loads(json.dumps(data))
            place = mutant
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = junk
            try:
                tokenizer = Tokenizer.from_metadata({JSON: json.dumps(mutant)}, special)
                for text in TEXTS:
                    ids = tokenizer.encode(text)
                    assert all(0 <= i < VOCAB for i in ids)
                loaded += 1
            except FormatError:
                pass
    assert loaded > 0


REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 16}


@pytest.mark.parametrize(
    ("part", "steps"),
    [
        ("normalizer", [REPLACE] * 9),
        ("normalizer", [REPLACE | {"pattern": {"String": ""}}] * 6),
        ("normalizer", [REPLACE | {"pattern": {"Regex": "."}, "content": "ab"}] * 30),
        ("normalizer", [{"type": "ByteLevel"}] * 40),
        (
            "pre_tokenizer",
            [{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}] * 40,
        ),
    ],
)
def test_steps_that_multiply_a_text(part: str, steps: list[dict[str, Any]]) -> None:
    """Each step is small, and together they turn a letter into gigabytes."""
    data, special = painted("byte")
    data[part] = {"type": "Sequence", "normalizers" if part == "normalizer" else "pretokenizers": steps}
    # the package normalizes added tokens while it reads them, so this has to be seen before
    data["added_tokens"].append(data["added_tokens"][0] | {"id": 1, "content": "aaaa", "normalized": True})
    with pytest.raises(FormatError, match="lengthen a text"):
        Tokenizer.from_metadata({JSON: json.dumps(data)}, special)


def test_more_steps_than_any_tokenizer_has() -> None:
    """None multiplies a text, but all of them lengthen it by a page, word by word."""
    data, special = painted("byte")
    steps = [{"type": "Prepend", "prepend": "a" * 16}] * 257
    data["normalizer"] = {"type": "Sequence", "normalizers": steps}
    with pytest.raises(FormatError, match="more than 256 steps"):
        Tokenizer.from_metadata({JSON: json.dumps(data)}, special)


def test_steps_of_real_tokenizers_are_accepted() -> None:
    data, special = painted("byte")
    steps = [{"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, {"type": "ByteLevel"}]
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    data["normalizer"] = {"type": "Sequence", "normalizers": [*steps, spaces]}
    Tokenizer.from_metadata({JSON: json.dumps(data)}, special)
