/* Plain C loops: the readable form of every kernel, the row that the others are tested against, and the fallback for a CPU
 * that has none of them. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels.h"

#define PANEL_COLS 8
#define TILE_ROWS 4

static float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }

static float silu(float x) { return x / (1.0f + expf(-x)); }

static float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

static float between(float x, float least, float most) { return x < least ? least : x > most ? most : x; }

static float activation(sky_activation act, float x)
{
    switch (act) {
    case SKY_ACT_SILU:
        return silu(x);
    case SKY_ACT_GELU_TANH:
        return x * sigmoid(1.5957691216f * (x + 0.044715f * x * x * x));
    case SKY_ACT_GELU_QUICK:
        return x * sigmoid(1.702f * x);
    case SKY_ACT_GELU_CLIPPED:
        return between(gelu(x), -10.0f, 10.0f);
    case SKY_ACT_RELU:
        return x < 0.0f ? 0.0f : x;
    case SKY_ACT_RELU_SQUARED:
        return x < 0.0f ? 0.0f : x * x;
    case SKY_ACT_RELU6:
        return between(x, 0.0f, 6.0f);
    case SKY_ACT_RELU_LEAKY:
        return x < 0.0f ? 0.01f * x : x;
    case SKY_ACT_TANH:
        return tanhf(x);
    case SKY_ACT_SIGMOID:
        return sigmoid(x);
    case SKY_ACT_LINEAR:
        return x;
    case SKY_ACT_HARDSWISH:
        return x * between(x + 3.0f, 0.0f, 6.0f) / 6.0f;
    case SKY_ACT_MISH:
        return x * tanhf(log1pf(expf(x)));
    default:
        return gelu(x);
    }
}

static float output(const sky_gemm *g, float acc, int row, int col)
{
    if (g->bias)
        acc += g->bias[col];
    switch (g->epilogue) {
    case SKY_EPILOGUE_RELU:
        return acc < 0.0f ? 0.0f : acc;
    case SKY_EPILOGUE_GELU:
        return gelu(acc);
    default:
        return g->residual.data ? acc + g->residual.data[(ptrdiff_t)row * g->residual.stride + col] : acc;
    }
}

static void store_row(const sky_gemm *g, const float *acc, int row, int panel)
{
    float *c = g->c.data + (ptrdiff_t)row * g->c.stride;
    if (g->epilogue == SKY_EPILOGUE_GATED) {
        for (int j = 0; j < PANEL_COLS / 2 && panel * (PANEL_COLS / 2) + j < g->c.cols; j++) {
            const float up = acc[j], gate = acc[PANEL_COLS / 2 + j];
            c[panel * (PANEL_COLS / 2) + j] = activation(g->act, up) * gate;
        }
        return;
    }
    for (int j = 0; j < PANEL_COLS && panel * PANEL_COLS + j < g->c.cols; j++)
        c[panel * PANEL_COLS + j] = output(g, acc[j], row, panel * PANEL_COLS + j);
}

static float from_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 0x1Fu, fraction = h & 0x3FFu;
    uint32_t bits = sign;
    float f;
    if (exponent == 31)
        bits |= 0x7F800000u | fraction << 13;
    else if (exponent)
        bits |= (exponent + 112) << 23 | fraction << 13;
    else { /* zero or subnormal: fraction * 2^-24, exact */
        f = (float)fraction * 5.9604644775390625e-8f;
        return sign ? -f : f;
    }
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void widen_f16(const uint16_t *in, int n, float *out)
{
    for (int i = 0; i < n; i++)
        out[i] = from_f16(in[i]);
}

static void widen_bf16(const uint16_t *in, int n, float *out) { sky_widen_bf16(in, n, out); }

/* acc [rows, PANEL_COLS] += a [rows, k] @ w [k, PANEL_COLS] */
static void accumulate(sky_matrix a, const float *w, float (*acc)[PANEL_COLS])
{
    for (int row = 0; row < a.rows; row++) {
        float sum[PANEL_COLS];
        memcpy(sum, acc[row], sizeof sum);
        for (int p = 0; p < a.cols; p++)
            for (int j = 0; j < PANEL_COLS; j++)
                sum[j] += a.data[(ptrdiff_t)row * a.stride + p] * w[p * PANEL_COLS + j];
        memcpy(acc[row], sum, sizeof sum);
    }
}

/* Weights of 16 bits are widened a part of k at a time, for so many rows that the products cost much more. */
static void gemm(sky_weight_type type, const sky_gemm *g, int panel_begin, int panel_end)
{
    enum { BLOCK_ROWS = 128 };
    const int k = g->a.cols, k_part = type == SKY_WEIGHT_F32 || k < SKY_MAX_K_PART ? k : SKY_MAX_K_PART;
    for (int panel = panel_begin; panel < panel_end; panel++)
        for (int first = 0; first < g->a.rows; first += BLOCK_ROWS) {
            const int rows = g->a.rows - first < BLOCK_ROWS ? g->a.rows - first : BLOCK_ROWS;
            float acc[BLOCK_ROWS][PANEL_COLS] = {{0}};
            for (int begin = 0; begin < k; begin += k_part) {
                const int count = k - begin < k_part ? k - begin : k_part;
                const size_t at = ((size_t)panel * k + begin) * PANEL_COLS;
                const float *w = (const float *)g->panels + at;
                if (type != SKY_WEIGHT_F32) {
                    w = g->scratch;
                    (type == SKY_WEIGHT_F16 ? widen_f16 : widen_bf16)((const uint16_t *)g->panels + at, count * PANEL_COLS, g->scratch);
                }
                accumulate(sky_cols(sky_rows(g->a, first, rows), begin, count), w, acc);
            }
            for (int row = 0; row < rows; row++)
                store_row(g, acc[row], first + row, panel);
        }
}

