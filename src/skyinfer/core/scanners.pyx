# cython: language_level=3, boundscheck=True, wraparound=False, freethreading_compatible=True
"""What is too long, or done too often, for a loop in Python: arrays of strings of a model file's header, a tokenizer.json
of which little has to be known, and the words of a state. All of it is untrusted; what is said about a fault is the
callers' business.
"""

import json

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint64_t
from libc.string cimport memcpy


cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(str text)
    void *PyUnicode_1BYTE_DATA(str text)


cdef extern from *:
    """
    #ifdef __GLIBC__
    #include <malloc.h>
    #define give_back_freed_memory() malloc_trim(0)
    #else
    #define give_back_freed_memory() 0
    #endif
    """
    int give_back_freed_memory() nogil

def trim_memory() -> None:
    """Gives memory that other packages allocated and freed back to the system, which glibc's malloc rarely does."""
    with nogil:
        give_back_freed_memory()


def read_strings(data not None, Py_ssize_t pos, Py_ssize_t count) -> tuple[list[str], int]:
    """`count` GGUF strings from `pos` on, and where they end.

    Fewer where one runs past the end of the data or is not UTF-8; the place given is then that one's own.
    """
    cdef list found = []
    cdef Py_ssize_t left
    cdef uint64_t size
    cdef const char *string
    cdef Py_buffer view  # and no typed memoryview, whose support would be half of this module
    if pos < 0:
        raise ValueError(f"pos: expected 0 or more, got {pos}")
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        while len(found) < count:
            left = view.len - pos - <Py_ssize_t>sizeof(size)
            if left < 0:
                break
            string = <const char *>view.buf + pos
            memcpy(&size, string, sizeof(size))
            if size > <uint64_t>left:
                break
            try:
                found.append(PyUnicode_DecodeUTF8(string + sizeof(size), <Py_ssize_t>size, NULL))
            except UnicodeDecodeError:
                break
            pos += <Py_ssize_t>(sizeof(size) + size)
    finally:
        PyBuffer_Release(&view)
    return found, pos


def json_members(str text not None, names not None) -> dict[str, tuple[int, int]]:
    """Where in a JSON object the values of `names` lie: (begin, end) of each that is there, of repeated ones the last.

    The other values are only passed over, so a place is right in a text that is JSON; whether it is has to be found
    out by whoever reads the whole.

    Raises:
        ValueError: the text cannot be one JSON object.
    """
    cdef dict found = {}
    cdef _Members members = _Members(text)
    while members.next():
        name = text[members.key + 1:members.key_end - 1]
        if u"\\" in name:
            name = json.loads(text[members.key:members.key_end])
        if name in names:
            found[name] = members.value, members.end
    return found


def json_numbers(str text not None) -> tuple[int, int]:
    """Of a JSON object whose values are whole numbers without a sign: (how many there are, the largest; 0 for none).

    Raises:
        ValueError: it is none, or a number has more than 18 digits.
    """
    cdef Py_ssize_t count = 0, pos
    cdef uint64_t number, largest = 0
    cdef Py_UCS4 digit
    cdef _Members members = _Members(text)
    while members.next():
        number = 0
        for pos in range(members.value, members.end):
            digit = text[pos]
            if not u"0" <= digit <= u"9" or pos - members.value == 18:
                raise ValueError(f"no whole number at character {members.value}")
            number = number * 10 + <uint64_t>digit - 48
        largest = max(largest, number)
        count += 1
    return count, largest


def split_words(str text not None) -> list[str]:
    """The words of an ASCII text, as GPT-2's pattern splits it; one behind another they are the text.

    Raises:
        ValueError: the text is not ASCII.
    """
    cdef const unsigned char *data = _ascii(text)
    cdef Py_ssize_t n = len(text), begin = 0, end
    cdef list found = []
    while begin < n:
        end = _past_word(data, begin, n)
        found.append(text[begin:end])
        begin = end
    return found


def known_ids(str text not None, dict known not None) -> list[int] | None:
    """The ids of the words of an ASCII text, one behind another: `known` has a tuple for each word, or None is given.

    Raises:
        ValueError: the text is not ASCII.
    """
    cdef const unsigned char *data = _ascii(text)
    cdef Py_ssize_t n = len(text), begin = 0, end
    cdef list ids = []
    cdef tuple of_word
    while begin < n:
        end = _past_word(data, begin, n)
        of_word = <tuple?>known.get(text[begin:end], ())
        if len(of_word) == 1:
            ids.append(of_word[0])
        elif len(of_word):
            ids.extend(of_word)
        else:
            return None
        begin = end
    return ids


cdef const unsigned char *_ascii(str text) except NULL:
    if not PyUnicode_IS_ASCII(text):
        raise ValueError("text: expected ASCII")
    return <const unsigned char *>PyUnicode_1BYTE_DATA(text)


cdef enum _Kind:
    _LETTER, _DIGIT, _SPACE, _OTHER


