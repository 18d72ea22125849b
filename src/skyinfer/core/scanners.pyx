# cython: language_level=3, boundscheck=True, wraparound=False, freethreading_compatible=True
"""The parts of a model file's header that are too long for a loop in Python: arrays of strings, and a tokenizer.json of
which little has to be known. Both are untrusted; what is said about a fault is the callers' business.
"""

import json

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint64_t
from libc.string cimport memcpy


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
