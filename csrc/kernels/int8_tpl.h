/* Products of 8-bit weights, and the activations that they take, over an instruction set's vector primitives. An instruction-set
 * file includes this after vec_tpl.h and epilogue_tpl.h, and defines before it:
 *
 *   INT8_ROWS                     of the register tile, at most TILE_ROWS
 *   INT8_GROUP, INT8_OFFSET       how a panel is packed: see sky_int8_format. A group of 4 takes activations by bytes, one of 2 by
 *                                 16 bits
 *   vi                            a vector of VL 32-bit integers
 *   vi_set1(i)                    i in every lane
 *   vi_shift8(x)                  x * 256 (groups of 4 only)
 *   vi_dot(sum, w, a)             sum + the sum of the products of a lane's group of weights, as vi_weights reads them, and the
 *                                 group of activations that every lane of `a` holds; never saturates
 *   vi_weights(p)                 VL * INT8_GROUP bytes of a panel, on a boundary of as many bytes
 *   v_from_int(x)                 the nearest float of each lane
 *   v_store_i32 v_store_i16 v_store_i8     VL whole numbers as integers, any alignment (i8 for groups of 4, i16 for groups of 2)
 *
 * Integer sums are exact, so their order is free; what is summed in float goes block by block, with one rounding for each, and the
 * same order in every instruction set.
 */
#ifndef SKY_INT8_TPL_H
#define SKY_INT8_TPL_H

#include <float.h>
#include <string.h>

#define BLOCK SKY_INT8_BLOCK
#define BLOCK_VECTORS (BLOCK / VL)
#define BLOCK_BYTES ((BLOCK + 2) * PANEL_COLS)
#define GROUP_BYTES (PANEL_COLS * INT8_GROUP)
#define A_GROUP_BYTES 4 /* a group of activations is 32 bits: 4 bytes, or 2 numbers of 16 bits */
#define A_PLANE_BYTES (BLOCK / INT8_GROUP * A_GROUP_BYTES)
#define INT8_A_BLOCK_BYTES (1 << 18)

/* Keeps the compiler from computing products of several steps before it adds them, for which there are too few registers. */
#if defined(__GNUC__) && SKY_X86_64
#define KEEP_IN_ORDER(x) __asm__("" : "+v"(x))
#else
#define KEEP_IN_ORDER(x) ((void)0)
#endif

SKY_INLINE vf v_abs(vf x) { return v_max(x, v_sub(v_set1(0.0f), x)); }

/* x[i] becomes the vector of the sums, or largest elements, across each of the VL vectors. */
SKY_INLINE vf sums_across(vf x[VL])
{
    v_transpose(x);
    SKY_UNROLL
    for (int i = 1; i < VL; i++)
        x[0] = v_add(x[0], x[i]);
    return x[0];
}

SKY_INLINE vf largest_across(vf x[VL])
{
    v_transpose(x);
    SKY_UNROLL
    for (int i = 1; i < VL; i++)
        x[0] = v_max(x[0], x[i]);
    return x[0];
}

SKY_INLINE vf load_first(const float *p, int n) { return n >= VL ? v_load(p) : n > 0 ? v_load_part(p, n) : v_set1(0.0f); }

/* Block b of x [k], zero beyond k, times that of `factors` if there are any. */
SKY_INLINE void load_block(const float *x, const float *factors, int k, int b, vf v[BLOCK_VECTORS])
{
    SKY_UNROLL
    for (int i = 0; i < BLOCK_VECTORS; i++) {
        const int at = b * BLOCK + i * VL;
        v[i] = load_first(x + at, k - at);
        if (factors)
            v[i] = v_mul(v[i], load_first(factors + at, k - at));
    }
}

SKY_INLINE void store_first(float *p, vf x, int n)
{
    if (n >= VL)
        v_store(p, x);
    else
        v_store_part(p, x, n);
}

/* The largest magnitude of each block of x [k] goes to `sizes`, that of all to `largest`; gives the sum of all magnitudes. */
static float block_sizes(const float *x, const float *factors, int k, float *sizes, float *largest)
{
    const int n_blocks = sky_int8_blocks(k);
    vf sum = v_set1(0.0f), most = sum;
    for (int first = 0; first < n_blocks; first += VL) {
        vf size[VL];
        SKY_UNROLL
        for (int i = 0; i < VL; i++) {
            vf v[BLOCK_VECTORS];
            load_block(x, factors, k, first + i, v);
            size[i] = v_abs(v[0]);
            sum = v_add(sum, size[i]);
            SKY_UNROLL
            for (int j = 1; j < BLOCK_VECTORS; j++) {
                const vf other = v_abs(v[j]);
                size[i] = v_max(size[i], other);
                sum = v_add(sum, other);
            }
        }
        const vf sizes_of_blocks = largest_across(size);
        most = v_max(most, sizes_of_blocks);
        store_first(sizes + first, sizes_of_blocks, n_blocks - first);
    }
    *largest = v_hmax(most);
    return v_sum(sum);
}

