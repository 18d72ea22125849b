"""From a dataset to token ids, by the very code that lays out sequences for answers, and on to padded arrays.

No torch: arrays are numpy's. A batch is cut into chunks of sequences of about the same length, of a size that does not
depend on the number of threads, so that results do not either.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import RequestError
from ..files.checkpoint.hf_tokenizer import canonical_tokenizer_json, special_token_text, tokenizer_config
from ..schema import QUESTION_TYPES, Question
from ..text.sequence import Prefix, SequenceBuilder
from ..text.template import PromptTemplate, laya_template
from ..text.tokenizer import Tokenizer, parse
from .rows import Dataset, Fault, RowsError

# Padded tokens of one forward and backward pass: activations of pico's then stay in the second-level cache.
CHUNK_TOKENS = 4096


class _SpecialIds(NamedTuple):
    vocab_size: int
    cls_id: int
    sep_id: int
    mask_id: int


def builder_of(directory: Path, vocab_size: int, max_len: int, head_max_len: int) -> tuple[SequenceBuilder, int]:
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
    return SequenceBuilder(tokenizer, template, max_len, head_max_len), pad or 0


class Chunk(NamedTuple):
    """Sequences of one pass, padded to the longest.

    ids: int64 [n, length]; lengths: int64 [n]; markers: int64 [n, n_markers], 0 where there is none; options: bool
    [n, n_markers]; kinds: int64 [n]; targets: float32 [n, n_markers]; weights: float32 [n]; examples: int64 [n], which.
    """

    ids: np.ndarray
    lengths: np.ndarray
    markers: np.ndarray
    options: np.ndarray
    kinds: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    examples: np.ndarray


@dataclass(frozen=True)
class Encoded:
    """A tokenized dataset.

    Attributes:
        prefixes: of each question.
        state: int32 [n_examples]; question: int32 [n_examples].
        lengths: int32 [n_examples], tokens of each example's sequence.
        targets: of each example. weights: float64 [n_examples], those of the rows.
        n_cut: states that did not fit into some sequence.
    """

    prefixes: list[Prefix]
    state: np.ndarray
    question: np.ndarray
    lengths: np.ndarray
    targets: list[tuple[float, ...]]
    weights: np.ndarray
    n_cut: int
    _pad: int
    _sep: int
    # tokens of all states, end to end; where those of each example begin, and how many of them its sequence has
    _ids: np.ndarray
    _starts: np.ndarray
    _used: np.ndarray

    def chunks(self, examples: np.ndarray, weights: np.ndarray, tokens: int = CHUNK_TOKENS) -> list[Chunk]:
        """`examples` in passes of at most so many padded tokens each, sequences of like length together.

        The passes take about the same work, and are four or eight or twelve where there are many, so that no thread
        waits for long.
        """
        if not len(examples):
            return []
        by_length = examples[np.argsort(self.lengths[examples], kind="stable")]
        lengths = self.lengths[by_length].astype(np.int64)
        total = int(lengths.sum())
        n = 4 * -(-total // (4 * tokens)) if total > tokens // 2 else 1
        # which of n equal shares of the tokens a sequence's middle lies in
        share = ((2 * np.cumsum(lengths) - lengths) * n // (2 * total)).tolist()
        out, first = [], 0
        for i, length in enumerate(lengths.tolist()):
            if i > first and (share[i] != share[first] or (i + 1 - first) * length > tokens):
                out.append(self._chunk(by_length[first:i], weights))
                first = i
        out.append(self._chunk(by_length[first:], weights))
        return out

    def _chunk(self, examples: np.ndarray, weights: np.ndarray) -> Chunk:
        """The sequences that `SequenceBuilder.assemble` would make, in one array
        (test_train.py::test_training_reads_what_answers_are_given_from)."""
        question, lengths = self.question[examples], self.lengths[examples].astype(np.int64)
        ids = np.full((len(examples), lengths.max()), self._pad, np.int64)
        prefixes = self._prefix_ids
        rows = zip(
            ids, question.tolist(), lengths.tolist(), self._starts[examples].tolist(), self._used[examples].tolist(),
            strict=True,
        )  # fmt: skip
        for row, asked, length, start, used in rows:
            prefix = prefixes[asked]
            n = len(prefix)
            if n < length:
                row[:n] = prefix
                row[n : n + used] = self._ids[start : start + used]
                row[length - 1] = self._sep
            else:  # a question that leaves no room is cut itself
                row[:length] = prefix[:length]
        markers, options = self._options
        n_markers = int(options[question].sum(1).max())
        options = options[question, :n_markers]
        targets = np.zeros(options.shape, np.float32)
        targets[options] = [p for example in examples.tolist() for p in self.targets[example]]
        return Chunk(
            ids,
            lengths,
            markers[question, :n_markers],
            options,
            self.kinds[question],
            targets,
            weights[examples].astype(np.float32),
            examples,
        )

    @cached_property
    def _prefix_ids(self) -> list[np.ndarray]:
        return [np.array(prefix.ids) for prefix in self.prefixes]

    @cached_property
    def _options(self) -> tuple[np.ndarray, np.ndarray]:
        """Markers of every question, int64 [n_questions, most options] and 0 where there is none; and where there is
        one, bool."""
        markers = np.zeros((len(self.prefixes), max(len(prefix.markers) for prefix in self.prefixes)), np.int64)
        options = np.zeros(markers.shape, bool)
        for i, prefix in enumerate(self.prefixes):
            markers[i, : len(prefix.markers)], options[i, : len(prefix.markers)] = prefix.markers, True
        return markers, options

    @cached_property
    def kinds(self) -> np.ndarray:
        """int64 [n_questions], the number of each question's type."""
        return np.array([QUESTION_TYPES.index(prefix.question.type) for prefix in self.prefixes])


