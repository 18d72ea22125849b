"""From a dataset to token ids, by the very code that lays out sequences for answers.

No torch: arrays are numpy's. A state may be there in several views, texts that say the same (variants.py); which of
them and which order of options a batch has is drawn here, and laid out for an architecture in batches.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import RequestError
from ..files.checkpoint.hf_tokenizer import canonical_tokenizer_json, special_token_text, tokenizer_config
from ..schema import QUESTION_TYPES, Question
from ..text.option_sequences import BUILDERS
from ..text.sequence import AnyPrefix, SequenceBuilder
from ..text.template import PromptTemplate, laya_template
from ..text.tokenizer import Tokenizer, parse
from .architectures import ARCHITECTURES, DEFAULT
from .rows import Dataset, Fault, RowsError


class OptionNumbers(NamedTuple):
    """The distinct option sequences of a dataset of s2's.

    sequences: ids, marker and kind of question of each. of_question: int64 [n_questions, most options], the sequence of
    each option, 0 behind a question's own.
    """

    sequences: list[tuple[tuple[int, ...], int, int]]
    of_question: np.ndarray


class _SpecialIds(NamedTuple):
    vocab_size: int
    cls_id: int
    sep_id: int
    mask_id: int


def builder_of(
    directory: Path, vocab_size: int, max_len: int, head_max_len: int, architecture: str = DEFAULT
) -> tuple[SequenceBuilder, int]:
    """The sequence builder of a checkpoint's `tokenizer` directory, as `skyinfer.load` makes it, and its pad token.

    Raises:
        FormatError: the directory holds no usable tokenizer.
    """
    backend, _ = parse(canonical_tokenizer_json(directory), str(directory / "tokenizer.json"))
    settings = tokenizer_config(directory)
    cls, sep, mask = (special_token_text(settings, role) for role in ("cls", "sep", "mask"))
    ids = [backend.token_to_id(text) for text in (cls, sep, mask)]
    # which token pads does not matter: nobody looks at it
    pad = backend.token_to_id(special_token_text(settings, "pad")) if settings.get("pad_token") else ids[1]
    special = _SpecialIds(vocab_size, *(-1 if token is None else token for token in ids))
    tokenizer = Tokenizer(backend, special, str(directory / "tokenizer.json"))
    template = PromptTemplate(laya_template(cls, sep, mask), cls=cls, sep=sep, mask=mask)
    return BUILDERS[architecture](tokenizer, template, max_len, head_max_len), pad or 0


@dataclass(frozen=True)
class Encoded:
    """A tokenized dataset.

    Attributes:
        architecture: the core's name of it, which the builder was made for.
        prefixes: of each question, its options in the order given.
        state, question: int32 [n_examples], which of them an example is of.
        targets: of each example, in the order of its question's options.
        weights: float64 [n_examples], those of the rows.
        n_cut: states that do not fit into some sequence.
        ids: int32, tokens of all views of all states.
        begins, counts: int64 [n_views, n_states], where in `ids` a view begins, and its tokens. View 0 is the state
            as it was given.
        keeps_tail: bool [n_states], whether a state that is too long keeps its end.
        max_len: tokens of a sequence. pad, cls, sep: token ids.
    """

    architecture: str
    prefixes: list[AnyPrefix]
    state: np.ndarray
    question: np.ndarray
    targets: list[tuple[float, ...]]
    weights: np.ndarray
    n_cut: int
    ids: np.ndarray
    begins: np.ndarray
    counts: np.ndarray
    keeps_tail: np.ndarray
    max_len: int
    pad: int
    cls: int
    sep: int

    @cached_property
    def prefix_lengths(self) -> np.ndarray:
        """int64 [n_questions]: tokens in front of a state's in a sequence."""
        return np.array([len(prefix.front) for prefix in self.prefixes])

    @cached_property
    def prefix_arrays(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """ids and markers of each question's prefix."""
        return [(np.array(prefix.front), np.array(prefix.markers)) for prefix in self.prefixes]

    @cached_property
    def n_options(self) -> np.ndarray:
        """int64 [n_questions]."""
        return np.array([len(prefix.markers) for prefix in self.prefixes])

    @cached_property
    def kinds(self) -> np.ndarray:
        """int64 [n_questions], the number of each question's type."""
        return np.array([QUESTION_TYPES.index(prefix.question.type) for prefix in self.prefixes])

    @cached_property
    def takes_any_order(self) -> np.ndarray:
        """bool [n_questions]: a choice whose options are whole in any order."""
        is_choice = self.kinds == QUESTION_TYPES.index("choice")
        found: np.ndarray = is_choice & (self.prefix_lengths < self.max_len)
        return found

    @cached_property
    def option_numbers(self) -> OptionNumbers:
        """Of s2."""
        numbers: dict[tuple[tuple[int, ...], int, int], int] = {}
        of_question = np.zeros((len(self.prefixes), self.n_options.max()), np.int64)
        for i, (prefix, kind) in enumerate(zip(self.prefixes, self.kinds.tolist(), strict=True)):
            for j, (ids, marker) in enumerate(zip(prefix.option_ids or (), prefix.markers, strict=True)):
                of_question[i, j] = numbers.setdefault((ids, marker, kind), len(numbers))
        return OptionNumbers(list(numbers), of_question)

    def spans(self, examples: np.ndarray, views: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(starts, used), int64 [n] each: the part of `ids` that is the state in the sequences of `examples` [n], in
        the given view [n] of each (default: as given)."""
        states = self.state[examples]
        views = np.zeros(len(examples), np.int64) if views is None else views
        counts = self.counts[views, states]
        used = np.minimum(counts, self._room(self.question[examples]))
        return self.begins[views, states] + np.where(self.keeps_tail[states], counts - used, 0), used

    def _room(self, questions: np.ndarray) -> np.ndarray:
        room: np.ndarray = np.maximum(0, self.max_len - self.prefix_lengths[questions] - 1)
        return room

    def drawn(self, examples: np.ndarray, draw: np.random.Generator, *, options: bool) -> Drawn:
        """A view for each of `examples` and, with `options`, an order of its options."""
        n, questions = len(examples), self.question[examples]
        views = draw.integers(0, len(self.begins), n)
        if ARCHITECTURES[self.architecture].reads_state_once:
            _, first, which = np.unique(self.state[examples], return_index=True, return_inverse=True)
            views = views[first][which]
        if not options:
            return Drawn(views, None)
        n_options = self.n_options[questions]
        keys = draw.random((n, n_options.max()))
        places = np.arange(keys.shape[1])
        keys[places >= n_options[:, None]] = 2.0
        return Drawn(views, np.where(self.takes_any_order[questions][:, None], keys.argsort(1), places))


def reworded(encoded: Encoded, builder: SequenceBuilder, texts: Mapping[int, str]) -> Encoded:
    """The same with other texts for some states, by their numbers; no state has another view."""
    begins, counts, ids, n_ids = encoded.begins[:1].copy(), encoded.counts[:1].copy(), [encoded.ids], len(encoded.ids)
    for state, text in texts.items():
        ids.append(np.array(builder.state(text).ids, np.int32))
        begins[0, state], counts[0, state] = n_ids, len(ids[-1])
        n_ids += len(ids[-1])
    return replace(encoded, ids=np.concatenate(ids), begins=begins, counts=counts)


class Drawn(NamedTuple):
    """How some examples are shown. views: int64 [n]. orders: int64 [n, most options], the option that each place shows
    (what lies behind a question's own options means nothing); None for the order given."""

    views: np.ndarray
    orders: np.ndarray | None


def encode(
    dataset: Dataset,
    builder: SequenceBuilder,
    pad: int,
    max_len: int,
    views: Callable[[int], list[str]] | None = None,
    architecture: str = DEFAULT,
) -> Encoded:
    """Tokenize every state and question once, for sequences of at most `max_len` tokens.

    `views`: further texts of the state with a number, the same number of them for each.

    Raises:
        RowsError: a question's options do not fit into the model's sequence.
    """
    prefixes, faults = [], []
    for question, place in zip(dataset.questions, dataset.places, strict=True):
        try:
            prefixes.append(builder.prefix(question))
        except RequestError as error:
            faults.append(Fault(place, str(error)))
    if faults:
        raise RowsError(dataset.source, faults, dataset.n_rows)
    ids: list[np.ndarray] = []
    begins, counts, n_ids = [], [], 0
    for i, state in enumerate(dataset.states):
        known: dict[str, tuple[int, int]] = {}
        for text in (state.text, *(views(i) if views else ())):
            if text not in known:
                # a string state is taken as it is, and this one is text already
                ids.append(np.array(builder.state(text).ids, np.int32))
                known[text] = n_ids, len(ids[-1])
                n_ids += len(ids[-1])
            begins.append(known[text][0])
            counts.append(known[text][1])
    examples = dataset.examples
    n_states = len(dataset.states)
    encoded = Encoded(
        architecture,
        prefixes,
        np.array([example.state for example in examples], np.int32),
        np.array([example.question for example in examples], np.int32),
        [example.target for example in examples],
        np.array([example.weight for example in examples]),
        0,
        np.concatenate(ids),
        np.array(begins).reshape(n_states, -1).T,
        np.array(counts).reshape(n_states, -1).T,
        np.array([state.is_list for state in dataset.states]),
        max_len,
        pad,
        builder.tokenizer.cls_id,
        builder.sep_id,
    )
    _, used = encoded.spans(np.arange(len(examples)))
    is_cut = used < encoded.counts[0, encoded.state]
    return replace(encoded, n_cut=len(set(encoded.state[is_cut].tolist())))


def texts_of(question: Question, template: PromptTemplate) -> list[str]:
    """The texts that a question's sequence is made of, each tokenized by itself."""
    kind = question.type
    options = [template.option(kind, i, option) for i, option in enumerate(question.options)]
    return [template.question(kind, question.instructions), *options]


def held_out_states(texts: SequenceOf[str], fraction: float | None, seed: int) -> np.ndarray:
    """bool [n_states]: which are kept back. A state's place in the draw depends on its text and the seed alone, so
    another row more or less moves few of the others; states of the same text are kept back together.

    Args:
        texts: what the states say (`variants.canonical`).
        fraction: None for a tenth, but no more than 10,000.
    """
    n = len(texts)
    if fraction == 0:
        return np.zeros(n, bool)
    wanted = min(10_000, n / 10) if fraction is None else n * fraction
    count = min(n - 1, max(1, round(wanted)))
    draws = np.array([_draw(f"{seed}:", text) for text in texts], "S8")
    groups, sizes = np.unique(draws, return_counts=True)
    kept = max(1, int((np.cumsum(sizes) <= count).sum()))
    return np.isin(draws, groups[: min(kept, len(groups) - 1)])


def halves(texts: SequenceOf[str], seed: int) -> np.ndarray:
    """bool [n_states]: two parts of about the same size, by text and seed as `held_out_states`."""
    return np.array([_draw(f"{seed} half:", text)[0] < 128 for text in texts], bool)


def _draw(salt: str, text: str) -> bytes:
    return hashlib.blake2b(salt.encode() + text.encode(), digest_size=8).digest()


def example_weights(encoded: Encoded, examples: SequenceOf[int] | np.ndarray) -> np.ndarray:
    """float64 [n_examples]: what each of `examples` counts in the loss, 0 for others. Every question type gets the
    same sum, and the mean is 1."""
    kinds = encoded.kinds[encoded.question]
    out = np.zeros(len(encoded.weights))
    out[examples] = encoded.weights[examples]
    present = [kind for kind in range(len(QUESTION_TYPES)) if out[kinds == kind].sum() > 0]
    for kind in present:
        out[kinds == kind] *= len(examples) / (len(present) * out[kinds == kind].sum())
    return out
