"""Templates as llama.cpp's converter writes them, and hostile ones."""

from __future__ import annotations

import random
import time

import pytest

from skyinfer.errors import FormatError
from skyinfer.schema import Option, parse_questions
from skyinfer.text.template import KEY, PromptTemplate, julia_template, laya_template

TOKENS = {"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
LAYA = laya_template("[CLS]", "[SEP]", "[MASK]")
VALUE = "{{ NAME if NAME is string else NAME | tojson }}"


def load(source: str, **tokens: str) -> PromptTemplate:
    return PromptTemplate(source, **(TOKENS | tokens))


def prompt(option: str = "{{ o.key }}: {{ o.description }}", state: str = "{{ state }}") -> str:
    return (
        "[CLS]{{ type }} question: {{ instructions }}[SEP]{% for o in options %}[MASK] "
        f"{option}{{% endfor %}}[SEP]{state}[SEP]"
    )


def texts(template: PromptTemplate, question: dict) -> list[str]:
    parsed = parse_questions({"q": {"instructions": "Why?", **question}})[0]
    return [template.option(parsed.type, i, option) for i, option in enumerate(parsed.options)]


# ------------------------------------------------------------------------------ faithful ones


@pytest.mark.parametrize("metadata", [{}, {KEY: LAYA}])
def test_laya(metadata: dict) -> None:
    template = PromptTemplate.from_metadata(metadata, **TOKENS)
    assert template.question("score", "How?") == "score question: How?"
    assert template.state("x {0} {{ y }}") == "x {0} {{ y }}"
    criteria = {"a": "one", "b": None, "c": "", "d": 0, "e": False, "f": [], "g": {}, "{0}": "{1}"}
    assert texts(template, {"type": "choice", "criteria": criteria}) == [
        " a: one", " b", " c", " d: 0", " e: false", " f: []", " g: {}", " {0}: {1}",
    ]  # fmt: skip
    assert texts(template, {"type": "score", "criteria": ["low", "", {"a": 1}]}) == [
        " level 0: low", " level 1: ", ' level 2: {"a": 1}',
    ]  # fmt: skip
    assert texts(template, {"type": "noul"}) == [
        " false: no, the statement does not hold", " true: yes, the statement holds",
    ]  # fmt: skip
    one_sided = {"type": "noul", "criteria": {"true": "sure"}, "labels": {"true": "Y", "false": "N"}}
    assert texts(template, one_sided) == [" N: no, the statement does not hold", " Y: sure"]
    # a label that spells the other word changes nothing but the word
    swapped = {"type": "noul", "labels": {"true": "false", "false": "true"}}
    assert texts(template, swapped) == [
        " true: no, the statement does not hold", " false: yes, the statement holds",
    ]  # fmt: skip


def test_julia() -> None:
    template = load(julia_template("[CLS]", "[SEP]", "[MASK]"))
    assert texts(template, {"type": "choice", "criteria": {"a": "one", "b": None, "c": 0}}) == [
        " one", " b", " 0",
    ]  # fmt: skip
    assert texts(template, {"type": "score", "criteria": ["low", ""]}) == [" low", " 1"]
    assert texts(template, {"type": "noul"}) == [" false", " true"]
    assert texts(template, {"type": "noul", "criteria": {"false": "never"}}) == [" never", " true"]


def test_other_special_tokens() -> None:
    tokens = {"cls": "<bos>", "sep": "<eos>", "mask": "<mask>"}
    template = PromptTemplate.from_metadata({KEY: laya_template("<bos>", "<eos>", "<mask>")}, **tokens)
    assert template.question("choice", "a<mask>[MASK]") == "choice question: a [MASK]"


def test_mask_text_becomes_a_space_in_every_part() -> None:
    template = load(LAYA)
    assert template.question("noul", "a[MASK]b") == "noul question: a b"
    assert template.option("choice", 0, Option("k", "k[MASK]", "[MASK]d")) == " k :  d"
    assert template.option("choice", 0, Option("k", "[MASK]", None)) == "  "
    assert template.state('{"[MASK]": 1}') == '{" ": 1}'
    # a mask that only the template's joining makes up, as the runtime replaces after joining
    assert load(LAYA).option("choice", 0, Option("k", "[MA", "SK]")) == " [MA: SK]"


def test_user_text_is_never_a_template() -> None:
    template = load(LAYA)
    evil = "{{ 7 * 7 }}{% for o in options %}{0}{1}{2}%s%(x)s[SEP]\ue000key0;"
    assert template.question("choice", evil) == f"choice question: {evil}"
    assert template.option("choice", 0, Option("k", evil, evil)) == f" {evil}: {evil}"
    assert template.state(evil) == evil


@pytest.mark.parametrize(
    "option",
    [
        "{{ o['key'] }}: {{ o.description }}",
        "{% if o.description is none %}{{ o.key }}{% else %}{{ o.description }}{% endif %}",
        "{% if not o.description %}{{ o.key }}{% else %}{{ o.description }}{% endif %}",
        "{# a comment #}{{ o.key }}={% if o.description %}{{ o.description }}{% endif %}",
        "{{ o.description if o.description else o.key }}",
        "{% if type == 'noul' and o.key == 'true' %}yes{% endif %}{{ o.description or o.key }}",
    ],
)
def test_other_harmless_templates(option: str) -> None:
    option = option.replace(": {{ o.description }}", "{% if o.description %}, {{ o.description }}{% endif %}")
    template = load(prompt(option))
    assert "d" in template.option("choice", 0, Option("k", "k", "d"))


# ------------------------------------------------------------------------------ unfaithful ones


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "begin"),
        ("hello", "begin"),
        ("[CLS]a[SEP]b[SEP]c[SEP]", "in front of each option"),
        (prompt().replace("[CLS]", ""), "begin"),
        (prompt()[:-5], "SEP"),
        (prompt() + "x", "SEP"),
        (prompt() + "[SEP]", "SEP"),
        (prompt("{{ o.key }}{{ o.description }}[MASK]"), "in front of each option"),
        (prompt("[CLS]{{ o.key }}{{ o.description }}"), "special token inside"),
        (prompt("{{ o.key }}"), "leaves out the description"),
        (prompt("x{{ o.description }}"), None),
        (prompt(state="x"), "leaves out the state"),
        (prompt().replace("{{ instructions }}", ""), "leaves out the instructions"),
        (prompt(state="{{ state }}{{ instructions }}"), "instructions where it does not belong"),
        (prompt("{{ o.key }}{{ o.description }}{{ state }}"), "state where it does not belong"),
        (prompt(state="{{ state | tojson }}"), "tojson"),
        (prompt("{{ o.key }}: {{ o.description | tojson }}"), "tojson"),
        (prompt(state="{% for o in options %}{{ o.key }}{% endfor %}{{ state }}"), "key where it"),
        (prompt("{% if o.key == '1' %}x{% endif %}{{ o.key }}{{ o.description }}"), "on its place"),
        (prompt("{{ o.key }}{{ o.description }}", "{{ type }}{{ state }}"), "for different types"),
        (prompt("{% if o.description %}  {% endif %}{{ o.key }}{{ o.description }}"), "white space"),
        (prompt().replace("o in options", "o in options if o.key"), "filtered"),
        (prompt("{{ missing }}"), "name 'missing'"),
        (prompt("{{ o.nothing }}"), "key or description"),
    ],
)
def test_another_layout_is_refused(source: str, message: str | None) -> None:
    with pytest.raises(FormatError, match=f"{KEY}.*{message or ''}"):
        load(source)