/* Block b of a row in whole numbers, `levels` for each 1. Gives the sum of each lane's. */
SKY_INLINE vf quantize_block(const float *x, const float *factors, int k, int b, float levels, const sky_int8_row *row)
{
    vf v[BLOCK_VECTORS], sum = v_set1(0.0f);
    load_block(x, factors, k, b, v);
    SKY_UNROLL
    for (int j = 0; j < BLOCK_VECTORS; j++) {
        const vf whole = v_round(v_mul(v[j], v_set1(levels)));
#if INT8_GROUP == 4
        v_store_i8((int8_t *)row->digits + b * BLOCK + j * VL, whole);
#else
        v_store_i16((int16_t *)(void *)row->digits + b * BLOCK + j * VL, whole);
#endif
        sum = v_add(sum, whole);
    }
    return sum;
}

#if INT8_GROUP == 4
/* The same with two digits: the upper byte, rounded, and what is left of it, which go to two planes. */
static SKY_NOINLINE vf quantize_wide_block(const float *x, const float *factors, int k, int b, float levels, const sky_int8_row *row)
{
    vf v[BLOCK_VECTORS], sum = v_set1(0.0f);
    int8_t *upper = (int8_t *)row->digits + b * BLOCK, *lower = upper + sky_int8_blocks(k) * BLOCK;
    load_block(x, factors, k, b, v);
    SKY_UNROLL
    for (int j = 0; j < BLOCK_VECTORS; j++) {
        const vf whole = v_round(v_mul(v[j], v_set1(levels)));
        const vf high = v_round(v_mul(v_add(whole, v_set1(0.5f)), v_set1(1.0f / 256.0f)));
        v_store_i8(upper + j * VL, high);
        v_store_i8(lower + j * VL, v_fma(high, v_set1(-256.0f), whole));
        sum = v_add(sum, whole);
    }
    return sum;
}
#else
#define quantize_wide_block quantize_block
#endif

static void quantize_row(const float *x, const float *factors, int k, char *out)
{
    const int n_blocks = sky_int8_blocks(k);
    const sky_int8_row row = sky_int8_row_at(out, k);
    float largest;
    const float sum = block_sizes(x, factors, k, row.scales, &largest), wide_from = SKY_INT8_WIDE_FROM * sum / (float)k;
    const int has_wide = largest > wide_from;
    *row.has_wide = (uint8_t)has_wide;
    memset(row.is_wide, 0, (unsigned)n_blocks);
    if (INT8_GROUP == 4) /* where a block has one digit, its second is zero for the sake of the rows beside it */
        memset(row.digits + n_blocks * BLOCK, 0, (size_t)(unsigned)n_blocks * BLOCK);
    for (int first = 0; first < n_blocks; first += VL) {
        const int count = n_blocks - first < VL ? n_blocks - first : VL;
        float levels[VL];
        const vf sizes = load_first(row.scales + first, count);
        v_store(levels, v_div(v_set1(SKY_INT8_LEVELS), v_max(sizes, v_set1(SKY_INT8_SMALLEST))));
        vf sums[VL];
        for (int i = 0; i < VL; i++) {
            const int b = first + i;
            const float size = i < count ? row.scales[b] : 0.0f;
            if (i >= count) {
                sums[i] = v_set1(0.0f);
            } else if (has_wide && size > wide_from) {
                row.is_wide[b] = 1;
                sums[i] = quantize_wide_block(x, factors, k, b, levels[i] * (SKY_INT8_WIDE_LEVELS / SKY_INT8_LEVELS), &row);
            } else {
                sums[i] = quantize_block(x, factors, k, b, levels[i], &row);
            }
        }
        store_first(row.scales + first, v_mul(sizes, v_set1(1.0f / SKY_INT8_LEVELS)), count);
        for (int i = 0; i < count && has_wide; i++)
            if (row.is_wide[first + i])
                row.scales[first + i] *= 1.0f / 256.0f;
#if INT8_OFFSET
        int32_t offsets[VL];
        v_store_i32(offsets, v_mul(sums_across(sums), v_set1(-(float)INT8_OFFSET)));
        memcpy(row.offsets + first, offsets, (size_t)count * sizeof *offsets);
#else
        (void)sums;
#endif
    }
    if (!(sum <= FLT_MAX)) /* a NaN or infinity, which has to show */
        for (int b = 0; b < n_blocks; b++)
            row.scales[b] = NAN;
}

