"""The prompt template of a model file, turned at load time into plain text segments.

A file carries jinja source in ``tokenizer.chat_template.systemone``. It is untrusted, so it is
checked against a short list of harmless syntax, rendered once in jinja2's
ImmutableSandboxedEnvironment with private marks in place of every user value, and the output is
split at the special tokens into

    [CLS] question [SEP] ([MASK] option)* [SEP] state [SEP]

What remains are format strings. No jinja runs after loading, and no user text is ever part of a
template, so text cannot change the layout. Rendering of values, and token ids, are left to
schema.py and sequence.py.
"""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import FormatError
from ..schema import QUESTION_TYPES, Option

if TYPE_CHECKING:
    from jinja2 import nodes

KEY = "tokenizer.chat_template.systemone"

_MAX_LENGTH = 16_384  # characters of source; the known templates have about 800
_MAX_DEPTH = 40  # nesting of syntax; the known templates reach 12
_NAMES = {"type", "instructions", "options", "state"}
_FIELDS = {"key", "description"}
_TESTS = {"string", "none", "defined", "mapping", "sequence", "iterable", "number", "boolean"}


def laya_template(cls: str, sep: str, mask: str) -> str:
    """The template of a Laya checkpoint, given the texts of its special tokens."""
    option = (
        "{% if type == 'choice' %}{{ o.key }}{% if o.description %}: " + _value("o.description")
        + "{% endif %}{% elif type == 'score' %}level {{ o.key }}: " + _value("o.description")
        + "{% else %}{{ o.key }}: {% if o.description %}" + _value("o.description")
        + "{% elif o.key == 'true' %}yes, the statement holds"
        "{% else %}no, the statement does not hold{% endif %}{% endif %}"
    )  # fmt: skip
    return _layout(cls, sep, mask, option)


def julia_template(cls: str, sep: str, mask: str) -> str:
    """The template of a Julia-1 checkpoint: an option is its description, or else its key."""
    option = "{% if o.description %}" + _value("o.description") + "{% else %}{{ o.key }}{% endif %}"
    return _layout(cls, sep, mask, option)


def _layout(cls: str, sep: str, mask: str, option: str) -> str:
    return (
        f"{cls}{{{{ type }}}} question: {_value('instructions')}{sep}"
        f"{{% for o in options %}}{mask} {option}{{% endfor %}}{sep}{_value('state')}{sep}"
    )


def _value(name: str) -> str:
    return f"{{{{ {name} if {name} is string else {name} | tojson }}}}"


class _OptionText(NamedTuple):
    """How one kind of option is written: `lead` is the white space in front, then two formats."""

    lead: str
    described: Callable[..., str]  # format of (name, description)
    bare: Callable[..., str]  # format of (name,), used where there is no description


class PromptTemplate:
    """Text of the parts of a sequence. Immutable; safe to share between threads."""

    __slots__ = ("_mask", "_options", "_questions", "_state")

    def __init__(self, source: str, *, cls: str, sep: str, mask: str) -> None:
        """Check, probe and take apart the jinja `source`; the rest are the texts of special tokens.

        Raises:
            FormatError: not harmless, or not of the layout that the model was trained on.
        """
        render = _compile(source)
        probe = _Probe(render, cls, sep, mask)
        self._mask = mask
        self._questions: dict[str, Callable[..., str]] = {}
        self._options: dict[str, tuple[_OptionText, ...]] = {}
        states = set()
        for kind in QUESTION_TYPES:
            question, options, state = probe.segments(kind)
            self._questions[kind] = question.format
            self._options[kind] = options
            states.add(state)
        if len(states) != 1:
            raise _fault("writes the state differently for different types")
        self._state = states.pop().format

    @classmethod
    def from_metadata(cls_, metadata: Mapping[str, Any], *, cls: str, sep: str, mask: str) -> PromptTemplate:
        """The template of a model file; Laya's own where the file has none."""
        source = metadata.get(KEY)
        if source is None:
            source = laya_template(cls, sep, mask)
        elif not isinstance(source, str):
            raise _fault("must be a string")
        return _template(source, cls, sep, mask)

    def question(self, kind: str, instructions: str) -> str:
        """Text of the question part. Mask tokens in user text become spaces, here and below."""
        return self._questions[kind](instructions.replace(self._mask, " "))

    def option(self, kind: str, index: int, option: Option) -> str:
        """Text of option `index` of a question, with the space that comes after its marker."""
        texts = self._options[kind]
        text = texts[index] if len(texts) > 1 else texts[0]
        _, name, description = option
        if description:
            return text.lead + text.described(name, description).replace(self._mask, " ")
        return text.lead + text.bare(name).replace(self._mask, " ")

    def state(self, text: str) -> str:
        return self._state(text.replace(self._mask, " "))


