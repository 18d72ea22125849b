# cython: language_level=3, boundscheck=True, wraparound=False, freethreading_compatible=True
"""The border to the C core: sizes are checked, the GIL is dropped, and one C call is made.

Shapes and contracts: csrc/skyinfer.h. What the core refuses comes back as ValueError with its message, or as MemoryError.
"""

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.number cimport PyNumber_Index
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t
from libc.string cimport memset

import numpy as np

from .capi cimport *

from ..errors import IsaError

# the largest sizes that the core takes (csrc/skyinfer.h)
MAX_BLOCKS, MAX_D_MODEL, MAX_D_FF, MAX_VOCAB = SKY_MAX_BLOCKS, SKY_MAX_D_MODEL, SKY_MAX_D_FF, SKY_MAX_VOCAB
MAX_D_HEAD, MAX_THREADS, N_QUESTION_TYPES = SKY_MAX_D_HEAD, SKY_MAX_THREADS, SKY_N_QUESTION_TYPES

ARCHITECTURES = {"s1": SKY_ARCH_S1, "s2": SKY_ARCH_S2}

ACTIVATIONS = {
    "gelu": SKY_ACT_GELU,
    "silu": SKY_ACT_SILU,
    "gelu_tanh": SKY_ACT_GELU_TANH,
    "gelu_quick": SKY_ACT_GELU_QUICK,
    "gelu_clipped": SKY_ACT_GELU_CLIPPED,
    "relu": SKY_ACT_RELU,
    "relu_squared": SKY_ACT_RELU_SQUARED,
    "relu6": SKY_ACT_RELU6,
    "relu_leaky": SKY_ACT_RELU_LEAKY,
    "tanh": SKY_ACT_TANH,
    "sigmoid": SKY_ACT_SIGMOID,
    "linear": SKY_ACT_LINEAR,
    "hardswish": SKY_ACT_HARDSWISH,
    "mish": SKY_ACT_MISH,
}

OPTION_LAYOUTS = {"sequential": SKY_OPTIONS_SEQUENTIAL, "parallel": SKY_OPTIONS_PARALLEL}

DTYPES = {"f32": SKY_DTYPE_F32, "f16": SKY_DTYPE_F16, "bf16": SKY_DTYPE_BF16, "q8_0": SKY_DTYPE_Q8_0}
Q8_0_BLOCK, Q8_0_BYTES = 32, 34  # numbers of a block, and its bytes
_ITEM_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "q8_0": 1}

PRECISIONS = {"exact": SKY_PRECISION_EXACT, "int8": SKY_PRECISION_INT8}


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


def tensor_shapes(*, int d_model, int d_ff, int n_vocab, int n_layers, int n_decision_blocks,
                  str architecture="s1") -> dict[str, tuple[int, ...]]:
    """Every tensor of a model of these sizes by its GGUF name: its shape, rows first, in the order of the forward pass.

    `architecture`: one of `ARCHITECTURES`.

    Raises:
        ValueError: a size is outside of the core's limits.
    """
    cdef sky_model_params params
    cdef sky_tensor *table
    cdef int i, n
    cdef object cols
    memset(&params, 0, sizeof(params))
    params.architecture = ARCHITECTURES[architecture]
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


cdef class DefaultFloatMode:
    """A context in which this thread computes in the default floating-point mode, whatever another library has set.

    The core's own calls need none. One object for each time.
    """

    cdef sky_float_mode before

    def __enter__(self):
        self.before = sky_float_mode_enter()

    def __exit__(self, *exception):
        sky_float_mode_leave(self.before)


