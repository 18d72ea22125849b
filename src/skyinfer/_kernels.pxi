# The kernel table of one instruction set, for tests and benchmarks. Contracts: csrc/kernels/kernels.h. Arrays are float32
# with contiguous rows; a row stride larger than the width is passed on as it is, so tests can guard the padding.

EPILOGUES = {
    "linear": SKY_EPILOGUE_LINEAR,
    "relu": SKY_EPILOGUE_RELU,
    "gelu": SKY_EPILOGUE_GELU,
    "geglu": SKY_EPILOGUE_GEGLU,
    "swiglu": SKY_EPILOGUE_SWIGLU,
}


cdef class PackedMatrix:
    """w [n, k] in the panels of one instruction set."""

    cdef sky_linear linear
    cdef readonly str isa

    def __cinit__(self, str isa not None, const float[:, ::1] w not None, bint gated=False):
        cdef sky_kernels table
        cdef bytes name = isa.encode()
        if sky_kernels_select(name, &table) != SKY_OK:
            raise IsaError(f"instruction set {isa!r} cannot run here")
        cdef size_t n_panels = (w.shape[0] + table.panel_cols - 1) // table.panel_cols
        self.isa = isa
        self.linear.n, self.linear.k, self.linear.gated = w.shape[0], w.shape[1], gated
        self.linear.panels = <float *>sky_alloc(n_panels * table.panel_cols * w.shape[1] * sizeof(float))
        if self.linear.panels == NULL:
            raise MemoryError
        sky_pack(&table, &self.linear, SKY_DTYPE_F32, &w[0, 0], 0)

    def __dealloc__(self):
        sky_release(self.linear.panels)


cdef class Kernels:
    """The kernels of one instruction set."""

    cdef sky_kernels table
    cdef readonly str isa
    cdef float *scratch
    cdef size_t scratch_floats

    def __cinit__(self, str isa not None):
        cdef bytes name = isa.encode()
        if sky_kernels_select(name, &self.table) != SKY_OK:
            raise IsaError(f"instruction set {isa!r} cannot run here")
        self.isa = isa

    def __dealloc__(self):
        sky_release(self.scratch)

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of the GEMM's register tile."""
        return self.table.tile_rows, self.table.panel_cols

    def fma_peak(self, int rounds) -> int:
        """Runs the loop that touches no memory; gives the floating-point operations that it did."""
        cdef float sink
        with nogil:
            self.table.fma_peak(rounds, &sink)
        return 2 * rounds * self.table.tile_rows * self.table.panel_cols

    def gemm(self, const float[:, :] a not None, PackedMatrix w not None, float[:, :] out not None, *,
             const float[::1] bias=None, const float[:, :] residual=None, str epilogue="linear", int repeat=1):
        """out = epilogue(a @ w^T), `repeat` times over."""
        cdef sky_gemm g
        cdef int i
        if w.isa != self.isa:
            raise ValueError(f"packed for {w.isa}, not {self.isa}")
        memset(&g, 0, sizeof(g))
        g.m, g.n, g.k = a.shape[0], w.linear.n, w.linear.k
        g.a, g.lda, g.panels = &a[0, 0], a.strides[0] // sizeof(float), w.linear.panels
        g.c, g.ldc, g.epilogue = &out[0, 0], out.strides[0] // sizeof(float), EPILOGUES[epilogue]
        if bias is not None:
            g.bias = &bias[0]
        if residual is not None:
            g.residual, g.ldr = &residual[0, 0], residual.strides[0] // sizeof(float)
        with nogil:
            for i in range(repeat):
                self.table.gemm_f32(&g, 0, (g.n + self.table.panel_cols - 1) // self.table.panel_cols)

    def widen_f16(self, const uint16_t[::1] half not None, float[::1] out not None):
        """out [n] = half [n], given as the bits of float16."""
        with nogil:
            self.table.widen_f16(&half[0], <int>half.shape[0], &out[0])

    def layer_norm(self, const float[:, :] x not None, const float[::1] weight not None, float eps,
                   float[:, :] out not None, *, const float[::1] bias=None):
        cdef sky_norm n
        memset(&n, 0, sizeof(n))
        n.rows, n.d = x.shape[0], x.shape[1]
        n.x, n.ldx = &x[0, 0], x.strides[0] // sizeof(float)
        n.weight, n.eps = &weight[0], eps
        n.y, n.ldy = &out[0, 0], out.strides[0] // sizeof(float)
        if bias is not None:
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
        a.q, a.ldq = &q[0, 0], q.strides[0] // sizeof(float)
        a.k, a.v, a.ldkv = &k[0, 0], &v[0, 0], k.strides[0] // sizeof(float)
        a.out, a.ldo = &out[0, 0], out.strides[0] // sizeof(float)
        if cos is not None:
            a.rope_cos, a.rope_sin = &cos[0, 0], &sin[0, 0]
        a.window, a.scale = window, scale
        cdef size_t needed = sky_attention_scratch(a.n_keys, a.d_head)
        if needed > self.scratch_floats:
            sky_release(self.scratch)
            self.scratch_floats = 0
            self.scratch = <float *>sky_alloc(needed * sizeof(float))
            if self.scratch == NULL:
                raise MemoryError
            self.scratch_floats = needed
        a.scratch = self.scratch
        with nogil:
            self.table.attention(&a)
