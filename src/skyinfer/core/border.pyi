"""Types of border.pyx, which holds the contracts."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

# token ids, marker positions, row of the type embedding
BatchItem: TypeAlias = tuple[list[int], list[int], int]
Matrix: TypeAlias = npt.NDArray[np.float32]

MAX_BLOCKS: int
MAX_D_MODEL: int
MAX_D_FF: int
MAX_VOCAB: int
MAX_D_HEAD: int
MAX_THREADS: int
N_QUESTION_TYPES: int
DTYPES: dict[str, int]

def isa_names() -> list[str]: ...
def isa_supported(name: str) -> bool: ...
def tensor_shapes(
    *, d_model: int, d_ff: int, n_vocab: int, n_layers: int, n_decision_blocks: int
) -> dict[str, tuple[int, ...]]: ...
def widen_bf16(values: np.ndarray) -> Matrix: ...

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
        silu: bool,
        layer_is_global: Sequence[bool],
        qkv_table_bytes: int = 0,
        isa: str | None = None,
        n_cpus: int = 0,
    ) -> None: ...
    def set(self, name: str, array: np.ndarray, dtype: str = "f32", first_row: int | None = None) -> None: ...
    def freeze(self) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def n_bytes(self) -> int: ...

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
    def holds(self, n_tokens: int, n_sequences: int, n_markers: int, sequence_tokens: int) -> bool: ...
    @property
    def threads(self) -> int: ...
    def run(self, sequences: list[BatchItem], trace: dict[str, np.ndarray] | None = None) -> list[Matrix]: ...
    def run_prefixes(
        self, prefixes: CorePrefixes, first: int, last: int, state_ids: list[int], keep_tail: bool
    ) -> list[list[float]]: ...

class CorePrefixes:
    def __init__(self, heads: list[tuple[Sequence[int], Sequence[int], int, int]], *, sep_id: int) -> None: ...
    @property
    def n(self) -> int: ...
    @property
    def longest(self) -> int: ...
    def n_tokens(self, n_state: int) -> int: ...
    def batch(self, first: int, n_state: int, most_tokens: int) -> tuple[int, int, int]: ...

class CoreStepper:
    def __init__(
        self,
        model: CoreModel,
        prefixes: CorePrefixes,
        temperatures: list[float],
        options: list[list[int]],
        *,
        batch_tokens: int,
        n_threads: int = 1,
    ) -> None: ...
    def step(self, state_ids: list[int], keep_tail: bool, probabilities: Matrix) -> bool: ...
