"""The public face of a loaded model: open it, ask it. The work is done in engine.py and compiled.py."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .compiled import CompiledQuestions, compiled_questions, decided, prepared_questions, public_names
from .core import border
from .errors import IsaError
from .files import places
from .runtime.cpus import available_cpus, checked_threads
from .runtime.engine import Engine, memory
from .runtime.precision import EXACT, INT8, PRECISIONS
from .runtime.thresholds import thresholds_of
from .values import whole_number

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .files.config import ModelConfig, ModelSource
    from .schema import MinConfidence, Questions, Response
    from .text.sequence import Sequence

ISA_VARIABLE = "SKYINFER_ISA"

# Holds the tables of small models. A much larger one would be read from memory for every token, for little. With 8-bit
# weights a table would soon be larger than all of them: only the smallest models have one, which are chosen for speed.
TOKEN_TABLE_BYTES = {EXACT: 16 << 20, INT8: 1 << 19}


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    isa: str | None = None,
    threads: int | None = None,
    temperature_clamp: bool = True,
    token_table_bytes: int | None = None,
    grow: bool = False,
    precision: str = EXACT,
) -> Model:
    """Open a model: a GGUF file of llama.cpp's or skyinfer's converter, or a checkpoint directory.

    Args:
        path: the file or directory; or a string that names a model: "s1-pico" (the default) or "s2-pico", which come
            with skyinfer and fly a drone, or a repository of the Hugging Face hub, OWNER/NAME[@REVISION] with
            :FILE.gguf or :FOLDER behind it where it holds several models (docs/models.md). A path that exists wins.
        isa: the instruction set to run, one of ``skyinfer.info()["isa"]["supported"]``. Default: the environment
            variable SKYINFER_ISA, or else the strongest that this CPU runs.
        threads: that one call may use. Default: 1 for models under four million parameters, and for larger ones the
            CPUs that this process may really use, by its affinity and its cgroup's quota. Calls that run at the same
            time divide them. Answers are the same, bit by bit, for any number.
        temperature_clamp: confine temperatures to [0.5, 5] as the Laya runtime does; False takes the file's raw
            values, as llama.cpp does.
        token_table_bytes: the first layer's queries, keys and values depend on the token id alone, and are tabulated
            at load where the table (12 bytes * vocabulary * hidden size) is not larger than this. 0 keeps no table.
            Answers are the same. Default: 16 MB, and 512 KB for "int8".
        grow: answer questions whose options do not fit into the model's `max_tokens`, in a longer sequence; such an
            answer has ``x_grown``. The Laya runtime refuses them, and so does skyinfer by default.
        precision: "exact", the numbers of the file, or "int8": weights of layers and blocks, and an embedding of more
            than 32 MB, in 8 bits, which take a quarter of the memory of F32 and, from some millions of parameters on,
            a third to two fifths of the time where the CPU multiplies bytes (VNNI), and answers that are near the exact
            ones (docs/compat.md). The smallest models save a tenth to a fifth.

    Raises:
        FormatError: the file or checkpoint is faulty, or is a pipe or device; the message names the key, tensor or
            file. Or the path is empty or holds a NUL character.
        HubError: a model of the hub cannot be had; an OSError that says what was looked for and what to do.
        IsaError: the instruction set is unknown or cannot run here.
        OSError: the path cannot be read.
        ValueError: `threads`, `token_table_bytes` or `precision` is none of those.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision: expected one of {', '.join(PRECISIONS)}, got {precision!r}")
    # the numbers of a file are read and dequantized in Python, too
    with border.DefaultFloatMode(), open_source(path) as source:
        engine = Engine(
            source,
            isa=chosen_isa(isa),
            threads=checked_threads(threads),
            temperature_clamp=temperature_clamp,
            token_table_bytes=_checked_bytes(token_table_bytes, precision),
            grow=grow,
            precision=precision,
        )
        model = object.__new__(Model)
        model.path, model.config, model._engine = source.path, engine.config, engine
        return model


@contextmanager
def open_source(path: str | os.PathLike[str] | None) -> Iterator[ModelSource]:
    """The GGUF file or checkpoint directory that `path` names, closed at the end of the block. Raises as `load`."""
    place = places.find(path)
    if place.path.is_dir():
        from .files.checkpoint import Checkpoint

        with Checkpoint.open(place.path, name=place.name) as checkpoint:
            yield checkpoint
    else:
        from .files.gguf import GGUFFile

        with GGUFFile.open(place.path) as file:
            yield file


