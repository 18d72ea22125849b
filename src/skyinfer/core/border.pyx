# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The border to the C core: sizes are checked, the GIL is dropped, and one C call is made.

Shapes and contracts: csrc/skyinfer.h. What the core refuses comes back as ValueError with its message, or as MemoryError.
"""

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.number cimport PyNumber_Index
from libc.math cimport exp, isfinite
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t
from libc.string cimport memcpy, memset

import numpy as np

from .capi cimport *

from ..errors import IsaError

# the largest sizes that the core takes (csrc/skyinfer.h)
MAX_BLOCKS, MAX_D_MODEL, MAX_D_FF, MAX_VOCAB = SKY_MAX_BLOCKS, SKY_MAX_D_MODEL, SKY_MAX_D_FF, SKY_MAX_VOCAB
MAX_D_HEAD, MAX_THREADS, N_QUESTION_TYPES = SKY_MAX_D_HEAD, SKY_MAX_THREADS, SKY_N_QUESTION_TYPES

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


def tensor_shapes(*, int d_model, int d_ff, int n_vocab, int n_layers, int n_decision_blocks) -> dict[str, tuple[int, ...]]:
    """Every tensor of a model of these sizes by its GGUF name: its shape, rows first, in the order of the forward pass.

    Raises:
        ValueError: a size is outside of the core's limits.
    """
    cdef sky_model_params params
    cdef sky_tensor *table
    cdef int i, n
    cdef object cols
    memset(&params, 0, sizeof(params))
    params.d_model, params.d_ff, params.n_vocab = d_model, d_ff, n_vocab
    params.n_layers, params.n_decision_blocks = n_layers, n_decision_blocks
    n = sky_tensors(&params, NULL, 0)
    if n == 0:
        raise ValueError("sizes of a model that the core does not take")
    table = <sky_tensor *>PyMem_Malloc(n * sizeof(sky_tensor))
    if table == NULL:
        raise MemoryError
    try:
        sky_tensors(&params, table, n)
        shapes = {}
        for i in range(n):
            cols = table[i].cols
            shapes[table[i].name.decode()] = (<object>table[i].rows, cols) if table[i].n_dims == 2 else (cols,)
        return shapes
    finally:
        PyMem_Free(table)


def widen_bf16(values not None):
    """float32 of the shape of `values`, an array of bfloat16 numbers as uint16."""
    out = np.empty(values.shape, np.float32)
    cdef const uint16_t[::1] flat = np.ascontiguousarray(values).reshape(-1)
    cdef float[::1] wide = out.reshape(-1)
    if flat.shape[0]:
        with nogil:
            sky_widen_bf16(&flat[0], flat.shape[0], &wide[0])
    return out


cdef class CoreModel:
    """Packed weights; immutable after freeze(), so threads may share it."""

    cdef sky_model *handle

    def __cinit__(self, *, int d_model, int d_ff, int n_vocab, int n_layers, int n_heads, int n_decision_blocks,
                  int n_decision_heads, int window, int max_positions, float norm_eps, float rope_base_global,
                  float rope_base_local, bint silu, layer_is_global, size_t qkv_table_bytes=0, isa=None,
                  int n_cpus=0):
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
        params.n_cpus = n_cpus
        params.isa = <const char *>isa_name if isa is not None else NULL
        cdef sky_status status
        with nogil:
            status = sky_model_create(&params, &self.handle)
        if status != SKY_OK:
            raise self.fault(status)

    def __dealloc__(self):
        sky_model_free(self.handle)

    cdef object fault(self, sky_status status):
        cdef char text[256]
        sky_model_error(self.handle, text, sizeof(text))
        return _error(status, text)

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
            raise self.fault(status)

    def freeze(self):
        """Checks that every tensor was set; afterwards plans can be made."""
        cdef sky_status status = sky_model_freeze(self.handle)
        if status != SKY_OK:
            raise self.fault(status)

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
        """How many threads the last pass might use: passes of one model that run at once divide theirs."""
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


cdef class CorePrefixes:
    """The prefixes of some questions, end to end: every sequence but for its state and last [SEP]. Immutable.

    `prefixes`: for each (prefix ids, marker positions, question type, tokens that its whole sequence may have).
    """

    cdef readonly int n
    cdef int sep_id
    cdef int32_t[::1] ids, offsets, markers, marker_offsets, question_types, max_tokens
    cdef readonly int longest

    def __cinit__(self, list prefixes not None, *, int sep_id):
        self.n, self.sep_id = len(prefixes), sep_id
        self.ids = _as_int32([token_id for ids, _, _, _ in prefixes for token_id in ids])
        self.offsets = _as_int32(np.cumsum([0] + [len(ids) for ids, _, _, _ in prefixes]))
        self.markers = _as_int32([at for _, markers, _, _ in prefixes for at in markers])
        self.marker_offsets = _as_int32(np.cumsum([0] + [len(markers) for _, markers, _, _ in prefixes]))
        self.question_types = _as_int32([kind for _, _, kind, _ in prefixes])
        self.max_tokens = _as_int32([most for _, _, _, most in prefixes])
        self.longest = max([most for _, _, _, most in prefixes], default=0)

    cdef int used(self, int q, int n_state) noexcept nogil:
        """How many of a state's tokens prefix q leaves room for."""
        return min(n_state, max(0, self.max_tokens[q] - (self.offsets[q + 1] - self.offsets[q]) - 1))

    cdef int length(self, int q, int n_state) noexcept nogil:
        """Tokens of the whole sequence of prefix q."""
        return min(self.offsets[q + 1] - self.offsets[q] + self.used(q, n_state) + 1, self.max_tokens[q])

    cdef int kept(self, object n_state) except -1:
        """How many of `n_state` tokens any prefix could take: no more than fit into an int."""
        return min(n_state, self.longest)

    def n_tokens(self, n_state) -> int:
        """Tokens of all sequences together, for a state of `n_state` tokens."""
        cdef int64_t total = 0
        cdef int kept = self.kept(n_state)
        for q in range(self.n):
            total += self.length(q, kept)
        return total

    def batch(self, int first, n_state, int most_tokens) -> tuple[int, int, int]:
        """The longest run of prefixes from `first` on that one forward pass over `most_tokens` holds, at least one prefix:
        (first prefix after it, its tokens, its markers)."""
        cdef int last = first, length, kept = self.kept(n_state)
        cdef int64_t n_tokens = 0
        while last < self.n:
            length = self.length(last, kept)
            if last > first and n_tokens + length > most_tokens:
                break
            n_tokens += length
            last += 1
        return last, n_tokens, self.marker_offsets[last] - self.marker_offsets[first]

    cdef int lay_out(self, CorePlan plan, int first, int last, list state_ids, bint keep_tail) except -1:
        """[prefix] [state] [SEP] for each question, into the buffers of a plan, as sequence.SequenceBuilder.assemble does.

        Raises:
            ValueError: the plan is too small.
        """
        cdef int n_state = self.kept(len(state_ids)), n_markers = self.marker_offsets[last] - self.marker_offsets[first]
        cdef Py_ssize_t begin = len(state_ids) - n_state if keep_tail else 0
        cdef int q, i, n_head, used, length, end = 0
        cdef int64_t n_tokens = 0
        for q in range(first, last):
            n_tokens += self.length(q, n_state)
        if n_tokens > plan.limits.n_tokens or not plan.holds(n_tokens, last - first, n_markers, self.longest):
            raise ValueError("these prefixes and this state are larger than the plan")
        for i in range(n_state):
            plan.state[i] = _as_token(state_ids[begin + i])
        for q in range(first, last):
            n_head, used = self.offsets[q + 1] - self.offsets[q], self.used(q, n_state)
            length = self.length(q, n_state)
            memcpy(&plan.token_ids[end], &self.ids[self.offsets[q]],
                   <size_t>min(n_head, length) * sizeof(int32_t))
            if used:
                memcpy(&plan.token_ids[end + n_head], &plan.state[n_state - used if keep_tail else 0],
                       <size_t>used * sizeof(int32_t))
            if n_head + used < length:
                plan.token_ids[end + n_head + used] = self.sep_id
            end += length
            plan.token_offsets[q - first + 1] = end
            plan.marker_offsets[q - first + 1] = self.marker_offsets[q + 1] - self.marker_offsets[first]
        memcpy(&plan.markers[0], &self.markers[self.marker_offsets[first]], <size_t>n_markers * sizeof(int32_t))
        memcpy(&plan.question_types[0], &self.question_types[first], <size_t>(last - first) * sizeof(int32_t))
        return 0


