"""Writes src/text/unicode_tables.ts: which characters the tokenizers package takes for letters, numbers and white
space, and which of them its normalizers know. Asked of the package itself, one character after another, since its parts
are built with different versions of Unicode and a browser's regular expressions with yet another.

    python web/scripts/unicode_tables.py [--check]        with the version of tokenizers that tests/golden names
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import tokenizers
from tokenizers import normalizers, pre_tokenizers

OUTPUT = Path(__file__).parents[1] / "src" / "text" / "unicode_tables.ts"
CHARACTERS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
HEADER = """/**
 * Written by scripts/unicode_tables.py from tokenizers {version}: not to be edited.
 *
 * A table is a list of runs of characters, each as how many characters lie between it and the run before, and how many
 * it holds, in base 26: lower-case letters, and the last digit of a number in upper case.
 */

"""


def classes() -> dict[str, list[str]]:
    """Letters, numbers and white space, as the byte-level pre-tokenizer's pattern knows them."""
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    found: dict[str, list[str]] = {"LETTERS": [], "NUMBERS": [], "SPACES": []}
    for c in CHARACTERS:
        if len(pieces("a" + c)) == 1:
            found["LETTERS"].append(c)
        elif len(pieces("1" + c)) == 1:
            found["NUMBERS"].append(c)
        elif len(pieces("!" + c)) != 1:
            found["SPACES"].append(c)
    return found


def active() -> list[str]:
    """Characters that some normalization form changes, or that change beside others."""
    forms = {name: getattr(normalizers, name)().normalize_str for name in ("NFC", "NFD", "NFKC", "NFKD")}
    changed = {c for c in CHARACTERS if any(form(c) != c for form in forms.values())}
    # marks are put in order: U+0334 has the lowest combining class, U+0345 the highest
    decomposed = forms["NFD"]
    marks = {c for c in CHARACTERS if any(decomposed(text) != text for text in (f"a{c}\u0334", f"a\u0345{c}"))}
    parts: set[str] = set()
    for c in changed:
        letters = decomposed(c)
        if len(letters) > 1 and forms["NFC"](letters) == c:
            parts.update(forms["NFC"](letters[:-1]), letters[-1])
    return sorted(changed | marks | parts)


def encoded(characters: Iterable[str]) -> str:
    written, end = [], 0
    runs: list[list[int]] = []
    for code in map(ord, characters):
        if runs and runs[-1][1] == code:
            runs[-1][1] += 1
        else:
            runs.append([code, code + 1])
    for begin, after in runs:
        written += [base26(begin - end), base26(after - begin)]
        end = after
    return "".join(written)


def base26(n: int) -> str:
    n, last = divmod(n, 26)
    digits = chr(ord("A") + last)
    while n:
        n, digit = divmod(n, 26)
        digits = chr(ord("a") + digit) + digits
    return digits


def written() -> str:
    tables = classes() | {"NORMALIZED": active()}
    text = HEADER.format(version=tokenizers.__version__)
    for name, characters in tables.items():
        text += f'export const {name} =\n  "{encoded(characters)}";\n'
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether the file is as it would be written")
    if parser.parse_args().check:
        sys.exit(0 if OUTPUT.read_text(encoding="utf-8") == written() else f"{OUTPUT.name} differs from the package")
    OUTPUT.write_text(written(), encoding="utf-8")


if __name__ == "__main__":
    main()