@functools.lru_cache(maxsize=8)
def _template(source: str, cls: str, sep: str, mask: str) -> PromptTemplate:
    """Taking a template apart costs more than everything else that a small model's loading does, and few are in use."""
    return PromptTemplate(source, cls=cls, sep=sep, mask=mask)


def _fault(problem: str) -> FormatError:
    return FormatError(f"{KEY} {problem}")


# ------------------------------------------------------------------------------- is it harmless


def _compile(source: str) -> Callable[..., str]:
    """The sandboxed render function of `source`, once its syntax is known to be harmless."""
    from jinja2 import StrictUndefined, TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    if len(source) > _MAX_LENGTH:
        raise _fault(f"has {len(source)} characters, more than {_MAX_LENGTH}")
    # jinja2 hands the others to a codec of Python's that warns of some and will refuse them one day
    if "\\" in re.sub(r"\\[\\'\"nrt]", "", source):
        raise _fault("has an escape sequence other than \\\\ \\' \\\" \\n \\r \\t")
    # not optimized: folding of constants would run parts of the template
    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, optimized=False, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.clear()
    environment.filters = {"tojson": _refuse_tojson}
    environment.tests = {name: environment.tests[name] for name in _TESTS}
    try:
        tree = environment.parse(source)
        _check(tree)
        template = environment.from_string(tree)
    except FormatError:
        raise
    except RecursionError as error:
        raise _fault("is nested too deeply") from error
    except (TemplateError, ValueError, SyntaxError, OverflowError, MemoryError) as error:
        raise _fault(f"is not a template ({error})") from error

    def render(**values: Any) -> str:
        try:
            return template.render(**values)
        except FormatError:
            raise
        except Exception as error:
            raise _fault(f"cannot be rendered ({error})") from error

    return render


def _refuse_tojson(value: Any) -> str:
    # every probed value is a string, so only `tojson` on strings or on a missing value comes here
    raise _fault("applies tojson where the text itself is needed")


