/* The register-tiled product over an instruction set's vector primitives (listed in vec_tpl.h). An instruction-set file
 * defines TILE_ROWS, and HALF_WEIGHTS as 1 where it multiplies by weights of 16 bits, too, and includes this after vec_tpl.h;
 * PANEL_VECTORS vectors make a panel.
 *
 * The tile is TILE_ROWS x PANEL_VECTORS accumulators that never leave their registers while k runs; one weight vector
 * load feeds TILE_ROWS fused multiply-adds and each element of A is broadcast. A panel of K_PART and A_BLOCK_FLOATS of A stay in the
 * L2 cache while all row tiles pass over the panel: where a file says nothing 128 KB and 512 KB, for caches of 1 MB. Both prefetches
 * below gain more than other blocks do (measured, benchmarks/LOG.md). A panel of 16-bit weights is widened by the first row tile,
 * whose multiply-adds hide it, into a buffer that stays in the L2 cache for the other tiles.
 * The same tile computes QK^T and PV in attention_tpl.h. Rows past the last whole tile take a shorter tile of the same order
 * of operations, so a row's bits do not depend on where it falls.
 */
#ifndef SKY_GEMM_TPL_H
#define SKY_GEMM_TPL_H

#define FLOATS_PER_LINE 16
#ifndef A_BLOCK_FLOATS
#define A_BLOCK_FLOATS (1 << 17)
#define K_PART SKY_MAX_K_PART
#endif
#define WEIGHT_BYTES(type) ((type) == SKY_WEIGHT_F32 ? sizeof(float) : sizeof(uint16_t))
#define L1_STEPS 4 /* of k between asking the L2 cache for a row of w and using it */

/* acc [rows, PANEL_COLS] += column p of a [rows, ..] times the row w0, w1. `rows` is a constant where this is inlined. */
SKY_INLINE void tile_step(const int rows, int p, const float *a, int lda, vf w0, vf w1, vf acc[TILE_ROWS][PANEL_VECTORS])
{
    SKY_UNROLL
    for (int i = 0; i < rows; i++) {
        const vf a_ip = v_set1(a[(ptrdiff_t)i * lda + p]);
        acc[i][0] = v_fma(a_ip, w0, acc[i][0]);
        acc[i][1] = v_fma(a_ip, w1, acc[i][1]);
    }
}

/* acc [rows, PANEL_COLS] += a [rows, k] @ w, w row p at w + p * ldw. The line at ahead + p * ahead_bytes is prefetched; 0 bytes
 * keep to one line. */
SKY_INLINE void tile_accumulate(const int rows, int k, const float *a, int lda, const float *w, int ldw,
                                const char *ahead, int ahead_bytes, vf acc[TILE_ROWS][PANEL_VECTORS])
{
    for (int p = 0; p < k; p++) {
        SKY_PREFETCH_L2(ahead);
        ahead += ahead_bytes;
        for (int line = 0; line < PANEL_COLS; line += FLOATS_PER_LINE)
            SKY_PREFETCH_L1(w + (ptrdiff_t)L1_STEPS * ldw + line);
        tile_step(rows, p, a, lda, v_load(w), v_load(w + VL), acc);
        w += ldw;
    }
}

SKY_INLINE void tile_clear(const int rows, vf acc[TILE_ROWS][PANEL_VECTORS])
{
    SKY_UNROLL
    for (int i = 0; i < rows; i++) {
        acc[i][0] = v_set1(0.0f);
        acc[i][1] = v_set1(0.0f);
    }
}

/* The same as tile_accumulate where only the first `cols` < PANEL_COLS columns of w may be read. */
SKY_INLINE void tile_accumulate_part(const int rows, int k, const float *a, int lda, const float *w, int ldw, int cols,
                                     vf acc[TILE_ROWS][PANEL_VECTORS])
{
    for (int p = 0; p < k; p++) {
        vf w0, w1;
        load_cols(w, cols, &w0, &w1);
        tile_step(rows, p, a, lda, w0, w1, acc);
        w += ldw;
    }
}

