"""Which of llama.cpp's pre-tokenizers a tokenizer splits text with, told from what both do to a set of texts.

skyinfer reads the whole tokenizer of a converted file; llama.cpp knows a name, `tokenizer.ggml.pre`, and merges by
itself. Where no name of llama.cpp's gives the same tokens, a text shows it.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ...text.ggml_tokenizer import rebuild
from ...text.package_faults import faults_named
from ...text.pre_tokenizers import PRE_TOKENIZERS, set_pre_tokenizer

if TYPE_CHECKING:
    import tokenizers

# Where ways to split differ: contractions, digits, spaces, line ends, signs, capitals, scripts, combining marks. All
# are in the Unicode form NFC, which llama.cpp leaves to its caller.
PROBES = (
    "the drone", " flies through", "vy -1.5, gap 20", "alt 123456789", "1", "12345", " 2026-11-29 09:30", "3.14e-10",
    "it's we'll I'm you'd they've", "IT'S WE'LL I'M YOU'D THEY'VE", "o'clock 'tis '90s", "don''t", "l'école d'été",
    "a  b   c", "  two spaces", "trailing   ", "tab\tand\t\ttabs", " \t mixed", "a\nb", "a\n\nb", "a\r\nb", "end\n",
    "\n\n  indented\n\tline\n", "...", "!!! ???", "(foo)", "foo_bar(baz)", '{"role": "user", "n": [1, 2.5, null]}',
    "a+b=c; x<y && z>=0", "$5 100% #tag @name a/b\\c", "e.g. www.example.com/path?q=1", "CamelCaseWORDS HTMLParser2",
    "xAbcDEFg", "Größe café naïve señor", "ÉCOLE École éCOLE", "русский Текст", "ελληνικά Ωμέγα", "日本語のテキスト",
    "中文123字", "한국어 텍스트", "ภาษาไทย", "हिन्दी में पाठ", "عربى نص", "עברית", "Iñtërnâtiônàlizætiøn", "½ ² Ⅷ ①",
    "\uff46\uff55ll \ufb01", "→ ∀x ≤ ∞ €5", "😀👩\u200d🚀 x", "—“quoted”—", "a\u00a0b\u3000c", "x\u200by",
    "level 0: none", "choice question: Which input?", "12 345 6789", " 007", "v2.0-rc1", "?!\n", "x!\n\ny", "、。",
    "a、b", "१२३ 123", "\u0294\u01bb\u01c0", "A", " ", "\n",
)  # fmt: skip

# A name that differs on more texts than this is no better than the usual one. So many differences does it count for
# that words which are tokens are merged, or are not, as by the name: few vocabularies show it.
_MOST_DIFFERENCES, _MERGES_IGNORED = 8, 4

# texts out of the vocabulary that are compared, too
_FROM_VOCABULARY = 2000


class Difference(NamedTuple):
    """A text that llama.cpp reads otherwise: the tokenizer's token ids, and those by the file's keys."""

    text: str
    ids: list[int]
    other_ids: list[int]


def name_of(tokenizer: Mapping[str, Any], *, mask_lstrip: bool) -> str:
    """llama.cpp's name for how a tokenizer.json splits text; else one that differs on few `PROBES`, or the usual one.

    Raises:
        FormatError: the tokenizers package fails on a step of it.
    """
    from tokenizers import Tokenizer, models

    steps = {key: tokenizer.get(key) for key in ("normalizer", "pre_tokenizer")}
    is_nfc = steps["normalizer"] in ({"type": "NFC"}, {"type": "Sequence", "normalizers": [{"type": "NFC"}]})
    model = tokenizer["model"]
    ignores_merges = model.get("ignore_merges") is True
    is_byte_level = model.get("byte_fallback") is not True or "ByteLevel" in json.dumps(steps)
    bare = {"type": "BPE", "vocab": {}, "merges": []}
    with faults_named("tokenizer.json"):
        ours = Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": bare, **steps}))
        pieces = [_pieces(ours, text) for text in PROBES]
    found, least = "gpt-2" if is_byte_level else "mmbert", _MOST_DIFFERENCES
    for name, kind in PRE_TOKENIZERS.items():
        if kind.byte_level != is_byte_level or (name == "modern-bert" and not (is_nfc and mask_lstrip)):
            continue
        theirs = Tokenizer(models.BPE())
        set_pre_tokenizer(theirs, name, lines=True)
        # where a token stands for its characters, a tokenizer that does not cut lines has the same tokens
        differences = [
            mine != _pieces(theirs, text)
            for text, mine in zip(PROBES, pieces, strict=True)
            if is_byte_level or "\n" not in text
        ]
        rank = sum(differences) + (kind.ignore_merges != ignores_merges) * _MERGES_IGNORED
        if rank < least:
            found, least = name, rank
        if least == 0:
            break
    return found


def _pieces(backend: tokenizers.Tokenizer, text: str) -> list[str]:
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    if backend.pre_tokenizer is None:
        return [text] if text else []
    return [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text)]


def first_difference(backend: tokenizers.Tokenizer, metadata: Mapping[str, Any]) -> Difference | None:
    """A text for which llama.cpp, which reads the file's `tokenizer.ggml.*`, has other tokens than `backend`."""
    kept = {key: value for key, value in metadata.items() if key.startswith("tokenizer.ggml.")}
    other, _ = rebuild(kept, metadata["tokenizer.ggml.mask_token_id"], as_llama_cpp=True)
    for text in (*PROBES, *_texts_of(backend)):
        ids, other_ids = (one.encode(text, add_special_tokens=False).ids for one in (backend, other))
        if ids != other_ids:
            return Difference(text, ids, other_ids)
    return None


def _texts_of(backend: tokenizers.Tokenizer) -> Iterator[str]:
    """Texts that tokens stand for: they differ where a name cuts through a token that the tokenizer has."""
    n = backend.get_vocab_size(with_added_tokens=False)
    added = backend.get_added_tokens_decoder()
    for i in range(0, n, max(1, n // _FROM_VOCABULARY)):
        text = "" if i in added else backend.decode([i], skip_special_tokens=False)
        if text and "\ufffd" not in text and unicodedata.is_normalized("NFC", text):
            yield text