def memory_of(source: ModelSource) -> dict[str, dict[str, Any]]:
    """What `load` would keep in memory of an open source, by precision, as it runs where nothing else is asked for.

    As `runtime.engine.memory` gives it; no weight is read. Raises as that, and as `chosen_isa`.
    """
    isa = chosen_isa()
    return {
        precision: memory(source, isa=isa, token_table_bytes=TOKEN_TABLE_BYTES[precision], precision=precision)
        for precision in PRECISIONS
    }


def _checked_bytes(n: int | None, precision: str) -> int:
    if n is None:
        return TOKEN_TABLE_BYTES[precision]
    return min(whole_number(n, "token_table_bytes", 0), 1 << 62)  # what the core counts in


def chosen_isa(isa: str | None = None) -> str:
    """The instruction set that a model loaded now would run: `isa`, or SKYINFER_ISA, or the strongest.

    Raises:
        IsaError: the one asked for is unknown or cannot run on this CPU.
    """
    names = border.isa_names()
    supported = [name for name in names if border.isa_supported(name)]
    asked = isa or os.environ.get(ISA_VARIABLE) or supported[-1]
    if asked not in supported:
        source = "isa" if isa else ISA_VARIABLE
        fault = "this CPU cannot run" if asked in names else "this build does not know"
        raise IsaError(f"{source}={asked!r}: an instruction set that {fault}; use one of {', '.join(supported)}")
    return asked


