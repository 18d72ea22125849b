"""Types of border.pyx, which holds the contracts."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ids: TypeAlias = npt.NDArray[np.int32]
# a set, its first question, how many, a state's token ids, whether its end is kept where it does not fit
Ask: TypeAlias = "tuple[CoreQuestions, int, int, Ids, bool]"
Matrix: TypeAlias = npt.NDArray[np.float32]

MAX_BLOCKS: int
MAX_D_MODEL: int
MAX_D_FF: int
MAX_VOCAB: int
MAX_D_HEAD: int
MAX_THREADS: int
N_QUESTION_TYPES: int
ARCHITECTURES: dict[str, int]
ACTIVATIONS: dict[str, int]
OPTION_LAYOUTS: dict[str, int]
Q8_0_BLOCK: int
Q8_0_BYTES: int
PRECISIONS: dict[str, int]
DTYPES: dict[str, int]

def isa_names() -> list[str]: ...
def isa_supported(name: str) -> bool: ...
def tensor_shapes(
    *, d_model: int, d_ff: int, n_vocab: int, n_layers: int, n_decision_blocks: int, architecture: str = "s1"
) -> dict[str, tuple[int, ...]]: ...
def widen_bf16(values: np.ndarray) -> Matrix: ...
def token_ids(ids: Iterable[int]) -> Ids: ...

class DefaultFloatMode:
    def __enter__(self) -> None: ...
    def __exit__(self, *exception: object) -> None: ...

class CoreModel:
    def __init__(
        self,
        *,
        d_model: int,
        d_ff: int,
        n_vocab: int,
        n_layers: int,
        n_heads: int,
        n_decision_blocks: int,
        n_decision_heads: int,
        window: int,
        max_positions: int,
        norm_eps: float,
        rope_base_global: float,
        rope_base_local: float,
        activation: str,
        architecture: str = "s1",
        option_layout: str = "sequential",
        layer_is_global: Sequence[bool],
        qkv_table_bytes: int = 0,
        isa: str | None = None,
        n_cpus: int = 0,
        dtypes: dict[str, str] | None = None,
        widened_bytes: int = 0,
        precision: str = "exact",
        measured: bool = False,
    ) -> None: ...
    def set(self, name: str, array: np.ndarray, dtype: str = "f32", first_row: int | None = None) -> None: ...
    def freeze(self) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def n_bytes(self) -> int: ...
    @property
    def parameters(self) -> dict[str, int]: ...

class CoreQuestions:
    def __init__(
        self,
        model: CoreModel | None,
        prefixes: list[tuple[Sequence[int], Sequence[int], int, int]],
        options: list[list[int]],
        *,
        sep_id: int,
        option_ids: list[tuple[int, ...]] | None = None,
        n_threads: int = 1,
    ) -> None: ...
    @property
    def n(self) -> int: ...
    @property
    def longest(self) -> int: ...
    @property
    def offsets(self) -> Ids: ...
    @property
    def n_bytes(self) -> int: ...
    def n_tokens(self, n_state: int) -> int: ...
    def lengths(self, n_state: int) -> list[int]: ...
    def sequence(self, question: int, state_ids: Ids, keep_tail: bool) -> tuple[list[int], int]: ...
    def probabilities(self, logits: Matrix, temperatures: npt.NDArray[np.float64]) -> list[list[float]] | None: ...
    def write_answers(
        self,
        logits: Matrix,
        n_state: npt.NDArray[np.int64],
        temperatures: npt.NDArray[np.float64],
        probabilities: Matrix,
        labels: npt.NDArray[np.int32],
        values: Matrix,
        confidence: Matrix,
        truncated: npt.NDArray[np.uint8],
    ) -> int: ...

class CoreAsks:
    def __init__(self, asks: list[Ask], pass_tokens: int) -> None: ...
    @property
    def n_tokens(self) -> int: ...
    @property
    def n_markers(self) -> int: ...
    @property
    def sizes(self) -> tuple[int, int, int, int]: ...

class CorePlan:
    def __init__(
        self,
        model: CoreModel,
        *,
        n_tokens: int,
        n_sequences: int,
        n_markers: int,
        sequence_tokens: int,
        n_threads: int = 1,
    ) -> None: ...
    def holds(self, asks: CoreAsks) -> bool: ...
    @property
    def threads(self) -> int: ...
    def run(self, asks: CoreAsks, out: Matrix | None = None, trace: dict[str, np.ndarray] | None = None) -> Matrix: ...

class CoreStepper:
    def __init__(
        self, questions: CoreQuestions, temperatures: npt.NDArray[np.float64], *, pass_tokens: int, n_threads: int = 1
    ) -> None: ...
    def step(self, state_ids: Ids, keep_tail: bool, out: Matrix) -> bool: ...