static void quantize_rows(sky_matrix x, const float *factors, char *out)
{
    for (int i = 0; i < x.rows; i++)
        quantize_row(x.data + (ptrdiff_t)i * x.stride, factors, x.cols, out + (size_t)i * sky_int8_row_bytes(x.cols));
}

/* ---- the product ---- */

/* sum [rows, PANEL_COLS] += a block of A's digits times a block of the panel */
SKY_INLINE void block_dot(const int rows, const char *digits, size_t row_bytes, const char *w, const char *ahead, int ahead_bytes,
                          vi sum[INT8_ROWS][PANEL_VECTORS])
{
    SKY_UNROLL
    for (int p = 0; p < BLOCK / INT8_GROUP; p++) {
        SKY_PREFETCH_L2(ahead + p * ahead_bytes);
        const vi_weight w0 = vi_weights(w + p * GROUP_BYTES), w1 = vi_weights(w + p * GROUP_BYTES + GROUP_BYTES / 2);
        SKY_UNROLL
        for (int i = 0; i < rows; i++) {
            int32_t group;
            memcpy(&group, digits + i * row_bytes + p * A_GROUP_BYTES, sizeof group);
            const vi a = vi_set1(group);
            sum[i][0] = vi_dot(sum[i][0], w0, a);
            KEEP_IN_ORDER(sum[i][0]);
            sum[i][1] = vi_dot(sum[i][1], w1, a);
            KEEP_IN_ORDER(sum[i][1]);
        }
    }
}

/* `ahead`: what to fetch while the tile runs, ahead_bytes on with every step of a group. `may_be_wide`, a constant: whether a row may
 * have two digits in a block. */
SKY_INLINE void int8_tile(const int rows, const int may_be_wide, const sky_gemm *g, int row, int panel, const char *w, const char *ahead,
                          int ahead_bytes)
{
    const int k = g->a.cols, n_blocks = sky_int8_blocks(k);
    const size_t row_bytes = sky_int8_row_bytes(k);
    const sky_int8_row a = sky_int8_row_at((char *)g->a_int8 + (size_t)row * row_bytes, k); /* row i of the tile: i * row_bytes on */
#define OF_ROW(pointer, i) ((const void *)((const char *)(pointer) + (size_t)(i) * row_bytes))
    vf acc[TILE_ROWS][PANEL_VECTORS];
    SKY_UNROLL
    for (int i = 0; i < rows; i++)
        acc[i][0] = acc[i][1] = v_set1(0.0f);
    for (int b = 0; b < n_blocks; b++) {
        vi sum[INT8_ROWS][PANEL_VECTORS];
        int is_wide = 0; /* whether a row of the tile has two digits here; the second of the others is zero */
        for (int i = 0; i < rows && may_be_wide; i++)
            is_wide |= ((const uint8_t *)OF_ROW(a.is_wide, i))[b];
        SKY_UNROLL
        for (int i = 0; i < rows; i++)
            sum[i][0] = sum[i][1] = vi_set1(INT8_OFFSET && !is_wide ? ((const int32_t *)OF_ROW(a.offsets, i))[b] : 0);
        block_dot(rows, a.digits + b * A_PLANE_BYTES, row_bytes, w, ahead, ahead_bytes, sum);
#if INT8_GROUP == 4
        if (may_be_wide && is_wide) {
            SKY_UNROLL
            for (int i = 0; i < rows; i++) {
                const vi start = vi_set1(INT8_OFFSET ? ((const int32_t *)OF_ROW(a.offsets, i))[b] : 0);
                if (((const uint8_t *)OF_ROW(a.is_wide, i))[b]) {
                    sum[i][0] = vi_shift8(sum[i][0]);
                    sum[i][1] = vi_shift8(sum[i][1]);
                }
                sum[i][0] = vi_add(sum[i][0], start);
                sum[i][1] = vi_add(sum[i][1], start);
            }
            block_dot(rows, a.digits + (n_blocks + b) * A_PLANE_BYTES, row_bytes, w, ahead, ahead_bytes, sum);
        }
#endif
        ahead += BLOCK / INT8_GROUP * ahead_bytes;
        const uint16_t *scales = (const uint16_t *)(const void *)(w + BLOCK * PANEL_COLS);
        const vf w0 = v_load_f16(scales), w1 = v_load_f16(scales + VL);
        w += BLOCK_BYTES;
        SKY_UNROLL
        for (int i = 0; i < rows; i++) {
            const vf scale = v_set1(((const float *)OF_ROW(a.scales, i))[b]);
            acc[i][0] = v_fma(v_from_int(sum[i][0]), v_mul(w0, scale), acc[i][0]);
            acc[i][1] = v_fma(v_from_int(sum[i][1]), v_mul(w1, scale), acc[i][1]);
        }
    }
#undef OF_ROW
    const vf unit = v_set1(g->weight_unit);
    SKY_UNROLL
    for (int i = 0; i < rows; i++) {
        acc[i][0] = v_mul(acc[i][0], unit);
        acc[i][1] = v_mul(acc[i][1], unit);
    }
    tile_finish(rows, g, row, panel, acc);
}

