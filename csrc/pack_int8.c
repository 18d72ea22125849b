/* Weights in 8 bits: numbers of a file in blocks of 32 with a scale each, which is GGUF's Q8_0, and such blocks in the panels of an
 * instruction set (kernels/kernels.h has the layout). Q8_0 is taken as it is; other types are rounded to the nearest, the largest of a
 * block to 127. */
#include "internal.h"

#include <float.h>
#include <string.h>

enum { BLOCK = SKY_INT8_BLOCK };

/* As in a file; scales begin anywhere. */
typedef struct {
    uint8_t scale[2]; /* half precision */
    int8_t q[BLOCK];
} q8_block;

static int32_t magnitude_bits(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7FFFFFFF;
}

/* The bits of the largest magnitude, which are ordered as the magnitudes are; of a NaN or infinity INFINITE or more. */
enum { INFINITE = 0x7F800000 };

static int32_t largest_bits(const float *x, int n)
{
    int32_t largest = 0;
    for (int i = 0; i < n; i++) {
        const int32_t bits = magnitude_bits(x[i]);
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

static float from_bits(int32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The nearest half-precision number of x, 0 <= x <= 65504. */
static uint16_t half_of(float x)
{
    if (x < 6.103515625e-5f) /* 2^-14: below it halves are multiples of 2^-24 */
        return (uint16_t)(magnitude_bits(x * 16777216.0f + 8388608.0f) - magnitude_bits(8388608.0f));
    const int32_t bits = magnitude_bits(x);
    return (uint16_t)(((bits + 0xFFF + (bits >> 13 & 1)) >> 13) - (112 << 10));
}

/* q = x / scale, rounded; zeros where the scale is 0, or so small that its inverse is no number. */
static void quantize(const float *x, float scale, int8_t *q)
{
    const float factor = scale >= FLT_MIN ? 1.0f / scale : 0.0f, round = 12582912.0f; /* 1.5 * 2^23: what is added to it is rounded */
    for (int i = 0; i < BLOCK; i++) {
        float y = x[i] * factor;
        y = y > 127.0f ? 127.0f : y;
        y = y < -127.0f ? -127.0f : y;
        q[i] = (int8_t)(int32_t)(y + round - round);
    }
}

/* The largest magnitude of each column of [rows, k], into columns [k]. Gives the bits of the largest of all. */
static int32_t column_sizes(const sky_kernels *kernels, sky_weight_type type, const void *data, int rows, int k, float *columns)
{
    enum { AT_ONCE = 1024 };
    memset(columns, 0, (size_t)k * sizeof *columns);
    for (int row = 0; row < rows; row++)
        for (int first = 0; first < k; first += AT_ONCE) {
            float x[AT_ONCE];
            const int count = k - first < AT_ONCE ? k - first : AT_ONCE;
            sky_widen(kernels, type, data, (size_t)row * k + first, count, x);
            for (int i = 0; i < count; i++) {
                const int32_t bits = magnitude_bits(x[i]), before = magnitude_bits(columns[first + i]);
                columns[first + i] = from_bits(bits > before ? bits : before);
            }
        }
    return largest_bits(columns, k);
}

/* Of n numbers, at most a block, the one that half of them do not exceed. */
static float middle(const float *columns, int n)
{
    float sorted[BLOCK];
    for (int i = 0; i < n; i++) {
        int at = i;
        for (; at > 0 && sorted[at - 1] > columns[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = columns[i];
    }
    return sorted[(n - 1) / 2];
}

/* A column that is much smaller than those of its block would have few levels left, which costs precision where activations are as
 * much larger: an outlier channel behind a norm that was trained so. Such columns are multiplied by a power of two, and their activations
 * by its inverse, which are the factors that `columns` [k] becomes. Gives whether there is one that is not 1. */
static int find_factors(float *columns, int k)
{
    enum { FROM = 2, MOST = 12 }; /* powers of two that a column is smaller by */
    int has_factors = 0;
    for (int first = 0; first < k; first += BLOCK) {
        const int n = k - first < BLOCK ? k - first : BLOCK;
        const int usual = magnitude_bits(middle(columns + first, n)) >> 23;
        for (int i = first; i < first + n; i++) {
            const int exponent = magnitude_bits(columns[i]) >> 23, smaller = exponent ? usual - exponent : 0;
            const int shift = smaller < FROM ? 0 : smaller < MOST ? smaller : MOST;
            columns[i] = from_bits((127 - shift) << 23);
            has_factors |= shift;
        }
    }
    return has_factors != 0;
}

/* The power of two that scales are stored in units of, so that the largest lies between 2^9 and 2^10 and one that is smaller by 2^23
 * still is a normal number. `largest`: the bits of the largest weight. */
static float unit_of(int32_t largest)
{
    const int exponent = (magnitude_bits(from_bits(largest) / 127.0f) >> 23) - 9;
    return from_bits((exponent < 1 ? 1 : exponent) << 23);
}

/* Rows of Q8_0, [rows, k] with k a multiple of 32, from numbers of another type; 0 where one is NaN or infinite or too large. */
int sky_to_q8_0(const sky_kernels *kernels, sky_weight_type type, const void *data, size_t n, void *out)
{
    int finite = 1;
    for (size_t b = 0; b < n / BLOCK; b++) {
        float x[BLOCK], scale;
        q8_block block;
        sky_widen(kernels, type, data, b * BLOCK, BLOCK, x);
        const int32_t largest = largest_bits(x, BLOCK);
        scale = from_bits(largest) / 127.0f;
        finite &= largest < INFINITE && scale <= 65504.0f;
        const uint16_t half = half_of(scale <= 65504.0f ? scale : 0.0f);
        memcpy(block.scale, &half, sizeof half);
        kernels->widen_f16(&half, 1, &scale);
        quantize(x, scale, block.q);
        memcpy((char *)out + b * sizeof block, &block, sizeof block);
    }
    return finite;
}

int sky_q8_0_finite(const void *data, size_t n_blocks)
{
    uint16_t faults = 0;
    for (size_t b = 0; b < n_blocks; b++) {
        uint16_t scale;
        memcpy(&scale, (const char *)data + b * sizeof(q8_block), sizeof scale);
        faults |= (scale & 0x7C00) == 0x7C00;
    }
    return faults == 0;
}

void sky_widen_q8_0(const sky_kernels *kernels, const void *data, size_t first, int n, float *out)
{
    while (n > 0) {
        q8_block block;
        uint16_t half;
        float scale;
        const int begin = (int)(first % BLOCK), count = n < BLOCK - begin ? n : BLOCK - begin;
        memcpy(&block, (const char *)data + first / BLOCK * sizeof block, sizeof block);
        memcpy(&half, block.scale, sizeof half);
        kernels->widen_f16(&half, 1, &scale);
        for (int i = 0; i < count; i++)
            out[i] = scale * (float)block.q[begin + i];
        first += (size_t)count;
        out += count;
        n -= count;
    }
}

/* A block of a panel, by column, before it is interleaved. */
typedef struct {
    int8_t q[SKY_MAX_PANEL_COLS][BLOCK];
    uint16_t scales[SKY_MAX_PANEL_COLS];
} block_columns;

/* out [BLOCK / group][cols][group] = q; `group` is a constant where this is inlined. */
static inline void interleave(const block_columns *block, const int cols, const int group, char *out)
{
    for (int p = 0; p < BLOCK; p += group)
        for (int col = 0; col < cols; col++, out += group)
            memcpy(out, &block->q[col][p], (size_t)group);
}

static void store_block(const block_columns *block, int cols, sky_int8_format format, char *out)
{
    if (format.group == 4)
        interleave(block, cols, 4, out);
    else if (format.group == 2)
        interleave(block, cols, 2, out);
    else
        interleave(block, cols, 1, out);
    if (format.offset) /* 128: the uppermost bit, inverted */
        for (int i = 0; i < BLOCK * cols; i++)
            out[i] = (char)((uint8_t)out[i] ^ 0x80u);
    memcpy(out + BLOCK * cols, block->scales, (size_t)cols * sizeof *block->scales);
}

/* Columns of floats [cols][BLOCK] as a block. */
static void quantize_columns(const sky_kernels *kernels, const float (*x)[BLOCK], int cols, float unit, block_columns *block)
{
    float scales[SKY_MAX_PANEL_COLS];
    for (int col = 0; col < cols; col++)
        block->scales[col] = half_of(from_bits(largest_bits(x[col], BLOCK)) / 127.0f / unit);
    kernels->widen_f16(block->scales, cols, scales);
    for (int col = 0; col < cols; col++)
        quantize(x[col], scales[col] * unit, block->q[col]);
}

int sky_pack_int8(const sky_kernels *kernels, sky_linear *w, sky_weight_type type, const void *data, int first_row)
{
    const int cols = kernels->panel_cols, n_blocks = sky_int8_blocks(w->k);
    const char *rows = (const char *)data + (size_t)first_row * sky_row_bytes(type, w->k);
    w->unit = 1.0f;
    w->has_factors = 0;
    if (type == SKY_WEIGHT_INT8) {
        if (!sky_q8_0_finite(rows, (size_t)w->n * n_blocks))
            return 0;
    } else {
        const int32_t largest = column_sizes(kernels, type, rows, w->n, w->k, w->factors);
        if (largest >= INFINITE)
            return 0;
        w->unit = unit_of(largest);
        w->has_factors = find_factors(w->factors, w->k);
    }
    for (int panel = 0; panel < sky_n_panels(kernels, w); panel++) {
        char *out = (char *)w->panels + panel * sky_panel_bytes(kernels, w);
        for (int b = 0; b < n_blocks; b++, out += (BLOCK + (int)sizeof(uint16_t)) * cols) {
            block_columns block;
            float x[SKY_MAX_PANEL_COLS][BLOCK];
            const int count = w->k - b * BLOCK < BLOCK ? w->k - b * BLOCK : BLOCK;
            for (int col = 0; col < cols; col++) {
                const int row = sky_panel_row(w, cols, panel, col);
                if (type != SKY_WEIGHT_INT8) {
                    if (row < 0 || count < BLOCK)
                        memset(x[col], 0, sizeof x[col]);
                    if (row >= 0)
                        sky_widen(kernels, type, rows, (size_t)row * w->k + (size_t)b * BLOCK, count, x[col]);
                    for (int i = 0; i < count && w->has_factors; i++)
                        x[col][i] /= w->factors[b * BLOCK + i]; /* a power of two */
                } else if (row < 0) {
                    memset(block.q[col], 0, sizeof block.q[col]);
                    block.scales[col] = 0;
                } else {
                    const char *source = rows + ((size_t)row * n_blocks + b) * sizeof(q8_block);
                    memcpy(&block.scales[col], source, sizeof block.scales[col]);
                    memcpy(block.q[col], source + sizeof block.scales[col], sizeof block.q[col]);
                }
            }
            if (type != SKY_WEIGHT_INT8)
                quantize_columns(kernels, (const float(*)[BLOCK])x, cols, w->unit, &block);
            store_block(&block, cols, kernels->int8_format, out);
        }
    }
    return 1;
}
