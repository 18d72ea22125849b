/* Products of 8-bit weights, and the activations that they take, over an instruction set's vector primitives. An instruction-set
 * file includes this after vec_tpl.h and epilogue_tpl.h, and defines before it:
 *
 *   INT8_ROWS                     of the register tile, at most TILE_ROWS
 *   INT8_GROUP, INT8_OFFSET       how a panel is packed: see sky_int8_format. A group of 4 takes activations by bytes, one of 2 by
 *                                 16 bits
 *   vi, vi_weight                 a vector of VL 32-bit integers; of VL groups of weights
 *   vi_set1(i)                    i in every lane
 *   vi_dot(sum, w, a)             sum + the sum of the products of a lane's group of weights, as vi_weights reads them, and the
 *                                 group of activations that every lane of `a` holds; never saturates
 *   vi_weights(p)                 VL * INT8_GROUP bytes of a panel, on a boundary of as many bytes
 *   vi_load(p) vi_store(p, w)     such weights as 16-bit integers, on the same boundary (groups of 2 only)
 *   v_from_int(x)                 the nearest float of each lane
 *   v_round v_abs                 to the nearest integer; the magnitude
 *   v_store_i32 v_store_i16 v_store_i8     VL whole numbers as integers, any alignment (i8 for groups of 4, i16 for groups of 2)
 *
 * Integer sums are exact, so their order is free. Float sums go in ascending k, one term for all of k that shares its scales, with one
 * rounding for each, and lower digits last: the same order in every instruction set that takes activations of as many bits.
 */
#ifndef SKY_INT8_TPL_H
#define SKY_INT8_TPL_H

#include <float.h>
#include <string.h>

#define BLOCK SKY_INT8_BLOCK
#define BLOCK_VECTORS (BLOCK / VL)
#define BLOCK_WEIGHTS (BLOCK * PANEL_COLS)
#define GROUP_WEIGHTS (PANEL_COLS * INT8_GROUP)
#define A_GROUP_BYTES 4 /* a group of activations is 32 bits: 4 bytes, or 2 numbers of 16 bits */
#define A_PLANE_BYTES (BLOCK / INT8_GROUP * A_GROUP_BYTES)
/* Numbers of a block of A: 256 KB of bytes, or 512 KB of 16 bits. In smaller blocks of these each panel would be widened again. */
#define INT8_A_BLOCK (1 << 18)

/* Keeps the compiler from computing products of several steps before it adds them, for which there are too few registers. */
#if defined(__GNUC__) && SKY_X86_64
#define KEEP_IN_ORDER(x) __asm__("" : "+v"(x))
#else
#define KEEP_IN_ORDER(x) ((void)0)
#endif

SKY_INLINE vf load_first(const float *p, int n) { return n >= VL ? v_load(p) : n > 0 ? v_load_part(p, n) : v_set1(0.0f); }

/* Block b of x [k], zero beyond k, times that of `factors` if there are any. `is_whole`, a constant: none of it lies beyond k. */
SKY_INLINE void load_block(const float *x, const float *factors, const int is_whole, int k, int b, vf v[BLOCK_VECTORS])
{
    SKY_UNROLL
    for (int i = 0; i < BLOCK_VECTORS; i++) {
        const int at = b * BLOCK + i * VL, n = is_whole ? VL : k - at;
        v[i] = load_first(x + at, n);
        if (factors)
            v[i] = v_mul(v[i], load_first(factors + at, n));
    }
}

#if INT8_GROUP == 4
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

/* How many of n_blocks of k go VL at a time, through transposed vectors: whole ones, as many as there are. The rest goes block by block. */
static int in_groups(int k) { return k / BLOCK / VL * VL; }

/* The largest magnitude of a block, in lanes; those of all are added to `sum`. */
SKY_INLINE vf block_size(const float *x, const float *factors, const int is_whole, int k, int b, vf *sum)
{
    vf v[BLOCK_VECTORS];
    load_block(x, factors, is_whole, k, b, v);
    vf size = v_abs(v[0]);
    *sum = v_add(*sum, size);
    SKY_UNROLL
    for (int j = 1; j < BLOCK_VECTORS; j++) {
        const vf other = v_abs(v[j]);
        size = v_max(size, other);
        *sum = v_add(*sum, other);
    }
    return size;
}

