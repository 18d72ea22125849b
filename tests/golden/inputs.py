"""The inputs whose treatment by the Laya runtime is recorded: what it accepts, cuts or refuses.

Plain data for regenerate.py. Each case is (name, state, questions); the name says what is tried.
Tests read the recorded files, never this one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Case = tuple[str, Any, Any]

NAN, INF = float("nan"), float("inf")
STATE = "The customer asks about a refund of order 20"
SPECIALS = "[CLS] [SEP] [PAD] [MASK] [UNK] <bos> <eos> <pad> <mask> <unk>"
SPECIALS_TIGHT = "a[MASK]b[SEP]c[CLS]d[PAD]e<mask>f<eos>g<bos>h<pad>i [MASK] <mask> j"
LONG = "the drone keeps flying through the next gap and lets gravity pull it down "
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
FLAG = "\U0001f3f3\ufe0f\u200d\U0001f308"
NFD = "Cafe\u0301 A\u030a \u212b \u2126 n\u0303 \u1112\u1161\u11ab\u1100\u116e\u11a8 \u0344 \ufb01"


def choice(criteria: Any, instructions: Any = "Which reply is right?", **more: Any) -> dict[str, Any]:
    return {"type": "choice", "instructions": instructions, "criteria": criteria, **more}


def score(criteria: Any, instructions: Any = "How urgent is the message?", **more: Any) -> dict[str, Any]:
    return {"type": "score", "instructions": instructions, "criteria": criteria, **more}


def noul(instructions: Any = "Is the customer urgent?", **more: Any) -> dict[str, Any]:
    return {"type": "noul", "instructions": instructions, **more}


PLAIN = {
    "pick": choice({"refund": "give the money back", "wait": None}),
    "level": score(["none", "tight", "comfortable"]),
    "truth": noul(),
}


def states() -> Iterator[Case]:
    """States of every JSON kind and of every awkward text."""
    numbers = {
        "a": 1.0,
        "b": -0.0,
        "c": 1e22,
        "d": 0.1 + 0.2,
        "e": 12345678901234567890,
        "f": 1e16,
        "g": 1e-7,
    }
    values = {
        "numbers": numbers,
        "more numbers": [5e-324, 1.7976931348623157e308, -1, 0, 100.0, 123456789.123456789, 10**40],
        "not finite": {"a": NAN, "b": INF, "c": -INF},
        "non-ASCII keys": {
            "Grö\u00dfe": "\u00e4",
            "\u65e5\u672c": "\u8a9e",
            "\U0001f600": FAMILY,
            "": "",
        },
        "keys that are no text": {1: "a", 2.5: "b", False: "c", None: "d"},
        "constants": [True, False, None, {}, [], [[]], ""],
        "nested": {"a": {"b": [{"c": {"d": [1, [2, [3]]]}}]}},
        "escapes": {"a": 'quote " backslash \\ slash / newline \n tab \t nul \x00 del \x7f \u2028 \u0085'},
        "integer": 42,
        "float": 1.0,
        "true": True,
        "false": False,
        "zero": 0,
        "tuple": (1, "a"),
        "empty text": "",
        "empty object": {},
        "empty list": [],
        "blank": "   ",
        "decomposed": NFD,
        "decomposed in JSON": {NFD: [NFD]},
        "emoji": f"{FAMILY} {FLAG} \U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea 1\ufe0f\u20e3",
        "scripts": "русский 日本語 한국어 עברית ไทย \U00020000 \u01c6 \u0130",
        "white space": "a  b   c    d     e\n\nf\n\n\ng\t\th\r\ni \u00a0 j\u3000k \u2003l  ",
        "leading spaces": "  two",
        "trailing spaces": "two  ",
        "only newlines": "\n\n\n",
        "tokens that are text": "<table> \u2581\u2581 \u2581 [unused0] [unused1] <0x41> \u0120the",
        "invisible": "\ufeffa\u200bb\u00adc\ufffed\ufdd0e\ufffdf\U0010fffff",
        "special tokens": SPECIALS,
        "special tokens, tight": SPECIALS_TIGHT,
        "special tokens in keys": {
            "[MASK]": "[SEP]",
            "<mask>": {"a[SEP]b": "[CLS]", "<eos>": ["[PAD]", "<mask>"]},
        },
        "special tokens in a list": [SPECIALS, {"role": "user", "content": SPECIALS_TIGHT}],
        "mask only": "[MASK]",
        "mask only, other": "<mask>",
        "masks": "[MASK][MASK] [MASK]<mask><mask>",
        "broken special tokens": "[MA[MASK]SK] [[SEP] ]SEP] [sep] [mask] <MASK> <ma<mask>sk> [MASK",
        "lone surrogate": "a\ud800b",
        "lone surrogate in JSON": {"a": "\udfff"},
        "long text keeps its head": LONG * 60 + "END",
        "long object keeps its head": {"a": LONG * 60, "z": "END"},
        "long list keeps its tail": [{"role": "user", "content": f"{i} {LONG}"} for i in range(40)],
        "long tuple keeps its head": tuple(LONG for _ in range(40)),
        "null": None,
        "set": {1},
        "bytes": b"a",
        "object with a set": {"a": {1}},
        "tuple key": {(1, 2): "a"},
    }
    for name, state in values.items():
        yield f"state: {name}", state, {"q": noul()}


def questions() -> Iterator[Case]:
    """Questions of every shape, one each, so that one refusal hides nothing."""
    prefix = LONG * 4
    nearly_equal = [f"{LONG}{i}" for i in range(12)]
    twins = {f"{prefix}{i}": None for i in range(3)}
    values: dict[str, Any] = {
        "descriptions without text": choice({"a": None, "b": "", "c": 0, "d": False, "e": [], "f": {}, "g": 0.0}),
        "descriptions as JSON": choice(
            {"a": {"x": 1.0, "\u00e4": [NFD]}, "b": [1, "two"], "c": 1e22, "d": True, "e": -1}
        ),
        "descriptions no JSON has": choice({"a": (1, 2), "b": {7}, "c": b"x", "d": 1j, "e": NAN}),
        "list of labels": choice(["refund", "wait", "ask"]),
        "labels repeat": choice(["refund", "wait", "refund"]),
        "labels equal: 1, 1.0": choice([1, 1.0]),
        "labels equal: 1, true": choice([1, True]),
        "labels equal: 0, false": choice(["a", 0, False]),
        "labels that look equal": choice([1, "1", "1.0", 2.5, "True"]),
        "labels: numbers": choice([1, 2.5, 1e22, -0.0]),
        "labels: booleans": choice([True, False]),
        "label: NaN": choice([NAN, INF]),
        "keys: numbers": choice({1: "one", 2.5: "two and a half", True is None: "false"}),
        "key: null": choice({None: "a", "b": "c"}),
        "label: null": choice(["a", None]),
        "label: list": choice(["a", ["b"]]),
        "label: object": choice([{"a": 1}]),
        "label: tuple": choice({(1, 2): "a"}),
        "label: empty": choice(["", "a"]),
        "label: blank": choice(["  ", "a"]),
        "label: bytes": choice([b"a"]),
        "one option": choice({"only": "this"}),
        "one label": choice(["only"]),
        "no option": choice({}),
        "no label": choice([]),
        "criteria missing": {"type": "choice", "instructions": "x"},
        "criteria: text": choice("a, b"),
        "criteria: tuple": choice(("a", "b")),
        "12 options that shrink": choice({f"key {i}": f"{i} {LONG}" for i in range(12)}),
        "40 options that shrink": choice({f"key {i}": f"{i} {LONG}" for i in range(40)}),
        "40 short options": choice([f"k{i}" for i in range(40)]),
        "43 options": choice([f"word {i} more" for i in range(43)]),
        "60 options": choice([f"{i} {LONG}" for i in range(60)]),
        "255 options": choice([f"{i}: {LONG}" for i in range(255)]),
        "options at the 48-token cut": choice({"a": LONG * 3, "b": f"{LONG * 3} else", "c": "short"}),
        "options that become identical": choice(nearly_equal),
        "options identical by the cut at 48": choice(twins),
        "options that are identical": choice({"a": "b", "a: b": None}),
        "special tokens in keys": choice({"[MASK]": "a", "[SEP]": None, SPECIALS: "b", SPECIALS_TIGHT: None}),
        "special tokens in descriptions": choice(
            {"a": SPECIALS, "b": {"[SEP]": "[MASK]", "<eos>": ["<mask>"]}, "c": SPECIALS_TIGHT}
        ),
        "special token ends the last option": choice({"a": "b", "c": f"d [SEP] <eos> {LONG * 5}"}),
        "special tokens in instructions": choice(["a", "b"], SPECIALS_TIGHT),
        "mask as instructions": choice(["a", "b"], "[MASK]"),
        "other mask as instructions": choice(["a", "b"], "<mask>"),
        "special tokens in object instructions": choice(["a", "b"], {"[MASK] [SEP]": [SPECIALS, {"<mask>": "[CLS]"}]}),
        "decomposed everywhere": choice({NFD: NFD, "\u0301a": "\u0301"}, NFD),
        "emoji everywhere": choice({FAMILY: FAMILY, "b": None}, FAMILY),
        "lone surrogate in a key": choice({"\ud800": "a"}),
        "lone surrogate in instructions": choice(["a"], "\ud800"),
        "white space at the edges": choice({"  a ": "  b  ", "c\n": "\n\n", "\t": None}, "  Which?  "),
        "instructions: empty": choice(["a"], ""),
        "instructions: blank": choice(["a"], " \n\t"),
        "instructions: null": choice(["a"], None),
        "instructions: no-break space": choice(["a"], "\u00a0"),
        "instructions: zero-width space": choice(["a"], "\u200b"),
        "instructions: empty list": choice(["a"], []),
        "instructions: empty object": choice(["a"], {}),
        "instructions: tuple": choice(["a"], ("b",)),
        "instructions: number": choice(["a"], 5),
        "instructions: float": choice(["a"], 1.0),
        "instructions: true": choice(["a"], True),
        "instructions: NaN": choice(["a"], NAN),
        "instructions: list": choice(["a"], ["b", 1.0, None]),
        "instructions: bytes": choice(["a"], b"b"),
        "instructions: object": choice(["a"], {"\u00e4": {"b": [1, 2.0]}, "c": "d"}),
        "instructions missing": {"type": "choice", "criteria": ["a"]},
        "instructions longer than the budget": choice(["a", "b"], LONG * 30),
        "instructions long, options long": choice(
            {"a": LONG * 9, "b": LONG * 9, "c": LONG * 9, "d": LONG * 9}, LONG * 30
        ),
        "labels on a choice": choice(["a"], labels={"false": "x", "true": "y"}),
        "labels on a score": score(["a"], labels=None),
        "option_order": choice(["a", "b", "c"], option_order=[2, 0, 1]),
        "option_order: tuple": choice(["a", "b"], option_order=(1, 0)),
        "option_order: short": choice(["a", "b"], option_order=[0]),
        "option_order: twice": choice(["a", "b"], option_order=[0, 0]),
        "option_order: booleans": choice(["a", "b"], option_order=[True, False]),
        "option_order: null": choice(["a", "b"], option_order=None),
        "option_order: out of range": choice(["a", "b"], option_order=[1, 2]),
        "option_order: floats": choice(["a", "b"], option_order=[0.0, 1.0]),
        "option_order on a noul": noul(option_order=[1, 0]),
        "option_order on a score": score(["a", "b", "c"], option_order=[2, 1, 0]),
        "unknown fields": choice(["a", "b"], weight=3, id="x", hint=None),
        "score: numbers": score([1, 2.0, 0, False]),
        "score: objects": score([{"a": 1}, ["b"], {}, []]),
        "score: empty texts": score(["", " "]),
        "score: one level": score(["only"]),
        "score: none": score([]),
        "score: null level": score(["a", None, "b"]),
        "score: object": score({"0": "a"}),
        "score: tuple": score(("a", "b")),
        "score: missing": {"type": "score", "instructions": "x"},
        "score: 10 levels": score([f"level {i}" for i in range(10)]),
        "score: 40 levels": score([f"{i} {LONG}" for i in range(40)]),
        "score: equal levels": score(["a", "a"]),
        "score: special tokens": score([SPECIALS, SPECIALS_TIGHT]),
        "noul: true side": noul(criteria={"true": "yes it is"}),
        "noul: false side": noul(criteria={"false": "no it is not"}),
        "noul: both sides": noul(criteria={"true": "yes it is", "false": "no it is not"}),
        "noul: empty sides": noul(criteria={"true": "", "false": None}),
        "noul: boolean keys": noul(criteria={True: "yes it is", False: "no it is not"}),
        "noul: upper case keys": noul(criteria={"TRUE": "a", "False": "b"}),
        "noul: both spellings": noul(criteria={"true": "a", True: "b"}),
        "noul: yes/no keys": noul(criteria={"yes": "a", "no": "b"}),
        "noul: one wrong key": noul(criteria={"true": "a", "no": "b"}),
        "noul: number keys": noul(criteria={1: "a", 0: "b"}),
        "noul: null key": noul(criteria={None: "a"}),
        "noul: empty criteria": noul(criteria={}),
        "noul: null criteria": noul(criteria=None),
        "noul: list": noul(criteria=["a", "b"]),
        "noul: text": noul(criteria="a"),
        "noul: empty list": noul(criteria=[]),
        "noul: false": noul(criteria=False),
        "noul: zero": noul(criteria=0),
        "noul: empty text": noul(criteria=""),
        "noul: falsy descriptions": noul(criteria={"true": 0, "false": False}),
        "noul: more falsy ones": noul(criteria={"true": [], "false": {}}),
        "noul: structured": noul(criteria={"true": {"a": 1.0}, "false": ["b"]}),
        "noul: special tokens": noul(SPECIALS_TIGHT, criteria={"true": SPECIALS, "false": SPECIALS_TIGHT}),
        "noul: labels": noul(labels={"false": "B", "true": "A"}),
        "noul: labels and criteria": noul(labels={"true": "good", "false": "bad"}, criteria={"true": "well done"}),
        "noul: labels stripped": noul(labels={"false": " B ", "true": "\tA\n"}),
        "noul: labels equal": noul(labels={"false": "A", "true": "A "}),
        "noul: labels empty": noul(labels={"false": "", "true": "A"}),
        "noul: labels one": noul(labels={"true": "A"}),
        "noul: labels null": noul(labels=None),
        "noul: labels list": noul(labels=["A", "B"]),
        "noul: labels numbers": noul(labels={"false": 0, "true": 1}),
        "noul: labels boolean keys": noul(labels={False: "B", True: "A"}),
        "noul: labels special": noul(labels={"false": "[MASK]", "true": "[SEP] <eos>"}),
        "noul: instructions missing": {"type": "noul"},
        "type: unknown": {"type": "rank", "instructions": "x", "criteria": ["a"]},
        "type: upper case": {"type": "Choice", "instructions": "x", "criteria": ["a"]},
        "type: missing": {"instructions": "x", "criteria": ["a"]},
        "type: null": {"type": None, "instructions": "x"},
        "type: list": {"type": ["choice"], "instructions": "x"},
        "definition: text": "choice",
        "definition: null": None,
        "definition: list": [1],
    }
    for name, question in values.items():
        yield f"question: {name}", STATE, {"q": question}


def requests() -> Iterator[Case]:
    """Whole requests: question ids, several questions, none."""
    ids: dict[str, Any] = {
        "number": 3,
        "boolean": True,
        "blank": "  ",
        "empty": "",
        "null": None,
        "float": 1.5,
        "tuple": (1,),
        "zero": 0,
        "special": "[MASK]",
        "surrogate": "\ud800",
        "space at the edges": " a ",
    }
    for name, question_id in ids.items():
        yield f"id: {name}", STATE, {question_id: noul()}
    yield "ids: 1 and text 1", STATE, {1: noul(), "1": noul("Is it?")}
    yield "no questions", STATE, {}
    yield "questions: list", STATE, [noul()]
    yield "questions: null", STATE, None
    yield "the second question is at fault", STATE, {"a": noul(), "b": choice([])}
    yield "many questions", {"a": 1.0}, {f"q{i}": noul(f"Is it {i}?") for i in range(12)} | PLAIN


def crowded() -> Iterator[Case]:
    """For a checkpoint of 40 tokens, 64 for the question: markers fall off, no state fits."""
    for n in (1, 2, 4, 5, 8, 9, 12, 13):
        yield f"tight: {n} options", STATE, {"q": choice([f"w{i}" for i in range(n)])}
        yield (
            f"tight: {n} long options",
            STATE,
            {"q": choice([f"{i} {LONG}" for i in range(n)], LONG)},
        )
    yield "tight: list state", [{"turn": i, "text": LONG} for i in range(3)], PLAIN
    yield "tight: text state", LONG, PLAIN
    yield "tight: long instructions", STATE, {"q": noul(LONG * 5)}


def roomy() -> Iterator[Case]:
    """For a checkpoint that has room for 255 options."""
    yield "roomy: 255 options", STATE, {"q": choice([f"{i}: {LONG}" for i in range(255)])}
    yield (
        "roomy: 255 short options",
        [STATE],
        {"q": choice([f"k{i}" for i in range(255)], {"a": LONG})},
    )
    yield "roomy: long state", LONG * 200, PLAIN


TEXT: dict[str, list[Case]] = {
    "": [*states(), *questions(), *requests()],
    "_tight": list(crowded()),
    "_roomy": list(roomy()),
}

DRONE = {
    "action": choice(
        {
            "thrust": "fire the rotors for an upward impulse",
            "glide": "let gravity pull the drone down",
        },
        "Which input keeps the drone flying through the next gap?",
    ),
    "danger": noul("Will the drone crash within the next half second if it keeps gliding?"),
    "margin": score(["none", "tight", "comfortable"], "How much room is left above and below the drone?"),
}

_OPTIONS = {n: choice([f"answer {i}" for i in range(n)]) for n in (1, 2, 3, 5, 6, 10, 11, 12)}
BUCKETS = (
    {f"c{n}": question for n, question in _OPTIONS.items()}
    | {f"s{n}": score([f"step {i}" for i in range(n)]) for n in (1, 2, 3, 6, 11)}
    | {"n": noul()}
)

# options of one, some and many tokens, so that positions and windows of a parallel layout differ from a plain one's
UNEVEN = {
    "pick": choice({"refund": LONG, "wait": None, "ask": "who is it?", "x": "a b c d e f g h i j k l m n o p"}),
    "one": choice(["alone"]),
    "same": choice({"a": "to", "b": "to", "c": "to"}),
    "level": score([f"step {'up ' * i}" for i in range(9)]),
    "truth": noul(criteria={"false": "x", "true": LONG}),
}
CROWD = {"many": choice({f"{i}": f"option {'in ' * (i % 7)}{i}" for i in range(24)}), "truth": noul()}

# (name, state, questions), for every checkpoint of one kind in `recipes.VARIANTS`
VARIANT_ANSWERS: dict[str, list[Case]] = {
    "act_": [("the drone", "vy 0 dx 36 up 9 dn 7 nxt 10 alt 32", DRONE)],
    "parallel": [
        ("the drone", "vy 0 dx 36 up 9 dn 7 nxt 10 alt 32", DRONE),
        ("uneven options", STATE, UNEVEN),
        ("uneven options, long state", LONG * 8, UNEVEN),
        ("uneven options, talk", [f"{i} {LONG}" for i in range(20)], UNEVEN),
        ("no state", "", UNEVEN),
        (
            "an order of options",
            STATE,
            {"q": choice({"a": LONG, "b": None, "c": "to be"}, option_order=[2, 0, 1]), "r": noul(option_order=[1, 0])},
        ),
    ],
    "parallel_": [("a crowd", STATE, CROWD), ("a crowd, long state", LONG * 20, CROWD)],
}

ANSWERS: list[tuple[str, str, Any, Any]] = [
    ("the drone", "byte", "vy 0 dx 36 up 9 dn 7 nxt 10 alt 32", DRONE),
    ("the drone, metaspace", "metaspace", "vy 0 dx 36 up 9 dn 7 nxt 10 alt 32", DRONE),
    ("the drone, silu", "silu", "vy 0 dx 36 up 9 dn 7 nxt 10 alt 32", DRONE),
    ("the drone, falling", "byte", {"vy": -4.0, "dx": 12, "gap": [9, 7]}, DRONE),
    (
        "a talk",
        "byte",
        [{"role": "user", "content": "Where is my order?"}, {"role": "agent", "content": "Wait"}],
        PLAIN,
    ),
    ("every temperature bucket", "byte", STATE, BUCKETS),
    ("every temperature bucket, odd temperatures", "odd", STATE, BUCKETS),
    (
        "an order of options",
        "byte",
        STATE,
        {"q": choice(["a", "b", "c"], option_order=[2, 0, 1]), "r": noul(option_order=[1, 0])},
    ),
    ("labels", "byte", STATE, {"a": noul(labels={"false": "B", "true": "A"}), "b": noul()}),
    (
        "labels that are no text",
        "byte",
        STATE,
        {"numbers": choice([3, 2.5, True]), "by number": choice({10: "ten", 20: None}), 7: choice([-1, "-1"])},
    ),
    ("levels that are no text", "byte", STATE, {"q": score([{"a": 1.0}, 2, [NFD], False])}),
    (
        "options that collapse",
        "byte",
        STATE,
        {"q": choice({f"{i}": LONG * 2 + str(i) for i in range(12)})},
    ),
    ("a long state", "metaspace", LONG * 60, PLAIN),
    ("a long talk", "byte", [f"{i} {LONG}" for i in range(60)], PLAIN),
    ("no questions", "byte", STATE, {}),
]
