"""Records what llama.cpp's pre-tokenizers do, for tests/test_pre_tokenizers.py.

    python tests/golden/llama_pre_tokenizers.py LLAMA_TOKENIZE      (the program, built from llama.cpp b11434)

A vocabulary that is learned from the texts themselves, without any splitting, has tokens that every way to split cuts
through, so token ids show where each name cuts. The merges are recorded with the ids.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RECORD = HERE / "llama_pre_tokenizers.json"
sys.path[:0] = [str(HERE.parent)]

from skyinfer.files.checkpoint.pre_tokenizer import PROBES  # noqa: E402
from skyinfer.text.pre_tokenizers import PRE_TOKENIZERS  # noqa: E402

SPECIAL = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
# of one token for a byte or character on
VOCABULARY = {True: 1200, False: 1000}


def mixed_texts(n: int = 60) -> list[str]:
    """Strings of characters and short words of all kinds, by a seed."""
    rng = random.Random(11434)
    parts = [
        "a", "B", "the", "DRONE", "Größe", "é", "É", "1", "23", "4567", " ", "  ", "\t", "\n", "\r\n", ".", ",", "!",
        "?", "'s", "'LL", "'", "-", "_", "(", ")", "$", "+", "\u4e2d\u6587", "\u3042", "\ud55c\uad6d", "\u0440\u0443",
        "\u00bd", "\u20ac", "\u2026", "\u0e44\u0e17\u0e22", "/", "#",
    ]  # fmt: skip
    return ["".join(rng.choice(parts) for _ in range(rng.randrange(2, 9))) for _ in range(n)]


TEXTS = [*PROBES, *mixed_texts()]


def learned(byte_level: bool) -> list[list[str]]:
    """Merges of a BPE vocabulary of the texts, which nothing splits."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    if byte_level:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        backend.normalizer = normalizers.Replace(" ", "\u2581")
        alphabet = []
    # a text alone would become one token
    corpus = [text for text in TEXTS for _ in range(2)] + [a + b for a, b in itertools.pairwise(TEXTS)]
    backend.train_from_iterator(
        corpus, trainers.BpeTrainer(vocab_size=VOCABULARY[byte_level], initial_alphabet=alphabet, show_progress=False)
    )
    merges: list[list[str]] = json.loads(backend.to_str())["model"]["merges"]
    return merges


def tokenizer_json(merges: list[list[str]], byte_level: bool, ignore_merges: bool) -> dict[str, Any]:
    """A tokenizer.json of these merges; how it splits is left to be changed."""
    from checkpoints import byte_tokenizer, metaspace_tokenizer

    base, _ = byte_tokenizer(300) if byte_level else metaspace_tokenizer(500)
    extra = {token["content"]: token for token in base["added_tokens"] if token["special"]}
    symbols = (
        [token for token in base["model"]["vocab"] if len(token) == 1]
        if byte_level
        else [f"<0x{b:02X}>" for b in range(256)]
    )
    tokens = dict.fromkeys([*extra, *symbols])
    for left, right in merges:
        tokens |= dict.fromkeys((left, right, left + right))
    vocab = {token: i for i, token in enumerate(tokens)}
    base["added_tokens"] = [token | {"id": vocab[text]} for text, token in extra.items()]
    base["model"] |= {"vocab": vocab, "merges": merges, "ignore_merges": ignore_merges}
    base["post_processor"] = None
    return base


def checkpoint(directory: Path, merges: list[list[str]], byte_level: bool, ignore_merges: bool) -> Path:
    from checkpoints import paint

    tokenizer = tokenizer_json(merges, byte_level, ignore_merges)
    vocab = max(tokenizer["model"]["vocab"].values()) + 1
    paint(
        directory, d_model=8, n_layers=1, n_heads=1, d_ff=8, head_layers=1, vocab=vocab, max_len=64, head_max_len=32,
        tokenizer="byte" if byte_level else "metaspace", temperature_by_options={},
    )  # fmt: skip
    (directory / "tokenizer" / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return directory


def main() -> None:
    from skyinfer.files.conversion import convert

    program = Path(sys.argv[1]).resolve()
    warnings.simplefilter("ignore")
    record: dict[str, Any] = {"merges": {}, "ids": {}}
    with tempfile.TemporaryDirectory() as scratch:
        for name, kind in PRE_TOKENIZERS.items():
            family = "bytes" if kind.byte_level else "characters"
            if family not in record["merges"]:
                record["merges"][family] = learned(kind.byte_level)
            directory = checkpoint(Path(scratch) / name, record["merges"][family], kind.byte_level, kind.ignore_merges)
            file = convert(directory, Path(scratch) / f"{name}.gguf", outtype="f32", pre=name)
            record["ids"][name] = [_tokenized(program, file, text, Path(scratch) / "text") for text in TEXTS]
            print(name)
    rows = [f"{json.dumps(name)}: {json.dumps(ids, separators=(',', ':'))}" for name, ids in record["ids"].items()]
    merges = json.dumps(record["merges"], separators=(",", ":"))
    text = '{\n"merges": ' + merges + ',\n"ids": {\n' + ",\n".join(rows) + "\n}\n}\n"
    RECORD.write_text(text, encoding="utf-8")


def _tokenized(program: Path, file: Path, text: str, scratch: Path) -> list[int]:
    scratch.write_bytes(text.encode())
    options = ["--ids", "--no-bos", "--no-escape", "--log-disable", "--no-parse-special"]
    result = subprocess.run(
        [program, "-m", file, "-f", scratch, *options], capture_output=True, text=True, check=True, env=os.environ
    )
    ids: list[int] = json.loads(result.stdout.strip().splitlines()[-1])
    return ids


if __name__ == "__main__":
    main()
