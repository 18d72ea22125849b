"""`skyinfer inspect`: what a GGUF file or checkpoint directory holds, as text or JSON.

Every string of a file is untrusted, so the text escapes what could move a terminal's cursor; JSON escapes by itself.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from ..arguments import A_MODEL
from ..terminal import printable, put_json, put_line, size

SUMMARY = "Say what a GGUF file or checkpoint directory holds."

_WIDTH = 80
_LABEL = 18  # columns of the names on the left
_LONGEST = 4000  # characters of a text from the file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help=A_MODEL)
    add("--json", action="store_true", help="print JSON")
    add("--tensors", action="store_true", help="list every tensor")


def run(arguments: argparse.Namespace) -> None:
    from ..files.inspection import describe
    from ..model import memory_of, open_source

    with open_source(arguments.model) as source:
        description = describe(source, tensors=arguments.tensors)
        description["memory"] = memory_of(source)
    if arguments.json:
        put_json(description)
    else:
        put_line(as_text(description))


def as_text(description: Mapping[str, Any]) -> str:
    """The dict of `files.inspection.describe` for people, within 80 columns except for a long file or tensor name.

    With `memory`, what `model.memory_of` gives.
    """
    return "\n".join(_lines(description))


def _lines(d: Mapping[str, Any]) -> Iterator[str]:
    encoder, head, decision, tokenizer = d["encoder"], d["head"], d["decision"], d["tokenizer"]
    count = d["parameters"]
    stored = sum(row["bytes"] for row in d["tensor_types"].values())
    yield f"{printable(d['path'])} ({d['format']})"
    yield from _entry("name", d["name"])
    yield from _entry(
        "architecture", f"{d['architecture']}, {_plural(encoder['layers'], 'encoder layer')}, "
        f"{_plural(head['blocks'], 'head block')}, decision type {decision['type']}"
    )  # fmt: skip
    yield from _entry(
        "parameters", f"{count['total']:,}: {count['embedding']:,} in the embedding, {count['encoder']:,} in the "
        f"encoder, {count['head']:,} in the head"
    )  # fmt: skip
    yield from _entry("weights", f"{size(stored)} stored")
    for i, (precision, kept) in enumerate(d.get("memory", {}).items()):
        types = ", ".join(kept["parameters"])
        yield from _entry("" if i else "in memory", f"{precision:<5} {size(kept['bytes']):>9}, weights in {types}")
    yield from _entry(
        "encoder", f"d_model {encoder['d_model']}, {_plural(encoder['heads'], 'head')}, d_ff {encoder['d_ff']}, "
        f"{encoder['activation']}, norm_eps {encoder['norm_eps']:.7g}"
    )  # fmt: skip
    spans = "every layer sees every token"
    if len(encoder["global_layers"]) < encoder["layers"]:
        shown = ", ".join(map(str, encoder["global_layers"])) or "none"
        spans = f"global layers: {shown}; others see {encoder['window']} tokens to each side"
    yield from _entry("attention", spans)
    yield from _entry("rope bases", f"{encoder['rope_base_global']:.7g} global, {encoder['rope_base_local']:.7g} local")
    layout = "" if decision["option_layout"] == "sequential" else f", options in {decision['option_layout']}"
    yield from _entry("decision head", f"{_plural(head['heads'], 'head')} of attention{layout}")
    of_state, of_options = ("a sequence", "question and options")
    if decision["type"] == "skyinfer-s2":
        of_state, of_options = ("a state", "an option with its question")
    yield from _entry("max_tokens", f"{decision['max_tokens']} for {of_state}")
    yield from _entry("max_head_tokens", f"{decision['max_head_tokens']} for {of_options}")
    for i, (name, value) in enumerate(decision["temperatures"].items()):
        clamped = decision["clamped"].get(name)
        note = "" if clamped is None else f" (clamped to {clamped:g})"
        yield from _entry("" if i else "temperatures", f"{name:<12} {value:.7g}{note}")

    parts = [f"from {tokenizer['source']}", f"{tokenizer['vocabulary']:,} tokens"]
    parts += [
        f"{key} {tokenizer[key]}" for key in ("pre", "model", "normalizer", "pre_tokenizer") if tokenizer.get(key)
    ]
    yield from _entry("tokenizer", ", ".join(parts))
    for i, (role, token) in enumerate(tokenizer["special"].items()):
        yield from _entry("" if i else "special tokens", f"{role:<4} {token['id']:>6}  {token['text']}")
    yield from _entry("template", f"{d['template']['style']} ({d['template']['source']})")
    if d["template"]["text"] is not None:
        yield from _entry("", d["template"]["text"])
    for i, (kind, row) in enumerate(d["tensor_types"].items()):
        yield from _entry(
            "" if i else "tensors",
            f"{kind:<6} {row['tensors']:>5} of {row['parameters']:>13,} parameters {size(row['bytes']):>10}",
        )
    if "tensors" in d:
        yield ""
        yield f"{'tensor':<34}{'shape':>16}  {'type':<8}{'offset':>12}{'bytes':>8}"
        for tensor in d["tensors"]:
            shape = " x ".join(map(str, tensor["shape"]))
            yield (
                f"{printable(tensor['name']):<34}{shape:>16}  {tensor['type']:<8}"
                f"{tensor['offset']:>12}{size(tensor['bytes']).replace(' ', ''):>8}"
            )


def _entry(label: str, text: str) -> Iterator[str]:
    """A label and its text, escaped and wrapped; without a label, one that continues the entry above."""
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}... ({len(text):,} characters)"
    wrapped = textwrap.wrap(printable(text), _WIDTH - _LABEL - 2, break_on_hyphens=False)
    for i, line in enumerate(wrapped or [""]):
        yield f"  {'' if i else label:<{_LABEL}}{line}".rstrip()


def _plural(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
