"""Painted Laya checkpoints: complete model directories made from arithmetic alone.

Every weight is a hash of its own index, every merge a prefix of a word in this file, so the same
call writes the same bytes on any machine and nothing large has to be stored. The directories open
in the Laya runtime (strict loading) as well as here. Needs numpy and the standard library only;
weights are written in blocks, so the 378 M-parameter size paints in seconds and in little memory.

    python tests/checkpoints.py pico DIR [--dtype F16] [--seed N] [--tokenizer metaspace] ...
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np

# pico, nano and large are the sizes that speed is compared on; golden is the smallest with every
# kind of layer: a global layer that has a norm (layer 3), a head block whose rows are all needed.
SIZES: dict[str, dict[str, Any]] = {
    "pico": {
        "d_model": 64, "n_layers": 3, "n_heads": 1, "d_ff": 128, "head_layers": 1,
        "vocab": 1024, "max_len": 256, "head_max_len": 96,
    },
    "nano": {
        "d_model": 256, "n_layers": 6, "n_heads": 4, "d_ff": 384, "head_layers": 2,
        "vocab": 4096, "max_len": 512, "head_max_len": 192,
    },
    "large": {
        "d_model": 1024, "n_layers": 28, "n_heads": 16, "d_ff": 2624, "head_layers": 2,
        "vocab": 8192, "max_len": 512, "head_max_len": 192,
    },
    "golden": {
        "d_model": 128, "n_layers": 4, "n_heads": 2, "d_ff": 192, "head_layers": 2,
        "vocab": 1024, "max_len": 512, "head_max_len": 192,
    },
}  # fmt: skip

# The published English values, and like there choice:11+ is below the runtime's clamp. Score and
# noul lack some buckets, so that the fallback to the type's own temperature is used too.
TEMPERATURE = (1.637, 1.251, 1.983)
TEMPERATURE_BY_OPTIONS = {
    "choice:2": 1.412, "choice:3-5": 1.705, "choice:6-10": 1.178, "choice:11+": 0.1006,
    "score:3-5": 1.322, "noul:2": 1.864,
}  # fmt: skip

TokenizerKind = Literal["byte", "metaspace", "wordpiece", "wordpiece_cased"]

# weights


class Brush(NamedTuple):
    """How one tensor is painted: centre + spread * u, u uniform on (-1, 1)."""

    name: str
    shape: tuple[int, ...]
    spread: float
    centre: float = 0.0

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)


def _matrix(name: str, rows: int, columns: int, gain: float = 1.0) -> Brush:
    """A projection that multiplies the root mean square of its input by `gain`."""
    return Brush(name, (rows, columns), gain * math.sqrt(3.0 / columns))


def _norm(name: str, d: int) -> Brush:
    return Brush(name, (d,), 0.25, 1.0)


def _bias(name: str, d: int) -> Brush:
    return Brush(name, (d,), 0.125)


def brushes(
    *, d_model: int, n_layers: int, d_ff: int, head_layers: int, vocab: int, n_act: int = 2, architecture: str = "s1"
) -> Iterator[Brush]:
    """Every tensor of a state dict, a Laya model's or s2's. The gains keep attention selective and options apart:
    markers share one embedding, so what tells them apart must come through attention."""
    d = d_model
    yield Brush("encoder.embeddings.tok_embeddings.weight", (vocab, d), 1.0)
    yield _norm("encoder.embeddings.norm.weight", d)
    for i in range(n_layers):
        layer = f"encoder.layers.{i}"
        if i > 0:
            yield _norm(f"{layer}.attn_norm.weight", d)
        yield _matrix(f"{layer}.attn.Wqkv.weight", 3 * d, d, 1.375)
        yield _matrix(f"{layer}.attn.Wo.weight", d, d)
        yield _norm(f"{layer}.mlp_norm.weight", d)
        yield _matrix(f"{layer}.mlp.Wi.weight", 2 * d_ff, d)
        yield _matrix(f"{layer}.mlp.Wo.weight", d, d_ff)
    yield _norm("encoder.final_norm.weight", d)
    for j in range(head_layers):
        block = f"{'head' if architecture == 's1' else 'decision'}.layers.{j}"
        if architecture == "s2":
            yield _matrix(f"{block}.cross_attn.q_proj.weight", d, d, 1.375)
            yield _bias(f"{block}.cross_attn.q_proj.bias", d)
            yield _matrix(f"{block}.cross_attn.kv_proj.weight", 2 * d, d, 1.375)
            yield _bias(f"{block}.cross_attn.kv_proj.bias", 2 * d)
            yield _matrix(f"{block}.cross_attn.out_proj.weight", d, d)
            yield _bias(f"{block}.cross_attn.out_proj.bias", d)
            for norm in ("cross_norm", "cross_kv_norm"):
                yield _norm(f"{block}.{norm}.weight", d)
                yield _bias(f"{block}.{norm}.bias", d)
        yield _matrix(f"{block}.self_attn.in_proj_weight", 3 * d, d, 1.375)
        yield _bias(f"{block}.self_attn.in_proj_bias", 3 * d)
        yield _matrix(f"{block}.self_attn.out_proj.weight", d, d)
        yield _bias(f"{block}.self_attn.out_proj.bias", d)
        yield _matrix(f"{block}.linear1.weight", 4 * d, d)
        yield _bias(f"{block}.linear1.bias", 4 * d)
        yield _matrix(f"{block}.linear2.weight", d, 4 * d)
        yield _bias(f"{block}.linear2.bias", d)
        for norm in ("norm1", "norm2"):
            yield _norm(f"{block}.{norm}.weight", d)
            yield _bias(f"{block}.{norm}.bias", d)
    yield Brush("type_emb.weight", (3, d), 0.5)
    yield _norm("scorer.0.weight", d)
    yield _bias("scorer.0.bias", d)
    yield _matrix("scorer.1.weight", d, d, 1.5)
    yield _bias("scorer.1.bias", d)
    yield _matrix("scorer.3.weight", 1, d, 3.0)
    yield _bias("scorer.3.bias", 1)
    if architecture == "s2":
        return
    yield _matrix("act_head.0.weight", 256, d + 4)
    yield _bias("act_head.0.bias", 256)
    yield _matrix("act_head.2.weight", n_act, 256)
    yield _bias("act_head.2.bias", n_act)
    yield Brush("temperature", (3,), 0.0, 1.0)


def _as_initialised(brush: Brush) -> Brush:
    """The same tensor as a training run would begin with it: ModernBERT's 0.02 root mean square, torch's uniform fan-in
    bound in the head, norms that do nothing. Answers are near even, and no rounding is magnified on its way to them."""
    if len(brush.shape) == 1:
        return brush._replace(spread=0.0)
    if brush.name.startswith("encoder."):
        return brush._replace(spread=0.02 * math.sqrt(3.0))
    return brush._replace(spread=1.0 if brush.name == "type_emb.weight" else brush.shape[1] ** -0.5)


_BLOCK = 1 << 18  # elements; four arrays of this size stay in the second-level cache


def _paint_block(brush: Brush, salt: int, start: int, count: int) -> np.ndarray:
    """Elements start .. start + count - 1 of a tensor, float32.

    The index is scrambled by a two-round xor-shift-multiply (Wellons' lowbias32) and its upper
    16 bits become the value: no element depends on a random generator, a library version or on
    where blocks begin.
    """
    h = np.arange(start, start + count, dtype=np.uint32)
    h *= np.uint32(0x9E3779B1)
    h ^= np.uint32(salt)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        h ^= h >> np.uint32(shift)
        h *= np.uint32(factor)
    h >>= np.uint32(16)
    values = h.astype(np.float32)
    values -= np.float32(32767.5)
    values *= np.float32(brush.spread / 32768.0)
    values += np.float32(brush.centre)
    return values


def _store(values: np.ndarray, dtype: str) -> np.ndarray:
    """float32 values as the little-endian bytes of `dtype`, rounded to nearest even."""
    if dtype == "F32":
        return values.astype("<f4", copy=False)
    if dtype == "F16":
        return values.astype("<f2")
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")


_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


def _write_safetensors(path: Path, tensors: Sequence[Brush], dtype: str, seed: int) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for brush in tensors:
        end = offset + brush.n_elements * _ITEM_BYTES[dtype]
        header[brush.name] = {
            "dtype": dtype,
            "shape": list(brush.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for brush in tensors:
            _write_tensor(file, brush, dtype, seed)


def _write_tensor(file: BinaryIO, brush: Brush, dtype: str, seed: int) -> None:
    salt = zlib.crc32(f"{seed}:{brush.name}".encode())
    for start in range(0, brush.n_elements, _BLOCK):
        block = _paint_block(brush, salt, start, min(_BLOCK, brush.n_elements - start))
        file.write(_store(block, dtype).data)


_NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8"}


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Every tensor of a file, BF16 as uint16; arrays may be changed."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    out = {}
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            values = np.frombuffer(data[start + begin : start + end], _NUMPY[entry["dtype"]])
            out[name] = values.reshape(entry["shape"]).copy()
    return out


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """A file of these tensors, uint16 as BF16."""
    names = {np.dtype(numpy): name for name, numpy in _NUMPY.items()}
    header, offset = {}, 0
    for name, values in tensors.items():
        end = offset + values.nbytes
        header[name] = {"dtype": names[values.dtype], "shape": list(values.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(map(np.ndarray.tobytes, tensors.values())))


# tokenizer

# What the vocabulary is made of: each word, bare and after a space, becomes a chain of merges.
CORPUS = """
the a of to and in is it you that he was for on are with as his they be at one have this from or
had by choice question score noul level true false yes no statement holds does not hold user agent
system turn Which input keeps the drone flying through next gap? fire rotors an upward impulse let
gravity pull down Will crash within half second if keeps gliding? How much room left above below
none tight comfortable vy dx up dn nxt alt thrust glide action danger margin state role content
text message reply refund order The customer asks about urgent billing shipping question: level 0:
1: 2: 3: false: true: yes, no, 10 20 36 {"role": "user", "content": "name": [1, 2, 3] null null,
true, false}, ], ": ", it's don't we'll I'm Größe café naïve señor über 日本語 한국어 русский — … 😀
"""

_RHYMES = ("a", "e", "i", "o", "u", "an", "er", "in", "or", "ul")
_SYLLABLES = [consonant + rhyme for consonant in "bcdfghjklmnprstvwz" for rhyme in _RHYMES]


def _words() -> Iterator[str]:
    yield from CORPUS.split()
    for n_syllables in (2, 3):
        yield from map("".join, itertools.product(_SYLLABLES, repeat=n_syllables))


def _byte_characters() -> list[str]:
    """The printable character that stands for each byte in GPT-2's byte-level vocabularies."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = itertools.count(256)
    return [chr(b) if b in shown else chr(next(spare)) for b in range(256)]