cdef class CoreModel:
    """Packed weights; immutable after freeze(), so threads may share it.

    `dtypes`: the type of DTYPES that each tensor will be set in, by its name; one that is not named: "f32". Matrices are kept in it, but
    in f32 where those of all products take no more than `widened_bytes` so.

    `measured`: without room for weights; only `isa`, `n_bytes` and `parameters` can be asked for, and are what they else would be.
    """

    cdef sky_model *handle

    def __cinit__(self, *, int d_model, int d_ff, int n_vocab, int n_layers, int n_heads, int n_decision_blocks,
                  int n_decision_heads, int window, int max_positions, float norm_eps, float rope_base_global,
                  float rope_base_local, str activation, layer_is_global, str architecture="s1",
                  str option_layout="sequential", size_t qkv_table_bytes=0, isa=None, int n_cpus=0, dict dtypes=None,
                  size_t widened_bytes=0, str precision="exact", bint measured=False):
        cdef bytes flags = bytes(bytearray(1 if flag else 0 for flag in layer_is_global))
        cdef bytes isa_name = isa.encode() if isa is not None else b""
        if len(flags) != n_layers:
            raise ValueError(f"layer_is_global: expected {n_layers} flags, got {len(flags)}")
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation: expected one of {', '.join(ACTIVATIONS)}, got {activation!r}")
        cdef int32_t[::1] types
        cdef sky_model_params params
        memset(&params, 0, sizeof(params))
        if dtypes:
            names = tensor_shapes(d_model=d_model, d_ff=d_ff, n_vocab=n_vocab, n_layers=n_layers,
                                  n_decision_blocks=n_decision_blocks, architecture=architecture)
            types = np.array([DTYPES[dtypes.get(name, "f32")] for name in names], np.int32)
            params.dtypes, params.widened_bytes = <const sky_dtype *>&types[0], widened_bytes
        params.architecture, params.precision = ARCHITECTURES[architecture], PRECISIONS[precision]
        params.d_model, params.d_ff, params.n_vocab = d_model, d_ff, n_vocab
        params.n_layers, params.n_heads, params.n_decision_blocks = n_layers, n_heads, n_decision_blocks
        params.n_decision_heads, params.window, params.max_positions = n_decision_heads, window, max_positions
        params.norm_eps, params.rope_base_global, params.rope_base_local = norm_eps, rope_base_global, rope_base_local
        params.activation = ACTIVATIONS[activation]
        params.option_layout = OPTION_LAYOUTS[option_layout]
        params.layer_is_global = <const uint8_t *><const char *>flags
        params.qkv_table_bytes = qkv_table_bytes
        params.n_cpus = n_cpus
        params.isa = <const char *>isa_name if isa is not None else NULL
        cdef sky_status status
        with nogil:
            status = sky_model_measure(&params, &self.handle) if measured else sky_model_create(&params, &self.handle)
        if status != SKY_OK:
            raise self.fault(status)

    def __dealloc__(self):
        sky_model_free(self.handle)

    cdef object fault(self, sky_status status):
        cdef char text[256]
        sky_model_error(self.handle, text, sizeof(text))
        return _error(status, text)

    def set(self, str name not None, array not None, str dtype="f32", first_row=None):
        """Packs one tensor: a C-contiguous array [rows, cols] or [cols]; f16 and bf16 as float16 or uint16, q8_0
        as bytes.

        With `first_row` it is that row of the embedding and those that follow, after those in front of it.
        """
        cdef bytes c_name = name.encode()
        cdef int64_t rows = array.shape[0] if array.ndim == 2 else 1
        cdef int64_t cols = array.shape[array.ndim - 1]
        if array.ndim not in (1, 2) or not array.flags.c_contiguous:
            raise ValueError(f"{name}: expected a contiguous vector or matrix")
        if array.dtype.itemsize != _ITEM_BYTES[dtype]:
            raise ValueError(f"{name}: {array.dtype} is not {dtype}")
        if dtype == "q8_0":
            if cols % Q8_0_BYTES:
                raise ValueError(f"{name}: rows of {cols} bytes are no blocks of Q8_0")
            cols = cols // Q8_0_BYTES * Q8_0_BLOCK
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

    @property
    def parameters(self) -> dict[str, int]:
        """How many parameters of products and embedding are numbers of each type in memory; types that none is of left out.

        Numbers of 8 bits are "int8", whatever their scales, also those of the embedding of a Q8_0 file.
        """
        counts = {name.replace("q8_0", "int8"): sky_model_parameters(self.handle, dtype) for name, dtype in DTYPES.items()}
        return {name: count for name, count in counts.items() if count}


