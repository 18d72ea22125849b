# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The border to the C core: sizes are checked, the GIL is dropped, and one C call is made.

Shapes and contracts: csrc/skyinfer.h. What the core refuses comes back as ValueError with its message, or as MemoryError.
"""

from cpython.number cimport PyNumber_Index
from libc.string cimport memset

import numpy as np

from ..errors import IsaError

DTYPES = {"f32": SKY_DTYPE_F32, "f16": SKY_DTYPE_F16, "bf16": SKY_DTYPE_BF16}


cdef object _error(sky_status status, const char *message):
    text = message.decode("utf-8", "replace") if message != NULL else ""
    if status == SKY_ERR_MEMORY:
        return MemoryError(text or "out of memory")
    if status == SKY_ERR_ISA:
        return IsaError(text)
    return ValueError(text)


def isa_names() -> list[str]:
    """The instruction sets that were built in, weakest first."""
    names = []
    while sky_isa_name(len(names)) != NULL:
        names.append(sky_isa_name(len(names)).decode())
    return names


def isa_supported(str name not None) -> bool:
    """Whether this CPU and operating system can run the named set."""
    return bool(sky_isa_supported(name.encode()))


cdef class CoreModel:
    """Packed weights; immutable after freeze(), so threads may share it."""

    cdef sky_model *handle

    def __cinit__(self, *, int d_model, int d_ff, int n_vocab, int n_layers, int n_heads, int n_decision_blocks,
                  int n_decision_heads, int window, int max_positions, float norm_eps, float rope_base_global,
                  float rope_base_local, bint silu, layer_is_global, size_t qkv_table_bytes=0, isa=None):
        cdef bytes flags = bytes(bytearray(1 if flag else 0 for flag in layer_is_global))
        cdef bytes isa_name = isa.encode() if isa is not None else b""
        if len(flags) != n_layers:
            raise ValueError(f"layer_is_global: expected {n_layers} flags, got {len(flags)}")
        cdef sky_model_params params
        memset(&params, 0, sizeof(params))
        params.d_model, params.d_ff, params.n_vocab = d_model, d_ff, n_vocab
        params.n_layers, params.n_heads, params.n_decision_blocks = n_layers, n_heads, n_decision_blocks
        params.n_decision_heads, params.window, params.max_positions = n_decision_heads, window, max_positions
        params.norm_eps, params.rope_base_global, params.rope_base_local = norm_eps, rope_base_global, rope_base_local
        params.activation = SKY_ACT_SILU if silu else SKY_ACT_GELU
        params.layer_is_global = <const uint8_t *><const char *>flags
        params.qkv_table_bytes = qkv_table_bytes
        params.isa = <const char *>isa_name if isa is not None else NULL
        cdef sky_status status
        with nogil:
            status = sky_model_create(&params, &self.handle)
        if status != SKY_OK:
            raise _error(status, sky_model_error(self.handle) if self.handle != NULL else NULL)

    def __dealloc__(self):
        sky_model_free(self.handle)

    def set(self, str name not None, array not None, str dtype="f32", first_row=None):
        """Packs one tensor: a C-contiguous array [rows, cols] or [cols]; f16 and bf16 as float16 or uint16.

        With `first_row` it is that row of the embedding and those that follow, after those in front of it.
        """
        cdef bytes c_name = name.encode()
        cdef int64_t rows = array.shape[0] if array.ndim == 2 else 1
        cdef int64_t cols = array.shape[array.ndim - 1]
        if array.ndim not in (1, 2) or not array.flags.c_contiguous:
            raise ValueError(f"{name}: expected a contiguous vector or matrix")
        if array.dtype.itemsize != (4 if dtype == "f32" else 2):
            raise ValueError(f"{name}: {array.dtype} is not {dtype}")
        cdef const uint8_t[::1] data = array.reshape(-1).view(np.uint8)
        cdef sky_dtype c_dtype = DTYPES[dtype]
        cdef bint is_part = first_row is not None
        cdef int64_t first = first_row if is_part else 0
        cdef const char *name_pointer = c_name
        cdef sky_status status
        with nogil:
            if is_part:
                status = sky_model_set_rows(self.handle, name_pointer, c_dtype, first, rows, cols, &data[0])
            else:
                status = sky_model_set(self.handle, name_pointer, c_dtype, rows, cols, &data[0])
        if status != SKY_OK:
            raise _error(status, sky_model_error(self.handle))

    def freeze(self):
        """Checks that every tensor was set; afterwards plans can be made."""
        cdef sky_status status = sky_model_freeze(self.handle)
        if status != SKY_OK:
            raise _error(status, sky_model_error(self.handle))

    @property
    def isa(self) -> str:
        return sky_model_isa(self.handle).decode()

    @property
    def n_bytes(self) -> int:
        """Bytes of packed weights and tables."""
        return sky_model_bytes(self.handle)


cdef int32_t _as_token(object number) except? -1:
    """A whole number as a token id."""
    try:
        return <int32_t>PyNumber_Index(number)
    except OverflowError:
        raise ValueError(f"token id {number} is not in the vocabulary") from None


cdef void _record(void *context, const char *name, const float *data, int rows, int cols, int stride) noexcept with gil:
    cdef const float[:, :] view
    recorded = <object>context
    if rows == 0:
        recorded[name.decode()] = np.zeros((0, cols), np.float32)
        return
    view = <const float[:rows, :stride]>data
    recorded[name.decode()] = np.array(view)[:, :cols].copy()


cdef class CorePlan:
    """Every buffer of a forward pass, for batches within its limits. One thread at a time may run it."""

    cdef sky_plan *handle
    cdef CoreModel model  # lives as long as its plans
    cdef sky_plan_limits limits
    cdef int32_t[::1] token_ids, token_offsets, markers, marker_offsets, question_types, state
    cdef float[::1] logits

    def __cinit__(self, CoreModel model not None, *, int n_tokens, int n_sequences, int n_markers, int sequence_tokens,
                  int n_threads=1):
        self.model = model
        self.limits.n_tokens, self.limits.n_sequences = n_tokens, n_sequences
        self.limits.n_markers, self.limits.sequence_tokens = n_markers, sequence_tokens
        self.limits.n_threads = n_threads
        cdef sky_status status
        with nogil:
            status = sky_plan_create(model.handle, &self.limits, &self.handle)
        if status != SKY_OK:
            raise _error(status, sky_plan_error(self.handle) if self.handle != NULL else NULL)
        self.token_ids = np.zeros(n_tokens, np.int32)
        self.token_offsets = np.zeros(n_sequences + 1, np.int32)
        self.markers = np.zeros(max(n_markers, 1), np.int32)
        self.marker_offsets = np.zeros(n_sequences + 1, np.int32)
        self.question_types = np.zeros(n_sequences, np.int32)
        self.state = np.zeros(sequence_tokens, np.int32)
        self.logits = np.zeros(max(n_markers, 1), np.float32)

    def __dealloc__(self):
        sky_plan_free(self.handle)

    cpdef bint holds(self, int n_tokens, int n_sequences, int n_markers, int sequence_tokens) noexcept:
        """Whether a batch of these sizes is within the limits."""
        return (n_tokens <= self.limits.n_tokens and n_sequences <= self.limits.n_sequences
                and n_markers <= self.limits.n_markers and sequence_tokens <= self.limits.sequence_tokens)

    cdef int forward(self, int n) except -1:
        """One forward pass over the first n sequences of the buffers that a batch is laid out in."""
        cdef sky_batch batch
        cdef sky_status status
        batch.n_sequences = n
        batch.token_ids, batch.token_offsets = &self.token_ids[0], &self.token_offsets[0]
        batch.markers, batch.marker_offsets = &self.markers[0], &self.marker_offsets[0]
        batch.question_types = &self.question_types[0]
        with nogil:
            status = sky_run(self.handle, &batch, &self.logits[0])
        if status != SKY_OK:
            raise _error(status, sky_plan_error(self.handle))
        return 0

    def run(self, list sequences not None, trace=None):
        """One forward pass over `sequences`, a list of (token ids, marker positions, question type).

        Returns a float32 array of logits for each sequence, one per marker. `trace`, a dict, is filled with every activation
        by name, float32 [rows, cols].

        Raises:
            RuntimeError: another thread is running this plan.
            ValueError: the batch is larger than the plan, or holds what the core refuses.
        """
        cdef int n
        self.claim()
        try:
            n = self._lay_out(sequences)
            if trace is not None:
                sky_plan_trace(self.handle, _record, <void *>trace)
            self.forward(n)
            logits = np.array(self.logits[:self.marker_offsets[n]])
            return [logits[self.marker_offsets[i]:self.marker_offsets[i + 1]] for i in range(n)]
        finally:
            sky_plan_trace(self.handle, NULL, NULL)
            sky_plan_release(self.handle)

    def run_prefixes(self, CorePrefixes prefixes not None, int first, int last, list state_ids not None,
                  bint keep_tail) -> list[list[float]]:
        """One forward pass over prefixes [first, last) with the state behind each.

        Returns a list of logits for each prefix, one per marker. Raises as `run`.
        """
        cdef int n = last - first
        self.claim()
        try:
            prefixes.lay_out(self, first, last, state_ids, keep_tail)
            self.forward(n)
            return [[self.logits[i] for i in range(self.marker_offsets[q], self.marker_offsets[q + 1])]
                    for q in range(n)]
        finally:
            sky_plan_release(self.handle)

    @property
    def threads(self) -> int:
        """How many threads the last pass had: passes of one model that run at once divide theirs."""
        return sky_plan_threads(self.handle)

    cdef int claim(self) except -1:
        if not sky_plan_claim(self.handle):
            raise RuntimeError("this plan is running in another thread")
        return 0

    cdef int _lay_out(self, list sequences) except -1:
        """Copies the sequences into the plan's own buffers, end to end; gives how many there are."""
        cdef int n_tokens = 0, n_markers = 0, n = 0, question_type
        cdef list ids, markers
        for ids, markers, question_type in sequences:
            if n == self.limits.n_sequences:
                raise ValueError(f"the plan holds at most {self.limits.n_sequences} sequences")
            for token_id in ids:
                if n_tokens == self.limits.n_tokens:
                    raise ValueError(f"the plan holds at most {self.limits.n_tokens} tokens")
                self.token_ids[n_tokens] = _as_token(token_id)
                n_tokens += 1
            for marker in markers:
                if n_markers == self.limits.n_markers:
                    raise ValueError(f"the plan holds at most {self.limits.n_markers} markers")
                self.markers[n_markers] = marker
                n_markers += 1
            self.question_types[n] = question_type
            n += 1
            self.token_offsets[n] = n_tokens
            self.marker_offsets[n] = n_markers
        return n


include "_questions.pxi"
include "_kernels.pxi"