def _grow(vocab: dict[str, int], size: int, words: Iterator[Sequence[str]]) -> list[list[str]]:
    """Extend `vocab` to `size` tokens by merging words from their left; merges in rank order."""
    merges: list[list[str]] = []
    for word in words:
        piece = word[0]
        for symbol in word[1:]:
            if len(vocab) == size:
                return merges
            if piece + symbol not in vocab:
                vocab[piece + symbol] = len(vocab)
                merges.append([piece, symbol])
            piece += symbol
    raise ValueError(f"not enough words for a vocabulary of {size}")


def _more_merges(vocab: Mapping[str, int], merges: list[list[str]], size: int) -> None:
    """Extend `merges` to `size` by other pairs that make a token of `vocab`, as in vocabularies that list them all."""
    known = set(map(tuple, merges))
    for token in vocab:
        for cut in range(1, len(token)):
            pair = token[:cut], token[cut:]
            if len(merges) >= size:
                return
            if pair not in known and pair[0] in vocab and pair[1] in vocab:
                merges.append([*pair])
    raise ValueError(f"not enough pairs in a vocabulary of {len(vocab)} for {size} merges")


def _added(token: int, content: str, **changes: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token, "content": content, **flags, "special": True, **changes}


def _template(cls: str, sep: str, ids: Mapping[str, int]) -> dict[str, Any]:
    def special(token: str, type_id: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": token, "type_id": type_id}}

    def text(name: str, type_id: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": type_id}}

    return {
        "type": "TemplateProcessing",
        "single": [special(cls, 0), text("A", 0), special(sep, 0)],
        "pair": [special(cls, 0), text("A", 0), special(sep, 0), text("B", 1), special(sep, 1)],
        "special_tokens": {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in (cls, sep)},
    }


def _tokenizer_json(added: list[dict[str, Any]], model: dict[str, Any], **parts: Any) -> dict[str, Any]:
    bpe = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": False,
    }  # fmt: skip
    head = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}
    return head | parts | {"model": bpe | model}


