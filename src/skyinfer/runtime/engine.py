"""What a loaded model computes with: sequence builder, packed weights, prepared questions, idle plans for its threads.

Model (model.py) and CompiledQuestions (compiled.py) are two faces of one engine; a server uses the engine itself
(`Model.engine`). Text is left to sequence.py, questions and answers to prepared.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np

from ..core import border
from ..errors import FormatError, of_model, warn
from ..files.config import ModelConfig, ModelSource
from ..files.temperatures import CLAMP, Temperatures, clamped
from ..files.tensors import ALL_ROWS, stored_dtype, stored_items
from ..schema import Question
from ..text.option_sequences import BUILDERS
from ..text.sequence import longest_grown
from ..text.template import PromptTemplate
from ..text.tokenizer import Tokenizer
from .cpus import MAX_THREADS, available_cpus
from .precision import EXACT
from .prepared import Prepared, PreparedCache

# Parameters from which threads pay for themselves: all of them in loading, those that every token is multiplied by in a
# forward pass.
_PARALLEL_PACKING = _PARALLEL_PASS = 4_000_000

# Matrices of 16 bits are widened when they are loaded where all of them take no more so: they stay in the caches.
_WIDENED_BYTES = 2 << 20

# With a large vocabulary this tensor is much larger than any other. It is packed by so many rows, some megabytes, so
# that neither its pages of the file nor its numbers, where they have to be dequantized, are in memory at once.
_EMBEDDING, _ROWS_AT_ONCE = "token_embd.weight", 4096

# One forward pass takes at most this many tokens, or one sequence; splitting never changes an answer. A pass of a small
# model is short enough for its activations to stay in the second-level cache: 2048 tokens took 1.08 times as long with
# nano, 1.02 with s1-pico. Every pass of a large one reads its weights from memory, and in s2 every pass of a request
# reads the state anew.
_PASS_TOKENS, _SHORT_PASS_TOKENS = 2048, 512
_UNLIMITED = (1 << 31) - 1

# What is kept of question sets, the last used longest: all of a model's together, and one. A set of s2 takes much
# longer to make anew, and has two vectors for each option.
_PREPARED_BYTES = {"s1": (16 << 20, 2 << 20), "s2": (64 << 20, 16 << 20)}


class Engine:
    """A model in memory. Immutable but for idle plans and prepared questions; safe to share between threads.

    Attributes:
        config: sizes and constants.
        builder: from questions and states to sequences.
        core: the packed weights.
        threads: that one forward pass may use.
        precision: one of `precision.PRECISIONS`.
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
        precision: str = EXACT,
    ) -> None:
        self.config = config = ModelConfig.from_source(source)
        self.threads = threads or _default_threads(self.config)
        self.precision = precision
        with of_model(source.path):
            tokenizer = Tokenizer.from_metadata(source.metadata, self.config)
            template = PromptTemplate.from_metadata(
                source.metadata, cls=tokenizer.cls_text, sep=tokenizer.sep_text, mask=tokenizer.mask_text
            )
        source.forget("tokenizer.")  # else it would be in memory beside the weights
        longest = longest_grown(config.max_tokens, config.context_tokens) if grow else None
        make_builder = BUILDERS[config.architecture]
        self.builder = make_builder(tokenizer, template, config.max_tokens, config.max_head_tokens, longest)
        self._temperatures = {
            clamp: Temperatures(config.temperatures, temperature_clamp if clamp is None else clamp)
            for clamp in (True, False, None)
        }
        if temperature_clamp:
            self._warn_of_clamped_temperatures(source)
        self.core = _room_for(source, config, isa, token_table_bytes, self.builder.longest, precision)
        _pack(source, config, self.core, threads or available_cpus())
        # popped from and appended to by any thread, which a list allows
        self._idle_plans: list[border.CorePlan] = []
        self._sizes = (1, 1, 1, self.config.max_tokens)
        short = config.architecture == "s1" and _n_multiplied(config) < _PARALLEL_PASS
        self._pass_tokens = _SHORT_PASS_TOKENS if short else _PASS_TOKENS
        self._prepared = PreparedCache(*_PREPARED_BYTES[config.architecture])

    def prepare(self, questions: list[Question], check: Callable[[int], None] | None = None) -> Prepared:
        """Questions made ready, and not kept.

        Args:
            check: where options are encoded now (s2), it is given the number of their tokens first. What it raises ends
                the work.

        Raises:
            RequestError: a text cannot be tokenized, or options do not fit.
        """
        return Prepared(
            questions,
            self.builder,
            self.core,
            self._temperatures,
            model_name=self.config.name,
            max_tokens=self.config.max_tokens,
            threads=self.threads,
            check=check,
        )

    def prepared(
        self, key: bytes, make: Callable[[], list[Question]], check: Callable[[int], None] | None = None
    ) -> Prepared:
        """The questions that are kept under a key; the first time, or when they were dropped, those that `make` gives.

        Keys are those of all callers together: whoever has keys of another kind begins them with other bytes. Raises
        what `make` does, and as `prepare`.
        """
        found = self._prepared.get(key)
        return self._prepared.put(key, self.prepare(make(), check)) if found is None else found

    def run(
        self, asks: list[border.Ask], out: np.ndarray | None = None, trace: dict[str, np.ndarray] | None = None
    ) -> np.ndarray:
        """The raw score of every option of questions about states, in as few forward passes as it takes.

        Args:
            asks: what `Prepared.ask` gives; of any questions and states, in any order.
            out: float32 [n_options of all asks], which is written and given back; by default a new array.
            trace: filled with every activation, all in one pass.

        Raises:
            ValueError: a token id is outside the vocabulary, or `out` is of another size.
        """
        if trace is not None:
            batch = border.CoreAsks(asks, _UNLIMITED)
            # one pass, however long: its buffers are not kept
            return self._plan(*batch.sizes).run(batch, out, trace) if batch.n_tokens else np.zeros(0, np.float32)
        batch = border.CoreAsks(asks, self._pass_tokens)
        plan = self._take_plan(batch)
        try:
            return plan.run(batch, out)
        finally:
            self._idle_plans.append(plan)

    def stepper(self, prepared: Prepared) -> border.CoreStepper:
        """Buffers of its own for the same questions over and over."""
        return border.CoreStepper(
            prepared.core, prepared.temperatures(), pass_tokens=self._pass_tokens, n_threads=self.threads
        )

    def _take_plan(self, batch: border.CoreAsks) -> border.CorePlan:
        """An idle plan that holds such a batch, or a new one; to be put back among the idle ones after its pass."""
        try:
            plan = self._idle_plans.pop()
        except IndexError:
            pass
        else:
            if plan.holds(batch):
                return plan
        # as large as any so far, or requests of two shapes in turn would make new buffers each time
        n_tokens, n_sequences, n_markers, longest = batch.sizes
        sizes = (_round_up(n_tokens, 256), _round_up(n_sequences, 16), _round_up(n_markers, 64), longest)
        self._sizes = cast("tuple[int, int, int, int]", tuple(map(max, self._sizes, sizes)))
        return self._plan(*self._sizes)

    def _plan(self, n_tokens: int, n_sequences: int, n_markers: int, longest: int) -> border.CorePlan:
        return border.CorePlan(
            self.core,
            n_tokens=n_tokens,
            n_sequences=n_sequences,
            n_markers=n_markers,
            sequence_tokens=longest,
            n_threads=self.threads,
        )

    def _warn_of_clamped_temperatures(self, source: ModelSource) -> None:
        low, high = CLAMP
        temperatures = self.config.temperatures.items()
        changes = ", ".join(
            f"{key} {value:g} -> {clamped(value):g}" for key, value in temperatures if clamped(value) != value
        )
        if changes:
            warn(f"{source.path}: temperatures outside [{low:g}, {high:g}] are clamped, as Laya does: {changes}")