def test_metadata_of_another_type_is_refused() -> None:
    with pytest.raises(FormatError, match=KEY):
        PromptTemplate.from_metadata({KEY: ["systemone"]}, **TOKENS)


# ------------------------------------------------------------------------------ hostile ones

HOSTILE = [
    # code
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ state.__class__ }}",
    "{{ state['__class__'] }}",
    "{{ state | attr('__class__') }}",
    "{{ o.__init__.__globals__ }}",
    "{{ o.key.__class__ }}",
    "{{ o['key']['x'] }}",
    "{{ self.__init__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ lipsum.__globals__ }}",
    "{{ joiner() }}",
    "{{ namespace(x=1) }}",
    "{{ dict(a=1) }}",
    "{{ state.format(1) }}",
    "{{ options.append(1) }}",
    "{{ options[0] }}",
    "{{ config }}",
    "{{ request }}",
    "{{ loop.index }}",
    "{% import 'x' as x %}",
    "{% include '/etc/passwd' %}",
    "{% extends 'x' %}",
    "{% from 'x' import y %}",
    "{% set x = 1 %}{{ x }}",
    "{% set state = 1 %}",
    "{% block a %}{% endblock %}",
    "{% filter upper %}a{% endfilter %}",
    "{% call x() %}{% endcall %}",
    "{% with a = 1 %}{% endwith %}",
    "{% do options.clear() %}",
    "{% autoescape true %}{% endautoescape %}",
    "{% debug %}",
    # time and memory
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% for o in options recursive %}{{ loop(options) }}{% endfor %}",
    "{% for a in options %}{% for b in options %}{{ a.key }}{% endfor %}{% endfor %}",
    "{% for i in range(1000000000) %}x{% endfor %}",
    "{% for i in range(10) %}x{% endfor %}",
    "{% for c in state %}x{% endfor %}",
    "{% for c in o.key %}x{% endfor %}",
    "{% for a, b in options %}x{% endfor %}",
    "{% for options in options %}x{% endfor %}",
    "{% for state in options %}x{% endfor %}",
    "{{ 'a' * 10**9 }}",
    "{{ 10 ** 10 ** 10 }}",
    "{{ 9999999999 ** 9999999999 }}",
    "{{ 1 // 0 }}",
    "{{ -1 }}",
    "{{ 1 + 1 }}",
    "{{ 'a' ~ state }}",
    "{{ '%999999999d' % 1 }}",
    "{{ 'x' | center(999999999) }}",
    "{{ state | replace('', 'xxxxxxxx') }}",
    "{{ options | list * 9 }}",
    "{{ lipsum(n=1000000) }}",
    "{{ [1, 2, 3] }}",
    "{{ {'a': 1} }}",
    "{{ (1, 2) }}",
    "{{ 1.5 }}",
    "{{ state[0:1] }}",
    "{{ state is divisibleby(0) }}",
    "{{ state is filter('x') }}",
    "{{ state | tojson(indent=999999999) }}",
    "{{ " + "(" * 4000 + "state" + ")" * 4000 + " }}",
    "{{ " + "not " * 3000 + "state }}",
    "{{ " + "state if " * 1500 + "state }}",
    "{{ " + "state and " * 1500 + "state }}",
    "{% if state %}" * 800 + "{% endif %}" * 800,
    "{{ " + "9" * 10_000 + " }}",
    "{{ '" + "\\\\" * 4000 + "' }}",
    "{{ " * 5000,
    "{% " * 5000,
    "{#" * 8000,
    "{% raw %}" * 1500,
    "-" * 16_000 + "{{",
    "{{ 'a" + "b" * 15_000,
    "{%- " + " " * 15_000,
    "\n" * 15_000 + "{{",
    "x" * 100_000,
    "x" * 10_000_000,
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
@pytest.mark.parametrize("place", ["alone", "state", "option"])
def test_hostile(number: int, place: str) -> None:
    source = HOSTILE[number]
    if place == "state":
        source = prompt(state=source + "{{ state }}")
    elif place == "option":
        source = prompt(source + "{{ o.key }}{{ o.description }}")
    start = time.perf_counter()
    try:
        template, message = load(source), KEY
    except FormatError as error:
        template, message = None, str(error)
    assert time.perf_counter() - start < 5
    assert KEY in message
    assert len(message) < 2000
    if template is not None:
        # what is let through is literal text or the choice of one
        assert "s" in template.state("s")
        assert place != "alone"