def token_ids(ids not None):
    """Token ids as the core takes them: int32 [n], `ids` itself where it is such an array.

    Raises:
        TypeError: one is no whole number.
        ValueError: one does not fit into int32, so it is in no vocabulary; or an array has more dimensions than one.
    """
    cdef int32_t[::1] out
    cdef Py_ssize_t i = 0
    if isinstance(ids, np.ndarray):
        if ids.ndim != 1:
            raise ValueError(f"token ids: expected one dimension, got {ids.ndim}")
        if ids.dtype == np.int32 and ids.flags.c_contiguous:
            return ids
    elif not isinstance(ids, (list, tuple)):
        ids = list(ids)
    array = np.empty(len(ids), np.int32)
    if len(ids):
        out = array
        for number in ids:
            try:
                out[i] = <int32_t>PyNumber_Index(number)
            except OverflowError:
                raise ValueError(f"token id {number} is not in the vocabulary") from None
            i += 1
    return array


cdef class CoreQuestions:
    """Questions of one model, made ready for any state; without a model they can be laid out, but not run. Immutable.

    `prefixes`: for each (prefix ids, marker positions, question type, tokens that its whole sequence may have); `options`: for
    each the option that each of its markers stands for. `option_ids`: of s2, the sequence of the option of each marker of all;
    making them ready takes `n_threads` threads.

    Attributes:
        n: questions; longest: tokens of the longest possible sequence.
        offsets: int32 [n + 1]; question i's markers and options are offsets[i] to offsets[i + 1] of all.
    """

    cdef sky_questions *handle
    cdef CoreModel model  # lives as long as its questions
    cdef readonly int n, longest
    cdef readonly object offsets
    cdef bint reads_state_once  # all questions about a state share its sequence

    def __cinit__(self, CoreModel model, list prefixes not None, list options not None, *, int sep_id, list option_ids=None,
                  int n_threads=1):
        cdef sky_question_list parts
        cdef sky_status status
        self.model, self.n = model, len(prefixes)
        self.longest = max([most for _, _, _, most in prefixes], default=0)
        self.offsets = np.cumsum([0] + [len(markers) for _, markers, _, _ in prefixes], dtype=np.int32)
        if [len(order) for order in options] != np.diff(self.offsets).tolist():
            raise ValueError("expected an option for each marker of every prefix")
        # with an element more, so that the first has an address even where there is none
        cdef const int32_t[::1] all_ids = _as_int32([token_id for ids, _, _, _ in prefixes for token_id in ids])
        cdef const int32_t[::1] all_offsets = _as_int32(np.cumsum([0] + [len(ids) for ids, _, _, _ in prefixes]))
        cdef const int32_t[::1] all_markers = _as_int32([at for _, markers, _, _ in prefixes for at in markers])
        cdef const int32_t[::1] all_marker_offsets = self.offsets
        cdef const int32_t[::1] all_options = _as_int32([option for order in options for option in order])
        cdef const int32_t[::1] all_types = _as_int32([kind for _, _, kind, _ in prefixes])
        cdef const int32_t[::1] all_most = _as_int32([most for _, _, _, most in prefixes])
        own = option_ids or []
        cdef const int32_t[::1] option_tokens = _as_int32([token_id for ids in own for token_id in ids])
        cdef const int32_t[::1] option_offsets = _as_int32(np.cumsum([0] + [len(ids) for ids in own]))
        self.reads_state_once = option_ids is not None
        if self.reads_state_once and len(own) != self.offsets[self.n]:
            raise ValueError("expected a sequence for each option")
        parts.n_questions, parts.sep_id = self.n, sep_id
        parts.token_ids, parts.token_offsets, parts.markers = &all_ids[0], &all_offsets[0], &all_markers[0]
        parts.marker_offsets, parts.options = &all_marker_offsets[0], &all_options[0]
        parts.question_types, parts.max_tokens = &all_types[0], &all_most[0]
        parts.option_ids, parts.option_offsets = NULL, NULL
        if self.reads_state_once:
            parts.option_ids, parts.option_offsets = &option_tokens[0], &option_offsets[0]
        parts.n_threads = n_threads
        self.offsets.flags.writeable = False
        cdef sky_model *model_handle = model.handle if model is not None else NULL
        with nogil:
            status = sky_questions_create(model_handle, &parts, &self.handle)
        if status != SKY_OK:
            raise _error(status, sky_questions_error(self.handle))

    def __dealloc__(self):
        sky_questions_free(self.handle)

    @property
    def n_bytes(self) -> int:
        """Bytes that they take in the core."""
        return sky_questions_bytes(self.handle)

    def n_tokens(self, long long n_state) -> int:
        """Rows that a run computes for a state of `n_state` tokens: those of all sequences, in s2 of its own and the options."""
        cdef sky_ask ask = self.ask(n_state)
        cdef long long total = 0
        cdef int i
        if self.reads_state_once:
            return sky_ask_sequence(&ask, 0, NULL, NULL) + self.n_options()
        with nogil:
            for i in range(self.n):
                total += sky_ask_sequence(&ask, i, NULL, NULL)
        return total

    def lengths(self, long long n_state) -> list[int]:
        """The same for each question; in s2 the state's sequence counts for the first."""
        cdef sky_ask ask = self.ask(n_state)
        cdef const int32_t[::1] offsets = self.offsets
        cdef int i
        if self.reads_state_once:
            return [offsets[i + 1] - offsets[i] + (0 if i else sky_ask_sequence(&ask, 0, NULL, NULL)) for i in range(self.n)]
        return [sky_ask_sequence(&ask, i, NULL, NULL) for i in range(self.n)]

    def sequence(self, int question, const int32_t[::1] state_ids not None, bint keep_tail) -> tuple[list[int], int]:
        """The whole sequence of one question about a state, and how many of the state's tokens it has.

        Raises:
            IndexError: there is no such question.
        """
        cdef sky_ask ask = self.ask(state_ids.shape[0])
        cdef int32_t used = 0
        cdef int i
        if state_ids.shape[0]:
            ask.state_ids = &state_ids[0]
        ask.keep_tail = keep_tail
        cdef int n = sky_ask_sequence(&ask, question, NULL, &used)
        if n == 0:
            raise IndexError(f"question {question} of {self.n}")
        cdef int32_t[::1] ids = np.empty(n, np.int32)
        sky_ask_sequence(&ask, question, &ids[0], NULL)
        return [ids[i] for i in range(n)], used

    def probabilities(self, const float[::1] logits not None, const double[::1] temperatures not None):
        """softmax(logits / temperature) of each question: a list of float64 numbers in the order of its options for each.

        `logits`: [offsets[n]], `temperatures`: [n]. None where a score is NaN or infinite.
        """
        cdef int n_options = self.n_options()
        cdef double *p = <double *>PyMem_Malloc((n_options + 1) * sizeof(double))
        cdef const int32_t[::1] offsets = self.offsets
        cdef int q, i
        if p == NULL:
            raise MemoryError
        try:
            if not self.softmax(logits, temperatures, p):
                return None
            return [[p[i] for i in range(offsets[q], offsets[q + 1])] for q in range(self.n)]
        finally:
            PyMem_Free(p)

    def write_answers(self, const float[:, ::1] logits not None, const int64_t[::1] n_state not None,
                      const double[::1] temperatures not None, float[:, ::1] probabilities not None,
                      int32_t[:, ::1] labels not None, float[:, ::1] values not None, float[:, ::1] confidence not None,
                      uint8_t[:, ::1] truncated not None) -> int:
        """The answers to all questions about n states, each of n_state [n] tokens, from logits [n, offsets[n_questions]].

        Written are probabilities [n, offsets[n_questions]], and [n, n_questions] each: the most probable option, the answer's
        number (choice: the label's probability, score: the mean level, noul: that it is true), its confidence, and whether the
        state was cut. Gives n, or the number of the first state that has a score which is NaN or infinite.
        """
        cdef int n_options = self.n_options()
        cdef int64_t n = logits.shape[0], done
        cdef sky_answers out
        cdef double[::1] p
        if (logits.shape[1] != n_options or n_state.shape[0] != n or temperatures.shape[0] != self.n
                or probabilities.shape[0] != n or probabilities.shape[1] != n_options
                or labels.shape[0] != n or labels.shape[1] != self.n or values.shape[0] != n or values.shape[1] != self.n
                or confidence.shape[0] != n or confidence.shape[1] != self.n
                or truncated.shape[0] != n or truncated.shape[1] != self.n):
            raise ValueError(f"expected arrays of {n} states, {self.n} questions and {n_options} options")
        if n == 0 or n_options == 0:
            return n
        p = np.empty(n_options, np.float64)
        out.probabilities, out.labels, out.values = &probabilities[0, 0], &labels[0, 0], &values[0, 0]
        out.confidence, out.truncated = &confidence[0, 0], &truncated[0, 0]
        with nogil:
            done = sky_write_answers(self.handle, &logits[0, 0], &n_state[0], n, &temperatures[0], &p[0], &out)
        return done

    cdef int n_options(self) except -1:
        return self.offsets[self.n]

    cdef sky_ask ask(self, long long n_state) noexcept:
        """All questions about a state of so many tokens, which are not there yet."""
        cdef sky_ask ask
        memset(&ask, 0, sizeof(ask))
        ask.questions, ask.n, ask.n_state = self.handle, self.n, n_state
        return ask

    cdef bint softmax(self, const float[::1] logits, const double[::1] temperatures, double *p) except -1:
        """p [n_options] in the order of the options; False where a score is not finite."""
        cdef int n_options = self.n_options()
        cdef int finite
        if logits.shape[0] != n_options or temperatures.shape[0] != self.n:
            raise ValueError(f"expected {n_options} scores and {self.n} temperatures")
        if n_options == 0:
            return True
        with nogil:
            finite = sky_probabilities(self.handle, &logits[0], &temperatures[0], p)
        return finite != 0