cdef object _as_int32(values):
    """A buffer of int32 with an element more, so that the place behind the last one is an address, too."""
    return np.append(np.asarray(values, np.int32), np.int32(0))


cdef class CoreStepper:
    """A plan for the same questions over and over. One thread at a time may step.

    `temperatures`: of each question; `options`: for each, the caller's option that each marker stands for. One forward
    pass takes at most `batch_tokens` tokens, or one question.
    """

    cdef CorePlan plan
    cdef CorePrefixes prefixes
    cdef int batch_tokens
    cdef int32_t[::1] option_of
    cdef double[::1] temperatures

    def __cinit__(self, CoreModel model not None, CorePrefixes prefixes not None, list temperatures not None,
                  list options not None, *, int batch_tokens, int n_threads=1):
        if len(temperatures) != prefixes.n or [len(order) for order in options] != [
                prefixes.marker_offsets[q + 1] - prefixes.marker_offsets[q] for q in range(prefixes.n)]:
            raise ValueError("expected a temperature and an option for each marker of every prefix")
        self.prefixes, self.batch_tokens = prefixes, batch_tokens
        most_tokens = min(max(prefixes.n, 1) * max(prefixes.longest, 1), max(batch_tokens, prefixes.longest))
        self.plan = CorePlan(model, n_tokens=most_tokens, n_sequences=min(max(prefixes.n, 1), most_tokens),
                             n_markers=min(prefixes.marker_offsets[prefixes.n], most_tokens),
                             sequence_tokens=max(prefixes.longest, 1), n_threads=n_threads)
        self.option_of = _as_int32([option for order in options for option in order])
        self.temperatures = np.array(temperatures + [1.0], np.float64)

    def step(self, list state_ids not None, bint keep_tail, float[::1] probabilities not None) -> bool:
        """Writes the softmax of every question, options in the caller's order. False where scores are not finite."""
        cdef int first = 0, last
        cdef bint finite = True
        if probabilities.shape[0] != self.prefixes.marker_offsets[self.prefixes.n]:
            raise ValueError(f"expected room for {self.prefixes.marker_offsets[self.prefixes.n]} probabilities")
        if not sky_plan_claim(self.plan.handle):
            raise RuntimeError("these compiled questions are stepping in another thread")
        try:
            while first < self.prefixes.n:
                last, _, _ = self.prefixes.batch(first, len(state_ids), self.batch_tokens)
                self.prefixes.lay_out(self.plan, first, last, state_ids, keep_tail)
                self.plan.forward(last - first)
                finite &= self._softmax(first, last, probabilities)
                first = last
            return finite
        finally:
            sky_plan_release(self.plan.handle)

    cdef bint _softmax(self, int first, int last, float[::1] probabilities) noexcept nogil:
        cdef int q, i, begin, end, skipped = self.prefixes.marker_offsets[first]
        cdef double peak, total
        cdef bint finite = True
        cdef const float *logits = &self.plan.logits[0]
        for q in range(first, last):
            begin, end = self.prefixes.marker_offsets[q], self.prefixes.marker_offsets[q + 1]
            peak = logits[begin - skipped]
            for i in range(begin, end):
                finite &= isfinite(logits[i - skipped]) != 0
                peak = max(peak, <double>logits[i - skipped])
            total = 0.0
            for i in range(begin, end):
                total += exp((logits[i - skipped] - peak) / self.temperatures[q])
            for i in range(begin, end):
                probabilities[begin + self.option_of[i]] = <float>(
                    exp((logits[i - skipped] - peak) / self.temperatures[q]) / total)
        return finite


# ---- what kernels.pyx, which links no core of its own, takes from the one in here ----

cdef int select_kernels(str isa, sky_kernels *table) except -1:
    """The kernel table of an instruction set, which is refused by IsaError where it cannot run here."""
    if sky_kernels_select(isa.encode(), table) != SKY_OK:
        raise IsaError(f"instruction set {isa!r} cannot run here")
    return 0


cdef int pack_panels(const sky_kernels *table, sky_linear *linear, const float *w) except -1:
    """Allocates linear.panels and packs w [linear.n, linear.k]."""
    cdef size_t n_panels = (linear.n + table.panel_cols - 1) // table.panel_cols
    linear.panels = <float *>sky_alloc(n_panels * table.panel_cols * linear.k * sizeof(float))
    if linear.panels == NULL:
        raise MemoryError
    sky_pack(table, linear, SKY_DTYPE_F32, w, 0)
    return 0


cdef void release_panels(sky_linear *linear) noexcept:
    sky_release(linear.panels)
