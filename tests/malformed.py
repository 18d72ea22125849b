"""Bodies that a server has to survive, made by hypothesis from the server's own OpenAPI description.

A body begins as what the description allows; then values of other kinds take the place of some parts, names repeat or
are missing, and the bytes are cut or changed. Some stay right: those have to be answered.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

# what parsers, tokenizers and arithmetic have stumbled over
_ODD_TEXT = [
    "",
    " ",
    "\x00",
    "\ud800",
    "a\udfffb",
    "[MASK]",
    "[SEP]",
    "\u2028",
    "🎯" * 40,
    "x" * 3000,
    "{}",
    "null",
    "NaN",
]
_ODD_NUMBERS: list[Any] = [0, -1, 2**63, 2**64, -(2**70), 10**400, 1e308, -0.0, 5e-324, float("nan"), float("inf")]
_DEEP = 150


def _nested(depth: int) -> Any:
    value: Any = 1
    for i in range(depth):
        value = [value] if i % 2 else {"a": value}
    return value


_odd = st.one_of(
    st.none(), st.booleans(), st.sampled_from(_ODD_NUMBERS), st.sampled_from(_ODD_TEXT), st.text(max_size=8),
    st.integers(), st.floats(), st.just([]), st.just({}), st.builds(_nested, st.integers(1, _DEEP)),
    st.lists(st.sampled_from(_ODD_TEXT), max_size=3), st.just([None] * 300),
    st.just({str(i): None for i in range(300)}),
)  # fmt: skip
_names = st.one_of(st.sampled_from(["q", "a b", "", " ", "type", "🎯", "x" * 400]), st.text(max_size=6))
_finite = st.floats(allow_nan=False, allow_infinity=False)
_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), _finite, st.text(max_size=30)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_names, inner, max_size=3)),
    max_leaves=6,
)  # fmt: skip
_OF_TYPE = {
    "null": st.none(),
    "boolean": st.booleans(),
    "number": st.one_of(st.integers(), _finite),
    "integer": st.integers(),
    "string": st.text(max_size=30),
    "array": st.lists(_json, max_size=3),
    "object": st.dictionaries(_names, _json, max_size=3),
}


def _allowed(schema: dict[str, Any], schemas: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a schema allows, and now and then one that it does not."""
    return (
        st.one_of(*[_exactly(schema, schemas)] * 6, _odd)
        if "const" not in schema
        else st.one_of(*[st.just(schema["const"])] * 12, _odd)
    )


def _exactly(schema: dict[str, Any], schemas: dict[str, Any]) -> st.SearchStrategy[Any]:
    if "$ref" in schema:
        return _allowed(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "oneOf" in schema:
        return st.one_of(*(_allowed(one, schemas) for one in schema["oneOf"]))
    kinds = schema.get("type", [])
    of_kind = []
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if kind == "object" and "properties" in schema:
            required = {name: _allowed(schema["properties"][name], schemas) for name in schema.get("required", [])}
            optional = {
                name: _allowed(part, schemas) for name, part in schema["properties"].items() if name not in required
            }
            of_kind.append(st.fixed_dictionaries(required, optional=optional))
        elif kind == "object" and "additionalProperties" in schema:
            of_kind.append(st.dictionaries(_names, _allowed(schema["additionalProperties"], schemas), max_size=4))
        elif kind == "array" and "items" in schema:
            of_kind.append(st.lists(_allowed(schema["items"], schemas), max_size=4))
        else:
            of_kind.append(_OF_TYPE[kind])
    return st.one_of(*of_kind)


@st.composite
def bodies(draw: st.DrawFn, description: dict[str, Any], name: str) -> bytes:
    """Bytes for the request that component schema `name` of an OpenAPI description describes."""
    schemas = description["components"]["schemas"]
    value = draw(_allowed(schemas[name], schemas))
    if isinstance(value, dict) and draw(st.integers(0, 7)) == 0:
        value = {k: v for k, v in value.items() if draw(st.booleans())}
    text = json.dumps(value, ensure_ascii=draw(st.booleans()))
    body = text.encode("utf-8", "surrogatepass")
    damage = draw(st.integers(0, 11))
    if damage == 0:
        body = body[: draw(st.integers(0, len(body)))]
    elif damage == 1 and body:
        at = draw(st.integers(0, len(body) - 1))
        body = body[:at] + draw(st.binary(max_size=3)) + body[at + 1 :]
    elif damage == 2:
        body = body.replace(b'"q"', b'"q": {}, "q"', 1)  # a name twice
    elif damage == 3:
        body = (
            draw(st.sampled_from([b"\xef\xbb\xbf", b"\xff\xfe", b" \n", b"\x00", b"[" * 3000, b'{"a":' * 3000])) + body
        )
    elif damage == 4:
        body += draw(st.sampled_from([b" ", b"x", b"{}", b"\x00", b"]" * 50]))
    return body
