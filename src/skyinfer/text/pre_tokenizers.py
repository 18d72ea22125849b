"""How llama.cpp splits text before BPE, by the names that `tokenizer.ggml.pre` may have.

A name stands for regular expressions that cut a text one after the other: what one matches is a word, and so is each
rest between two matches. The expressions are those of the models' own tokenizer.json files, or llama.cpp's where it
approximates them; tests/golden/llama_pre_tokenizers.json records what llama.cpp b11434 does by each name. Names that
need more than expressions (kimi-k2, afmoe, whitespace) are not among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import tokenizers

METASPACE = "\u2581"

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s+(?!\S)|\s+"
_LINES = rf"\s*[\r\n]+|{_SPACES}"
_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+"


def _llama3(digits: str = r"\p{N}{1,3}", end: str = _LINES) -> str:
    return rf"{_CONTRACTION}|{_WORD}|{digits}|{_SIGNS}[\r\n]*|{end}"


def _cased(letters: str, contraction: str, digits: str) -> str:
    """Words that begin with capitals and go on in small letters, told apart in ASCII only, as llama.cpp does it."""
    upper, lower = rf"(?:(?=[{letters}])[^a-z])", rf"(?:(?=[{letters}])[^A-Z])"
    words = (rf"[^\r\n\p{{L}}\p{{N}}]?{upper}{a}{lower}{b}{contraction}" for a, b in (("*", "+"), ("+", "*")))
    return rf"{'|'.join(words)}|{digits}|{_SIGNS}[\r\n/]*|{_LINES}"


_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_ASCII_SIGN = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DEEPSEEK3 = (
    rf"{_ASCII_SIGN}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}"
)
# llama.cpp matches wide spaces by \s alone
_CHINESE = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff&&[^\\s]]+"
_NO_STOPS = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"


class PreTokenizer(NamedTuple):
    """What a name stands for.

    Attributes:
        patterns: cut the text one after the other, in Oniguruma's syntax; none where not `byte_level`.
        ignore_merges: a word that is a token is not merged from its bytes.
        byte_level: a token's characters stand for bytes; if not, spaces are written as U+2581 and other characters as
            themselves, or as bytes where the vocabulary lacks them.
        begins_words: every text begins a word, as if a space were in front of it, and so does every space.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    byte_level: bool = True
    begins_words: bool = False


PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    # those of ModernBERT encoders first
    "modern-bert": PreTokenizer((_GPT2,)),
    "gpt-2": PreTokenizer((_GPT2,)),
    "mmbert": PreTokenizer((), byte_level=False, begins_words=True),
    "granite-embed-multi-97m": PreTokenizer(
        (_cased(r"\p{L}\p{M}", f"{_CONTRACTION}?", r"\p{N}{1,3}"),), ignore_merges=True
    ),
    "granite-embed-multi-311m": PreTokenizer((), byte_level=False),
    "llama-bpe": PreTokenizer((_llama3(),), ignore_merges=True),
    "dbrx": PreTokenizer((_llama3(),)),
    "qwen2": PreTokenizer((_llama3(r"\p{N}"),)),
    "qwen35": PreTokenizer(
        (
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
            rf"|{_LINES}",
        )
    ),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001-\u3002]+",
            r"\s+$",
            _CHINESE,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE, r"\p{N}")),
    "deepseek-v3": PreTokenizer((r"\p{N}{1,3}", _CJK, _DEEPSEEK3)),
    "starcoder": PreTokenizer((r"\p{N}", _GPT2)),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "tekken": PreTokenizer((_cased(r"\p{L}", "", r"\p{N}"),), ignore_merges=True),
    "gpt-4o": PreTokenizer((_cased(r"\p{L}", f"{_CONTRACTION}?", r"\p{N}{1,3}"),)),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", _llama3(r"\p{N}+")), ignore_merges=True),
    "seed-coder": PreTokenizer((rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES}",)),
    "bailingmoe": PreTokenizer((rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SIGNS}[\r\n]*|\s*[\r\n]|{_SPACES}",)),
    "ufakzeka": PreTokenizer((rf"{_WORD}|\p{{N}}|{_SIGNS}[\r\n]*|{_LINES}",)),
    "laguna": PreTokenizer((r"[^\n]+|[\n]+", _llama3(r"\p{N}"))),
    "bloom": PreTokenizer((_NO_STOPS,)),
    "viking": PreTokenizer((_NO_STOPS, r"\p{N}")),
}


def set_pre_tokenizer(
    backend: tokenizers.Tokenizer, name: str, unicode_form: str | None = None, *, lines: bool = False
) -> None:
    """Let `backend`, whose model is BPE, split text as llama.cpp does by that name, once it is in that Unicode form.

    llama.cpp cuts lines apart where a token stands for its characters. The tokenizers that it follows there have line
    breaks as added tokens, and do not cut at others; only with `lines` is that done here.
    """
    from tokenizers import Regex, normalizers, pre_tokenizers

    kind = PRE_TOKENIZERS[name]
    steps: list[Any] = [getattr(normalizers, unicode_form)()] if unicode_form else []
    splits: list[Any] = []
    if kind.byte_level:
        if kind.patterns == (_GPT2,):
            # the package's own form of it, which words.py knows
            splits.append(pre_tokenizers.ByteLevel(add_prefix_space=False))
        else:
            splits += (pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in kind.patterns)
            splits.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    else:
        steps.append(normalizers.Replace(" ", METASPACE))
        if lines:
            splits.append(pre_tokenizers.Split(Regex(r"\n+"), "isolated"))
        if kind.begins_words and lines:
            steps.append(normalizers.Replace(Regex(rf"(?<=\A|\n)(?=[^\n{METASPACE}])"), METASPACE))
            splits.append(pre_tokenizers.Split(METASPACE, "merged_with_next"))
        elif kind.begins_words:
            splits.append(pre_tokenizers.Metaspace(prepend_scheme="always"))
    if steps:
        backend.normalizer = steps[0] if len(steps) == 1 else normalizers.Sequence(steps)
    if splits:
        backend.pre_tokenizer = splits[0] if len(splits) == 1 else pre_tokenizers.Sequence(splits)
    backend.model.ignore_merges = kind.ignore_merges
