"""What a loaded model computes with: the sequence builder, the packed weights, and idle plans for its threads.

Model (model.py) and CompiledQuestions (compiled.py) are two faces of one engine. Text is left to sequence.py, answers
to answer.py.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise

import numpy as np

from . import _core
from .answer import CLAMP, Temperatures, clamped
from .config import ModelConfig, ModelSource
from .cpus import available_cpus
from .errors import FormatError
from .sequence import SequenceBuilder, longest_grown
from .template import PromptTemplate
from .tokenizer import Tokenizer

# What one forward pass takes: token ids, marker positions, and the question type's number.
Work = tuple[list[int], list[int], int]

# Parameters from which threads pay for themselves: in loading, and in a forward pass.
_PARALLEL_PACKING = _PARALLEL_PASS = 4_000_000
_MOST_THREADS = 256  # of a plan

# One forward pass takes at most this many tokens of a request, so that a huge request does not take huge buffers.
# Beyond a few hundred tokens a longer batch is no faster, and splitting never changes an answer.
_BATCH_TOKENS = 2048


class Engine:
    """A model in memory. Immutable but for its pool of idle plans, and safe to share between threads.

    Attributes:
        config: sizes and constants.
        builder: from questions and states to sequences.
        core: the packed weights.
        threads: that one forward pass may use.
        temperature_clamp: what `temperatures` takes for None.
    """

    def __init__(
        self,
        source: ModelSource,
        *,
        isa: str,
        threads: int | None,
        temperature_clamp: bool,
        token_table_bytes: int,
        grow: bool = False,
    ) -> None:
        self.config = config = ModelConfig.from_source(source)
        self.threads = threads or _default_threads(self.config)
        tokenizer = Tokenizer.from_metadata(source.metadata, self.config)
        template = PromptTemplate.from_metadata(
            source.metadata, cls=tokenizer.cls_text, sep=tokenizer.sep_text, mask=tokenizer.mask_text
        )
        longest = longest_grown(config.max_tokens, config.context_tokens) if grow else None
        self.builder = SequenceBuilder(tokenizer, template, config.max_tokens, config.max_head_tokens, longest)
        self.temperature_clamp = temperature_clamp
        self._temperatures = {clamp: Temperatures(self.config.temperatures, clamp) for clamp in (True, False)}
        if temperature_clamp:
            self._warn_of_clamped_temperatures(source)
        self.core = _pack(source, config, isa, token_table_bytes, longest or config.max_tokens)
        self._idle_plans: list[_core.CorePlan] = []
        self._running = 0
        self._lock = threading.Lock()

    def temperatures(self, clamp: bool | None = None) -> Temperatures:
        """Clamped as the Laya runtime does, or the file's own; None: as the model was loaded."""
        return self._temperatures[self.temperature_clamp if clamp is None else bool(clamp)]

    def run(self, work: list[Work], trace: dict[str, np.ndarray] | None = None) -> list[np.ndarray]:
        """Logits of each sequence, float32 [n_markers]. `trace`, all in one pass, is filled with every activation."""
        logits: list[np.ndarray] = []
        borders = _batch_borders(work) if trace is None else [0, len(work)]
        for begin, end in pairwise(borders):
            batch = work[begin:end]
            with self._plan_for(batch) as plan, self.share_of_threads() as n_threads:
                logits += plan.run(batch, trace, n_threads)
        return logits

    @contextmanager
    def share_of_threads(self) -> Iterator[int]:
        """How many threads a pass that begins now may use: those that run at once divide them; at least 1."""
        with self._lock:
            self._running += 1
            share = max(1, self.threads // self._running)
        try:
            yield share
        finally:
            with self._lock:
                self._running -= 1

    @contextmanager
    def _plan_for(self, batch: list[Work]) -> Iterator[_core.CorePlan]:
        """An idle plan that holds the batch, or a new one; idle again afterwards."""
        n_tokens = sum(len(ids) for ids, _, _ in batch)
        longest = max(self.config.max_tokens, max(len(ids) for ids, _, _ in batch))
        n_markers = sum(len(markers) for _, markers, _ in batch)
        with self._lock:
            plan = self._idle_plans.pop() if self._idle_plans else None
        if plan is None or not plan.holds(n_tokens, len(batch), n_markers, longest):
            plan = _core.CorePlan(
                self.core,
                n_tokens=_round_up(n_tokens, 256),
                n_sequences=_round_up(len(batch), 16),
                n_markers=_round_up(n_markers, 64),
                sequence_tokens=longest,
                n_threads=self.threads,
            )
        try:
            yield plan
        finally:
            with self._lock:
                self._idle_plans.append(plan)

    def _warn_of_clamped_temperatures(self, source: ModelSource) -> None:
        low, high = CLAMP
        temperatures = self.config.temperatures.items()
        changes = ", ".join(
            f"{key} {value:g} -> {clamped(value):g}" for key, value in temperatures if clamped(value) != value
        )
        if changes:
            warnings.warn(
                f"{source.path}: temperatures outside [{low:g}, {high:g}] are clamped, as Laya does: {changes}",
                RuntimeWarning,
                stacklevel=5,
            )


def _default_threads(config: ModelConfig) -> int:
    """One for a model whose pass is over before threads are awake, all that there are for larger ones."""
    size = sum(map(math.prod, config.expected_tensors().values()))
    return 1 if size < _PARALLEL_PASS else min(available_cpus(), _MOST_THREADS)


def _round_up(n: int, multiple: int) -> int:
    return max(1, -(-n // multiple)) * multiple


def _batch_borders(work: list[Work]) -> list[int]:
    """Where to cut the work so that each piece fits into one forward pass: 0, the borders, its length."""
    borders, total = [0], 0
    for i, (ids, _, _) in enumerate(work):
        total += len(ids)
        if total > _BATCH_TOKENS and i > borders[-1]:
            borders.append(i)
            total = len(ids)
    return [*borders, len(work)] if work else []


def _pack(source: ModelSource, config: ModelConfig, isa: str, token_table_bytes: int, longest: int) -> _core.CoreModel:
    """Every tensor of the file, packed for one instruction set and for sequences of up to `longest` tokens."""
    core = _core.CoreModel(
        d_model=config.d_model,
        d_ff=config.d_ff,
        n_vocab=config.vocab_size,
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        n_head_blocks=config.n_head_blocks,
        n_head_heads=config.n_head_heads,
        window=config.window,
        max_positions=longest,
        norm_eps=config.norm_eps,
        rope_base_global=config.rope_base_global,
        rope_base_local=config.rope_base_local,
        silu=config.activation == "silu",
        layer_is_global=config.layer_is_global,
        qkv_table_bytes=token_table_bytes,
        isa=isa,
    )

    def pack(name: str) -> None:
        values, dtype = source.stored(name)
        try:
            core.set(name, values, dtype)
        except ValueError as error:
            raise FormatError(f"{source.path}: tensor {error}") from error
        source.release(name)

    names = config.expected_tensors()
    # threads pay for themselves from some megabytes on
    if sum(map(math.prod, names.values())) < _PARALLEL_PACKING:
        for name in names:
            pack(name)
    else:
        with ThreadPoolExecutor(available_cpus()) as pool:
            for done in [pool.submit(pack, name) for name in names]:
                done.result()
    core.freeze()
    return core
