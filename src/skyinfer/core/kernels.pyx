# cython: language_level=3, boundscheck=True, wraparound=False, freethreading_compatible=True
"""The kernel table of one instruction set, for tests and benchmarks. Contracts: csrc/kernels/kernels.h.

Arrays are float32 with contiguous rows; a row stride larger than the width is passed on as it is, so tests can guard the
padding. The table comes from the core that border.pyx links, so these are the kernels that a model runs.
"""

from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport int32_t, uint8_t, uint16_t, uintptr_t
from libc.string cimport memset

from .border cimport pack_panels, release_panels, select_kernels
from .capi cimport *

from .border import ACTIVATIONS, Q8_0_BLOCK, Q8_0_BYTES

# name -> (epilogue, activation): geglu, swiglu and "gated mish" are gated, as all activations can be
EPILOGUES = {
    "linear": (SKY_EPILOGUE_LINEAR, SKY_ACT_LINEAR),
    "relu": (SKY_EPILOGUE_RELU, SKY_ACT_RELU),
    "gelu": (SKY_EPILOGUE_GELU, SKY_ACT_GELU),
    "geglu": (SKY_EPILOGUE_GATED, SKY_ACT_GELU),
    "swiglu": (SKY_EPILOGUE_GATED, SKY_ACT_SILU),
    **{f"gated {name}": (SKY_EPILOGUE_GATED, act) for name, act in ACTIVATIONS.items()},
}


