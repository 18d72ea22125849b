"""A loaded model: text to ids, ids to scores, scores to answers, each done by a room of its own and joined here."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core
from .answer import CLAMP, Temperatures, in_option_order, response
from .config import ModelConfig, ModelSource
from .errors import FormatError, IsaError
from .schema import QUESTION_TYPES, Question, parse_questions
from .sequence import Sequence, SequenceBuilder
from .template import PromptTemplate
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from .schema import Questions, Response

ISA_VARIABLE = "SKYINFER_ISA"

# Holds the tables of small models. A much larger one would be read from memory for every token, for little.
TOKEN_TABLE_BYTES = 16 << 20

# One forward pass takes at most this many tokens of a request, so that a huge request does not take huge buffers.
# Beyond a few hundred tokens a longer batch is no faster, and splitting never changes an answer.
_BATCH_TOKENS = 2048


def load(
    path: str | os.PathLike[str],
    *,
    isa: str | None = None,
    temperature_clamp: bool = True,
    token_table_bytes: int = TOKEN_TABLE_BYTES,
) -> Model:
    """Open a model: a GGUF file of llama.cpp's or skyinfer's converter, or a Laya checkpoint directory.

    Args:
        path: the file or directory.
        isa: the instruction set to run, one of ``skyinfer.info()["isa"]["supported"]``. Default: the environment
            variable SKYINFER_ISA, or else the strongest that this CPU runs.
        temperature_clamp: confine temperatures to [0.5, 5] as the Laya runtime does; False takes the file's raw
            values, as llama.cpp does.
        token_table_bytes: the first layer's queries, keys and values depend on the token id alone, and are tabulated at
            load where the table (12 bytes * vocabulary * hidden size) is not larger than this. 0 keeps no table. Answers
            are the same.

    Raises:
        FormatError: the file or checkpoint is faulty; the message names the key, tensor or file.
        IsaError: the instruction set is unknown or cannot run here.
        OSError: the path cannot be read.
    """
    with open_source(Path(path)) as source:
        return Model(source, isa=isa, temperature_clamp=temperature_clamp, token_table_bytes=token_table_bytes)


@contextmanager
def open_source(path: Path) -> Iterator[ModelSource]:
    """The GGUF file or checkpoint directory at `path`, closed at the end of the block. Raises as `load`."""
    if path.is_dir():
        from .checkpoint import Checkpoint

        with Checkpoint.open(path) as checkpoint:
            yield checkpoint
    else:
        from .gguf import GGUFFile

        with GGUFFile.open(path) as file:
            yield file


def chosen_isa(isa: str | None = None) -> str:
    """The instruction set that a model loaded now would run: `isa`, or SKYINFER_ISA, or the strongest.

    Raises:
        IsaError: the one asked for is unknown or cannot run on this CPU.
    """
    names = _core.isa_names()
    supported = [name for name in names if _core.isa_supported(name)]
    asked = isa or os.environ.get(ISA_VARIABLE) or supported[-1]
    if asked not in supported:
        source = "isa" if isa else ISA_VARIABLE
        fault = "this CPU cannot run" if asked in names else "this build does not know"
        raise IsaError(f"{source}={asked!r}: an instruction set that {fault}; use one of {', '.join(supported)}")
    return asked


class Model:
    """A decision model in memory. Immutable, and safe to use from several threads at once."""

    def __init__(
        self,
        source: ModelSource,
        *,
        isa: str | None = None,
        temperature_clamp: bool = True,
        token_table_bytes: int = TOKEN_TABLE_BYTES,
    ) -> None:
        self.config = ModelConfig.from_source(source)
        self.path = source.path
        tokenizer = Tokenizer.from_metadata(source.metadata, self.config)
        template = PromptTemplate.from_metadata(
            source.metadata, cls=tokenizer.cls_text, sep=tokenizer.sep_text, mask=tokenizer.mask_text
        )
        self._builder = SequenceBuilder(tokenizer, template, self.config.max_tokens, self.config.max_head_tokens)
        self._temperatures = {clamp: Temperatures(self.config.temperatures, clamp) for clamp in (True, False)}
        self._temperature_clamp = temperature_clamp
        if temperature_clamp:
            self._warn_of_clamped_temperatures()
        self._core = _pack(source, self.config, chosen_isa(isa), token_table_bytes)
        self._idle_plans: list[_core.CorePlan] = []
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def isa(self) -> str:
        """The instruction set that this model runs."""
        return self._core.isa

    def __repr__(self) -> str:
        return f"<skyinfer.Model {self.name!r} from {os.fspath(self.path)!r}, {self.isa}>"

    def decide(
        self,
        state: Any,
        questions: Questions,
        *,
        temperature_clamp: bool | None = None,
        timing: bool = False,
    ) -> Response:
        """Answer typed questions about a state.

        Args:
            state: a string, or anything that JSON can hold; a list is read as turns, newest last.
            questions: by id, as in the body of POST /v1/systemone (`skyinfer.schema.Questions`).
            temperature_clamp: overrides what the model was loaded with, for this call.
            timing: adds ``micros``, the wall time of the call in microseconds.

        Returns:
            ``{"model", "answers", "usage"}`` (`skyinfer.schema.Response`), answers in the order of the questions.
            Probabilities are not rounded. Fields of skyinfer's own start with ``x_``: ``x_truncated`` where the state
            did not fit, ``x_options`` where options were cut to the same tokens.

        Raises:
            RequestError: what was asked cannot be answered; says where and what to change.
        """
        start = time.perf_counter_ns()
        clamp = self._temperature_clamp if temperature_clamp is None else bool(temperature_clamp)
        parsed = parse_questions(questions)
        sequences = self._builder.build(state, parsed)
        rows = (row.tolist() for row in self._run(parsed, sequences))
        result = response(self.name, parsed, sequences, rows, self._temperatures[clamp])
        if timing:
            result["micros"] = (time.perf_counter_ns() - start) / 1000
        return result

    def encode(self, state: Any, questions: Questions) -> dict[Any, Sequence]:
        """What the model would read, by question id: token ids, markers, what was cut (`skyinfer.sequence.Sequence`).

        Raises:
            RequestError: as `decide`.
        """
        return self._builder.encode(state, questions)

    def logits(self, state: Any, questions: Questions) -> dict[Any, np.ndarray]:
        """Raw scores by question id: float32 [n_options], in the order of the options, before temperature and softmax.

        Raises:
            RequestError: as `decide`.
        """
        parsed = parse_questions(questions)
        rows = self._run(parsed, self._builder.build(state, parsed))
        return {
            question.id: np.array(in_option_order(question, row), np.float32)
            for question, row in zip(parsed, rows, strict=True)
        }

    def activations(self, state: Any, questions: Questions) -> dict[str, np.ndarray]:
        """Every activation of one forward pass by name, float32 [rows, width], for comparing runtimes.

        Names are those of tests/reference.py; rows are the tokens of all questions end to end, or their markers.
        """
        parsed = parse_questions(questions)
        trace: dict[str, np.ndarray] = {}
        self._run(parsed, self._builder.build(state, parsed), trace)
        return trace

    def _run(
        self, questions: list[Question], sequences: list[Sequence], trace: dict[str, np.ndarray] | None = None
    ) -> list[np.ndarray]:
        """Logits of each sequence in slot order, float32 [n_options]."""
        work = [
            (sequence.ids, sequence.markers, QUESTION_TYPES.index(question.type))
            for question, sequence in zip(questions, sequences, strict=True)
        ]
        logits: list[np.ndarray] = []
        while work:
            batch = _take_batch(work)
            del work[: len(batch)]
            with self._plan_for(batch) as plan:
                logits += plan.run(batch, trace)
        return logits

    @contextmanager
    def _plan_for(self, batch: list[tuple[list[int], list[int], int]]) -> Iterator[_core.CorePlan]:
        """An idle plan that holds the batch, or a new one; idle again afterwards."""
        n_tokens = sum(len(ids) for ids, _, _ in batch)
        n_markers = sum(len(markers) for _, markers, _ in batch)
        with self._lock:
            plan = self._idle_plans.pop() if self._idle_plans else None
        if plan is None or not plan.holds(n_tokens, len(batch), n_markers, self.config.max_tokens):
            plan = _core.CorePlan(
                self._core,
                n_tokens=_round_up(n_tokens, 256),
                n_sequences=_round_up(len(batch), 16),
                n_markers=_round_up(n_markers, 64),
                sequence_tokens=self.config.max_tokens,
            )
        try:
            yield plan
        finally:
            with self._lock:
                self._idle_plans.append(plan)

    def _warn_of_clamped_temperatures(self) -> None:
        low, high = CLAMP
        outside = {key: value for key, value in self.config.temperatures.items() if not low <= value <= high}
        if outside:
            changes = ", ".join(f"{key} {value:g} -> {min(high, max(low, value)):g}" for key, value in outside.items())
            warnings.warn(
                f"{self.path}: temperatures outside [{low:g}, {high:g}] are clamped, as Laya does: {changes}",
                RuntimeWarning,
                stacklevel=4,
            )


def _round_up(n: int, multiple: int) -> int:
    return max(1, -(-n // multiple)) * multiple


def _take_batch(work: list[tuple[list[int], list[int], int]]) -> list[tuple[list[int], list[int], int]]:
    """As many sequences from the front as fit into one forward pass; at least one."""
    total = 0
    for i, (ids, _, _) in enumerate(work):
        total += len(ids)
        if i and total > _BATCH_TOKENS:
            return work[:i]
    return work[:]


def _pack(source: ModelSource, config: ModelConfig, isa: str, token_table_bytes: int) -> _core.CoreModel:
    """Every tensor of the file, packed for one instruction set."""
    core = _core.CoreModel(
        d_model=config.d_model,
        d_ff=config.d_ff,
        n_vocab=config.vocab_size,
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        n_head_blocks=config.n_head_blocks,
        n_head_heads=config.n_head_heads,
        window=config.window,
        max_positions=config.max_tokens,
        norm_eps=config.norm_eps,
        rope_base_global=config.rope_base_global,
        rope_base_local=config.rope_base_local,
        silu=config.activation == "silu",
        layer_is_global=config.layer_is_global,
        qkv_table_bytes=token_table_bytes,
        isa=isa,
    )
    for name in config.expected_tensors():
        try:
            core.set(name, np.ascontiguousarray(source.tensor(name)))
        except ValueError as error:
            raise FormatError(f"{source.path}: {error}") from error
    core.freeze()
    return core


def info() -> dict[str, Any]:
    """Version, CPU and instruction sets: what is built in, what this CPU runs, which one a model would run now.

    Raises:
        IsaError: SKYINFER_ISA asks for one that is unknown or cannot run here.
    """
    import platform

    from . import __version__

    names = _core.isa_names()
    return {
        "version": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "isa": {
            "built_in": names,
            "supported": [name for name in names if _core.isa_supported(name)],
            "selected": chosen_isa(),
        },
    }


def _cpu_name() -> str:
    import platform

    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