class Model:
    """A decision model in memory. Immutable, and safe to use from several threads at once.

    It stays in its process: to pickle or copy one is a TypeError. After a fork, or in a pool of processes, each process
    loads the model; the file's pages are shared between them.

    Attributes:
        path: the file or directory.
        config: sizes and constants of the model.
    """

    if TYPE_CHECKING:
        path: Path
        config: ModelConfig
        _engine: Engine

    def __init__(self) -> None:
        """Made by `skyinfer.load` alone."""
        raise TypeError("a skyinfer.Model is made by skyinfer.load")

    def __dir__(self) -> list[str]:
        return public_names(self)

    @property
    def name(self) -> str:
        """The name in the model's file, or else the file's own; `model` of an answer."""
        return self.config.name

    @property
    def architecture(self) -> str:
        """ "s1" puts each question, its options and the state into one sequence; "s2" reads the state once for all."""
        return self.config.architecture

    @property
    def threads(self) -> int:
        """How many threads one call may use."""
        return self._engine.threads

    @property
    def isa(self) -> str:
        """The instruction set that this model runs."""
        return self._engine.core.isa

    @property
    def precision(self) -> str:
        """ "exact" or "int8": see `skyinfer.load`."""
        return self._engine.precision

    @property
    def engine(self) -> Engine:
        """What computes, for hosts such as a server, which read, run and answer at different times."""
        return self._engine

    def __repr__(self) -> str:
        weights = ", ".join(self._engine.core.parameters)
        runs = f"{self.isa}, {self.precision}, weights in {weights}"
        return f"<skyinfer.Model {self.name!r} from {os.fspath(self.path)!r}, {runs}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a skyinfer.Model cannot be pickled or copied; load it in each process: "
            f"skyinfer.load({os.fspath(self.path)!r})"
        )

    def decide(
        self,
        state: Any,
        questions: Questions,
        *,
        temperature_clamp: bool | None = None,
        timing: bool = False,
        min_confidence: MinConfidence | None = None,
    ) -> Response:
        """Answer typed questions about a state. Recently seen questions are kept tokenized.

        Args:
            state: a string, or anything that JSON can hold; a list is read as turns, newest last.
            questions: by id, as in the body of POST /v1/systemone (`skyinfer.Questions`).
            temperature_clamp: overrides what the model was loaded with, for this call.
            timing: adds ``micros``, the wall time of the call in microseconds.
            min_confidence: a probability. Answers whose most probable option has less get ``x_abstained``, and are
                there all the same. Or such numbers by type and number of options: ``{"choice:3-5": 0.8, "default":
                0.6}``, with 2, 3-5, 6-10 and 11+ options (docs/requests.md).

        Returns:
            ``{"model", "answers", "usage"}`` (`skyinfer.Response`), answers in the order of the questions.
            Probabilities are not rounded. Fields of skyinfer's own start with ``x_``: ``x_truncated`` where the state
            did not fit, ``x_options`` where options were cut to the same tokens, ``x_ignored`` where a question has
            fields that mean nothing, of which there is a warning, too.

        Raises:
            RequestError: what was asked cannot be answered; says where and what to change.
            FormatError: a score is NaN or infinite, so the model's weights are faulty.
        """
        start = time.perf_counter_ns()
        thresholds = thresholds_of(min_confidence)
        result = decided(self._engine, prepared_questions(self._engine, questions), state, temperature_clamp)
        if thresholds is not None:
            thresholds.mark(result)
        if timing:
            result["micros"] = (time.perf_counter_ns() - start) / 1000
        return result

    def decide_many(
        self,
        states: Iterable[Any],
        questions: Questions,
        *,
        temperature_clamp: bool | None = None,
        min_confidence: MinConfidence | None = None,
    ) -> list[Response]:
        """Answer the same questions about each state: bit by bit what `decide` gives for one, in fewer forward passes.

        Raises:
            RequestError: as `decide`; where a state is at fault, the path is ("states", its number).
            FormatError: as `decide`.
        """
        compiled = self.compile(questions)
        return compiled.many(states, temperature_clamp=temperature_clamp, min_confidence=min_confidence)

    def decide_long(
        self,
        state: Any,
        questions: Questions,
        window: int | None = None,
        stride: int | None = None,
        *,
        temperature_clamp: bool | None = None,
        timing: bool = False,
    ) -> Response:
        """Answer questions about a state that may be longer than the model reads, in overlapping windows of it.

        As the Laya runtime's `predict_long`: each question is asked about each window, in shared forward passes. A
        noul's answer is that of the window with the highest probability, a choice's or score's that of the most
        certain one. Its probabilities are that window's and not calibrated for the whole text.

        Args:
            state, questions, temperature_clamp, timing: as for `decide`.
            window: tokens of a window; see `runtime.windows.scan_of`. Default: as long as the model's limits suggest,
                and a state for which there is room is read at once, as by `decide`.
            stride: tokens from the beginning of a window to that of the next. Default: half a window.

        Returns:
            As `decide`; ``usage.x_windows`` counts the windows, and where there is more than one, each answer has
            ``x_window``: ``{"index", "token_start", "token_end", "count"}``, positions in the tokenized state.

        Raises:
            RequestError: as `decide`; or the options leave no room for a state, or `window` or `stride` is no positive
                whole number, or the stride is longer than the window.
            FormatError: as `decide`.
        """
        compiled = self.compile(questions)
        return compiled.long(state, window, stride, temperature_clamp=temperature_clamp, timing=timing)

    def compile(self, questions: Questions) -> CompiledQuestions:
        """Tokenize questions once, for a loop that asks them about one state after another.

        Raises:
            RequestError: as `decide`.
        """
        return compiled_questions(self._engine, prepared_questions(self._engine, questions))

    def encode(self, state: Any, questions: Questions) -> dict[Any, Sequence]:
        """What the model would read, by question id (`skyinfer.text.sequence.Sequence`): ids, markers, what was cut.

        Raises:
            RequestError: as `decide`.
        """
        prepared = prepared_questions(self._engine, questions)
        return dict(zip(prepared.ids, prepared.sequences(prepared.read(state)), strict=True))

    def logits(self, state: Any, questions: Questions) -> dict[Any, NDArray[np.float32]]:
        """Raw scores by question id: float32 [n_options], in the order of the options, before temperature and softmax.

        Raises:
            RequestError: as `decide`.
            FormatError: a score is NaN or infinite, so the model's weights are faulty.
        """
        return self.compile(questions).logits(state)

    def activations(self, state: Any, questions: Questions) -> dict[str, NDArray[np.float32]]:
        """Every activation of one forward pass by name, float32 [rows, width], for comparing runtimes.

        Names are those of tests/reference.py; rows are the tokens of all questions end to end, or their markers.
        Nothing is checked: of faulty weights these show where the first NaN comes from.

        Raises:
            RequestError: as `decide`.
        """
        return self.compile(questions).activations(state)


def info() -> dict[str, Any]:
    """Version, CPU and instruction sets: what is built in, what this CPU runs, which one a model would run now.

    Raises:
        IsaError: SKYINFER_ISA asks for one that is unknown or cannot run here.
    """
    import platform

    from . import __version__

    names = border.isa_names()
    return {
        "version": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cpus": available_cpus(),
        "isa": {
            "built_in": names,
            "supported": [name for name in names if border.isa_supported(name)],
            "selected": chosen_isa(),
        },
        "precision": {"supported": list(PRECISIONS), "selected": EXACT},
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
