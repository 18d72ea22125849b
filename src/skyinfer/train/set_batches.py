"""Batches for s2: each distinct option and each state once, and which options are asked about which state.

No torch. As in batches.py, a batch is cut into chunks of a size that does not depend on the number of threads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .batches import CHUNK_TOKENS, of_like_length
from .encoding import Drawn, Encoded


class OptionChunk(NamedTuple):
    """Option sequences of one pass, padded to the longest.

    ids: int64 [n, length]; lengths, markers, kinds: int64 [n].
    """

    ids: np.ndarray
    lengths: np.ndarray
    markers: np.ndarray
    kinds: np.ndarray


class StateChunk(NamedTuple):
    """States of one pass with the questions about them. An option of a question about a state is a row; rows lie in the
    order of the questions, and those in the order of their states.

    ids: int64 [n_states, length]; lengths: int64 [n_states]; table_rows: int64 [n_rows], which of the batch's options,
    as its option chunks have them one after the other; row_counts: int64 [n_states], rows of each state; options: bool
    [n_questions, most options]; targets: float32, likewise; weights: float32 [n_questions]; examples: int64
    [n_questions], which.
    """

    ids: np.ndarray
    lengths: np.ndarray
    table_rows: np.ndarray
    row_counts: np.ndarray
    options: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    examples: np.ndarray


def laid_out(
    encoded: Encoded,
    examples: np.ndarray,
    weights: np.ndarray,
    drawn: Drawn | None = None,
    tokens: int = CHUNK_TOKENS,
) -> tuple[list[OptionChunk], list[StateChunk]]:
    """`examples` [n] as the batch of a step; arguments as those of `batches.chunks_of`."""
    if not len(examples):
        return [], []
    states, which = np.unique(encoded.state[examples], return_inverse=True)
    # those of a state one after the other
    by_state = np.argsort(which, kind="stable")
    examples, which = examples[by_state], which[by_state]
    questions = encoded.question[examples]
    n_options = encoded.n_options[questions]
    options = np.arange(n_options.max()) < n_options[:, None]
    shown = encoded.option_numbers.of_question[questions, : options.shape[1]]
    orders = None
    if drawn is not None and drawn.orders is not None:
        orders = drawn.orders[by_state]
        shown = np.take_along_axis(shown, orders, 1)
    used, place = np.unique(shown[options], return_inverse=True)
    option_chunks, at = _option_chunks(encoded, used, tokens)
    rows = np.zeros(options.shape, np.int64)
    rows[options] = at[place]

    starts, counts = encoded.spans(examples, None if drawn is None else drawn.views[by_state])
    first = np.searchsorted(which, np.arange(len(states)))
    starts, counts = starts[first], counts[first]
    row_counts = np.bincount(which, n_options)
    groups = [np.sort(group) for group in of_like_length(counts + 2 + row_counts.astype(np.int64), tokens)]
    chunk_of = np.empty(len(states), np.int64)
    for i, group in enumerate(groups):
        chunk_of[group] = i
    # in each chunk those of a state one after the other, as before
    by_chunk = np.argsort(chunk_of[which], kind="stable")
    ends = np.cumsum(np.bincount(chunk_of[which]))
    chunks = []
    for group, chosen in zip(groups, np.split(by_chunk, ends[:-1]), strict=True):
        k = n_options[chosen]
        chunks.append(
            StateChunk(
                _states(encoded, starts[group], counts[group]), counts[group] + 2, rows[chosen][options[chosen]],
                row_counts[group].astype(np.int64), options[chosen, : k.max()],
                _targets(encoded, examples[chosen], k, None if orders is None else orders[chosen]),
                weights[examples[chosen]].astype(np.float32), examples[chosen],
            )
        )  # fmt: skip
    return option_chunks, chunks


def _option_chunks(encoded: Encoded, used: np.ndarray, tokens: int) -> tuple[list[OptionChunk], np.ndarray]:
    """The sequences with the numbers `used` [n], and where each of them is in the chunks, one after the other."""
    sequences = [encoded.option_numbers.sequences[number] for number in used.tolist()]
    lengths = np.array([len(ids) for ids, _, _ in sequences])
    groups = of_like_length(lengths, tokens)
    at = np.empty(len(used), np.int64)
    at[np.concatenate(groups)] = np.arange(len(used))
    chunks = []
    for group in groups:
        ids = np.full((len(group), lengths[group].max()), encoded.pad, np.int64)
        for i, number in enumerate(group.tolist()):
            ids[i, : lengths[number]] = sequences[number][0]
        markers, kinds = (np.array([sequences[number][part] for number in group.tolist()]) for part in (1, 2))
        chunks.append(OptionChunk(ids, lengths[group], markers, kinds))
    return chunks, at


def _states(encoded: Encoded, starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """[CLS] state [SEP], padded."""
    ids = np.full((len(counts), counts.max() + 2), encoded.pad, np.int64)
    ids[:, 0] = encoded.cls
    for i, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True)):
        ids[i, 1 : count + 1] = encoded.ids[start : start + count]
        ids[i, count + 1] = encoded.sep
    return ids


def _targets(encoded: Encoded, examples: np.ndarray, n_options: np.ndarray, orders: np.ndarray | None) -> np.ndarray:
    found = np.zeros((len(examples), n_options.max()), np.float32)
    for i, (example, k) in enumerate(zip(examples.tolist(), n_options.tolist(), strict=True)):
        target = encoded.targets[example]
        found[i, :k] = target if orders is None else np.array(target)[orders[i, :k]]
    return found