/* Sums of a row's magnitudes: of all, and of the largest one of each block; and the largest of all. */
typedef struct {
    float all, of_largest, largest;
} row_sizes;

/* The largest magnitude of each block of x [k] goes to `sizes`. */
static row_sizes block_sizes(const float *x, const float *factors, int k, float *sizes)
{
    const int n_blocks = sky_int8_blocks(k), n_grouped = in_groups(k);
    vf sum = v_set1(0.0f), most = sum, largest = sum;
    float rest = 0.0f;
    for (int first = 0; first < n_grouped; first += VL) {
        vf size[VL];
        SKY_UNROLL
        for (int i = 0; i < VL; i++)
            size[i] = block_size(x, factors, 1, k, first + i, &sum);
        const vf sizes_of_blocks = largest_across(size);
        most = v_max(most, sizes_of_blocks);
        largest = v_add(largest, sizes_of_blocks);
        v_store(sizes + first, sizes_of_blocks);
    }
    for (int b = n_grouped; b < n_blocks; b++) {
        const vf size = block_size(x, factors, 0, k, b, &sum);
        most = v_max(most, size);
        sizes[b] = v_hmax(size);
        rest += sizes[b];
    }
    return (row_sizes){v_sum(sum), v_sum(largest) + rest, v_hmax(most)};
}

/* Block b of a row in whole numbers, `levels` for each 1. Gives the sum of each lane's. */
SKY_INLINE vf quantize_block(const float *x, const float *factors, const int is_whole, int k, int b, float levels, int8_t *digits)
{
    vf v[BLOCK_VECTORS], sum = v_set1(0.0f);
    load_block(x, factors, is_whole, k, b, v);
    SKY_UNROLL
    for (int j = 0; j < BLOCK_VECTORS; j++) {
        const vf whole = v_round(v_mul(v[j], v_set1(levels)));
        v_store_i8(digits + b * BLOCK + j * VL, whole);
        sum = v_add(sum, whole);
    }
    return sum;
}

/* The same with two digits: the upper byte, rounded, whose sums it gives, and what is left of it, as the row's n_wide-th. */
static SKY_NOINLINE vf quantize_wide_block(const float *x, const float *factors, int k, int b, float levels, const sky_int8_row *row)
{
    const int lower = sky_int8_blocks(k) + *row->n_wide;
    int8_t *digits = (int8_t *)row->digits;
    vf v[BLOCK_VECTORS], sum = v_set1(0.0f), rest = sum;
    load_block(x, factors, 0, k, b, v);
    SKY_UNROLL
    for (int j = 0; j < BLOCK_VECTORS; j++) {
        const vf whole = v_round(v_mul(v[j], v_set1(levels)));
        const vf high = v_round(v_mul(v_add(whole, v_set1(0.5f)), v_set1(1.0f / 256.0f)));
        const vf low = v_fma(high, v_set1(-256.0f), whole);
        v_store_i8(digits + b * BLOCK + j * VL, high);
        v_store_i8(digits + lower * BLOCK + j * VL, low);
        sum = v_add(sum, high);
        rest = v_add(rest, low);
    }
    row->offsets[lower] = -INT8_OFFSET * (int32_t)v_sum(rest);
    row->wide[(*row->n_wide)++] = (uint16_t)b;
    return sum;
}

/* One of the two, by the block's size. */
SKY_INLINE vf quantize_either(const float *x, const float *factors, const int is_whole, int k, int b, float levels, float wide_from,
                              const sky_int8_row *row)
{
    if (row->scales[b] > wide_from) /* levels of the upper digit are as many as of a single one */
        return quantize_wide_block(x, factors, k, b, levels * (SKY_INT8_WIDE_LEVELS / SKY_INT8_LEVELS), row);
    return quantize_block(x, factors, is_whole, k, b, levels, (int8_t *)row->digits);
}