def byte_tokenizer(size: int) -> tuple[dict[str, Any], dict[str, str]]:
    """tokenizer.json and the roles of its special tokens, in ModernBERT's form: byte-level BPE,
    NFC, runs of spaces as tokens, special tokens last, `[MASK]` taking in the space on its left."""
    letters = _byte_characters()
    vocab = {letter: i for i, letter in enumerate(sorted(letters))}
    # role None: an added token that is text, not a special token
    extra = {
        "    ": None, "  ": None, "[UNK]": "unk", "[CLS]": "cls", "[SEP]": "sep", "[PAD]": "pad",
        "[MASK]": "mask", "[unused0]": "unused", "[unused1]": "unused",
    }  # fmt: skip
    words = ("".join(letters[b] for b in (gap + word).encode()) for word in _words() for gap in (" ", ""))
    merges = _grow(vocab, size - len(extra), words)
    ids = {content: len(vocab) + i for i, content in enumerate(extra)}
    text = {"special": False, "normalized": True}
    kinds = {None: text, "unused": {"special": False}, "mask": {"lstrip": True}}
    added = [_added(ids[c], c, **kinds.get(role, {})) for c, role in extra.items()]
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    tokenizer = _tokenizer_json(
        added,
        {"vocab": vocab, "merges": merges},
        normalizer={"type": "NFC"},
        pre_tokenizer=byte_level | {"add_prefix_space": False},
        post_processor=_template("[CLS]", "[SEP]", ids),
        decoder=byte_level | {"add_prefix_space": True},
    )
    return tokenizer, {role: c for c, role in extra.items() if role not in (None, "unused")}


