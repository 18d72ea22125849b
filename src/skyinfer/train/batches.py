"""Batches for s1: question, options and state in one sequence, padded arrays in, one score for each option out.

No torch. A batch is cut into chunks of sequences of about the same length, of a size that does not depend on the number
of threads, so that results do not either.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .encoding import Drawn, Encoded

# Padded tokens of one forward and backward pass: activations of pico's then stay in the second-level cache.
CHUNK_TOKENS = 4096


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


def chunks_of(
    encoded: Encoded, examples: np.ndarray, weights: np.ndarray, drawn: Drawn | None = None, tokens: int = CHUNK_TOKENS
) -> list[Chunk]:
    """`examples` in passes of at most so many padded tokens each, sequences of like length together.

    The passes take about the same work, and are four or eight or twelve where there are many, so that no thread waits
    for long.

    Args:
        examples: [n], numbers of examples. weights: [n_examples of `encoded`], what each counts.
        drawn: how the `examples` are shown; by default as given.
    """
    if not len(examples):
        return []
    starts, used = encoded.spans(examples, None if drawn is None else drawn.views)
    lengths = np.minimum(encoded.max_len, encoded.prefix_lengths[encoded.question[examples]] + used + 1)
    orders = None if drawn is None else drawn.orders
    return [
        _chunk(
            encoded, examples[group], weights, lengths[group], starts[group], used[group],
            None if orders is None else orders[group],
        )
        for group in of_like_length(lengths, tokens)
    ]  # fmt: skip


def of_like_length(lengths: np.ndarray, tokens: int) -> list[np.ndarray]:
    """The numbers of sequences of these lengths [n] in groups: of at most so many padded tokens each, of about the same
    work, and four or eight or twelve where there are many."""
    by_length = np.argsort(lengths, kind="stable")
    sorted_lengths = lengths[by_length]
    total = int(sorted_lengths.sum())
    n = 4 * -(-total // (4 * tokens)) if total > tokens // 2 else 1
    # which of n equal shares of the tokens a sequence's middle lies in
    share = ((2 * np.cumsum(sorted_lengths) - sorted_lengths) * n // (2 * total)).tolist()
    groups, first = [], 0
    for i, length in enumerate(sorted_lengths.tolist()):
        if i > first and (share[i] != share[first] or (i + 1 - first) * length > tokens):
            groups.append(by_length[first:i])
            first = i
    groups.append(by_length[first:])
    return groups


def _chunk(
    encoded: Encoded,
    examples: np.ndarray,
    weights: np.ndarray,
    lengths: np.ndarray,
    starts: np.ndarray,
    used: np.ndarray,
    orders: np.ndarray | None,
) -> Chunk:
    """The sequences that `SequenceBuilder.assemble` would make, in one array
    (test_train.py::test_training_reads_what_answers_are_given_from)."""
    question = encoded.question[examples]
    n_options = encoded.n_options[question]
    ids = np.full((len(examples), lengths.max()), encoded.pad, np.int64)
    options = np.arange(n_options.max()) < n_options[:, None]
    markers, targets = np.zeros(options.shape, np.int64), np.zeros(options.shape, np.float32)
    rows = zip(
        examples.tolist(), question.tolist(), n_options.tolist(), lengths.tolist(), starts.tolist(), used.tolist(),
        strict=True,
    )  # fmt: skip
    for i, (example, asked, k, length, start, n_state) in enumerate(rows):
        target: tuple[float, ...] | np.ndarray = encoded.targets[example]
        prefix_ids, at = encoded.prefix_arrays[asked]
        if orders is not None:
            order = orders[i, :k]
            prefix_ids, at = in_order(prefix_ids, at, order)
            target = np.array(target)[order]
        n = len(prefix_ids)
        if n < length:
            ids[i, :n] = prefix_ids
            ids[i, n : n + n_state] = encoded.ids[start : start + n_state]
            ids[i, length - 1] = encoded.sep
        else:  # a question that leaves no room is cut itself
            ids[i, :length] = prefix_ids[:length]
        markers[i, :k], targets[i, :k] = at, target
    return Chunk(
        ids, lengths.astype(np.int64), markers, options, encoded.kinds[question], targets,
        weights[examples].astype(np.float32), examples,
    )  # fmt: skip


def in_order(ids: np.ndarray, markers: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A prefix with its options in another order: ids [n_tokens] and markers [n_options], of which place i shows option
    order[i]."""
    ends = np.append(markers[1:], len(ids) - 1)
    parts = [ids[markers[option] : ends[option]] for option in order]
    lengths = [len(part) for part in parts]
    at = markers[0] + np.cumsum([0, *lengths[:-1]])
    return np.concatenate([ids[: markers[0]], *parts, ids[-1:]]), at