typedef void int8_tile_fn(const sky_gemm *g, int row, int panel, const char *w, const char *ahead, int ahead_bytes);
#define INT8_TILE(R, IS_WIDE) \
    static SKY_NOINLINE void int8_tile_##R##_##IS_WIDE(const sky_gemm *g, int row, int panel, const char *w, const char *ahead, \
                                                       int ahead_bytes) \
    { int8_tile(R, IS_WIDE, g, row, panel, w, ahead, ahead_bytes); }
INT8_TILE(1, 0) INT8_TILE(2, 0) INT8_TILE(3, 0)
#if INT8_ROWS > 3
INT8_TILE(4, 0) INT8_TILE(5, 0) INT8_TILE(6, 0)
#endif
#if INT8_GROUP == 4
INT8_TILE(1, 1) INT8_TILE(2, 1) INT8_TILE(3, 1)
#if INT8_ROWS > 3
INT8_TILE(4, 1) INT8_TILE(5, 1) INT8_TILE(6, 1)
#endif
#endif

static int8_tile_fn *const int8_tiles[][INT8_ROWS + 1] = {
    {NULL, int8_tile_1_0, int8_tile_2_0, int8_tile_3_0,
#if INT8_ROWS > 3
     int8_tile_4_0, int8_tile_5_0, int8_tile_6_0,
#endif
    },
#if INT8_GROUP == 4
    {NULL, int8_tile_1_1, int8_tile_2_1, int8_tile_3_1,
#if INT8_ROWS > 3
     int8_tile_4_1, int8_tile_5_1, int8_tile_6_1,
#endif
    },
#endif
};

/* Whether one of a tile's rows has two digits somewhere; never where a digit has 16 bits. */
static int tile_is_wide(const sky_gemm *g, int row, int rows)
{
    const size_t row_bytes = sky_int8_row_bytes(g->a.cols);
    uint8_t is_wide = 0;
    for (int i = row; i < row + rows; i++)
        is_wide |= *sky_int8_row_at((char *)g->a_int8 + (size_t)i * row_bytes, g->a.cols).has_wide;
    return INT8_GROUP == 4 && is_wide;
}

/* Rows of A go in blocks that stay in the L2 cache beside a panel. */
static void gemm_int8(const sky_gemm *g, int panel_begin, int panel_end)
{
    const int k = g->a.cols, fitting = INT8_A_BLOCK_BYTES / k / INT8_ROWS * INT8_ROWS;
    const int block = fitting > INT8_ROWS ? fitting : INT8_ROWS;
    const size_t panel_bytes = sky_int8_panel_bytes(k, PANEL_COLS);
    for (int first = 0; first < g->a.rows; first += block) {
        const int last = g->a.rows - first < block ? g->a.rows : first + block;
        /* While a panel is in use, its row tiles fetch the next one, each its share */
        const int n_tiles = (last - first + INT8_ROWS - 1) / INT8_ROWS;
        const int ahead_bytes = (GROUP_BYTES + n_tiles - 1) / n_tiles;
        for (int panel = panel_begin; panel < panel_end; panel++) {
            const char *w = (const char *)g->panels + (size_t)panel * panel_bytes, *ahead = w + panel_bytes;
            for (int row = first; row < last; row += INT8_ROWS) {
                const int rows = last - row < INT8_ROWS ? last - row : INT8_ROWS;
                int8_tiles[tile_is_wide(g, row, rows)][rows](g, row, panel, w, ahead, ahead_bytes);
                ahead += (size_t)k / INT8_GROUP * ahead_bytes;
            }
        }
    }
}

static void fill_int8(sky_kernels *table)
{
    table->gemm[SKY_WEIGHT_INT8] = gemm_int8;
    table->quantize_rows = quantize_rows;
    table->int8_format = (sky_int8_format){INT8_GROUP, INT8_OFFSET};
}

#endif