/* The same where w has VL columns, which leaves the other half of acc as it is. */
SKY_INLINE void tile_accumulate_vector(const int rows, int k, const float *a, int lda, const float *w, int ldw,
                                       vf acc[TILE_ROWS][PANEL_VECTORS])
{
    for (int p = 0; p < k; p++) {
        const vf w0 = v_load(w);
        SKY_UNROLL
        for (int i = 0; i < rows; i++)
            acc[i][0] = v_fma(v_set1(a[(ptrdiff_t)i * lda + p]), w0, acc[i][0]);
        w += ldw;
    }
}

/* w: the panel, from the first row that belongs to g's k. `ahead`: what to fetch while the tile runs, ahead_bytes on with every
 * step of k. */
SKY_INLINE void gemm_tile(const int rows, const sky_gemm *g, int row, int panel, const float *w, const char *ahead,
                          int ahead_bytes)
{
    vf acc[TILE_ROWS][PANEL_VECTORS];
    tile_clear(rows, acc);
    tile_accumulate(rows, g->a.cols, g->a.data + (ptrdiff_t)row * g->a.stride, g->a.stride, w, PANEL_COLS, ahead, ahead_bytes, acc);
    tile_finish(rows, g, row, panel, acc);
}

#if HALF_WEIGHTS
SKY_INLINE vf load_halves(const sky_weight_type type, const uint16_t *w)
{
    return type == SKY_WEIGHT_F16 ? v_load_f16(w) : v_load_bf16(w);
}

/* The same from a panel of 16-bit weights, which are left as floats at `wide`, each row of them wide_step floats behind the one
 * before; a step of 0 leaves nothing. */
SKY_INLINE void widening_tile(const int rows, const sky_weight_type type, const sky_gemm *g, int row, int panel, const uint16_t *w,
                              const char *ahead, int ahead_bytes, float *wide, int wide_step)
{
    const float *a = g->a.data + (ptrdiff_t)row * g->a.stride;
    vf acc[TILE_ROWS][PANEL_VECTORS];
    tile_clear(rows, acc);
    for (int p = 0; p < g->a.cols; p++) {
        SKY_PREFETCH_L2(ahead);
        ahead += ahead_bytes;
        SKY_PREFETCH_L1(w + L1_STEPS * PANEL_COLS);
        const vf w0 = load_halves(type, w), w1 = load_halves(type, w + VL);
        v_store(wide, w0);
        v_store(wide + VL, w1);
        tile_step(rows, p, a, g->a.stride, w0, w1, acc);
        w += PANEL_COLS;
        wide += wide_step;
    }
    spill_and_finish(rows, g, row, panel, acc); /* once a panel: what it costs does not show */
}
#endif

/* One function for each height, so that `rows` is a constant in every tile. */
#define TILE_OF_FLOATS(R) \
    static SKY_NOINLINE void gemm_tile_##R(const sky_gemm *g, int row, int panel, const float *w, const char *ahead, \
                                           int ahead_bytes) \
    { gemm_tile(R, g, row, panel, w, ahead, ahead_bytes); }
#define TILE_OF_HALVES(R, NAME, TYPE) \
    static SKY_NOINLINE void NAME##_tile_##R(const sky_gemm *g, int row, int panel, const uint16_t *w, const char *ahead, \
                                             int ahead_bytes, float *wide, int wide_step) \
    { widening_tile(R, TYPE, g, row, panel, w, ahead, ahead_bytes, wide, wide_step); }
