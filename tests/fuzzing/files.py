"""Mutated model files and checkpoint directories, and what must come of them."""

# ruff: noqa: PT017 (assertions here are checks of the fuzzer, not of pytest)

from __future__ import annotations

import contextlib
import copy
import json
import math
import random
import re
import shutil
import struct
import warnings
from pathlib import Path
from typing import Any

from checkpoints import paint

import skyinfer
from skyinfer.core import border
from skyinfer.errors import FormatError, RequestError
from skyinfer.files.conversion import convert
from skyinfer.runtime import engine
from skyinfer.runtime.precision import PRECISIONS

from .bases import META, QUESTIONS, STATES, TINY, WIDE, WIDEST, Outcome
from .checks import check_response, only_documented_warnings
from .gguf_pieces import ARRAY, FORMATS, GGUF, STRING
from .mutation import REAL, TEXT, WHOLE, hostile, mutate_bytes, mutate_json, mutate_text
from .specimens import ENCODER_ENTRIES, JINJA, TOKENIZER_PARTS

ISAS = [name for name in border.isa_names() if border.isa_supported(name)]


class Files:
    """Mutated GGUF files and, one round in eight, checkpoint directories; what loads then decides one request."""

    outcomes = ("answered", "loaded, not answered", "refused")

    def __init__(self, work: Path) -> None:
        self.work = work
        self.files: list[GGUF] = []
        self.directories: list[dict[str, bytes]] = []
        bases: list[tuple[str, bool, dict[str, Any]]] = [
            ("f32", False, {}),
            ("f16", True, {"head_layers": 0, "n_layers": 2, "max_len": 24}),
            ("bf16", True, {**META, "activation": "silu"}),
            ("f16", False, {**META, "special_tokens": "object"}),
            ("q8_0", False, {**WIDE, "vocab": 300, "spare_rows": 8}),
            ("f32", True, {"n_layers": 4, "local_attention": 8, "dtype": "BF16", "shards": 2}),
            ("q8_0", False, {**META, **WIDE, "rope": "parameters", "dtype": "F16"}),
            ("f32", False, {"agent_config_name": "julia_config.json", "layers": "both", "temperature": [1, 2, 3],
            "temperature_by_options": {}}),
            ("f32", False, {"architecture": "s2"}),
            ("q8_0", True, {**WIDE, "vocab": 300, "architecture": "s2", "head_layers": 2, "max_len": 24}),
            ("f32", True, {**WIDE, "vocab": 300}),
            ("f32", True, WIDEST),
        ]  # fmt: skip
        # of the last two tensors get these types in turn
        types = {10: ("Q4_0", "F64", "Q8_0", "F32", "BF16"), 11: ("Q4_K", "F64", "Q6_K", "Q4_0", "F16")}
        for i, (outtype, without_json, changes) in enumerate(bases):
            directory = paint(work / f"base{i}", **(TINY | changes))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                file = GGUF(convert(directory, work / "base.gguf", outtype=outtype, force=True).read_bytes())
            if i in types:
                file = file.retyped(types[i])
            if without_json:
                file.entries = [entry for entry in file.entries if entry[0] != b"tokenizer.huggingface.json"]
            self.files.append(file)
            self.directories.append(
                {
                    path.relative_to(directory).as_posix(): path.read_bytes()
                    for path in directory.rglob("*")
                    if path.is_file()
                }
            )
        with warnings.catch_warnings():  # what other packages say while they are imported is not the files' fault
            warnings.simplefilter("ignore")
            skyinfer.load(work / "base0")
        self.keys = sorted({entry[0] for file in self.files for entry in file.entries})

    def case(self, rng: random.Random) -> bytes | dict[str, bytes]:
        if rng.random() < 0.125:
            return self._directory(rng)
        file = rng.choice(self.files).copy()
        style = rng.random()
        if style < 0.75:
            for _ in range(rng.choice([1, 1, 1, 2, 3, 6])):
                self._damage(rng, file)
        data = file.encoded()
        if style > 0.65:
            for _ in range(rng.choice([1, 1, 2, 4])):
                data = mutate_bytes(rng, data, rng.choice([None, 32, 600, file.header_bytes]))
        return data

    def _damage(self, rng: random.Random, file: GGUF) -> None:
        what = rng.randrange(100)
        if not file.entries or not file.tensors:
            return
        if what < 60:
            entry = rng.choice(file.entries)
            if what < 4:
                file.entries.remove(entry)
            elif what < 6:
                file.entries.append(list(entry))
            elif what < 10:
                entry[0] = rng.choice([*self.keys, b"", b"\xff", b"a" * 70_000, mutate_bytes(rng, entry[0])])
            elif what < 13:
                other = rng.choice(file.entries)
                entry[1:], other[1:] = other[1:], entry[1:]
            elif what < 15:
                rng.shuffle(file.entries)
            else:
                self._damage_value(rng, entry)
        elif what < 80:
            tensor = rng.choice(file.tensors)
            self._damage_tensor(rng, file, tensor)
        elif what < 96:
            self._damage_weights(rng, file)
        elif what < 99:
            file.counts[rng.choice(["tensors", "entries"])] = rng.choice([*WHOLE[3:], 1, len(file.tensors) + 1]) & (
                2**64 - 1
            )
        else:
            file.version = rng.choice([0, 1, 2, 4, 3 << 24, 2**31])

    def _damage_value(self, rng: random.Random, entry: list[Any]) -> None:
        key, kind, value = entry
        if kind == STRING and not isinstance(value, bytes):
            entry[2] = hostile(rng)
        elif kind == STRING and key == b"tokenizer.huggingface.json" and rng.random() < 0.9:
            entry[2] = self._damage_tokenizer(rng, value)
        elif kind == STRING and key.startswith(b"tokenizer.chat_template") and rng.random() < 0.9:
            entry[2] = self._damage_template(rng, value.decode("utf-8", "replace")).encode("utf-8", "replace")
        elif kind == ARRAY and isinstance(value, tuple) and rng.random() < 0.85:
            inner, items = value
            items = list(items)
            at = rng.randrange(len(items)) if items else 0
            what = rng.randrange(9)
            if what == 0:
                del items[at : at + rng.choice([1, 1, 1, len(items)])]
            elif what == 1:
                items[at:at] = items[at : at + 1] * rng.choice([1, 1, 1000])
            elif what == 2:
                rng.shuffle(items)
            elif what == 3:
                inner = rng.choice([*FORMATS, STRING])
            elif what == 4:
                inner, items = ARRAY, [(inner, items)] * rng.choice([0, 1, 2])
            elif inner == STRING and items:
                text = (items[at] if isinstance(items[at], bytes) else b"").decode("utf-8", "replace")
                items[at] = rng.choice([mutate_text(rng, text), rng.choice(TEXT), items[rng.randrange(len(items))]])
            elif items:
                items[at] = rng.choice(REAL if inner in (6, 12) else WHOLE)
            entry[2] = inner, items
        elif rng.random() < 0.25:
            entry[1] = rng.choice([*FORMATS, STRING, 13, 255])
            entry[2] = hostile(rng) if rng.random() < 0.5 else value
        elif kind == STRING:
            entry[2] = rng.choice([mutate_text(rng, value[:2000].decode("utf-8", "replace")), rng.choice(TEXT)]).encode(
                "utf-8", "surrogatepass"
            )
        elif not isinstance(value, (int, float)):
            entry[2] = hostile(rng)
        elif kind in (6, 12):
            entry[2] = rng.choice([*REAL, value * 2, -value])
            entry[1] = rng.choice([6, 12])
        elif kind in FORMATS:
            entry[2] = rng.choice([*WHOLE, value + 1, value - 1, value * 2, 131072, 1024])
            entry[1] = rng.choice([kind, kind, kind, 10, 11])

    def _damage_tokenizer(self, rng: random.Random, text: bytes) -> bytes:
        tokenizer = None
        with contextlib.suppress(ValueError, RecursionError):  # earlier damage may have left no JSON, or no object
            tokenizer = json.loads(text)
        if rng.random() < 0.1 or not isinstance(tokenizer, dict):
            return mutate_text(rng, text.decode("utf-8", "replace")).encode("utf-8", "replace")
        for _ in range(rng.choice([1, 1, 2, 3])):
            part = rng.choice(list(TOKENIZER_PARTS))
            what = rng.random()
            if what < 0.3:
                tokenizer[part] = copy.deepcopy(rng.choice(TOKENIZER_PARTS[part]))
            elif what < 0.4:
                # earlier damage may have left no list
                added = tokenizer.get("added_tokens")
                added = added if isinstance(added, list) else []
                token = copy.deepcopy(rng.choice(added or [{}]))
                if isinstance(token, dict):
                    token |= {rng.choice(["content", "id", "lstrip", "normalized", "single_word"]): hostile(rng)}
                tokenizer["added_tokens"] = [*added, token]
            elif what < 0.7 and tokenizer.get(part):
                tokenizer[part] = mutate_json(rng, tokenizer[part])
            else:
                tokenizer = mutate_json(rng, tokenizer)
                if not isinstance(tokenizer, dict):
                    break
        return json.dumps(tokenizer, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")

    @staticmethod
    def _damage_template(rng: random.Random, template: str) -> str:
        what = rng.random()
        if what < 0.1:
            return rng.choice([*JINJA, *TEXT])
        if what < 0.2:
            return "".join(rng.choice(JINJA) for _ in range(rng.randrange(1, 6)))
        if what < 0.35:
            return mutate_text(rng, template)
        pieces = re.split(r"(\{[{%].*?[%}]\})", template)
        at = rng.randrange(len(pieces))
        pieces[at : at + rng.randrange(2)] = [rng.choice([*JINJA, rng.choice(pieces)])]
        return "".join(pieces)

    @staticmethod
    def _damage_tensor(rng: random.Random, file: GGUF, tensor: list[Any]) -> None:
        what = rng.randrange(9)
        if what == 0:
            file.tensors.remove(tensor)
        elif what == 1:
            file.tensors.append(list(tensor))
        elif what == 2:
            tensor[0] = rng.choice(
                [rng.choice(file.tensors)[0], b"", b"blk.99999999999.x", mutate_bytes(rng, tensor[0])]
            )
        elif what < 5:
            dims = list(tensor[1]) or [1]
            at = rng.randrange(len(dims))
            dims[at] = rng.choice([*WHOLE, dims[at] + 1, dims[at] * 2, dims[at] - 1])
            tensor[1] = rng.choice([dims, dims[::-1], [*dims, 1], [1, *dims], [], dims * 3])
        elif what < 7:
            tensor[2] = rng.choice([*range(45), 2**31, 2**32 - 1])
        elif what == 7:
            tensor[3] = rng.choice([*WHOLE, tensor[3] + 32, tensor[3] + 1, rng.choice(file.tensors)[3]])
        else:
            other = rng.choice(file.tensors)
            tensor[3], other[3] = other[3], tensor[3]

    @staticmethod
    def _damage_weights(rng: random.Random, file: GGUF) -> None:
        weights = bytearray(file.weights)
        pattern = rng.choice(
            [struct.pack("<f", v) for v in (math.nan, math.inf, 3.4e38, -3.4e38, 1e-42, 1e20)]
            + [b"\xff\x7b", b"\0\x7c", b"\0\0", b"\x7f\x7f", b"\xff" * 4]
        )
        run = rng.choice([1, 1, 4, 100, len(weights)])
        at = rng.randrange(max(1, len(weights))) // 4 * 4
        chunk = (pattern * run)[: len(weights) - at]
        weights[at : at + len(chunk)] = chunk
        file.weights = bytes(weights) if rng.random() < 0.9 else bytes(weights[:at])

    def _directory(self, rng: random.Random) -> dict[str, bytes]:
        files = dict(rng.choice(self.directories))
        for _ in range(rng.choice([1, 1, 2, 3])):
            name = rng.choice(sorted(files))
            what = rng.random()
            if what < 0.06:
                del files[name]
                if not files:
                    break
            elif what < 0.14:
                files[name] = mutate_bytes(rng, files[name], rng.choice([None, 64]))
            elif what < 0.16:
                depth = rng.choice([500, 900, 960, 980, 100_000])
                files[name] = b'{"vocab_size":' + b"[" * depth + b"]" * depth + b"}"
            elif name.endswith(".json") and files[name][:1] == b"{":
                with contextlib.suppress(ValueError, RecursionError):
                    if name.endswith("tokenizer.json") and rng.random() < 0.7:
                        files[name] = self._damage_tokenizer(rng, files[name])
                    elif name == "encoder/config.json" and rng.random() < 0.5:
                        value = json.loads(files[name])
                        value |= {rng.choice(ENCODER_ENTRIES): hostile(rng) for _ in range(rng.choice([1, 1, 3]))}
                        files[name] = json.dumps(value).encode()
                    else:
                        value = mutate_json(rng, json.loads(files[name]))
                        if name.endswith("tokenizer_config.json") and isinstance(value, dict) and rng.random() < 0.3:
                            value |= self._tokenizer_settings(rng)
                        files[name] = json.dumps(value).encode()
            elif name.endswith(".safetensors"):
                with contextlib.suppress(ValueError, RecursionError):
                    size = int.from_bytes(files[name][:8], "little")
                    header = json.dumps(mutate_json(rng, json.loads(files[name][8 : 8 + size]))).encode()
                    files[name] = len(header).to_bytes(8, "little") + header + files[name][8 + size :]
        if rng.random() < 0.1:
            extra = {rng.choice(TEXT): hostile(rng) for _ in range(2)}
            files[
                rng.choice(
                    ["tokenizer/added_tokens.json", "tokenizer/special_tokens_map.json", "inference-policy.json"]
                )
            ] = json.dumps(extra).encode()
        return files

    @staticmethod
    def _tokenizer_settings(rng: random.Random) -> dict[str, Any]:
        token = {"content": rng.choice([*TEXT, "\ud800"]), "lstrip": hostile(rng)}
        return {
            rng.choice(
                [
                    "tokenizer_class",
                    "truncation_side",
                    "extra_special_tokens",
                    "x_token",
                    "mask_token",
                    "additional_special_tokens",
                ]
            ): rng.choice(["GemmaTokenizer", "left", hostile(rng), token, [token], {"a": token}]),
            "added_tokens_decoder": rng.choice(
                [
                    {
                        rng.choice(["1", "-1", "1e9", "99999999999999", "", "Infinity"]): rng.choice(
                            [token, hostile(rng)]
                        )
                    },
                    hostile(rng),
                ]
            ),
        }

    def write(self, case: bytes | dict[str, bytes], path: Path) -> Path:
        if isinstance(case, bytes):
            path = path.with_suffix(".gguf")
            path.write_bytes(case)
            return path
        shutil.rmtree(path, ignore_errors=True)
        for name, data in case.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
        path.mkdir(exist_ok=True)
        return path

    def run(self, case: bytes | dict[str, bytes], rng: random.Random) -> Outcome:
        path = self.write(case, self.work / "case")
        with only_documented_warnings():
            try:
                engine._WIDENED_BYTES = rng.choice([0, 2 << 20])  # small as it is the model may keep weights of 16 bits
                model = skyinfer.load(
                    path,
                    isa=rng.choice(ISAS),
                    temperature_clamp=rng.random() < 0.5,
                    precision=rng.choice(PRECISIONS),
                    token_table_bytes=rng.choice([None, 0]),  # without a table the embedding keeps its type, too
                )
            except (FormatError, OSError) as error:
                assert str(error)
                return "refused"
            try:
                response = model.decide(rng.choice(STATES), QUESTIONS)
            except (FormatError, RequestError) as error:
                assert str(error)
                return "loaded, not answered"
        check_response(response, QUESTIONS, model.name)
        return "answered"