cdef sky_matrix _matrix(const float[:, :] values, str what, Py_ssize_t n_rows, Py_ssize_t n_cols) except *:
    """A matrix argument of [n_rows, n_cols] with contiguous rows; anything else is refused."""
    cdef sky_matrix m
    cdef Py_ssize_t stride = values.strides[0]
    if values.shape[0] != n_rows or values.shape[1] != n_cols:
        raise ValueError(f"{what}: expected [{n_rows}, {n_cols}], got [{values.shape[0]}, {values.shape[1]}]")
    if n_rows < 1 or n_cols < 1:
        raise ValueError(f"{what}: is empty")
    if (n_cols > 1 and values.strides[1] != sizeof(float)) or stride % <Py_ssize_t>sizeof(float):
        raise ValueError(f"{what}: rows are not contiguous")
    if n_rows > 1 and stride < n_cols * <Py_ssize_t>sizeof(float):
        raise ValueError(f"{what}: rows overlap")
    m.data = <float *>&values[0, 0]
    m.stride = <int>(stride // <Py_ssize_t>sizeof(float)) if n_rows > 1 else <int>n_cols
    m.rows, m.cols = <int>n_rows, <int>n_cols
    return m


cdef enum:
    GUARD = 0xA5
    GUARD_BYTES = 64


cdef void *_scratch(size_t n_floats, float **aligned) except NULL:
    """Memory of one call alone, since threads may share the table; to be given to `_release` after it. A guard lies behind it."""
    cdef void *memory = PyMem_RawMalloc(n_floats * sizeof(float) + SKY_ALIGN + GUARD_BYTES)
    if memory == NULL:
        raise MemoryError
    aligned[0] = <float *>((<uintptr_t>memory + SKY_ALIGN - 1) // SKY_ALIGN * SKY_ALIGN)
    memset(aligned[0] + n_floats, GUARD, GUARD_BYTES)
    return memory


cdef bint _release(void *memory, const float *aligned, size_t n_floats) noexcept:
    """Frees it; false where its guard was written to."""
    cdef const uint8_t *guard = <const uint8_t *>(aligned + n_floats)
    cdef bint is_intact = True
    cdef int i
    for i in range(GUARD_BYTES):
        is_intact = is_intact and guard[i] == GUARD
    PyMem_RawFree(memory)
    return is_intact


cdef int _length(const float[::1] vector, str what, Py_ssize_t n) except -1:
    if vector.shape[0] != n:
        raise ValueError(f"{what}: expected {n} elements, got {vector.shape[0]}")
    return 0


# what numpy calls an array's items -> the weight type that they are packed as
WEIGHT_TYPES = {"float32": SKY_WEIGHT_F32, "float16": SKY_WEIGHT_F16, "uint16": SKY_WEIGHT_BF16}


cdef class PackedMatrix:
    """w [n, k] in the panels of one instruction set; float32, float16, or uint16 as bfloat16. In 8 bits with `int8`, or where it
    is uint8 [n, 34 * k / 32], GGUF's Q8_0."""

    cdef sky_linear linear
    cdef readonly str isa

    def __cinit__(self, str isa not None, w not None, bint gated=False, bint int8=False):
        cdef sky_kernels table
        select_kernels(isa, &table)
        cdef bint q8_0 = w.dtype.name == "uint8"
        cdef sky_weight_type w_type
        if w.ndim != 2 or not w.flags.c_contiguous or not (q8_0 or w.dtype.name in WEIGHT_TYPES):
            raise ValueError(f"w: expected a contiguous matrix of {', '.join(WEIGHT_TYPES)} or Q8_0 as uint8")
        if q8_0 and w.shape[1] % Q8_0_BYTES:
            raise ValueError(f"w: {w.shape[1]} bytes are no blocks of Q8_0")
        if w.shape[0] < 1 or w.shape[1] < 1 or (gated and w.shape[0] % 2):
            raise ValueError(f"w: expected [n, k], n even where gated, got [{w.shape[0]}, {w.shape[1]}]")
        self.isa = isa
        self.linear.n, self.linear.k, self.linear.gated = w.shape[0], w.shape[1], gated
        w_type = SKY_WEIGHT_INT8 if q8_0 else WEIGHT_TYPES[w.dtype.name]
        if q8_0:
            self.linear.k = w.shape[1] // Q8_0_BYTES * Q8_0_BLOCK
        self.linear.type = SKY_WEIGHT_INT8_ROWS if int8 else w_type
        cdef const uint8_t[::1] data = w.reshape(-1).view("u1")
        pack_panels(&table, &self.linear, w_type, &data[0])

    def __dealloc__(self):
        release_panels(&self.linear)


cdef class Kernels:
    """The kernels of one instruction set."""

    cdef sky_kernels table
    cdef readonly str isa

    def __cinit__(self, str isa not None):
        select_kernels(isa, &self.table)
        self.isa = isa

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of the GEMM's register tile."""
        return self.table.tile_rows, self.table.panel_cols

    def fma_peak(self, int rounds) -> int:
        """Runs the loop that touches no memory; gives the floating-point operations that it did."""
        cdef float sink
        with nogil:
            self.table.fma_peak(rounds, &sink)
        return 2 * <long long>rounds * self.table.tile_rows * self.table.panel_cols

    def gemm(self, const float[:, :] a not None, PackedMatrix w not None, float[:, :] out not None, *,
             const float[::1] bias=None, const float[:, :] residual=None, str epilogue="linear", int repeat=1):
        """out = epilogue(a @ w^T), `repeat` times over; with 8-bit weights a is made whole numbers once."""
        cdef sky_gemm g
        cdef int i
        if w.isa != self.isa:
            raise ValueError(f"packed for {w.isa}, not {self.isa}")
        if (EPILOGUES[epilogue][0] == SKY_EPILOGUE_GATED) != w.linear.gated:
            raise ValueError(f"{epilogue}: the weights are packed the other way")
        if w.linear.gated and (bias is not None or residual is not None):
            raise ValueError(f"{epilogue}: takes no bias and no residual")
        memset(&g, 0, sizeof(g))
        g.a = _matrix(a, "a", a.shape[0], w.linear.k)
        g.c = _matrix(out, "out", a.shape[0], w.linear.n // 2 if w.linear.gated else w.linear.n)
        g.panels = w.linear.panels
        g.epilogue, g.act = EPILOGUES[epilogue]
        if bias is not None:
            _length(bias, "bias", w.linear.n)
            g.bias = &bias[0]
        if residual is not None:
            g.residual = _matrix(residual, "residual", a.shape[0], w.linear.n)
        cdef bint int8 = w.linear.type in (SKY_WEIGHT_INT8, SKY_WEIGHT_INT8_ROWS)
        cdef float *rows = NULL
        cdef size_t row_floats = sky_int8_row_bytes(g.a.cols) // sizeof(float) if int8 else 0
        row_floats *= g.a.rows
        cdef void *row_memory = _scratch(row_floats, &rows)
        g.a_int8 = <const char *>rows
        cdef size_t widened = sky_int8_scratch(g.a.cols) if int8 else sky_gemm_scratch(g.a.cols, g.epilogue)
        widened = widened if w.linear.type else 0
        cdef void *scratch = _scratch(widened, &g.scratch)
        with nogil:
            if int8:
                self.table.quantize_rows(g.a, w.linear.factors if w.linear.has_factors else NULL, <char *>rows)
            for i in range(repeat):
                self.table.gemm[<int>w.linear.type](&g, 0, (w.linear.n + self.table.panel_cols - 1) // self.table.panel_cols)
        cdef bint rows_intact = _release(row_memory, rows, row_floats), scratch_intact = _release(scratch, g.scratch, widened)
        if not rows_intact:
            raise RuntimeError("wrote behind the rows in whole numbers")
        if not scratch_intact:
            raise RuntimeError("the product wrote behind its scratch")

    def quantize(self, const float[:, :] a not None, int repeat=1):
        """The activations of a product of 8-bit weights made whole numbers, `repeat` times over and for nothing but the time."""
        cdef sky_matrix x = _matrix(a, "a", a.shape[0], a.shape[1])
        cdef float *rows = NULL
        cdef size_t n_floats = sky_int8_row_bytes(x.cols) // sizeof(float) * x.rows
        cdef void *memory = _scratch(n_floats, &rows)
        cdef int i
        with nogil:
            for i in range(repeat):
                self.table.quantize_rows(x, NULL, <char *>rows)
        if not _release(memory, rows, n_floats):
            raise RuntimeError("wrote behind the rows in whole numbers")

    def widen_f16(self, const uint16_t[::1] half not None, float[::1] out not None):
        """out [n] = half [n], given as the bits of float16."""
        if half.shape[0] < 1:
            raise ValueError("half: is empty")
        _length(out, "out", half.shape[0])
        with nogil:
            self.table.widen_f16(&half[0], <int>half.shape[0], &out[0])

    def layer_norm(self, const float[:, :] x not None, const float[::1] weight not None, float eps,
                   float[:, :] out not None, *, const float[::1] bias=None):
        cdef sky_norm n
        memset(&n, 0, sizeof(n))
        n.x = _matrix(x, "x", x.shape[0], x.shape[1])
        n.y = _matrix(out, "out", x.shape[0], x.shape[1])
        _length(weight, "weight", x.shape[1])
        n.weight, n.eps = &weight[0], eps
        if bias is not None:
            _length(bias, "bias", x.shape[1])
            n.bias = &bias[0]
        with nogil:
            self.table.layer_norm(&n)

    def attention(self, const float[:, :] q not None, const float[:, :] k not None, const float[:, :] v not None,
                  float[:, :] out not None, *, const float[:, ::1] cos=None, const float[:, ::1] sin=None,
                  int window=-1, float scale=1.0, const int32_t[::1] position=None, const int32_t[::1] option=None):
        """One head of one sequence."""
        cdef sky_attention a
        cdef Py_ssize_t n_queries = q.shape[0], n_keys = k.shape[0], d_head = q.shape[1]
        memset(&a, 0, sizeof(a))
        if d_head > SKY_MAX_D_HEAD:
            raise ValueError(f"q: heads are at most {SKY_MAX_D_HEAD} wide, not {d_head}")
        if (cos is None) != (sin is None) or (window >= 0 and n_queries != n_keys):
            raise ValueError("cos and sin come together, and a window needs as many queries as keys")
        a.q, a.out = _matrix(q, "q", n_queries, d_head), _matrix(out, "out", n_queries, d_head)
        a.k, a.v = _matrix(k, "k", n_keys, d_head), _matrix(v, "v", n_keys, d_head)
        if cos is not None:
            if d_head % 2 or n_queries > n_keys:
                raise ValueError("rope: heads have an even width, and every query a position among the keys")
            a.rope_cos = _matrix(cos, "cos", n_keys, d_head // 2).data
            a.rope_sin = _matrix(sin, "sin", n_keys, d_head // 2).data
        a.window, a.scale = window, scale
        if (position is None) != (option is None):
            raise ValueError("position and option come together")
        if position is not None:
            if n_queries != n_keys or position.shape[0] != n_keys or option.shape[0] != n_keys:
                raise ValueError(f"position and option: expected {n_keys} of each, and as many queries")
            if min(position) < 0 or max(position) >= n_keys:
                raise ValueError("position: every one is a row of cos and sin")
            a.position, a.option = &position[0], &option[0]
        cdef size_t n_floats = sky_attention_scratch(<int>n_keys, <int>d_head)
        cdef void *scratch = _scratch(n_floats, &a.scratch)
        with nogil:
            self.table.attention(&a)
        if not _release(scratch, a.scratch, n_floats):
            raise RuntimeError("attention wrote behind its scratch")
