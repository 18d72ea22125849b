"""Remembered words: the ids are those that the ``tokenizers`` package gives for the whole text, or none are given."""

from __future__ import annotations

import json
import re
import sys
import threading
from typing import Any

import pytest
from checkpoints import byte_tokenizer, metaspace_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from skyinfer.core import scanners
from skyinfer.text import words
from skyinfer.text.words import Words, words_of

DRONE = "vy 0 dx 36 up 9 dn 7 nxt 10 alt 32"
NFC, BYTES = {"type": "NFC"}, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def backend(*added: AddedToken) -> Tokenizer:
    """The painted byte-level tokenizer: merges of its own, special tokens in brackets, runs of two and four spaces."""
    made = Tokenizer.from_str(json.dumps(byte_tokenizer(1024)[0]))
    made.add_tokens(list(added))
    return made


def memory(tokenizer: Tokenizer) -> Words:
    found = words_of(tokenizer, NFC, BYTES)
    assert found is not None
    return found


def by_the_package(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def learnt(remembered: Words, text: str) -> list[int] | None:
    """What is given once every word of a text could be learnt."""
    for _ in range(8 * len(text) + 1):
        ids = remembered.ids(text)
        if ids is not None:
            return ids
    return None


PLAIN = backend()
REMEMBERED = memory(PLAIN)
PIECES = st.sampled_from(
    ["vy", " 12", "-3", "'s", "'S", "'ll", " it's", "\n", "\t ", " ", "...", "[", "MASK", '{"a": 1}', "\x1c", "\x00"]
)


@given(st.one_of(st.text(st.characters(max_codepoint=127), max_size=60), st.lists(PIECES, max_size=20).map("".join)))
def test_ids_are_the_packages(text: str) -> None:
    found = learnt(REMEMBERED, text)
    if found is not None:
        assert found == by_the_package(PLAIN, text)
    else:  # a token that the package looks for first may begin there
        assert any(mark in text for mark in ("[U", "[C", "[S", "[P", "[M", "[u", "  ")) or len(text) > 32


# OpenAI's, of gpt-2/src/encoder.py, for ASCII: \p{L} is [A-Za-z], \p{N} is [0-9]
GPT2 = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII)


@settings(max_examples=500)
@given(
    st.one_of(
        st.text(st.characters(max_codepoint=127), max_size=60),
        st.text("'stmdrevlL 9\t\n\x0b\x1c\x7f.@[`{z", max_size=12),
    )
)
def test_words_are_those_of_gpt2(text: str) -> None:
    assert scanners.split_words(text) == GPT2.findall(text)
    known = {word: (i,) * (1 + i % 3) for i, word in enumerate(GPT2.findall(text))}
    assert scanners.known_ids(text, known) == [token for word in GPT2.findall(text) for token in known[word]]


@pytest.mark.parametrize("text", ["caf\u00e9", "\u65e5\u672c", "\U0001f642"])
def test_words_are_of_ascii_alone(text: str) -> None:
    for call in (scanners.split_words, lambda text: scanners.known_ids(text, {})):
        with pytest.raises(ValueError, match="ASCII"):
            call(text)


def test_texts_of_hundreds_of_words_are_remembered() -> None:
    text = " ".join(f"{DRONE} of frame {i % 50}" for i in range(300))  # 13,000 characters
    assert learnt(memory(backend()), text) == by_the_package(PLAIN, text)


@pytest.mark.parametrize(
    "text", [DRONE, "", "a", "don't we'll THEY'RE", '{"a": [1, -2.5, null]}', "one\ntwo\n \nthree "]
)
def test_words_of_a_text_are_learnt(text: str) -> None:
    tokenizer = backend()
    calls: list[str] = []

    class Counted:
        model = tokenizer.model

        def encode(self, word: str, add_special_tokens: bool) -> Any:
            calls.append(word)
            return tokenizer.encode(word, add_special_tokens=add_special_tokens)

        def get_added_tokens_decoder(self) -> Any:
            return tokenizer.get_added_tokens_decoder()

    remembered = memory(Counted())  # type: ignore[arg-type]
    assert learnt(remembered, text) == by_the_package(tokenizer, text)
    split = {word for word, _ in ByteLevel(add_prefix_space=False).pre_tokenize_str(text)}
    assert len(calls) == len(set(calls)) == len(split)
    assert remembered.ids(text) == by_the_package(tokenizer, text)
    assert len(calls) == len(split)


@pytest.mark.parametrize(
    "text", ["[MASK]", "a [SEP]b", "two  spaces", "caf\u00e9", "\u212b", "\ud800", "long " * 4000, "w" * 100]
)
def test_what_is_left_to_the_package(text: str) -> None:
    assert learnt(memory(backend()), text) is None


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (AddedToken("\u212a"), "5 K"),  # the Kelvin sign, a K once it is normalized
        (AddedToken("x"), "a x b"),
        (AddedToken("dx 3", special=True), DRONE),
        (AddedToken("alt", single_word=True), DRONE),
    ],
)
def test_added_tokens_come_first(token: AddedToken, text: str) -> None:
    tokenizer = backend(token)
    found = learnt(memory(tokenizer), text)
    assert found is None or found == by_the_package(tokenizer, text)
    assert token.single_word or found is None


@pytest.mark.parametrize(
    ("normalizer", "pre_tokenizer"),
    [
        ({"type": "Lowercase"}, BYTES),
        ({"type": "Sequence", "normalizers": []}, BYTES),
        (NFC, BYTES | {"add_prefix_space": True}),
        (NFC, BYTES | {"use_regex": False}),
        (NFC, {"type": "Metaspace"}),
        (NFC, {"type": "Sequence", "pretokenizers": [BYTES]}),
        (NFC, None),
    ],
)
def test_other_tokenizers_have_no_words(normalizer: Any, pre_tokenizer: Any) -> None:
    assert words_of(backend(), normalizer, pre_tokenizer) is None


def test_many_added_tokens_are_not_looked_for() -> None:
    pairs = [AddedToken(a + b) for a in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" for b in "abcdefghijklmnopqrst"]
    assert words_of(backend(*pairs), NFC, BYTES) is None
    assert words_of(Tokenizer.from_str(json.dumps(metaspace_tokenizer(1024)[0])), None, {"type": "Metaspace"}) is None


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_MAX_WORDS", 50)
    remembered = memory(backend())
    for i in range(400):
        remembered.ids(f"a{i} b{i} c{i} d{i}")
    assert len(remembered._ids) <= 50 + 4
    assert learnt(remembered, DRONE) == by_the_package(PLAIN, DRONE)


def test_words_that_never_come_again_are_not_learnt_for_long() -> None:
    tokenizer = backend()
    calls: list[str] = []

    def encode(word: str) -> list[int]:
        calls.append(word)
        return by_the_package(tokenizer, word)

    remembered = Words(encode, lambda text: None)
    for i in range(800):
        remembered.ids(f"a{i}x b{i}y c{i}z")
    assert len(calls) < 300  # of 7200 words
    for _ in range(200):
        found = remembered.ids(DRONE)
    assert found == by_the_package(tokenizer, DRONE)


def test_threads_share_a_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_MAX_WORDS", 20)  # so that it is emptied all the time
    remembered, tokenizer, faults = memory(backend()), backend(), list[str]()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def ask(first: int) -> None:
        for i in range(first, first + 300):
            text = f"vy {i % 17} dx {i % 31}"
            found = remembered.ids(text)
            if found is not None and found != by_the_package(tokenizer, text):
                faults.append(text)

    threads = [threading.Thread(target=ask, args=(7 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    assert not faults