def _check(tree: nodes.Template) -> None:
    """Refuse every piece of syntax that is not on the list.

    What is there can only choose between, and concatenate, the given strings: one loop deep over
    the given options, no calls, no arithmetic, no assignments, no attributes but an option's two
    fields. Output is therefore shorter than (source) x (options), and takes as long.
    """
    from jinja2 import nodes

    plain = (
        nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.CondExpr, nodes.Compare,
        nodes.Operand, nodes.And, nodes.Or, nodes.Not,
    )  # fmt: skip

    def visit(node: nodes.Node, variable: str | None, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise _fault("is nested too deeply")
        if isinstance(node, nodes.For):
            iterated, target = node.iter, node.target
            if not isinstance(iterated, nodes.Name) or iterated.name != "options":
                raise _fault("loops over something other than options")
            if variable is not None or node.recursive or node.test or node.else_:
                raise _fault("has a loop that is nested, filtered or recursive")
            if not isinstance(target, nodes.Name) or target.name in _NAMES:
                raise _fault("has a loop over options with an unusual variable")
            for child in node.body:
                visit(child, target.name, depth + 1)
            return
        if isinstance(node, nodes.Name):
            if node.ctx != "load" or node.name not in _NAMES | {variable}:
                raise _fault(f"uses the name {node.name!r}")
        elif isinstance(node, (nodes.Getattr, nodes.Getitem)):
            field = node.attr if isinstance(node, nodes.Getattr) else _constant(node.arg)
            of_option = isinstance(node.node, nodes.Name) and node.node.name == variable
            if not of_option or field not in _FIELDS:
                raise _fault("reads something other than an option's key or description")
            return
        elif isinstance(node, nodes.Const):
            if not isinstance(node.value, (str, bool, int, type(None))):
                raise _fault("holds an unusual constant")
        elif isinstance(node, nodes.Filter):
            if node.name != "tojson" or node.args or node.kwargs or node.dyn_args or node.dyn_kwargs:
                raise _fault(f"uses the filter {node.name!r}")
        elif isinstance(node, nodes.Test):
            if node.name not in _TESTS or node.args or node.kwargs or node.dyn_args:
                raise _fault(f"uses the test {node.name!r}")
        elif not isinstance(node, plain):
            raise _fault(f"uses {type(node).__name__}, which a prompt needs not")
        for child in node.iter_child_nodes():
            visit(child, variable, depth + 1)

    visit(tree, None, 0)


def _constant(node: nodes.Node) -> Any:
    value = getattr(node, "value", None)
    return value if isinstance(value, str) else None


# ------------------------------------------------------------------------------- what does it write


class _Key(str):
    """A mark that prints as itself and compares as the key it stands for.

    So a template can ask ``o.key == 'true'`` and still show where it prints the key, which a
    question's `labels` replace.
    """

    __slots__ = ("stands_for",)
    stands_for: str

    def __new__(cls, mark: str, stands_for: str) -> _Key:
        key = super().__new__(cls, mark)
        key.stands_for = stands_for
        return key

    def __eq__(self, other: object) -> bool:
        return self.stands_for == other

    def __ne__(self, other: object) -> bool:
        return self.stands_for != other

    __hash__ = str.__hash__


class _Probe:
    """Renders a template with marks and takes its output apart."""

    def __init__(self, render: Callable[..., str], cls: str, sep: str, mask: str) -> None:
        self._render = render
        self._cls, self._sep, self._mask = cls, sep, mask
        # unguessable, so that no template can spell a mark
        self._nonce = f"\ue000{secrets.token_hex(8)}"
        self._marks = re.compile(re.escape(self._nonce) + "([a-z]+)([0-9]?);")

    def segments(self, kind: str) -> tuple[str, tuple[_OptionText, ...], str]:
        """Formats of the question, the options and the state, for questions of type `kind`.

        All options of a choice or score share one entry; a noul has one for false, one for true.
        """
        # An empty level is described by "", a missing description of another type is null.
        missing = "" if kind == "score" else None
        patterns = (True, True) if kind == "noul" else (True, True, True)
        question, described, state = self._render_with(kind, patterns, None)
        again, bare, after = self._render_with(kind, tuple(not p for p in patterns), missing)
        mixed = self._render_with(kind, (True, False, True)[: len(patterns)], missing)
        if (question, state) != (again, after) or mixed[1] != [
            *described[:1], bare[1], *described[2:],
        ]:  # fmt: skip
            raise _fault("writes a part differently depending on another part")
        if "{0}" not in question:
            raise _fault("leaves out the instructions")
        if "{0}" not in state:
            raise _fault("leaves out the state")
        texts = []
        for i, (full, short) in enumerate(zip(described, bare, strict=True)):
            if "{1}" not in full:
                raise _fault(f"leaves out the description of a {kind} option")
            if kind == "choice" and "{0}" not in short:
                raise _fault("leaves out the key of an option that has no description")
            lead = full[: len(full) - len(full.lstrip(" "))]
            if not short.startswith(lead):
                raise _fault(f"begins option {i} of a {kind} with different white space")
            texts.append(_OptionText(lead, full[len(lead) :].format, short[len(lead) :].format))
        if kind == "noul":
            return question, tuple(texts), state
        if len(set(described)) != 1 or len(set(bare)) != 1:
            raise _fault(f"writes an option of a {kind} differently depending on its place")
        return question, tuple(texts[:1]), state

    def _render_with(self, kind: str, described: tuple[bool, ...], missing: str | None) -> tuple[str, list[str], str]:
        names = ("false", "true") if kind == "noul" else ("0", "1", "2")
        options = [
            {
                "key": _Key(self._mark("key", i), name if kind != "choice" else f"choice {name}"),
                "description": self._mark("description", i) if full else missing,
            }
            for i, (name, full) in enumerate(zip(names, described, strict=True))
        ]
        output = self._render(
            type=kind,
            instructions=self._mark("instructions"),
            options=options,
            state=self._mark("state"),
        )
        if not output.startswith(self._cls):
            raise _fault(f"does not begin with {self._cls!r}")
        parts = output[len(self._cls) :].split(self._sep)
        if len(parts) != 4 or parts[3]:
            raise _fault(f"does not have the three {self._sep!r} of a decision prompt, or not last")
        question, block, state, _ = parts
        texts = block.split(self._mask)
        if texts[0] or len(texts) != len(options) + 1:
            raise _fault(f"does not write one {self._mask!r} in front of each option")
        return (
            self._format(question, {("instructions", ""): 0}),
            [self._format(text, {("key", str(i)): 0, ("description", str(i)): 1}) for i, text in enumerate(texts[1:])],
            self._format(state, {("state", ""): 0}),
        )

    def _mark(self, name: str, index: int | None = None) -> str:
        return f"{self._nonce}{name}{'' if index is None else index};"

    def _format(self, text: str, slots: dict[tuple[str, str], int]) -> str:
        """`text` as a str.format string whose fields are the marks in it."""
        if self._cls in text or self._mask in text:
            raise _fault("has a special token inside a part")
        pieces = self._marks.split(text)
        written = []
        for i in range(0, len(pieces), 3):
            written.append(pieces[i].replace("{", "{{").replace("}", "}}"))
            if i + 1 < len(pieces):
                slot = slots.get((pieces[i + 1], pieces[i + 2]))
                if slot is None:
                    raise _fault(f"writes {pieces[i + 1]} where it does not belong")
                written.append(f"{{{slot}}}")
        return "".join(written)
