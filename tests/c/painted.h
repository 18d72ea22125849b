/* A small model and a batch for it, painted from a linear congruential generator, for the programs in this folder. */
#ifndef PAINTED_H
#define PAINTED_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "float_mode.h"
#include "internal.h"

static uint32_t seed = 1;

static float noise(void) /* in [-1, 1) */
{
    seed = seed * 1664525u + 1013904223u;
    return (float)(int32_t)seed / 2147483648.0f;
}

static float *noisy(size_t n)
{
    float *x = malloc((n ? n : 1) * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = noise();
    return x;
}

static void expect(int holds, const char *isa, const char *what, double figure)
{
    if (holds)
        return;
    printf("FAILED  %-9s %s (%g)\n", isa, what, figure);
    exit(1);
}

/* ---- the model ---- */

enum { PAINTED_CPUS = 8 }; /* threads of its runs compute at once, whatever the machine has */
enum { D = 48, FF = 40, VOCAB = 50, LAYERS = 4, HEADS = 2, BLOCKS = 2, MAX_LEN = 200 };

static sky_float_mode painted_mode = SKY_FLOAT_MODE_DEFAULT; /* that the core is called in to make a model */
static float painted_scorer = 1; /* factor of the scorer's weights: at 1e-40 its products are subnormal */

static int painted_d = D, painted_ff = FF; /* other widths, of whole blocks, where matrices are painted_in_blocks */
static sky_dtype painted_dtype = SKY_DTYPE_F32; /* that tensors are set in; vectors in F32, where it is Q8_0 */
static sky_precision painted_precision = SKY_PRECISION_EXACT;
static int painted_coarsely; /* numbers are multiples of 1/128 */
static int painted_in_blocks; /* numbers of matrices are those of Q8_0, whatever type they are set in */

enum { Q8_0_BYTES = 2 + SKY_INT8_BLOCK };

static const char *model_error(const sky_model *m)
{
    static char text[256];
    sky_model_error(m, text, sizeof text);
    return text;
}

static sky_dtype dtype_of(int64_t rows) { return painted_dtype == SKY_DTYPE_Q8_0 && rows == 1 ? SKY_DTYPE_F32 : painted_dtype; }

/* values [n], whole blocks, as Q8_0 by powers of two into `blocks`, and what those hold into `floats`. A NaN or infinity shows in its scale. */
static void encode_blocks(const float *values, size_t n, uint8_t *blocks, float *floats)
{
    for (size_t first = 0; first < n; first += SKY_INT8_BLOCK, blocks += Q8_0_BYTES) {
        float largest = 0, scale = 1.0f / 16384; /* 2^-14, the smallest normal one in half precision */
        for (int i = 0; i < SKY_INT8_BLOCK; i++)
            if (isfinite(largest) && !(fabsf(values[first + i]) <= largest))
                largest = fabsf(values[first + i]);
        uint16_t half = 1 << 10;
        for (; isfinite(largest) && rintf(largest / scale) > 127; scale *= 2)
            half += 1 << 10;
        if (!isfinite(largest))
            half = 0x7E00;
        blocks[0] = (uint8_t)half;
        blocks[1] = (uint8_t)(half >> 8);
        for (int i = 0; i < SKY_INT8_BLOCK; i++) {
            const float whole = isfinite(largest) ? rintf(values[first + i] / scale) : 0;
            blocks[2 + i] = (uint8_t)(int8_t)whole;
            floats[first + i] = isfinite(largest) ? whole * scale : values[first + i];
        }
    }
}

/* values [n] as numbers of painted_dtype, which are rounded before to those that every type has where painted_coarsely. */
static void *encoded(const float *values, int64_t rows, size_t n)
{
    if (painted_in_blocks && rows > 1) {
        uint8_t *blocks = malloc(n / SKY_INT8_BLOCK * Q8_0_BYTES);
        float *held = malloc(n * sizeof *held);
        encode_blocks(values, n, blocks, held);
        free(painted_dtype == SKY_DTYPE_Q8_0 ? (void *)held : blocks);
        return painted_dtype == SKY_DTYPE_Q8_0 ? (void *)blocks : held;
    }
    float *floats = malloc(n * sizeof *floats);
    uint16_t *halves = malloc(n * sizeof *halves);
    for (size_t i = 0; i < n; i++) {
        floats[i] = painted_coarsely ? rintf(values[i] * 128) / 128 : values[i];
        uint32_t bits;
        memcpy(&bits, floats + i, sizeof bits);
        const uint32_t sign = bits >> 16 & 0x8000, exponent = bits >> 23 & 255, fraction = bits >> 13 & 1023;
        const uint32_t small = exponent == 255 ? 31 : exponent < 113 ? 0 : exponent - 112;
        halves[i] = (uint16_t)(painted_dtype == SKY_DTYPE_BF16 ? bits >> 16 : sign | small << 10 | (small ? fraction : 0));
    }
    const int in_floats = dtype_of(rows) == SKY_DTYPE_F32;
    free(in_floats ? (void *)halves : floats);
    return in_floats ? (void *)floats : halves;
}

static sky_status set_values(sky_model *m, const char *name, int rows, int cols, const float *values)
{
    void *data = encoded(values, rows, (size_t)rows * cols);
    const sky_status status = sky_model_set(m, name, dtype_of(rows), rows, cols, data);
    free(data);
    return status;
}

static sky_status set_rows_of(sky_model *m, const char *name, int first_row, int rows, const float *values)
{
    void *data = encoded(values, VOCAB, (size_t)rows * painted_d);
    const sky_status status = sky_model_set_rows(m, name, painted_dtype, first_row, rows, painted_d, data);
    free(data);
    return status;
}

static void paint(sky_model *m, const char *name, int rows, int cols, float scale, float shift)
{
    float *values = noisy((size_t)rows * cols);
    for (int i = 0; i < rows * cols; i++)
        values[i] = values[i] * scale + shift;
    sky_float_mode_set(painted_mode);
    const sky_status status = set_values(m, name, rows, cols, values);
    sky_float_mode_set(SKY_FLOAT_MODE_DEFAULT);
    expect(status == SKY_OK, sky_model_isa(m), model_error(m), 0);
    free(values);
}

/* The embedding anew, `step` rows at a time: out of order, too many, or of another tensor they are refused. */
static void paint_again_in_parts(sky_model *m, int step)
{
    const char *isa = sky_model_isa(m), *name = "token_embd.weight";
    const int d = painted_d;
    float *values = noisy((size_t)VOCAB * d);
    expect(sky_model_set_rows(m, "cls.weight", SKY_DTYPE_F32, 0, 1, d, values) == SKY_ERR_ARGUMENT, isa, "took a matrix", 0);
    for (int row = 0; row < VOCAB; row += step) {
        const int rows = row + step < VOCAB ? step : VOCAB - row;
        expect(set_rows_of(m, name, row, rows, values + (size_t)row * d) == SKY_OK, isa,
               model_error(m), row);
        if (row + rows < VOCAB)
            expect(sky_model_set_rows(m, name, painted_dtype, row + rows + 1, 1, d, values) == SKY_ERR_STATE, isa, "a gap", row);
        expect(sky_model_set_rows(m, name, painted_dtype, row + rows, VOCAB - row - rows + 1, d, values) == SKY_ERR_SHAPE, isa,
               "too many rows", row);
        expect(sky_model_set_rows(m, name, painted_dtype, row + rows, 0, d, values) == SKY_ERR_SHAPE, isa, "no rows", row);
    }
    expect(sky_model_set_rows(m, name, painted_dtype, -1, 1, d, values) == SKY_ERR_STATE, isa, "a row before the first", 0);
    free(values);
}

/* A NaN overwrites what was set, so the tensor is missing until it is set anew, a vector and a matrix and the last of parts alike. */
static void refuse_nan(sky_model *m)
{
    const char *isa = sky_model_isa(m);
    const int d = painted_d;
    const struct {
        const char *name;
        int rows, cols;
        float scale;
    } tensors[] = {{"output_norm.weight", 1, d, 0}, {"blk.5.ffn_up.weight", 4 * d, d, 0.15f}, {"blk.4.attn_qkv.weight", 3 * d, d, 0.15f}};
    for (int i = 0; i < 3; i++) {
        const int rows = tensors[i].rows, cols = tensors[i].cols;
        const uint32_t before = seed;
        float *values = noisy((size_t)rows * cols);
        for (int at = 0; at < rows * cols; at++)
            values[at] = tensors[i].scale ? values[at] * tensors[i].scale : 1.0f;
        values[rows * cols - 1] = i ? NAN : INFINITY;
        expect(set_values(m, tensors[i].name, rows, cols, values) == SKY_ERR_ARGUMENT, isa, "took a NaN", i);
        expect(sky_model_freeze(m) == SKY_ERR_STATE && strstr(model_error(m), tensors[i].name), isa, "froze a NaN", i);
        values[rows * cols - 1] = 0.5f;
        expect(set_values(m, tensors[i].name, rows, cols, values) == SKY_OK, isa, "not set anew", i);
        free(values);
        seed = before;
    }
    float *values = noisy((size_t)VOCAB * d);
    values[d - 1] = NAN;
    expect(set_rows_of(m, "token_embd.weight", 0, 1, values) == SKY_ERR_ARGUMENT, isa, "took a NaN", 3);
    expect(set_rows_of(m, "token_embd.weight", 1, 1, values) == SKY_ERR_STATE, isa, "went on", 3);
    expect(sky_model_freeze(m) == SKY_ERR_STATE && strstr(model_error(m), "token_embd"), isa, "froze a NaN", 3);
    values[d - 1] = 0.5f;
    expect(set_values(m, "token_embd.weight", VOCAB, d, values) == SKY_OK, isa, "not set anew", 3);
    free(values);
}

static sky_model *painted_model(const char *isa, size_t qkv_table_bytes)
{
    static const uint8_t is_global[LAYERS] = {1, 0, 0, 1};
    const int d = painted_d, ff = painted_ff;
    sky_dtype dtypes[100];
    sky_tensor tensors[100];
    const sky_model_params params = {
        .d_model = d, .d_ff = ff, .n_vocab = VOCAB, .n_layers = LAYERS, .n_heads = HEADS, .n_decision_blocks = BLOCKS,
        .n_decision_heads = 1, .window = 8, .max_positions = MAX_LEN, .norm_eps = 1e-5f, .rope_base_global = 160000.0f,
        .rope_base_local = 10000.0f, .activation = SKY_ACT_GELU, .layer_is_global = is_global,
        .precision = painted_precision, .dtypes = dtypes, .qkv_table_bytes = qkv_table_bytes, .isa = isa, .n_cpus = PAINTED_CPUS};
    const int n_tensors = sky_tensors(&params, tensors, 100);
    for (int i = 0; i < n_tensors; i++)
        dtypes[i] = dtype_of(tensors[i].rows);
    sky_model *m;
    sky_float_mode_set(painted_mode);
    sky_status status = sky_model_create(&params, &m);
    sky_float_mode_set(SKY_FLOAT_MODE_DEFAULT);
    expect(status == SKY_OK, isa, "sky_model_create", 0);
    expect(sky_model_freeze(m) == SKY_ERR_STATE, isa, "freeze took a model without tensors", 0);
    seed = 7;
    paint(m, "token_embd.weight", VOCAB, d, 1, 0);
    paint_again_in_parts(m, 7); /* a frozen model would not take a missing row */
    paint(m, "token_embd_norm.weight", 1, d, 0.2f, 1);
    for (int i = 0; i < LAYERS + BLOCKS; i++) {
        const int in_head = i >= LAYERS, ff_rows = in_head ? 4 * d : 2 * ff, ff_cols = in_head ? 4 * d : ff;
        char name[64];
#define BLK(part) (snprintf(name, sizeof name, "blk.%d." part, i), name)
        if (i > 0)
            paint(m, BLK("attn_norm.weight"), 1, d, 0.2f, 1);
        paint(m, BLK("attn_qkv.weight"), 3 * d, d, 0.2f, 0);
        paint(m, BLK("attn_output.weight"), d, d, 0.2f, 0);
        paint(m, BLK("ffn_norm.weight"), 1, d, 0.2f, 1);
        paint(m, BLK("ffn_up.weight"), ff_rows, d, 0.2f, 0);
        paint(m, BLK("ffn_down.weight"), d, ff_cols, 0.2f, 0);
        if (in_head) {
            paint(m, BLK("attn_norm.bias"), 1, d, 0.2f, 0);
            paint(m, BLK("attn_qkv.bias"), 1, 3 * d, 0.2f, 0);
            paint(m, BLK("attn_output.bias"), 1, d, 0.2f, 0);
            paint(m, BLK("ffn_norm.bias"), 1, d, 0.2f, 0);
            paint(m, BLK("ffn_up.bias"), 1, ff_rows, 0.2f, 0);
            paint(m, BLK("ffn_down.bias"), 1, d, 0.2f, 0);
        }
    }
    paint(m, "output_norm.weight", 1, d, 0.2f, 1);
    paint(m, "token_types.weight", 3, d, 1, 0);
    paint(m, "cls.norm.weight", 1, d, 0.2f, 1);
    paint(m, "cls.norm.bias", 1, d, 0.2f, 0);
    paint(m, "cls.weight", d, d, 0.3f * painted_scorer, 0);
    paint(m, "cls.bias", 1, d, 0.2f * painted_scorer, 0);
    paint(m, "cls.output.weight", 1, d, 0.5f, 0);
    float value = 0.25f;
    expect(sky_model_set(m, "cls.output.bias", SKY_DTYPE_F32, 2, 1, &value) == SKY_ERR_SHAPE, isa, "took a wrong shape", 0);
    expect(sky_model_set(m, "cls.output.weights", SKY_DTYPE_F32, 1, 1, &value) == SKY_ERR_ARGUMENT, isa, "took a name", 0);
    expect(sky_model_freeze(m) == SKY_ERR_STATE, isa, "freeze took a model that lacks a tensor", 0);
    paint(m, "cls.output.bias", 1, 1, 0.1f * painted_scorer, 0);
    refuse_nan(m);
    sky_float_mode_set(painted_mode);
    status = sky_model_freeze(m);
    sky_float_mode_set(SKY_FLOAT_MODE_DEFAULT);
    expect(status == SKY_OK, isa, "freeze", 0);
    expect(sky_model_set(m, "cls.output.bias", SKY_DTYPE_F32, 1, 1, &value) == SKY_ERR_STATE, isa, "set after freeze", 0);
    return m;
}

enum { N_SEQUENCES = 7, N_MARKERS = 16 };

static const int lengths[N_SEQUENCES] = {7, 65, 66, 129, 1, 200, 31};
static const int marker_counts[N_SEQUENCES] = {1, 2, 9, 1, 1, 2, 0};

/* ---- the batch ---- */

typedef struct {
    int32_t ids[600], token_offsets[N_SEQUENCES + 1], markers[N_MARKERS], marker_offsets[N_SEQUENCES + 1], types[N_SEQUENCES];
} painted_batch;

static inline painted_batch paint_batch(void)
{
    painted_batch b = {.token_offsets = {0}, .marker_offsets = {0}};
    seed = 11;
    for (int s = 0; s < N_SEQUENCES; s++) {
        b.types[s] = s % SKY_N_QUESTION_TYPES;
        b.token_offsets[s + 1] = b.token_offsets[s] + lengths[s];
        b.marker_offsets[s + 1] = b.marker_offsets[s] + marker_counts[s];
        for (int i = b.token_offsets[s]; i < b.token_offsets[s + 1]; i++)
            b.ids[i] = (int)((noise() + 1) * VOCAB / 2);
        for (int i = 0; i < marker_counts[s]; i++)
            b.markers[b.marker_offsets[s] + i] = i * 3 % lengths[s];
    }
    return b;
}

static inline sky_batch batch_of(const painted_batch *b)
{
    return (sky_batch){N_SEQUENCES, b->ids, b->token_offsets, b->markers, b->marker_offsets, b->types, NULL};
}

static const sky_plan_limits painted_limits = {600, N_SEQUENCES, N_MARKERS, MAX_LEN, SKY_MAX_THREADS < 3 ? SKY_MAX_THREADS : 3};

#endif