cdef object _as_int32(values):
    return np.append(np.asarray(values, np.int32), np.int32(0))


include "runs.pxi"


# ---- what kernels.pyx, which links no core of its own, takes from the one in here ----

cdef int select_kernels(str isa, sky_kernels *table) except -1:
    """The kernel table of an instruction set, which is refused by IsaError where it cannot run here."""
    if sky_kernels_select(isa.encode(), table) != SKY_OK:
        raise IsaError(f"instruction set {isa!r} cannot run here")
    return 0


cdef int pack_panels(const sky_kernels *table, sky_linear *linear, sky_weight_type w_type, const void *w) except -1:
    """Allocates linear.panels and packs w [linear.n, linear.k] of w_type, from which linear.type can be made."""
    cdef size_t n_panels = (linear.n + table.panel_cols - 1) // table.panel_cols
    linear.panels = sky_alloc(n_panels * sky_panel_bytes(table, linear))
    linear.factors = <float *>sky_alloc(linear.k * sizeof(float))
    if linear.panels == NULL or linear.factors == NULL:
        raise MemoryError
    if not sky_pack(table, linear, w_type, w, 0):
        raise ValueError("w: holds a NaN or infinite value")
    return 0


cdef void release_panels(sky_linear *linear) noexcept:
    sky_release(linear.panels)
    sky_release(linear.factors)