def metaspace_tokenizer(size: int) -> tuple[dict[str, Any], dict[str, str]]:
    """tokenizer.json and special-token roles in mmBERT's form: special tokens first, spaces as
    U+2581, no split before BPE, characters outside the vocabulary as bytes."""
    extra = {"<pad>": "pad", "<eos>": "sep", "<bos>": "cls", "<unk>": "unk", "<mask>": "mask"}
    text_tokens = ["\n\n", "\u2581\u2581", "<table>"]
    ids = {content: i for i, content in enumerate([*extra, *text_tokens])}
    vocab = dict(ids)
    for symbol in [
        *(f"<0x{b:02X}>" for b in range(256)), "\u2581", "\n", *map(chr, range(33, 127)), *"äöüé日",
    ]:  # fmt: skip
        vocab[symbol] = len(vocab)
    # words of the corpus spell themselves in characters; one outside the alphabet cannot be merged
    words = (gap + w for w in _words() if all(c in vocab for c in w) for gap in ("\u2581", ""))
    merges = _grow(vocab, size, words)
    added = [_added(ids[c], c, lstrip=role == "mask") for c, role in extra.items()]
    added += [_added(ids[c], c, special=False) for c in text_tokens]
    tokenizer = _tokenizer_json(
        added,
        {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True} | {"vocab": vocab, "merges": merges},
        normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        pre_tokenizer={
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        post_processor=_template("<bos>", "<eos>", ids),
        decoder={
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
    )
    return tokenizer, {role: c for c, role in extra.items()}


def wordpiece_tokenizer(size: int, lowercase: bool = True) -> tuple[dict[str, Any], dict[str, str]]:
    """tokenizer.json and special-token roles in BERT's form: special tokens first, words split at spaces and
    punctuation, a word's later pieces marked with ##, what cannot be spelt as one [UNK]."""
    extra = {"[PAD]": "pad", "[UNK]": "unk", "[CLS]": "cls", "[SEP]": "sep", "[MASK]": "mask"}
    vocab = {content: i for i, content in enumerate(extra)}
    text = CORPUS.lower() if lowercase else CORPUS
    for symbol in sorted(set(text) - set(" \n")) + sorted(set("0123456789aeiounrtslzäöé日")):
        vocab.setdefault(symbol, len(vocab))
        vocab.setdefault(f"##{symbol}", len(vocab))
    for word in _words():
        if len(vocab) == size:
            break
        word = word.lower() if lowercase else word
        # every beginning of a word, and every end of it behind one
        for piece in [word[:i] for i in range(2, len(word) + 1)] + [f"##{word[i:]}" for i in range(1, len(word))]:
            if len(vocab) < size:
                vocab.setdefault(piece, len(vocab))
    tokenizer = _tokenizer_json(
        [_added(vocab[c], c) for c in extra],
        {},
        normalizer={
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
            "lowercase": lowercase,
        },
        pre_tokenizer={"type": "BertPreTokenizer"},
        post_processor=_template("[CLS]", "[SEP]", vocab),
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
    )  # fmt: skip
    tokenizer["model"] = {
        "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
        "vocab": vocab,
    }  # fmt: skip
    return tokenizer, {role: c for c, role in extra.items()}


TOKENIZERS: dict[TokenizerKind, Callable[[int], tuple[dict[str, Any], dict[str, str]]]] = {
    "byte": byte_tokenizer,
    "metaspace": metaspace_tokenizer,
    "wordpiece": wordpiece_tokenizer,
    "wordpiece_cased": functools.partial(wordpiece_tokenizer, lowercase=False),
}

# checkpoint


def paint(
    directory: str | Path,
    *,
    d_model: int,
    n_layers: int,
    n_heads: int,
    d_ff: int,
    head_layers: int,
    vocab: int,
    max_len: int,
    head_max_len: int,
    dtype: Literal["F32", "F16", "BF16"] = "F32",
    tokenizer: TokenizerKind = "byte",
    merges: int | None = None,
    tokenizer_settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    weights: Literal["healthy", "initial"] = "healthy",
    activation: str = "gelu",
    local_attention: int = 128,
    global_every: int = 3,
    rope: Literal["theta", "parameters"] = "theta",
    rope_base: tuple[float, float] = (160000.0, 10000.0),
    layers: Literal["every_n", "layer_types", "both"] = "every_n",
    eps: float = 1e-5,
    eps_keys: Sequence[str] = ("norm_eps",),
    special_tokens: Literal["string", "object"] = "string",
    shards: int = 1,
    spare_rows: int = 0,
    temperature: Sequence[Any] = TEMPERATURE,
    temperature_by_options: Mapping[str, Any] = TEMPERATURE_BY_OPTIONS,
    agent_config: Mapping[str, Any] | None = None,
    agent_config_name: str = "rl_agent_config.json",
    architecture: Literal["s1", "s2"] = "s1",
) -> Path:
    """Write one checkpoint directory and give its path.

    `weights`: "healthy" ones answer decidedly, "initial" ones as before training (`_as_initialised`).
    `vocab` counts rows of the embedding; `spare_rows` of them have no token. `merges`: at least so many, by repeated
    results, where a chain for each word does not make enough. `rope_base` is
    (global, local); `rope`, `layers`, `eps_keys`, `special_tokens` choose among the spellings found
    in the wild. `shards` > 1 writes an index and that many files (the Laya runtime reads one file
    only). `agent_config` overrides or adds keys of the agent's configuration, None removes one;
    `tokenizer_settings` does so in tokenizer_config.json. `agent_config_name` is `julia_config.json` for a Julia-1
    checkpoint.
    """
    directory = Path(directory)
    for part in ("encoder", "tokenizer"):
        (directory / part).mkdir(parents=True, exist_ok=True)

    make = TOKENIZERS[tokenizer]
    tokenizer_json, roles = make(vocab - spare_rows)
    if merges is not None:
        _more_merges(tokenizer_json["model"]["vocab"], tokenizer_json["model"]["merges"], merges)
    tokens = {token["content"]: token for token in tokenizer_json["added_tokens"]}
    tokenizer_config: dict[str, Any] = {f"{role}_token": token for role, token in roles.items()}
    if special_tokens == "object":
        keys = ("content", "lstrip", "normalized", "rstrip", "single_word")
        for role, token in roles.items():
            entry = {key: tokens[token][key] for key in keys}
            tokenizer_config[f"{role}_token"] = {"__type": "AddedToken", **entry}
    tokenizer_config |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192}
    tokenizer_config |= tokenizer_settings or {}
    _write_json(directory / "tokenizer" / "tokenizer.json", tokenizer_json)
    _write_json(directory / "tokenizer" / "tokenizer_config.json", tokenizer_config)

    encoder: dict[str, Any] = {
        "architectures": ["ModernBertModel"], "model_type": "modernbert", "hidden_size": d_model,
        "num_hidden_layers": n_layers, "num_attention_heads": n_heads, "intermediate_size": d_ff,
        "vocab_size": vocab, "hidden_activation": activation, "local_attention": local_attention,
        "max_position_embeddings": 8192, "attention_bias": False, "mlp_bias": False,
        "norm_bias": False,
    }  # fmt: skip
    encoder |= dict.fromkeys(eps_keys, eps)
    ids = {role: tokens[token]["id"] for role, token in roles.items()}
    encoder |= {"bos_token_id": ids["cls"], "eos_token_id": ids["sep"]}
    encoder |= {f"{role}_token_id": ids[role] for role in ("cls", "sep", "pad")}
    if layers in ("every_n", "both"):
        encoder["global_attn_every_n_layers"] = global_every
    if layers in ("layer_types", "both"):
        names = ("full_attention", "sliding_attention")
        encoder["layer_types"] = [names[i % global_every != 0] for i in range(n_layers)]
    if rope == "theta":
        encoder |= {"global_rope_theta": rope_base[0], "local_rope_theta": rope_base[1]}
    else:
        encoder["rope_parameters"] = {
            kind: {"rope_theta": base, "rope_type": "default"}
            for kind, base in zip(("full_attention", "sliding_attention"), rope_base, strict=True)
        }
    _write_json(directory / "encoder" / "config.json", encoder)

    agent: dict[str, Any] = {
        "encoder": "painted", "head_layers": head_layers, "max_len": max_len,
        "head_max_len": head_max_len, "temperature": list(temperature),
        "temperature_by_options": dict(temperature_by_options), "act_costs": {"escalate": 0.5},
    }  # fmt: skip
    if architecture == "s2":
        agent = {"architecture": "s2", "decision_blocks": agent.pop("head_layers"), **agent, "act_costs": None}
    agent |= agent_config or {}
    _write_json(
        directory / agent_config_name,
        {key: value for key, value in agent.items() if value is not None},
    )

    sizes = {"d_model": d_model, "n_layers": n_layers, "d_ff": d_ff, "head_layers": head_layers, "vocab": vocab}
    tensors = list(brushes(**sizes, architecture=architecture))
    if weights == "initial":
        tensors = [_as_initialised(brush) for brush in tensors]
    if shards == 1:
        _write_safetensors(directory / "model.safetensors", tensors, dtype, seed)
        return directory
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        _write_safetensors(directory / name, tensors[shard::shards], dtype, seed)
        weight_map |= {brush.name: name for brush in tensors[shard::shards]}
    total = sum(brush.n_elements for brush in tensors) * _ITEM_BYTES[dtype]
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(directory / "model.safetensors.index.json", index)
    return directory


def _write_json(path: Path, value: Any) -> None:
    """UTF-8 and LF on every platform, so that a digest of the file means the same everywhere."""
    path.write_bytes((json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Paint a Laya checkpoint directory.")
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--architecture", choices=["s1", "s2"], default="s1")
    parser.add_argument("--dtype", type=str.upper, choices=list(_ITEM_BYTES), default="F32")
    parser.add_argument("--tokenizer", choices=list(TOKENIZERS), default="byte")
    parser.add_argument("--vocab", type=int, help="tokens, in place of the size's own number")
    parser.add_argument("--merges", type=int, help="at least so many, some with the same result")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--weights", choices=["healthy", "initial"], default="healthy")
    parser.add_argument("--activation", default="gelu")
    parser.add_argument("--rope", choices=["theta", "parameters"], default="theta")
    parser.add_argument("--special-tokens", choices=["string", "object"], default="string")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument(
        "--temperature", type=float, nargs=3, metavar=("CHOICE", "SCORE", "NOUL"), help="and none by number of options"
    )
    options = vars(parser.parse_args(arguments))
    size = SIZES[options.pop("size")]
    if vocab := options.pop("vocab"):
        size = size | {"vocab": vocab}
    if temperature := options.pop("temperature"):
        options |= {"temperature": temperature, "temperature_by_options": {}}
    print(paint(options.pop("directory"), **size, **options))


if __name__ == "__main__":
    main()