static void quantize_row(const float *x, const float *factors, int k, char *out)
{
    const int n_blocks = sky_int8_blocks(k), n_grouped = in_groups(k);
    const sky_int8_row row = sky_int8_row_at(out, k);
    const row_sizes sums = block_sizes(x, factors, k, row.scales);
    /* k of 1 leaves no other number, and a NaN that nothing is larger than */
    const float wide_from = SKY_INT8_WIDE_FROM * (sums.all - sums.of_largest) / (float)(k - n_blocks);
    *row.n_wide = 0;
    for (int first = 0; first < n_grouped; first += VL) {
        float levels[VL];
        const vf sizes = v_load(row.scales + first);
        v_store(levels, v_div(v_set1(SKY_INT8_LEVELS), v_max(sizes, v_set1(SKY_INT8_SMALLEST))));
        vf digit_sums[VL];
        if (sums.largest > wide_from)
            for (int i = 0; i < VL; i++)
                digit_sums[i] = quantize_either(x, factors, 1, k, first + i, levels[i], wide_from, &row);
        else {
            SKY_UNROLL
            for (int i = 0; i < VL; i++)
                digit_sums[i] = quantize_block(x, factors, 1, k, first + i, levels[i], (int8_t *)row.digits);
        }
        v_store(row.scales + first, v_mul(sizes, v_set1(1.0f / SKY_INT8_LEVELS)));
#if INT8_OFFSET
        v_store_i32(row.offsets + first, v_mul(sums_across(digit_sums), v_set1(-(float)INT8_OFFSET)));
#else
        (void)digit_sums;
#endif
    }
    for (int b = n_grouped; b < n_blocks; b++) {
        const float size = row.scales[b], levels = SKY_INT8_LEVELS / (size > SKY_INT8_SMALLEST ? size : SKY_INT8_SMALLEST);
        const vf digit_sum = quantize_either(x, factors, 0, k, b, levels, wide_from, &row);
        row.scales[b] = size * (1.0f / SKY_INT8_LEVELS);
        row.offsets[b] = INT8_OFFSET && sums.all <= FLT_MAX ? -INT8_OFFSET * (int32_t)v_sum(digit_sum) : 0; /* a NaN is no integer */
    }
    if (!(sums.all <= FLT_MAX)) /* a NaN or infinity, which has to show */
        for (int b = 0; b < n_blocks; b++)
            row.scales[b] = NAN;
}
#else
static void quantize_row(const float *x, const float *factors, int k, char *out)
{
    const sky_int8_row row = sky_int8_row_at(out, k);
    int16_t *digits = (int16_t *)(void *)row.digits;
    vf sum = v_set1(0.0f), most = sum, v[BLOCK_VECTORS];
    for (int b = 0; b < sky_int8_blocks(k); b++) {
        load_block(x, factors, 0, k, b, v);
        SKY_UNROLL
        for (int j = 0; j < BLOCK_VECTORS; j++) {
            sum = v_add(sum, v_abs(v[j]));
            most = v_max(most, v_abs(v[j]));
        }
    }
    const float largest = v_hmax(most);
    const vf levels = v_set1(SKY_INT8_ROW_LEVELS / (largest > SKY_INT8_SMALLEST ? largest : SKY_INT8_SMALLEST));
    for (int b = 0; b < sky_int8_blocks(k); b++) {
        load_block(x, factors, 0, k, b, v);
        SKY_UNROLL
        for (int j = 0; j < BLOCK_VECTORS; j++)
            v_store_i16(digits + b * BLOCK + j * VL, v_round(v_mul(v[j], levels)));
    }
    *row.scales = v_sum(sum) <= FLT_MAX ? largest * (1.0f / SKY_INT8_ROW_LEVELS) : NAN; /* a NaN or infinity has to show */
}
#endif

static void quantize_rows(sky_matrix x, const float *factors, char *out)
{
    for (int i = 0; i < x.rows; i++)
        quantize_row(x.data + (ptrdiff_t)i * x.stride, factors, x.cols, out + (size_t)i * sky_int8_row_bytes(x.cols));
}

/* ---- the product ---- */

/* Where a group is 2, weights have to be widened to 16 bits. The first row tile of a panel leaves them so in `wide`, which stays in the
 * L2 cache, for the others. A constant in each tile function. */
typedef enum { AS_THEY_ARE, WIDEN, WIDENED } weight_reading;

