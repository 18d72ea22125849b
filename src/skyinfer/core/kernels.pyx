# cython: language_level=3, boundscheck=True, wraparound=False, freethreading_compatible=True
"""The kernel table of one instruction set, for tests and benchmarks. Contracts: csrc/kernels/kernels.h.

Arrays are float32 with contiguous rows; a row stride larger than the width is passed on as it is, so tests can guard the
padding. The table comes from the core that border.pyx links, so these are the kernels that a model runs.
"""

from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport uint16_t, uintptr_t
from libc.string cimport memset

from .border cimport pack_panels, release_panels, select_kernels
from .capi cimport *

EPILOGUES = {
    "linear": SKY_EPILOGUE_LINEAR,
    "relu": SKY_EPILOGUE_RELU,
    "gelu": SKY_EPILOGUE_GELU,
    "geglu": SKY_EPILOGUE_GEGLU,
    "swiglu": SKY_EPILOGUE_SWIGLU,
}


cdef int _stride(const float[:, :] rows, str what, Py_ssize_t n_rows, Py_ssize_t n_cols) except -1:
    """The row stride in elements of [n_rows, n_cols] with contiguous rows; anything else is refused."""
    if rows.shape[0] != n_rows or rows.shape[1] != n_cols:
        raise ValueError(f"{what}: expected [{n_rows}, {n_cols}], got [{rows.shape[0]}, {rows.shape[1]}]")
    if n_rows < 1 or n_cols < 1:
        raise ValueError(f"{what}: is empty")
    if (n_cols > 1 and rows.strides[1] != sizeof(float)) or rows.strides[0] % <Py_ssize_t>sizeof(float):
        raise ValueError(f"{what}: rows are not contiguous")
    if n_rows > 1 and rows.strides[0] < n_cols * <Py_ssize_t>sizeof(float):
        raise ValueError(f"{what}: rows overlap")
    return <int>(rows.strides[0] // <Py_ssize_t>sizeof(float)) if n_rows > 1 else <int>n_cols


cdef int _length(const float[::1] vector, str what, Py_ssize_t n) except -1:
    if vector.shape[0] != n:
        raise ValueError(f"{what}: expected {n} elements, got {vector.shape[0]}")
    return 0


cdef class PackedMatrix:
    """w [n, k] in the panels of one instruction set."""

    cdef sky_linear linear
    cdef readonly str isa

    def __cinit__(self, str isa not None, const float[:, ::1] w not None, bint gated=False):
        cdef sky_kernels table
        select_kernels(isa, &table)
        if w.shape[0] < 1 or w.shape[1] < 1 or (gated and w.shape[0] % 2):
            raise ValueError(f"w: expected [n, k], n even where gated, got [{w.shape[0]}, {w.shape[1]}]")
        self.isa = isa
        self.linear.n, self.linear.k, self.linear.gated = w.shape[0], w.shape[1], gated
        pack_panels(&table, &self.linear, &w[0, 0])

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
        """out = epilogue(a @ w^T), `repeat` times over."""
        cdef sky_gemm g
        cdef int i
        if w.isa != self.isa:
            raise ValueError(f"packed for {w.isa}, not {self.isa}")
        if (epilogue in ("geglu", "swiglu")) != w.linear.gated:
            raise ValueError(f"{epilogue}: the weights are packed the other way")
        if w.linear.gated and (bias is not None or residual is not None):
            raise ValueError(f"{epilogue}: takes no bias and no residual")
        memset(&g, 0, sizeof(g))
        g.m, g.n, g.k = a.shape[0], w.linear.n, w.linear.k
        g.lda = _stride(a, "a", g.m, g.k)
        g.ldc = _stride(out, "out", g.m, g.n // 2 if w.linear.gated else g.n)
        g.a, g.panels, g.c, g.epilogue = &a[0, 0], w.linear.panels, &out[0, 0], EPILOGUES[epilogue]
        if bias is not None:
            _length(bias, "bias", g.n)
            g.bias = &bias[0]
        if residual is not None:
            g.ldr = _stride(residual, "residual", g.m, g.n)
            g.residual = &residual[0, 0]
        with nogil:
            for i in range(repeat):
                self.table.gemm_f32(&g, 0, (g.n + self.table.panel_cols - 1) // self.table.panel_cols)

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
        n.rows, n.d = x.shape[0], x.shape[1]
        n.ldx, n.ldy = _stride(x, "x", n.rows, n.d), _stride(out, "out", n.rows, n.d)
        _length(weight, "weight", n.d)
        n.x, n.weight, n.eps, n.y = &x[0, 0], &weight[0], eps, &out[0, 0]
        if bias is not None:
            _length(bias, "bias", n.d)
            n.bias = &bias[0]
        with nogil:
            self.table.layer_norm(&n)

    def attention(self, const float[:, :] q not None, const float[:, :] k not None, const float[:, :] v not None,
                  float[:, :] out not None, *, const float[:, ::1] cos=None, const float[:, ::1] sin=None,
                  int window=-1, float scale=1.0):
        """One head of one sequence; k and v share their row stride."""
        cdef sky_attention a
        memset(&a, 0, sizeof(a))
        a.n_queries, a.n_keys, a.d_head = q.shape[0], k.shape[0], q.shape[1]
        if a.d_head > SKY_MAX_D_HEAD:
            raise ValueError(f"q: heads are at most {SKY_MAX_D_HEAD} wide, not {a.d_head}")
        if (cos is None) != (sin is None) or (window >= 0 and a.n_queries != a.n_keys):
            raise ValueError("cos and sin come together, and a window needs as many queries as keys")
        a.ldq, a.ldo = _stride(q, "q", a.n_queries, a.d_head), _stride(out, "out", a.n_queries, a.d_head)
        a.ldkv = _stride(k, "k", a.n_keys, a.d_head)
        if _stride(v, "v", a.n_keys, a.d_head) != a.ldkv:
            raise ValueError("v: expected the row stride of k")
        a.q, a.k, a.v, a.out = &q[0, 0], &k[0, 0], &v[0, 0], &out[0, 0]
        if cos is not None:
            if a.d_head % 2 or a.n_queries > a.n_keys:
                raise ValueError("rope: heads have an even width, and every query a position among the keys")
            _stride(cos, "cos", a.n_keys, a.d_head // 2)
            _stride(sin, "sin", a.n_keys, a.d_head // 2)
            a.rope_cos, a.rope_sin = &cos[0, 0], &sin[0, 0]
        a.window, a.scale = window, scale
        # of this call alone: threads may share the table
        cdef void *scratch = PyMem_RawMalloc(sky_attention_scratch(a.n_keys, a.d_head) * sizeof(float) + SKY_ALIGN)
        if scratch == NULL:
            raise MemoryError
        a.scratch = <float *>((<uintptr_t>scratch + SKY_ALIGN - 1) // SKY_ALIGN * SKY_ALIGN)
        with nogil:
            self.table.attention(&a)
        PyMem_RawFree(scratch)
