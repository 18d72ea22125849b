"""From a dataset to token ids, by the very code that lays out sequences for answers, and on to padded arrays.

No torch: arrays are numpy's. A batch is cut into chunks of sequences of about the same length, of a size that does not
depend on the number of threads, so that results do not either.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import RequestError
from ..hf_tokenizer import canonical_tokenizer_json, special_token_text, tokenizer_config
from ..schema import QUESTION_TYPES, Question
from ..sequence import Head, Sequence, SequenceBuilder, StateTokens
from ..template import PromptTemplate, laya_template
from ..tokenizer import Tokenizer, parse
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
    backend = parse(canonical_tokenizer_json(directory), str(directory / "tokenizer.json"))
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
        heads: of each question.
        state: int32 [n_examples]; question: int32 [n_examples].
        lengths: int32 [n_examples], tokens of each example's sequence.
        targets: of each example. weights: float64 [n_examples], those of the rows.
        n_cut: states that did not fit into some sequence.
    """

    builder: SequenceBuilder
    pad: int
    heads: list[Head]
    state: np.ndarray
    question: np.ndarray
    lengths: np.ndarray
    targets: list[tuple[float, ...]]
    weights: np.ndarray
    n_cut: int
    _ids: np.ndarray
    _bounds: np.ndarray
    _is_list: list[bool]

    def sequence(self, example: int) -> Sequence:
        """What the model reads for one example."""
        state = int(self.state[example])
        ids = self._ids[self._bounds[state] : self._bounds[state + 1]].tolist()
        return self.builder.assemble(self.heads[self.question[example]], StateTokens(ids, self._is_list[state]))

    def chunks(self, examples: np.ndarray, weights: np.ndarray, tokens: int = CHUNK_TOKENS) -> list[Chunk]:
        """`examples` in passes of at most so many padded tokens each, sequences of like length together."""
        by_length = examples[np.argsort(self.lengths[examples], kind="stable")]
        out = []
        first = 0
        lengths = self.lengths[by_length]
        for i in range(1, len(by_length) + 1):
            if i == len(by_length) or (i + 1 - first) * lengths[i] > tokens:
                out.append(self._chunk(by_length[first:i], weights))
                first = i
        return out

    def _chunk(self, examples: np.ndarray, weights: np.ndarray) -> Chunk:
        sequences = [self.sequence(int(example)) for example in examples]
        n, lengths = len(sequences), np.array([len(sequence.ids) for sequence in sequences])
        n_markers = max(len(sequence.markers) for sequence in sequences)
        ids = np.full((n, lengths.max()), self.pad, np.int64)
        markers, targets = np.zeros((n, n_markers), np.int64), np.zeros((n, n_markers), np.float32)
        options = np.zeros((n, n_markers), bool)
        for i, sequence in enumerate(sequences):
            ids[i, : lengths[i]] = sequence.ids
            k = len(sequence.markers)
            markers[i, :k], options[i, :k] = sequence.markers, True
            targets[i, :k] = self.targets[examples[i]]
        kinds = self.kinds[self.question[examples]]
        return Chunk(ids, lengths, markers, options, kinds, targets, weights[examples].astype(np.float32), examples)

    @property
    def kinds(self) -> np.ndarray:
        """int64 [n_questions], the number of each question's type."""
        return np.array([QUESTION_TYPES.index(head.question.type) for head in self.heads])


def encode(dataset: Dataset, builder: SequenceBuilder, pad: int, max_len: int) -> Encoded:
    """Tokenize every state and question once, for sequences of at most `max_len` tokens.

    Raises:
        RowsError: a question's options do not fit into the model's sequence.
    """
    heads, faults = [], []
    for question, place in zip(dataset.questions, dataset.places, strict=True):
        try:
            heads.append(builder.head(question))
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
    head_lengths = np.array([len(head.ids) for head in heads])
    room = np.maximum(0, max_len - head_lengths - 1)[questions]
    state_lengths = np.diff(bounds)[states]
    lengths = np.minimum(max_len, head_lengths[questions] + np.minimum(state_lengths, room) + 1)
    return Encoded(
        builder,
        pad,
        heads,
        states,
        questions,
        lengths.astype(np.int32),
        [example.target for example in examples],
        np.array([example.weight for example in examples]),
        len(set(states[state_lengths > room].tolist())),
        np.concatenate(ids),
        bounds,
        [state.is_list for state in dataset.states],
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