def encode(dataset: Dataset, builder: SequenceBuilder, pad: int, max_len: int) -> Encoded:
    """Tokenize every state and question once, for sequences of at most `max_len` tokens.

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
    ids, bounds = [], np.zeros(len(dataset.states) + 1, np.int64)
    for i, state in enumerate(dataset.states):
        # a string state is taken as it is, and this one is text already
        tokens = np.array(builder.state(state.text).ids, np.int32)
        ids.append(tokens)
        bounds[i + 1] = bounds[i] + len(tokens)
    examples = dataset.examples
    states = np.array([example.state for example in examples], np.int32)
    questions = np.array([example.question for example in examples], np.int32)
    prefix_lengths = np.array([len(prefix.ids) for prefix in prefixes])[questions]
    n_tokens, room = np.diff(bounds)[states], np.maximum(0, max_len - prefix_lengths - 1)
    used = np.minimum(n_tokens, room)
    keeps_tail = np.array([state.is_list for state in dataset.states])[states]
    return Encoded(
        prefixes,
        states,
        questions,
        np.minimum(max_len, prefix_lengths + used + 1).astype(np.int32),
        [example.target for example in examples],
        np.array([example.weight for example in examples]),
        len(set(states[n_tokens > room].tolist())),
        pad,
        builder.sep_id,
        np.concatenate(ids),
        bounds[states] + np.where(keeps_tail, n_tokens - used, 0),
        used.astype(np.int32),
    )


def texts_of(question: Question, template: PromptTemplate) -> list[str]:
    """The texts that a question's sequence is made of, each tokenized by itself."""
    kind = question.type
    options = [template.option(kind, i, option) for i, option in enumerate(question.options)]
    return [template.question(kind, question.instructions), *options]


def held_out_states(dataset: Dataset, fraction: float | None, seed: int) -> np.ndarray:
    """bool [n_states]: which are kept back. A state's place in the draw depends on its text and the seed alone, so
    another row more or less moves few of the others.

    `fraction` None: a tenth, but no more than 10,000.
    """
    import hashlib

    n = len(dataset.states)
    wanted = min(10_000, n / 10) if fraction is None else n * fraction
    count = 0 if fraction == 0 else min(n - 1, max(1, round(wanted)))
    salt = f"{seed}:".encode()
    draws = [hashlib.blake2b(salt + state.text.encode(), digest_size=8).digest() for state in dataset.states]
    out = np.zeros(n, bool)
    out[np.argsort(np.array(draws, "S8"), kind="stable")[:count]] = True
    return out


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