/* sum [rows, PANEL_COLS] += a block of A's digits times a block of the panel, which `wide` is of 16-bit weights */
SKY_INLINE void block_dot(const int rows, const weight_reading reading, const char *digits, size_t row_bytes, const char *w, int16_t *wide,
                          vi sum[INT8_ROWS][PANEL_VECTORS])
{
    (void)wide; /* of groups of 2 only, as the next */
    (void)reading;
    SKY_UNROLL
    for (int p = 0; p < BLOCK / INT8_GROUP; p++) {
#if INT8_GROUP == 4
        const vi_weight w0 = vi_weights(w + p * GROUP_WEIGHTS), w1 = vi_weights(w + p * GROUP_WEIGHTS + GROUP_WEIGHTS / 2);
#else
        int16_t *wide0 = wide + p * GROUP_WEIGHTS, *wide1 = wide0 + GROUP_WEIGHTS / 2;
        const vi_weight w0 = reading == WIDENED ? vi_load(wide0) : vi_weights(w + p * GROUP_WEIGHTS);
        const vi_weight w1 = reading == WIDENED ? vi_load(wide1) : vi_weights(w + p * GROUP_WEIGHTS + GROUP_WEIGHTS / 2);
        if (reading == WIDEN) {
            vi_store(wide0, w0);
            vi_store(wide1, w1);
        }
#endif
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

/* The scales in a block of weights, behind its digits, or 1 where its rows have one each. */
SKY_INLINE void block_scales(const int by_rows, const char *w, vf *w0, vf *w1)
{
    const uint16_t *scales = (const uint16_t *)(const void *)(w + BLOCK_WEIGHTS);
    *w0 = by_rows ? v_set1(1.0f) : v_load_f16(scales);
    *w1 = by_rows ? v_set1(1.0f) : v_load_f16(scales + VL);
}

#if INT8_GROUP == 4
/* sums [PANEL_COLS] += what a row's lower digits add, before scales of whole rows. One row at a time: they are few. */
static SKY_NOINLINE void add_lower_digits(int by_rows, const sky_int8_row *a, int n_blocks, const char *w, size_t block_bytes, float *sums)
{
    vf acc0 = v_load(sums), acc1 = v_load(sums + VL);
    for (int i = 0; i < *a->n_wide; i++) {
        const int b = a->wide[i];
        const char *block = w + (size_t)b * block_bytes;
        vi sum[INT8_ROWS][PANEL_VECTORS];
        sum[0][0] = sum[0][1] = vi_set1(INT8_OFFSET ? a->offsets[n_blocks + i] : 0);
        block_dot(1, AS_THEY_ARE, a->digits + (n_blocks + i) * A_PLANE_BYTES, 0, block, NULL, sum);
        const vf scale = v_set1(a->scales[b] * (1.0f / 256.0f));
        vf w0, w1;
        block_scales(by_rows, block, &w0, &w1);
        acc0 = v_fma(v_from_int(sum[0][0]), v_mul(w0, scale), acc0);
        acc1 = v_fma(v_from_int(sum[0][1]), v_mul(w1, scale), acc1);
    }
    v_store(sums, acc0);
    v_store(sums + VL, acc1);
}

#define SUMMED(by_rows) 1
#else
#define SUMMED(by_rows) ((by_rows) ? SKY_INT8_SUMMED : 1) /* blocks of k that share their scales */
#endif

/* `ahead`: what to fetch while the tile runs, ahead_lines of it with each block. `by_rows`, a constant: whether weights have a scale for
 * each row. */
SKY_INLINE void int8_tile(const int rows, const int by_rows, const weight_reading reading, const sky_gemm *g, int row, int panel,
                          const char *w, const char *ahead, int ahead_lines)
{
    const int k = g->a.cols, n_blocks = sky_int8_blocks(k);
    const size_t row_bytes = sky_int8_row_bytes(k), block_bytes = by_rows ? BLOCK_WEIGHTS : BLOCK_WEIGHTS + 2 * PANEL_COLS;
    const sky_int8_row a = sky_int8_row_at((char *)g->a_int8 + (size_t)row * row_bytes, k); /* row i of the tile: i * row_bytes on */
    const char *block = w;
    int16_t *wide = INT8_GROUP == 4 ? NULL : (int16_t *)(void *)g->scratch;
#define OF_ROW(pointer, i) ((const void *)((const char *)(pointer) + (size_t)(i) * row_bytes))
    vf acc[TILE_ROWS][PANEL_VECTORS];
    SKY_UNROLL
    for (int i = 0; i < rows; i++)
        acc[i][0] = acc[i][1] = v_set1(0.0f);
    for (int b = 0; b < n_blocks;) {
        const int first = b, end = n_blocks - b < SUMMED(by_rows) ? n_blocks : b + SUMMED(by_rows);
        vi sum[INT8_ROWS][PANEL_VECTORS];
        vf w0, w1;
        SKY_UNROLL
        for (int i = 0; i < rows; i++)
            sum[i][0] = sum[i][1] = vi_set1(INT8_OFFSET ? ((const int32_t *)OF_ROW(a.offsets, i))[first] : 0);
        for (; b < end; b++) {
            for (int line = 0; line < ahead_lines; line++, ahead += SKY_ALIGN)
                SKY_PREFETCH_L2(ahead);
            block_dot(rows, reading, a.digits + b * A_PLANE_BYTES, row_bytes, block, wide, sum);
            if (INT8_GROUP != 4)
                wide += BLOCK_WEIGHTS;
            block_scales(by_rows, block, &w0, &w1);
            block += block_bytes;
        }
        SKY_UNROLL
        for (int i = 0; i < rows; i++) {
#if INT8_GROUP == 4
            const vf scale = v_set1(((const float *)OF_ROW(a.scales, i))[first]);
            acc[i][0] = v_fma(v_from_int(sum[i][0]), by_rows ? scale : v_mul(w0, scale), acc[i][0]);
            acc[i][1] = v_fma(v_from_int(sum[i][1]), by_rows ? scale : v_mul(w1, scale), acc[i][1]);
#else
            acc[i][0] = v_fma(v_from_int(sum[i][0]), w0, acc[i][0]);
            acc[i][1] = v_fma(v_from_int(sum[i][1]), w1, acc[i][1]);
#endif
        }
    }
#if INT8_GROUP == 4
    int32_t n_wide = 0;
    for (int i = 0; i < rows; i++)
        n_wide |= *(const int32_t *)OF_ROW(a.n_wide, i);
    if (n_wide) {
        float sums[INT8_ROWS][PANEL_COLS];
        SKY_UNROLL
        for (int i = 0; i < rows; i++) {
            v_store(sums[i], acc[i][0]);
            v_store(sums[i] + VL, acc[i][1]);
        }
        for (int i = 0; i < rows; i++) {
            const sky_int8_row one = sky_int8_row_at((char *)g->a_int8 + (size_t)(row + i) * row_bytes, k);
            add_lower_digits(by_rows, &one, n_blocks, w, block_bytes, sums[i]);
        }
        SKY_UNROLL
        for (int i = 0; i < rows; i++) {
            acc[i][0] = v_load(sums[i]);
            acc[i][1] = v_load(sums[i] + VL);
        }
    }
#else
    SKY_UNROLL
    for (int i = 0; i < rows; i++) {
        const vf scale = v_set1(*(const float *)OF_ROW(a.scales, i));
        acc[i][0] = v_mul(acc[i][0], scale);
        acc[i][1] = v_mul(acc[i][1], scale);
    }
#endif
#undef OF_ROW
    if (by_rows) {
        const vf w0 = v_load((const float *)(const void *)block), w1 = v_load((const float *)(const void *)block + VL);
        SKY_UNROLL
        for (int i = 0; i < rows; i++) {
            acc[i][0] = v_mul(acc[i][0], w0);
            acc[i][1] = v_mul(acc[i][1], w1);
        }
    }
    tile_finish(rows, g, row, panel, acc);
}

typedef void int8_tile_fn(const sky_gemm *g, int row, int panel, const char *w, const char *ahead, int ahead_lines);
#define INT8_TILE(R, NAME, BY_ROWS, READING) \
    static SKY_NOINLINE void NAME##_tile_##R(const sky_gemm *g, int row, int panel, const char *w, const char *ahead, int ahead_lines) \
    { int8_tile(R, BY_ROWS, READING, g, row, panel, w, ahead, ahead_lines); }
#if INT8_GROUP == 4
#define INT8_TILES(R) INT8_TILE(R, int8, 0, AS_THEY_ARE) INT8_TILE(R, int8_rows, 1, AS_THEY_ARE)
#else
#define INT8_TILES(R) \
    INT8_TILE(R, int8, 0, WIDEN) INT8_TILE(R, int8_rows, 1, WIDEN) \
    INT8_TILE(R, int8_wide, 0, WIDENED) INT8_TILE(R, int8_rows_wide, 1, WIDENED)
#endif
INT8_TILES(1) INT8_TILES(2) INT8_TILES(3)
#if INT8_ROWS > 3
INT8_TILES(4) INT8_TILES(5) INT8_TILES(6)
#define INT8_HEIGHTS(NAME) {NULL, NAME##_1, NAME##_2, NAME##_3, NAME##_4, NAME##_5, NAME##_6}
#else
#define INT8_HEIGHTS(NAME) {NULL, NAME##_1, NAME##_2, NAME##_3}
#endif

/* By whether weights have a scale for each row, and by the tile's height: of a panel's first rows, and of the others. */
static int8_tile_fn *const first_tiles[2][INT8_ROWS + 1] = {INT8_HEIGHTS(int8_tile), INT8_HEIGHTS(int8_rows_tile)};
#if INT8_GROUP == 4
#define other_tiles first_tiles
#else
static int8_tile_fn *const other_tiles[2][INT8_ROWS + 1] = {INT8_HEIGHTS(int8_wide_tile), INT8_HEIGHTS(int8_rows_wide_tile)};
#endif

/* Rows of A go in blocks that stay in the L2 cache beside a panel. */
static void multiply_int8(const sky_gemm *g, int by_rows, int panel_begin, int panel_end)
{
    const size_t panel_bytes = sky_int8_panel_bytes(by_rows ? SKY_WEIGHT_INT8_ROWS : SKY_WEIGHT_INT8, g->a.cols, PANEL_COLS);
    const int k = g->a.cols, n_blocks = sky_int8_blocks(k), fitting = INT8_A_BLOCK / k / INT8_ROWS * INT8_ROWS;
    const int block = fitting > INT8_ROWS ? fitting : INT8_ROWS;
    for (int first = 0; first < g->a.rows; first += block) {
        const int last = g->a.rows - first < block ? g->a.rows : first + block;
        /* While a panel is in use, its first row tiles fetch the next one */
        const int n_tiles = (last - first + INT8_ROWS - 1) / INT8_ROWS;
        const int n_steps = n_tiles * n_blocks, ahead_lines = ((int)(panel_bytes / SKY_ALIGN) + n_steps - 1) / n_steps;
        for (int panel = panel_begin; panel < panel_end; panel++) {
            const char *w = (const char *)g->panels + (size_t)panel * panel_bytes, *ahead = w + panel_bytes;
            for (int row = first; row < last; row += INT8_ROWS) {
                int8_tile_fn *const *tiles = (row == first ? first_tiles : other_tiles)[by_rows];
                const int lines = ahead < w + 2 * panel_bytes ? ahead_lines : 0;
                tiles[last - row < INT8_ROWS ? last - row : INT8_ROWS](g, row, panel, w, ahead, lines);
                ahead += (size_t)n_blocks * lines * SKY_ALIGN;
            }
        }
    }
}

static void gemm_int8(const sky_gemm *g, int panel_begin, int panel_end) { multiply_int8(g, 0, panel_begin, panel_end); }

static void gemm_int8_rows(const sky_gemm *g, int panel_begin, int panel_end) { multiply_int8(g, 1, panel_begin, panel_end); }

static void fill_int8(sky_kernels *table)
{
    table->gemm[SKY_WEIGHT_INT8] = gemm_int8;
    table->gemm[SKY_WEIGHT_INT8_ROWS] = gemm_int8_rows;
    table->quantize_rows = quantize_rows;
    table->int8_format = (sky_int8_format){INT8_GROUP, INT8_OFFSET};
}

#endif