cdef inline _Kind _kind(unsigned char c) noexcept:
    """Of GPT-2's pattern: \\p{L}, \\p{N}, \\s, which leaves out U+001C to U+001F, and all else."""
    if c"a" <= (c | 32) <= c"z":
        return _LETTER
    if c"0" <= c <= c"9":
        return _DIGIT
    return _SPACE if c == c" " or 9 <= c <= 13 else _OTHER


cdef inline Py_ssize_t _past_run(const unsigned char *text, Py_ssize_t pos, Py_ssize_t n) noexcept:
    """Past the characters from `pos` on that are of one kind."""
    cdef _Kind kind = _kind(text[pos])
    while pos < n and _kind(text[pos]) == kind:
        pos += 1
    return pos


cdef inline Py_ssize_t _past_contraction(const unsigned char *text, Py_ssize_t pos, Py_ssize_t n) noexcept:
    """Past 's, 't, 'm, 'd, 're, 've or 'll at `pos`; `pos` where there is none."""
    cdef unsigned char a = text[pos + 1] if pos + 1 < n else 0, b = text[pos + 2] if pos + 2 < n else 0
    if a in (c"s", c"t", c"m", c"d"):
        return pos + 2
    return pos + 3 if (b == c"e" and a in (c"r", c"v")) or (b == c"l" and a == c"l") else pos


cdef inline Py_ssize_t _past_word(const unsigned char *text, Py_ssize_t pos, Py_ssize_t n) noexcept:
    """Past the word that begins at `pos`, by GPT-2's pattern, whose first alternative that matches decides:

    '(?:[stmd]|re|ve|ll)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+
    """
    cdef Py_ssize_t end = _past_contraction(text, pos, n) if text[pos] == c"'" else pos
    if end > pos:
        return end
    if text[pos] == c" " and pos + 1 < n and _kind(text[pos + 1]) != _SPACE:
        return _past_run(text, pos + 1, n)
    end = _past_run(text, pos, n)
    # a run of white space leaves its last character to the word behind it
    return end - 1 if _kind(text[pos]) == _SPACE and end < n and end - pos > 1 else end


cdef class _Members:
    """Walks over the members of the JSON object that a text is: where one's key lies, with its quotes, and its value."""

    cdef str text
    cdef Py_ssize_t key, key_end, value, end

    def __cinit__(self, str text):
        self.text, self.end = text, 0

    cdef bint next(self) except -1:
        """On to the next member; False, with nothing but space behind it, at the end of the object."""
        cdef Py_ssize_t pos = _past_space(self.text, self.end)
        cdef bint is_first = self.end == 0
        if is_first:
            _expect(self.text, pos, u"{")
            pos = _past_space(self.text, pos + 1)
        if _at(self.text, pos) == u"}":
            if _past_space(self.text, pos + 1) != len(self.text):
                raise ValueError(f"extra data at character {pos + 1}")
            return False
        if not is_first:
            _expect(self.text, pos, u",")
            pos = _past_space(self.text, pos + 1)
        self.key, self.key_end = pos, _past_string(self.text, pos)
        pos = _past_space(self.text, self.key_end)
        _expect(self.text, pos, u":")
        self.value = _past_space(self.text, pos + 1)
        self.end = _past_value(self.text, self.value)
        return True


cdef inline Py_UCS4 _at(str text, Py_ssize_t pos) noexcept:
    """The character at `pos`; NUL, which JSON has nowhere, past the end."""
    return text[pos] if pos < len(text) else 0


cdef int _expect(str text, Py_ssize_t pos, Py_UCS4 character) except -1:
    if _at(text, pos) != character:
        raise ValueError(f"expected {chr(character)} at character {pos}")
    return 0


cdef Py_ssize_t _past_space(str text, Py_ssize_t pos) noexcept:
    while _at(text, pos) in (u" ", u"\t", u"\n", u"\r"):
        pos += 1
    return pos


cdef Py_ssize_t _past_value(str text, Py_ssize_t pos) except -1:
    """Past the string, the bracketed or the bare value that begins at `pos`. Which bracket closes which is not looked at."""
    cdef Py_ssize_t n = len(text), depth = 0, begin = pos
    cdef Py_UCS4 c
    while pos < n:
        c = text[pos]
        if c == u'"':
            pos = _past_string(text, pos)
        elif c in (u"{", u"["):
            depth += 1
            pos += 1
        elif depth:
            depth -= c in (u"}", u"]")
            pos += 1
        else:
            while _at(text, pos) not in (u",", u"}", u"]", u" ", u"\t", u"\n", u"\r", 0):
                pos += 1
        if depth == 0:
            break
    if depth or pos == begin:
        raise ValueError(f"no whole value at character {begin}")
    return pos


cdef Py_ssize_t _past_string(str text, Py_ssize_t begin) except -1:
    cdef Py_ssize_t n = len(text), pos = begin + 1
    _expect(text, begin, u'"')
    while pos < n and text[pos] != u'"':
        pos += 2 if text[pos] == u"\\" else 1
    if pos >= n:
        raise ValueError(f"no end of the string at character {begin}")
    return pos + 1