#if HALF_WEIGHTS
#define GEMM_TILES(R) TILE_OF_FLOATS(R) TILE_OF_HALVES(R, f16, SKY_WEIGHT_F16) TILE_OF_HALVES(R, bf16, SKY_WEIGHT_BF16)
#else
#define GEMM_TILES(R) TILE_OF_FLOATS(R)
#endif
GEMM_TILES(1) GEMM_TILES(2) GEMM_TILES(3) GEMM_TILES(4)
#if TILE_ROWS > 4
GEMM_TILES(5) GEMM_TILES(6)
#endif
#if TILE_ROWS > 6
GEMM_TILES(7) GEMM_TILES(8) GEMM_TILES(9) GEMM_TILES(10) GEMM_TILES(11) GEMM_TILES(12)
#endif
#if TILE_ROWS == 4
#define ALL_HEIGHTS(NAME) NULL, NAME##_1, NAME##_2, NAME##_3, NAME##_4
#elif TILE_ROWS == 6
#define ALL_HEIGHTS(NAME) NULL, NAME##_1, NAME##_2, NAME##_3, NAME##_4, NAME##_5, NAME##_6
#else
#define ALL_HEIGHTS(NAME) \
    NULL, NAME##_1, NAME##_2, NAME##_3, NAME##_4, NAME##_5, NAME##_6, NAME##_7, NAME##_8, NAME##_9, NAME##_10, NAME##_11, NAME##_12
#endif

typedef void gemm_tile_fn(const sky_gemm *g, int row, int panel, const float *w, const char *ahead, int ahead_bytes);
static gemm_tile_fn *const gemm_tiles[TILE_ROWS + 1] = {ALL_HEIGHTS(gemm_tile)};

#if HALF_WEIGHTS
typedef void widening_tile_fn(const sky_gemm *g, int row, int panel, const uint16_t *w, const char *ahead, int ahead_bytes,
                              float *wide, int wide_step);
static widening_tile_fn *const f16_tiles[TILE_ROWS + 1] = {ALL_HEIGHTS(f16_tile)};
static widening_tile_fn *const bf16_tiles[TILE_ROWS + 1] = {ALL_HEIGHTS(bf16_tile)};
#endif

/* Of `left` rows. A tile of few rows waits for its own sums, as there are fewer of them than a multiply-add takes cycles and units
 * compute at once: such a rest shares with the tile in front of it. */
SKY_INLINE int rows_of_tile(int left)
{
    enum { FEW = 4 };
    if (left <= TILE_ROWS)
        return left;
    return left < TILE_ROWS + FEW ? (left + 1) / 2 : TILE_ROWS;
}

/* Panels `panel_bytes` apart. Rows of A go in blocks that stay in the L2 cache beside a panel, so A comes from further away
 * once and not once a panel. */
static void gemm_part(const sky_weight_type type, const sky_gemm *g, size_t panel_bytes, int panel_begin, int panel_end)
{
    if (g->a.rows == 0)
        return;
    const int n_fitting = A_BLOCK_FLOATS / g->a.cols > 1 ? A_BLOCK_FLOATS / g->a.cols : 1;
    const int n_blocks = (g->a.rows + n_fitting - 1) / n_fitting;
    const int block = (g->a.rows + TILE_ROWS * n_blocks - 1) / (TILE_ROWS * n_blocks) * TILE_ROWS; /* all about as large */
    for (int first = 0; first < g->a.rows; first += block) {
        const int last = g->a.rows - first < block ? g->a.rows : first + block;
        /* While a panel is in use, its row tiles fetch the next one, each its share; else the first tile waits for memory */
        const int n_tiles = (last - first + TILE_ROWS - 1) / TILE_ROWS;
        const int ahead_bytes = (PANEL_COLS * WEIGHT_BYTES(type) + n_tiles - 1) / n_tiles;
        for (int panel = panel_begin; panel < panel_end; panel++) {
            const char *w = (const char *)g->panels + (size_t)panel * panel_bytes, *ahead = w + panel_bytes;
            const float *floats = (const float *)(const void *)w;
            int row = first;
#if HALF_WEIGHTS
            if (type != SKY_WEIGHT_F32) { /* the first rows widen the panel for the others, where there are any */
                const int rows = rows_of_tile(last - first);
                (type == SKY_WEIGHT_F16 ? f16_tiles : bf16_tiles)[rows](g, row, panel, (const uint16_t *)(const void *)w, ahead,
                                                                        ahead_bytes, g->scratch, rows < last - first ? PANEL_COLS : 0);
                ahead += (size_t)g->a.cols * ahead_bytes;
                floats = g->scratch;
                row += rows;
            }
#endif
            for (int rows; row < last; row += rows) {
                rows = rows_of_tile(last - row);
                gemm_tiles[rows](g, row, panel, floats, ahead, ahead_bytes);
                ahead += (size_t)g->a.cols * ahead_bytes;
            }
        }
    }
}