def test_nothing_runs_after_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    import jinja2

    template = load(LAYA)
    monkeypatch.setattr(jinja2.Template, "render", lambda *a, **k: pytest.fail("jinja ran"))
    assert texts(template, {"type": "noul"})


def test_only_the_sandbox_renders(monkeypatch: pytest.MonkeyPatch) -> None:
    import jinja2.environment
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    rendered = []
    original = jinja2.environment.Template.render

    def render(self: jinja2.Template, *args: object, **values: object) -> str:
        rendered.append(type(self.environment))
        return original(self, *args, **values)

    monkeypatch.setattr(jinja2.environment.Template, "render", render)
    load(LAYA)
    assert set(rendered) == {ImmutableSandboxedEnvironment}


def test_mutated_templates_raise_format_errors_only() -> None:
    draw = random.Random(0)
    pieces = ["{{", "}}", "{%", "%}", "o", ".", "key", "state", "(", ")", "|", "'", "[SEP]", "[MASK]", "*", "~",
              "for", "in", "options", "endfor", "if", "endif", "else", " ", "is", "9", "\x00", "\ue000"]  # fmt: skip
    kept = 0
    for _ in range(1500):
        source = LAYA
        for _ in range(draw.randint(1, 4)):
            a = draw.randrange(len(source))
            b = a + draw.choice([0, 0, 1, 3, 10])
            source = source[:a] + draw.choice([*pieces, ""]) + source[b:]
        try:
            load(source)
            kept += 1
        except FormatError:
            pass
    assert 0 < kept < 1500


@pytest.mark.parametrize("escape", ["\\777", "\\d", "\\N{DIGIT ONE}", "\\ud800"])
def test_unusual_escapes_are_refused_without_a_warning(escape: str) -> None:
    with pytest.raises(FormatError, match="escape"):
        PromptTemplate(
            "{{ '" + escape + "' }}" + laya_template("[CLS]", "[SEP]", "[MASK]"),
            cls="[CLS]",
            sep="[SEP]",
            mask="[MASK]",
        )
