/* Weights in 8 bits, in the panels of an instruction set (kernels/kernels.h has the layout). GGUF's Q8_0, blocks of 32 with a scale each,
 * is taken as it is; matrices of other types are rounded to the nearest, the largest of a row to 127. */
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

static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

static int32_t largest_bits(const float *x, int n)
{
    int32_t largest = 0;
    for (int i = 0; i < n; i++)
        largest = larger(largest, magnitude_bits(x[i]));
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

/* q [n] = x / scale, rounded; zeros where the scale is 0, or so small that its inverse is no number. */
static void quantize(const float *x, int n, float scale, int8_t *q)
{
    const float factor = scale >= FLT_MIN ? 1.0f / scale : 0.0f;
    for (int i = 0; i < n; i++) {
        float y = x[i] * factor;
        y = y > 127.0f ? 127.0f : y;
        y = y < -127.0f ? -127.0f : y;
        q[i] = (int8_t)(int32_t)(y + SKY_ROUNDER - SKY_ROUNDER);
    }
}

/* A column whose elements are much smaller than the largest of their rows would have few levels left, which costs precision where
 * activations are as much larger: an outlier channel behind a norm that was trained so. Such columns are multiplied by a power of two, and
 * their activations by its inverse, which are the factors that `columns` [k], the largest magnitude of each in shares of its row's, become.
 * None gets larger than its rows' largest. Gives whether there is a factor that is not 1. */
static int find_factors(float *columns, int k)
{
    enum { FROM = 2, MOST = 12, LARGEST = 126 }; /* powers of two that a column is smaller by; the exponent of 1/2 */
    int counts[256] = {0}, usual = 0, below = 0, has_factors = 0;
    for (int i = 0; i < k; i++)
        counts[magnitude_bits(columns[i]) >> 23]++;
    const int middle = (k - counts[0] - 1) / 2; /* columns of zeros say nothing */
    while (usual < LARGEST && below + counts[usual + 1] <= middle)
        below += counts[++usual];
    usual = usual < LARGEST ? usual + 1 : LARGEST;
    for (int i = 0; i < k; i++) {
        const int exponent = magnitude_bits(columns[i]) >> 23, smaller = exponent ? usual - exponent : 0;
        const int shift = smaller < FROM ? 0 : smaller < MOST ? smaller : MOST;
        columns[i] = from_bits((127 - shift) << 23);
        has_factors |= shift;
    }
    return has_factors != 0;
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
        if (largest < INFINITE) /* what is NaN cannot be made an integer */
            quantize(x, BLOCK, scale, block.q);
        else
            memset(block.q, 0, sizeof block.q);
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

/* ---- panels ---- */

enum { PART = 4 * BLOCK }; /* of k: all rows of a panel stay in the L1 cache */

/* out [count / group][cols][group] = q [cols][PART]; `group` is a constant where this is inlined. */
static inline void interleave(const int8_t (*q)[PART], int count, int cols, const int group, char *out)
{
    for (int p = 0; p < count; p += group)
        for (int col = 0; col < cols; col++, out += group)
            memcpy(out, &q[col][p], (size_t)group);
}

/* Whole numbers of `count` of k, whole blocks, as a panel has them. */
static void store_digits(const int8_t (*q)[PART], int count, int cols, sky_int8_format format, char *out)
{
    if (format.group == 4)
        interleave(q, count, cols, 4, out);
    else if (format.group == 2)
        interleave(q, count, cols, 2, out);
    else
        interleave(q, count, cols, 1, out);
    if (format.offset) /* 128: the uppermost bit, inverted */
        for (int i = 0; i < count * cols; i++)
            out[i] = (char)((uint8_t)out[i] ^ 0x80u);
}

/* The blocks of Q8_0 are taken as they are. */
static int pack_blocks(const sky_kernels *kernels, sky_linear *w, const char *rows)
{
    const int cols = kernels->panel_cols, n_blocks = sky_int8_blocks(w->k);
    if (!sky_q8_0_finite(rows, (size_t)w->n * n_blocks))
        return 0;
    for (int panel = 0; panel < sky_n_panels(kernels, w); panel++) {
        char *out = (char *)w->panels + panel * sky_panel_bytes(kernels, w);
        for (int b = 0; b < n_blocks; b++, out += (BLOCK + (int)sizeof(uint16_t)) * cols) {
            int8_t q[SKY_MAX_PANEL_COLS][PART];
            uint16_t scales[SKY_MAX_PANEL_COLS] = {0};
            for (int col = 0; col < cols; col++) {
                const int row = sky_panel_row(w, cols, panel, col);
                if (row < 0) {
                    memset(q[col], 0, BLOCK);
                    continue;
                }
                const char *source = rows + ((size_t)row * n_blocks + b) * sizeof(q8_block);
                memcpy(&scales[col], source, sizeof scales[col]);
                memcpy(q[col], source + sizeof scales[col], BLOCK);
            }
            store_digits((const int8_t(*)[PART])q, BLOCK, cols, kernels->int8_format, out);
            memcpy(out + BLOCK * cols, scales, (size_t)cols * sizeof *scales);
        }
    }
    return 1;
}

static float *scales_of(const sky_kernels *kernels, const sky_linear *w, int panel)
{
    const size_t digits = (size_t)sky_int8_blocks(w->k) * BLOCK * kernels->panel_cols;
    return (float *)(void *)((char *)w->panels + panel * sky_panel_bytes(kernels, w) + digits);
}

/* columns [n] = the larger of each and of the magnitude of x [n] times `factor` */
static void note_largest(const float *x, int n, float factor, float *columns)
{
    for (int i = 0; i < n; i++)
        columns[i] = from_bits(larger(magnitude_bits(columns[i]), magnitude_bits(x[i] * factor)));
}

/* The scale of each row, by its largest magnitude, and of each column the largest magnitude in shares of its row's, into `columns` [k].
 * Gives the bits of the largest magnitude of all. */
static int32_t find_scales(const sky_kernels *kernels, const sky_linear *w, sky_weight_type type, const char *rows, float *columns)
{
    enum { AT_ONCE = 1024 }; /* numbers that are widened at a time */
    int32_t largest = 0;
    memset(columns, 0, (size_t)w->k * sizeof *columns);
    for (int panel = 0; panel < sky_n_panels(kernels, w); panel++)
        for (int col = 0; col < kernels->panel_cols; col++) {
            const int row = sky_panel_row(w, kernels->panel_cols, panel, col);
            float x[AT_ONCE], size = 0.0f;
            for (int pass = 0; pass < 2 && row >= 0; pass++)
                for (int first = 0; first < w->k; first += AT_ONCE) {
                    const int n = w->k - first < AT_ONCE ? w->k - first : AT_ONCE;
                    if (pass == 0 || w->k > AT_ONCE)
                        sky_widen(kernels, type, rows, (size_t)row * w->k + first, n, x);
                    if (pass == 0)
                        size = from_bits(larger(magnitude_bits(size), largest_bits(x, n)));
                    else if (size >= FLT_MIN)
                        note_largest(x, n, 1.0f / size, columns + first);
                }
            scales_of(kernels, w, panel)[col] = size / 127.0f;
            largest = larger(largest, magnitude_bits(size));
        }
    return largest;
}

/* x [n] = numbers of a row from `first` on, divided by their factors, which are powers of two. */
static void read_row(const sky_kernels *kernels, const sky_linear *w, sky_weight_type type, const char *rows, int row, int first, int n,
                     float *x)
{
    sky_widen(kernels, type, rows, (size_t)row * w->k + first, n, x);
    for (int i = 0; i < n && w->has_factors; i++)
        x[i] /= w->factors[first + i];
}

/* A panel, whose scales are known. */
static void pack_rows(const sky_kernels *kernels, const sky_linear *w, sky_weight_type type, const char *rows, int panel)
{
    const int cols = kernels->panel_cols, whole = sky_int8_blocks(w->k) * BLOCK;
    const float *scales = scales_of(kernels, w, panel);
    char *out = (char *)w->panels + panel * sky_panel_bytes(kernels, w);
    for (int first = 0; first < whole; first += PART) {
        int8_t q[SKY_MAX_PANEL_COLS][PART];
        const int count = whole - first < PART ? whole - first : PART, n = w->k - first < count ? w->k - first : count;
        for (int col = 0; col < cols; col++) {
            float x[PART] = {0};
            const int row = sky_panel_row(w, cols, panel, col);
            if (row >= 0)
                read_row(kernels, w, type, rows, row, first, n, x);
            quantize(x, count, scales[col], q[col]);
        }
        store_digits((const int8_t(*)[PART])q, count, cols, kernels->int8_format, out + (size_t)first * cols);
    }
}

int sky_pack_int8(const sky_kernels *kernels, sky_linear *w, sky_weight_type type, const void *data, int first_row)
{
    const char *rows = (const char *)data + (size_t)first_row * sky_row_bytes(type, w->k);
    w->has_factors = 0;
    if (w->type == SKY_WEIGHT_INT8)
        return pack_blocks(kernels, w, rows);
    if (find_scales(kernels, w, type, rows, w->factors) >= INFINITE)
        return 0;
    w->has_factors = find_factors(w->factors, w->k);
    for (int panel = 0; panel < sky_n_panels(kernels, w); panel++)
        pack_rows(kernels, w, type, rows, panel);
    return 1;
}