static void gemm_f32(const sky_gemm *g, int panel_begin, int panel_end) { gemm(SKY_WEIGHT_F32, g, panel_begin, panel_end); }
static void gemm_f16(const sky_gemm *g, int panel_begin, int panel_end) { gemm(SKY_WEIGHT_F16, g, panel_begin, panel_end); }
static void gemm_bf16(const sky_gemm *g, int panel_begin, int panel_end) { gemm(SKY_WEIGHT_BF16, g, panel_begin, panel_end); }

/* ---- 8-bit weights: digits of 16 bits, in the order of k ---- */

static float scaled(const float *x, const float *factors, int j) { return factors ? x[j] * factors[j] : x[j]; }

static void quantize_row(const float *x, const float *factors, int k, char *out)
{
    const sky_int8_row row = sky_int8_row_at(out, k);
    int16_t *digits = (int16_t *)(void *)row.digits;
    float sum = 0.0f, largest = 0.0f;
    for (int j = 0; j < k; j++) {
        sum += fabsf(scaled(x, factors, j));
        largest = fmaxf(largest, fabsf(scaled(x, factors, j)));
    }
    const int is_finite = sum <= FLT_MAX; /* else the row is NaN */
    const float levels = SKY_INT8_ROW_LEVELS / (largest > SKY_INT8_SMALLEST ? largest : SKY_INT8_SMALLEST);
    *row.scales = is_finite ? largest / SKY_INT8_ROW_LEVELS : NAN;
    for (int j = 0; j < sky_int8_blocks(k) * SKY_INT8_BLOCK; j++)
        digits[j] = j < k && is_finite ? (int16_t)rintf(scaled(x, factors, j) * levels) : 0;
}

static void quantize_rows(sky_matrix x, const float *factors, char *out)
{
    for (int i = 0; i < x.rows; i++)
        quantize_row(x.data + (ptrdiff_t)i * x.stride, factors, x.cols, out + (size_t)i * sky_int8_row_bytes(x.cols));
}

static void multiply_int8(sky_weight_type type, const sky_gemm *g, int panel_begin, int panel_end)
{
    const int k = g->a.cols, n_blocks = sky_int8_blocks(k), summed = type == SKY_WEIGHT_INT8 ? 1 : SKY_INT8_SUMMED;
    for (int panel = panel_begin; panel < panel_end; panel++)
        for (int row = 0; row < g->a.rows; row++) {
            const char *w = (const char *)g->panels + (size_t)panel * sky_int8_panel_bytes(type, k, PANEL_COLS);
            const sky_int8_row a = sky_int8_row_at((char *)g->a_int8 + (size_t)row * sky_int8_row_bytes(k), k);
            const int16_t *digits = (const int16_t *)(const void *)a.digits;
            float acc[PANEL_COLS] = {0}, scales[PANEL_COLS];
            for (int b = 0; b < n_blocks; b += summed) {
                const int n = (n_blocks - b < summed ? n_blocks - b : summed) * SKY_INT8_BLOCK;
                int32_t sum[PANEL_COLS] = {0};
                for (int p = 0; p < n; p++, digits++, w += PANEL_COLS)
                    for (int j = 0; j < PANEL_COLS; j++)
                        sum[j] += *digits * *((const int8_t *)w + j);
                for (int j = 0; j < PANEL_COLS; j++)
                    scales[j] = 1.0f;
                if (type == SKY_WEIGHT_INT8) {
                    widen_f16((const uint16_t *)(const void *)w, PANEL_COLS, scales);
                    w += PANEL_COLS * sizeof(uint16_t);
                }
                for (int j = 0; j < PANEL_COLS; j++)
                    acc[j] += (float)sum[j] * scales[j];
            }
            if (type == SKY_WEIGHT_INT8_ROWS)
                memcpy(scales, w, sizeof scales);
            for (int j = 0; j < PANEL_COLS; j++)
                acc[j] *= *a.scales * (type == SKY_WEIGHT_INT8_ROWS ? scales[j] : 1.0f);
            store_row(g, acc, row, panel);
        }
}

static void gemm_int8(const sky_gemm *g, int panel_begin, int panel_end) { multiply_int8(SKY_WEIGHT_INT8, g, panel_begin, panel_end); }

static void gemm_int8_rows(const sky_gemm *g, int panel_begin, int panel_end)
{
    multiply_int8(SKY_WEIGHT_INT8_ROWS, g, panel_begin, panel_end);
}