/* A long k goes in equal parts, each added to c as a residual: else A's block has so few rows that panels come from memory
 * several times. Where the parts end depends on k alone, as the bits of a row must. */
static void gemm(const sky_weight_type type, const sky_gemm *g, int panel_begin, int panel_end)
{
    const int k = g->a.cols, n_parts = g->epilogue == SKY_EPILOGUE_LINEAR ? (k + K_PART - 1) / K_PART : 1;
    const size_t row_bytes = PANEL_COLS * WEIGHT_BYTES(type);
    sky_gemm part = *g;
    for (int i = 0, begin = 0; i < n_parts; i++) {
        const int end = i + 1 == n_parts ? k : (int)((int64_t)k * (i + 1) / n_parts / FLOATS_PER_LINE * FLOATS_PER_LINE);
        part.a = sky_cols(g->a, begin, end - begin);
        part.panels = (const char *)g->panels + begin * row_bytes;
        gemm_part(type, &part, k * row_bytes, panel_begin, panel_end);
        part.bias = NULL;
        part.residual = g->c;
        begin = end;
    }
}

static void gemm_f32(const sky_gemm *g, int panel_begin, int panel_end) { gemm(SKY_WEIGHT_F32, g, panel_begin, panel_end); }
#if HALF_WEIGHTS
static void gemm_f16(const sky_gemm *g, int panel_begin, int panel_end) { gemm(SKY_WEIGHT_F16, g, panel_begin, panel_end); }
static void gemm_bf16(const sky_gemm *g, int panel_begin, int panel_end) { gemm(SKY_WEIGHT_BF16, g, panel_begin, panel_end); }
#endif

static void pack_panel(const float *rows, int stride, int k, float *panel)
{
    int j = 0;
    for (; j + VL <= k; j += VL)
        for (int i = 0; i < PANEL_COLS; i += VL) {
            vf block[VL];
            SKY_UNROLL
            for (int r = 0; r < VL; r++)
                block[r] = v_load(rows + (ptrdiff_t)(i + r) * stride + j);
            v_transpose(block);
            SKY_UNROLL
            for (int r = 0; r < VL; r++)
                v_store(panel + (ptrdiff_t)(j + r) * PANEL_COLS + i, block[r]);
        }
    for (; j < k; j++)
        for (int i = 0; i < PANEL_COLS; i++)
            panel[(ptrdiff_t)j * PANEL_COLS + i] = rows[(ptrdiff_t)i * stride + j];
}

static void fma_peak(int rounds, float *sink)
{
    vf acc[TILE_ROWS][PANEL_VECTORS];
    SKY_UNROLL
    for (int i = 0; i < TILE_ROWS; i++) { /* all different, or the compiler would compute one for all */
        acc[i][0] = v_set1((float)i);
        acc[i][1] = v_set1((float)-i - 1.0f);
    }
    const vf a = v_set1(0.999f), b = v_set1(1.0f);
    for (int round = 0; round < rounds; round++) {
        SKY_UNROLL
        for (int i = 0; i < TILE_ROWS; i++) {
            acc[i][0] = v_fma(acc[i][0], a, b);
            acc[i][1] = v_fma(acc[i][1], a, b);
        }
    }
    *sink = 0.0f;
    SKY_UNROLL
    for (int i = 0; i < TILE_ROWS; i++)
        *sink += v_sum(v_add(acc[i][0], acc[i][1]));
}

#endif