def _n_multiplied(config: ModelConfig) -> int:
    """Parameters that every token is multiplied by."""
    return sum(math.prod(shape) for name, shape in config.expected_tensors().items() if name != _EMBEDDING)


def _default_threads(config: ModelConfig) -> int:
    """One for a model whose pass is over before threads are awake, all that there are for larger ones."""
    return 1 if _n_multiplied(config) < _PARALLEL_PASS else min(available_cpus(), MAX_THREADS)


def _round_up(n: int, multiple: int) -> int:
    return max(1, -(-n // multiple)) * multiple


def memory(source: ModelSource, *, isa: str, token_table_bytes: int, precision: str) -> dict[str, Any]:
    """What a source would take in memory as a model, of which no weight is read.

    Returns:
        `bytes` of packed weights and tables, and how many `parameters` of products and embedding would be of each type:
        what `Engine.core` has as `n_bytes` and `parameters`.

    Raises:
        FormatError: as an engine raises it of keys, and of tensors' names and shapes.
    """
    config = ModelConfig.from_source(source)
    longest = BUILDERS[config.architecture].longest_of(config.max_tokens, config.max_head_tokens)
    core = _room_for(source, config, isa, token_table_bytes, longest, precision, measured=True)
    return {"bytes": core.n_bytes, "parameters": core.parameters}


def _room_for(
    source: ModelSource,
    config: ModelConfig,
    isa: str,
    token_table_bytes: int,
    longest: int,
    precision: str,
    measured: bool = False,
) -> border.CoreModel:
    """Room for every tensor of the file, packed for one instruction set and for sequences of up to `longest` tokens."""
    return border.CoreModel(
        d_model=config.d_model,
        d_ff=config.d_ff,
        n_vocab=config.vocab_size,
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        n_decision_blocks=config.n_decision_blocks,
        n_decision_heads=config.n_decision_heads,
        window=config.window,
        max_positions=longest,
        norm_eps=config.norm_eps,
        rope_base_global=config.rope_base_global,
        rope_base_local=config.rope_base_local,
        activation=config.activation,
        architecture=config.architecture,
        option_layout=config.option_layout,
        layer_is_global=config.layer_is_global,
        qkv_table_bytes=token_table_bytes,
        isa=isa,
        n_cpus=available_cpus(),
        dtypes={name: stored_dtype(info) for name, info in source.tensors.items()},
        widened_bytes=_WIDENED_BYTES,
        precision=precision,
        measured=measured,
    )


def _pack(source: ModelSource, config: ModelConfig, core: border.CoreModel, threads: int) -> None:
    """Sets every tensor of the file. So many threads do it where that pays."""

    def pack(name: str) -> None:
        n_rows, in_parts = names[name][0], name == _EMBEDDING
        step = _ROWS_AT_ONCE if in_parts else n_rows
        for row in range(0, n_rows, step):
            rows = slice(row, row + step) if in_parts else ALL_ROWS
            values, dtype = source.stored(name, rows)
            # a file may have more or fewer dimensions of 1
            values = values.reshape(-1, *(stored_items(dtype, n) for n in names[name][1:]))
            try:
                core.set(name, values, dtype, first_row=row if in_parts else None)
            except ValueError as error:
                message = str(error).replace(name, source.label(name), 1)
                raise FormatError(f"{source.path}: tensor {message}") from error
            source.release(name, rows)

    names = config.expected_tensors()
    # threads pay for themselves from some megabytes on
    if sum(map(math.prod, names.values())) < _PARALLEL_PACKING:
        for name in names:
            pack(name)
    else:
        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(pack, name) for name in names]:
                done.result()
    core.freeze()