static void layer_norm(const sky_norm *n)
{
    for (int row = 0; row < n->x.rows; row++) {
        const float *x = n->x.data + (ptrdiff_t)row * n->x.stride;
        float *y = n->y.data + (ptrdiff_t)row * n->y.stride;
        float mean = 0.0f, variance = 0.0f;
        for (int j = 0; j < n->x.cols; j++)
            mean += x[j];
        mean /= (float)n->x.cols;
        for (int j = 0; j < n->x.cols; j++)
            variance += (x[j] - mean) * (x[j] - mean);
        const float scale = 1.0f / sqrtf(variance / (float)n->x.cols + n->eps);
        for (int j = 0; j < n->x.cols; j++)
            y[j] = (x[j] - mean) * scale * n->weight[j] + (n->bias ? n->bias[j] : 0.0f);
    }
}

/* element j of rope(x) at one position */
static float rotated(const float *x, int j, int d_head, const float *cos, const float *sin)
{
    const int half = d_head / 2;
    if (!cos)
        return x[j];
    return j < half ? x[j] * cos[j] - x[j + half] * sin[j] : x[j] * cos[j - half] + x[j - half] * sin[j - half];
}

static void attention(const sky_attention *a)
{
    const int d_head = a->q.cols, half = d_head / 2;
    float *scores = a->scratch;          /* [n_keys] */
    float *keys = scores + a->k.rows;    /* [n_keys, d_head], rotated */
    for (int key = 0; key < a->k.rows; key++) {
        const ptrdiff_t at = a->position ? a->position[key] : key;
        for (int j = 0; j < d_head; j++)
            keys[(ptrdiff_t)key * d_head + j] =
                rotated(a->k.data + (ptrdiff_t)key * a->k.stride, j, d_head, a->rope_cos ? a->rope_cos + at * half : NULL,
                        a->rope_sin ? a->rope_sin + at * half : NULL);
    }

    for (int query = 0; query < a->q.rows; query++) {
        const ptrdiff_t at = a->position ? a->position[query] : query;
        const float *cos = a->rope_cos ? a->rope_cos + at * half : NULL;
        const float *sin = a->rope_sin ? a->rope_sin + at * half : NULL;
        const int begin = !a->position && a->window >= 0 && query - a->window > 0 ? query - a->window : 0;
        const int end = !a->position && a->window >= 0 && a->k.rows - query > a->window + 1 ? query + a->window + 1 : a->k.rows;
        float q[SKY_MAX_D_HEAD], peak = -INFINITY, sum = 0.0f;
        for (int j = 0; j < d_head; j++)
            q[j] = rotated(a->q.data + (ptrdiff_t)query * a->q.stride, j, d_head, cos, sin) * a->scale;
        for (int key = begin; key < end; key++) {
            scores[key] = 0.0f;
            for (int j = 0; j < d_head; j++)
                scores[key] += q[j] * keys[(ptrdiff_t)key * d_head + j];
            if (a->position && !sky_sees(a, query, key))
                scores[key] = -INFINITY;
            peak = scores[key] > peak ? scores[key] : peak;
        }
        for (int key = begin; key < end; key++) {
            scores[key] = expf(scores[key] - peak);
            sum += scores[key];
        }
        for (int j = 0; j < d_head; j++) {
            float acc = 0.0f;
            for (int key = begin; key < end; key++)
                acc += scores[key] * a->v.data[(ptrdiff_t)key * a->v.stride + j];
            a->out.data[(ptrdiff_t)query * a->out.stride + j] = acc / sum;
        }
    }
}

static void pack_panel(const float *rows, int stride, int k, float *panel)
{
    for (int j = 0; j < k; j++)
        for (int i = 0; i < PANEL_COLS; i++)
            panel[j * PANEL_COLS + i] = rows[(ptrdiff_t)i * stride + j];
}

static void fma_peak(int rounds, float *sink)
{
    float acc[TILE_ROWS * PANEL_COLS] = {0};
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < TILE_ROWS * PANEL_COLS; i++)
            acc[i] = acc[i] * 0.999f + 1.0f;
    *sink = 0.0f;
    for (int i = 0; i < TILE_ROWS * PANEL_COLS; i++)
        *sink += acc[i];
}

void sky_fill_portable(sky_kernels *table)
{
    table->isa = "portable";
    table->tile_rows = TILE_ROWS;
    table->panel_cols = PANEL_COLS;
    table->gemm[SKY_WEIGHT_F32] = gemm_f32;
    table->gemm[SKY_WEIGHT_F16] = gemm_f16;
    table->gemm[SKY_WEIGHT_BF16] = gemm_bf16;
    table->gemm[SKY_WEIGHT_INT8] = gemm_int8;
    table->gemm[SKY_WEIGHT_INT8_ROWS] = gemm_int8_rows;
    table->quantize_rows = quantize_rows;
    table->int8_format = (sky_int8_format){1, 0};
    table->layer_norm = layer_norm;
    table->attention = attention;
    table->pack_panel = pack_panel;
    table->widen_f16 = widen_f16;
    table->fma_peak = fma_peak;
}
