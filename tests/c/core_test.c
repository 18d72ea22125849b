/* The core by itself, without Python: every kernel against double precision, and what sky_run promises.
 *
 * For sanitizers (make sanitize) and for machines that only an emulator has (make neon). Kernel inputs sit in NaN and outputs
 * in canaries; models are painted from a linear congruential generator. Prints one line a check; exits 1 at the first fault.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "counting.h"
#include "painted.h"

/* ---- kernel inputs and outputs ---- */

/* [rows, cols] in a block whose rows are `stride` apart, all else set to `fill` */
typedef struct {
    float *block, *data;
    int rows, cols, stride;
} window;

static window window_of(int rows, int cols, float fill, const float *values)
{
    window w = {NULL, NULL, rows, cols, cols + 5};
    const size_t n = (size_t)(rows + 2) * w.stride;
    w.block = malloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        w.block[i] = fill;
    w.data = w.block + w.stride + 3;
    for (int r = 0; values && r < rows; r++)
        memcpy(w.data + (size_t)r * w.stride, values + (size_t)r * cols, (size_t)cols * sizeof(float));
    return w;
}

static sky_matrix matrix_of(const window *w) { return (sky_matrix){w->data, w->stride, w->rows, w->cols}; }

static const float canary = 12345.678f;

static void expect_canaries(const window *w, const char *isa, const char *what)
{
    for (int r = -1; r <= w->rows; r++)
        for (int c = -3; c < w->stride - 3; c++)
            if (r < 0 || r >= w->rows || c < 0 || c >= w->cols)
                expect(w->data[(ptrdiff_t)r * w->stride + c] == canary, isa, what, r);
}

/* |got - want| <= bound for every element; NaN is never within a bound */
static void expect_within(const window *got, const double *want, const double *bound, const char *isa, const char *what)
{
    for (int r = 0; r < got->rows; r++)
        for (int c = 0; c < got->cols; c++) {
            const int i = r * got->cols + c;
            const double off = fabs(got->data[(ptrdiff_t)r * got->stride + c] - want[i]);
            expect(off <= bound[i], isa, what, off / bound[i]);
        }
}

/* ---- kernels against double precision ---- */

static const double eps = 5.9604644775390625e-8; /* unit roundoff of float */

static double gelu(double x) { return 0.5 * x * (1.0 + erf(x * 0.70710678118654752)); }

static double silu(double x) { return x / (1.0 + exp(-x)); }

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static double between(double x, double least, double most) { return fmin(fmax(x, least), most); }

static double activation(sky_activation act, double x)
{
    switch (act) {
    case SKY_ACT_SILU: return silu(x);
    case SKY_ACT_GELU_TANH: return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979324) * (x + 0.044715 * x * x * x)));
    case SKY_ACT_GELU_QUICK: return x * sigmoid(1.702 * x);
    case SKY_ACT_GELU_CLIPPED: return between(gelu(x), -10, 10);
    case SKY_ACT_RELU: return fmax(x, 0);
    case SKY_ACT_RELU_SQUARED: return fmax(x, 0) * fmax(x, 0);
    case SKY_ACT_RELU6: return between(x, 0, 6);
    case SKY_ACT_RELU_LEAKY: return x < 0 ? 0.01 * x : x;
    case SKY_ACT_TANH: return tanh(x);
    case SKY_ACT_SIGMOID: return sigmoid(x);
    case SKY_ACT_LINEAR: return x;
    case SKY_ACT_HARDSWISH: return x * between(x + 3, 0, 6) / 6;
    case SKY_ACT_MISH: return x * tanh(log1p(exp(x)));
    default: return gelu(x);
    }
}

/* what is drawn for `epilogue` past the last: the gated one with each activation */
static sky_epilogue epilogue_of(int i) { return i < SKY_EPILOGUE_GATED ? (sky_epilogue)i : SKY_EPILOGUE_GATED; }

static sky_activation act_of(int i) { return (sky_activation)(i < SKY_EPILOGUE_GATED ? 0 : i - SKY_EPILOGUE_GATED); }

static void product(const sky_kernels *kernels, sky_weight_type type, int n, int k, int gated, int epilogue, const window *a,
                    const void *w, const float *bias, const window *residual, window *c)
{
    sky_linear linear = {.type = type, .n = n, .k = k, .gated = gated};
    const int n_panels = (n + kernels->panel_cols - 1) / kernels->panel_cols;
    linear.panels = sky_alloc(n_panels * sky_panel_bytes(kernels, &linear));
    expect(sky_pack(kernels, &linear, linear.type, w, 0), kernels->isa, "sky_pack", 0);
    const size_t n_scratch = sky_gemm_scratch(k, epilogue_of(epilogue)), n_canaries = 16;
    float *scratch = sky_alloc((n_scratch + n_canaries) * sizeof(float));
    for (size_t i = 0; i < n_canaries; i++)
        scratch[n_scratch + i] = canary;
    const sky_gemm g = {matrix_of(a), linear.panels, bias, residual ? matrix_of(residual) : (sky_matrix){0}, matrix_of(c),
                        epilogue_of(epilogue), act_of(epilogue), scratch, NULL};
    kernels->gemm[linear.type](&g, 0, n_panels);
    for (size_t i = 0; i < n_canaries; i++)
        expect(scratch[n_scratch + i] == canary, kernels->isa, "gemm wrote behind its scratch", k);
    sky_release(linear.panels);
    sky_release(scratch);
}

/* What a product must be and by how much it may be off: the sum's rounding grows with k and |a||w| */
static void exact_product(int m, int n, int k, int epilogue, const float *a, const float *w, const float *bias,
                          const float *residual, double *want, double *bound)
{
    const int gated = epilogue >= SKY_EPILOGUE_GATED, cols = gated ? n / 2 : n;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < cols; j++) {
            double sum[2] = {0, 0}, size[2] = {0, 0};
            for (int half = 0; half <= gated; half++) {
                const int row = j + half * cols;
                for (int p = 0; p < k; p++) {
                    const double product = (double)a[(size_t)i * k + p] * w[(size_t)row * k + p];
                    sum[half] += product;
                    size[half] += fabs(product);
                }
                if (bias) {
                    sum[half] += bias[row];
                    size[half] += fabs(bias[row]);
                }
            }
            const double rounding = (k + 2) * eps, own = 1.1e-6 + 8 * eps * fmax(fabs(sum[0]), sum[0] * sum[0]);
            double *y = want + (size_t)i * cols + j, *off = bound + (size_t)i * cols + j;
            switch (epilogue) {
            case SKY_EPILOGUE_LINEAR:
                *y = sum[0] + residual[(size_t)i * n + j];
                *off = rounding * (size[0] + fabs(residual[(size_t)i * n + j]));
                break;
            case SKY_EPILOGUE_RELU:
                *y = sum[0] > 0 ? sum[0] : 0;
                *off = rounding * size[0];
                break;
            case SKY_EPILOGUE_GELU:
                *y = gelu(sum[0]);
                *off = 1.13 * rounding * size[0] + own; /* 1.13: the steepest that GELU and SiLU get */
                break;
            default: {
                const double up = activation(act_of(epilogue), sum[0]);
                const double slope = act_of(epilogue) == SKY_ACT_RELU_SQUARED ? 2 * fabs(sum[0]) + 1 : 1.5;
                *y = up * sum[1];
                *off = rounding * (slope * size[0] * fabs(sum[1]) + size[1] * fabs(up)) + fabs(sum[1]) * own;
            }
            }
        }
}

static void check_gemm(const sky_kernels *tested)
{
    for (int m = 1; m <= tested->tile_rows * 2 + 1; m += m < tested->tile_rows + 2 ? 1 : 5)
        for (int shape = 0; shape < 15; shape++) {
            const int n = (int[]){1, 2, tested->panel_cols - 1, tested->panel_cols, tested->panel_cols + 1}[shape % 5] * 2;
            const int k = (int[]){19, 64, 1024 + 19}[shape / 5]; /* the last in parts */
            for (int epilogue = SKY_EPILOGUE_LINEAR; epilogue < SKY_EPILOGUE_GATED + SKY_N_ACTIVATIONS; epilogue++) {
                const int gated = epilogue >= SKY_EPILOGUE_GATED, cols = gated ? n / 2 : n;
                float *va = noisy((size_t)m * k), *w = noisy((size_t)n * k), *bias = noisy(n), *vr = noisy((size_t)m * n);
                double *want = malloc((size_t)m * cols * sizeof *want), *bound = malloc((size_t)m * cols * sizeof *bound);
                window a = window_of(m, k, NAN, va), r = window_of(m, n, NAN, vr), got = window_of(m, cols, canary, NULL);
                const float *b = gated ? NULL : bias;
                product(tested, SKY_WEIGHT_F32, n, k, gated, epilogue, &a, w, b, epilogue == SKY_EPILOGUE_LINEAR ? &r : NULL, &got);
                exact_product(m, n, k, epilogue, va, w, b, vr, want, bound);
                expect_canaries(&got, tested->isa, "gemm wrote outside its output");
                expect_within(&got, want, bound, tested->isa, "gemm, in bounds");
                free(va), free(w), free(bias), free(vr), free(want), free(bound), free(a.block), free(r.block), free(got.block);
            }
        }
    printf("ok      %-9s gemm\n", tested->isa);
}

/* From weights of 16 bits come the bits that come from the same numbers as floats. */
static void check_half_gemm(const sky_kernels *tested, sky_weight_type type)
{
    for (int m = 1; m <= tested->tile_rows * 3 + 1; m += m < tested->tile_rows + 2 ? 1 : 5)
        for (int shape = 0; tested->gemm[type] && shape < 10; shape++) {
            const int n = (int[]){2, tested->panel_cols - 2, tested->panel_cols, 2 * tested->panel_cols + 2}[shape % 4];
            const int k = (int[]){19, 1024 + 19, 2047}[shape / 4]; /* the last in the longest part that there is */
            for (int epilogue = SKY_EPILOGUE_LINEAR; epilogue <= SKY_EPILOGUE_GATED; epilogue++) {
                const int gated = epilogue >= SKY_EPILOGUE_GATED, cols = gated ? n / 2 : n;
                float *va = noisy((size_t)m * k), *w = noisy((size_t)n * k), *bias = noisy(n), *vr = noisy((size_t)m * n);
                uint16_t *halves = malloc((size_t)n * k * sizeof *halves);
                for (int i = 0; i < n * k; i++) /* of any size below 1, subnormal ones, too */
                    halves[i] = (uint16_t)((int)(w[i] * 32767) & (type == SKY_WEIGHT_F16 ? 0xBBFF : 0xBF7F));
                sky_widen(tested, type, halves, 0, n * k, w);
                window a = window_of(m, k, NAN, va), r = window_of(m, n, NAN, vr);
                window got = window_of(m, cols, canary, NULL), want = window_of(m, cols, canary, NULL);
                const float *b = gated ? NULL : bias;
                const window *residual = epilogue == SKY_EPILOGUE_LINEAR ? &r : NULL;
                product(tested, type, n, k, gated, epilogue, &a, halves, b, residual, &got);
                product(tested, SKY_WEIGHT_F32, n, k, gated, epilogue, &a, w, b, residual, &want);
                expect_canaries(&got, tested->isa, "gemm of halves wrote outside its output");
                expect(memcmp(got.block, want.block, (size_t)(m + 2) * got.stride * sizeof(float)) == 0, tested->isa,
                       "a gemm of halves differs from that of floats", type);
                free(va), free(w), free(bias), free(vr), free(halves);
                free(a.block), free(r.block), free(got.block), free(want.block);
            }
        }
    printf("ok      %-9s gemm of %s\n", tested->isa, type == SKY_WEIGHT_F16 ? "f16" : "bf16");
}

static void check_norm(const sky_kernels *tested)
{
    for (int d = 1; d < 140; d += d < 40 ? 1 : 23) {
        float *vx = noisy(3 * (size_t)d), *weight = noisy(d), *bias = noisy(d);
        double *want = malloc(3 * (size_t)d * sizeof *want), *bound = malloc(3 * (size_t)d * sizeof *bound);
        window x = window_of(3, d, NAN, vx), got = window_of(3, d, canary, NULL);
        for (int with_bias = 0; with_bias < 2; with_bias++) {
            const sky_norm n = {matrix_of(&x), weight, with_bias ? bias : NULL, 1e-5f, matrix_of(&got)};
            tested->layer_norm(&n);
            for (int r = 0; r < 3; r++) {
                double mean = 0, variance = 0, largest = 0;
                for (int j = 0; j < d; j++)
                    mean += vx[r * d + j] / (double)d;
                for (int j = 0; j < d; j++) {
                    variance += (vx[r * d + j] - mean) * (vx[r * d + j] - mean) / d;
                    largest = fmax(largest, fabs(vx[r * d + j]));
                }
                const double scale = 1 / sqrt(variance + (double)1e-5f);
                for (int j = 0; j < d; j++) {
                    const double shift = with_bias ? bias[j] : 0;
                    want[r * d + j] = (vx[r * d + j] - mean) * scale * weight[j] + shift;
                    bound[r * d + j] = (d + 8) * eps * (largest * scale * fabs(weight[j]) + fabs(shift));
                }
            }
            expect_canaries(&got, tested->isa, "layer_norm wrote outside its output");
            expect_within(&got, want, bound, tested->isa, "layer_norm, in bounds");
        }
        free(vx), free(weight), free(bias), free(want), free(bound), free(x.block), free(got.block);
    }
    printf("ok      %-9s layer_norm\n", tested->isa);
}

/* rope(x) of one row in double */
static void rotate_row(const float *x, const float *cos, const float *sin, int d, double *y)
{
    for (int j = 0; j < d / 2; j++) {
        y[j] = (double)x[j] * cos[j] - (double)x[j + d / 2] * sin[j];
        y[j + d / 2] = (double)x[j + d / 2] * cos[j] + (double)x[j] * sin[j];
    }
}

static void exact_attention(int n, int d, const float *q, const float *k, const float *v, const float *cos, const float *sin,
                            int window_size, double scale, const int32_t *position, const int32_t *option, double *want,
                            double *bound)
{
    double *keys = malloc((size_t)n * d * sizeof *keys), *p = malloc((size_t)n * sizeof *p), query[64];
    for (int i = 0; i < n; i++) {
        const size_t at = (size_t)(position ? position[i] : i);
        rotate_row(k + (size_t)i * d, cos + at * d / 2, sin + at * d / 2, d, keys + (size_t)i * d);
    }
    for (int i = 0; i < n; i++) {
        double peak = -INFINITY, total = 0, reach = 0;
        const size_t at = (size_t)(position ? position[i] : i);
        rotate_row(q + (size_t)i * d, cos + at * d / 2, sin + at * d / 2, d, query);
        for (int j = 0; j < n; j++) {
            double size = 0;
            p[j] = 0;
            for (int t = 0; t < d; t++) {
                p[j] += query[t] * keys[(size_t)j * d + t] * scale;
                size += fabs(query[t] * keys[(size_t)j * d + t]) * scale;
            }
            const int apart = position ? position[i] - position[j] : i - j;
            if (window_size >= 0 && abs(apart) > window_size)
                p[j] = -INFINITY;
            if (option && option[i] && option[j] && option[i] != option[j])
                p[j] = -INFINITY;
            peak = fmax(peak, p[j]);
            reach = fmax(reach, size);
        }
        for (int j = 0; j < n; j++)
            total += p[j] = exp(p[j] - peak);
        for (int t = 0; t < d; t++) {
            double sum = 0;
            for (int j = 0; j < n; j++)
                sum += p[j] / total * v[(size_t)j * d + t];
            want[(size_t)i * d + t] = sum;
            /* a score's rounding is a relative error of its weight; |v| <= 1 */
            bound[(size_t)i * d + t] = 2 * (d + 16) * eps * reach + (n + 16) * eps;
        }
    }
    free(keys), free(p);
}

static void check_attention(const sky_kernels *tested)
{
    static const int lengths[] = {1, 7, 31, 65, 66, 129}, widths[] = {2, 6, 32, 48, 64};
    for (size_t i = 0; i < 6; i++)
        for (size_t j = 0; j < 5; j++)
            for (int window_size = -1; window_size < 65; window_size += 13) {
                const int n = lengths[i], d = widths[j];
                const size_t size = (size_t)n * d;
                float *vq = noisy(size), *vk = noisy(size), *vv = noisy(size), *cos = noisy(size / 2), *sin = noisy(size / 2);
                double *want = malloc(size * sizeof *want), *bound = malloc(size * sizeof *bound);
                window q = window_of(n, d, NAN, vq), k = window_of(n, d, NAN, vk), v = window_of(n, d, NAN, vv);
                window got = window_of(n, d, canary, NULL);
                /* two tokens, options of 1, 2, 3, .. tokens up to the middle, and the rest */
                int32_t position[129], option[129];
                for (int t = 0, begin = 2, tokens = 1; t < n; t++) {
                    if (t == begin + tokens)
                        begin += tokens++;
                    option[t] = t >= 2 && t < n / 2 ? tokens : 0;
                    position[t] = t < 2 ? t : t < n / 2 ? 2 + t - begin : 2 + t - n / 2;
                }
                for (int in_parallel = 0; in_parallel < 2; in_parallel++) {
                    sky_attention a = {matrix_of(&q), matrix_of(&k), matrix_of(&v), matrix_of(&got), cos, sin, window_size, 0.3f,
                                       NULL, in_parallel ? position : NULL, in_parallel ? option : NULL};
                    a.scratch = sky_alloc(sky_attention_scratch(n, d) * sizeof(float));
                    tested->attention(&a);
                    exact_attention(n, d, vq, vk, vv, cos, sin, window_size, (double)0.3f, a.position, a.option, want, bound);
                    expect_canaries(&got, tested->isa, "attention wrote outside its output");
                    expect_within(&got, want, bound, tested->isa, "attention, in bounds");
                    sky_release(a.scratch);
                }
                free(vq), free(vk), free(vv), free(cos), free(sin), free(want), free(bound);
                free(q.block), free(k.block), free(v.block), free(got.block);
            }
    printf("ok      %-9s attention\n", tested->isa);
}

static void check_widen(const sky_kernels *tested)
{
    static uint16_t all[65536];
    static float wide[65536];
    for (int i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    for (int n = 65536; n > 65500; n--) { /* every number, every tail */
        tested->widen_f16(all, n, wide);
        for (int i = 0; i < n; i++) {
            const int exponent = i >> 10 & 31, fraction = i & 1023;
            const double size = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
            const float want = exponent == 31 ? (fraction ? NAN : INFINITY) : (float)size;
            const int same = isnan(want) ? isnan(wide[i]) : fabsf(wide[i]) == want && !signbit(wide[i]) == !(i >> 15);
            expect(same, tested->isa, "widen_f16", i);
        }
    }
    printf("ok      %-9s widen_f16\n", tested->isa);
}

/* ---- a whole model ---- */

#ifndef THREAD_ROUNDS
#define THREAD_ROUNDS 40 /* an emulator, which takes a third of a second for one, is given fewer */
#endif

static void check_model(const char *isa, const float *expected, float *scores)
{
    painted_batch painted = paint_batch();
    int32_t *ids = painted.ids, *token_offsets = painted.token_offsets, *markers = painted.markers;
    int32_t *marker_offsets = painted.marker_offsets, *types = painted.types;
    sky_model *m = painted_model(isa, 0);
    sky_plan *plan;
    const sky_plan_limits limits = painted_limits;
    expect(sky_plan_create(m, &limits, &plan) == SKY_OK, isa, "sky_plan_create", 0);
    plan->shared_work = 0; /* every step, however small */
    sky_batch batch = batch_of(&painted);

    expect(sky_run(plan, &batch, scores) == SKY_OK, isa, sky_plan_error(plan), 0); /* starts its threads */
    const long before = n_allocations;
    expect(sky_run(plan, &batch, scores) == SKY_OK, isa, sky_plan_error(plan), 0);
    expect(n_allocations == before, isa, "sky_run allocated", (double)(n_allocations - before));
    for (int i = 0; i < N_MARKERS; i++)
        expect(isfinite(scores[i]) && fabsf(scores[i] - (expected ? expected[i] : scores[i])) <= 2e-4f, isa,
               "logits differ from portable", scores[i] - (expected ? expected[i] : 0));

    float again[N_MARKERS];
    expect(sky_run(plan, &batch, again) == SKY_OK && memcmp(again, scores, sizeof again) == 0, isa, "a rerun differs", 0);
    for (int repeat = 0; repeat < THREAD_ROUNDS; repeat++) { /* steps of few items on more threads than the machine may have */
        sky_plan_use_threads(plan, repeat % 4);
        expect(sky_run(plan, &batch, again) == SKY_OK && memcmp(again, scores, sizeof again) == 0, isa,
               "another number of threads gives other scores", repeat % 4);
    }
    for (int s = 0; s < N_SEQUENCES; s++) { /* alone, in a plan of just its size */
        const int32_t own_tokens[2] = {0, lengths[s]}, own_markers[2] = {0, marker_counts[s]};
        const sky_batch alone = {1, ids + token_offsets[s], own_tokens, markers + marker_offsets[s], own_markers, types + s, NULL};
        const sky_plan_limits own = {lengths[s], 1, marker_counts[s], lengths[s], 1};
        sky_plan *small;
        expect(sky_plan_create(m, &own, &small) == SKY_OK, isa, "a plan for one", 0);
        expect(sky_run(small, &alone, again) == SKY_OK
                   && memcmp(again, scores + marker_offsets[s], marker_counts[s] * sizeof(float)) == 0,
               isa, "a sequence alone differs from itself in a batch", s);
        sky_plan_free(small);
    }

    const size_t table_bytes = VOCAB * 3 * D * sizeof(float);
    for (size_t room = table_bytes - 1; room <= table_bytes; room++) { /* one byte short of the table, and with it */
        sky_model *tabled = painted_model(isa, room);
        sky_plan *own;
        expect(sky_model_bytes(tabled) - sky_model_bytes(m) == (room == table_bytes ? table_bytes + SKY_RED_ZONE : 0), isa, "table size", 0);
        expect(sky_plan_create(tabled, &limits, &own) == SKY_OK, isa, "a plan", 0);
        expect(sky_run(own, &batch, again) == SKY_OK && memcmp(again, scores, sizeof again) == 0, isa,
               "the table of layer 0 changes the scores", 0);
        sky_plan_free(own);
        sky_model_free(tabled);
    }

    const int32_t kept = ids[3];
    ids[3] = VOCAB;
    expect(sky_run(plan, &batch, again) == SKY_ERR_ARGUMENT, isa, "took an id outside the vocabulary", 0);
    ids[3] = -1;
    expect(sky_run(plan, &batch, again) == SKY_ERR_ARGUMENT, isa, "took a negative id", 0);
    ids[3] = kept;
    markers[0] = 7;
    expect(sky_run(plan, &batch, again) == SKY_ERR_ARGUMENT, isa, "took a marker outside its sequence", 0);
    markers[0] = 0;
    types[2] = 3;
    expect(sky_run(plan, &batch, again) == SKY_ERR_ARGUMENT, isa, "took an unknown question type", 0);
    types[2] = 2;
    token_offsets[1] = 0;
    expect(sky_run(plan, &batch, again) == SKY_ERR_ARGUMENT, isa, "took an empty sequence", 0);
    token_offsets[1] = lengths[0];
    batch.n_sequences = N_SEQUENCES + 1;
    expect(sky_run(plan, &batch, again) == SKY_ERR_CAPACITY, isa, "took more sequences than the plan holds", 0);
    sky_plan_free(plan);
    sky_model_free(m);
    printf("ok      %-9s model\n", isa);
}

/* A model of the same numbers in every type gives the same scores, whatever of it is kept in that type. */
static void check_dtypes(const char *isa)
{
    static const sky_dtype dtypes[] = {SKY_DTYPE_F32, SKY_DTYPE_F16, SKY_DTYPE_BF16};
    painted_batch painted = paint_batch();
    const sky_batch batch = batch_of(&painted);
    float scores[N_MARKERS], again[N_MARKERS];
    int64_t n_parameters = 0;
    sky_kernels kernels;
    expect(sky_kernels_select(isa, &kernels) == SKY_OK, isa, "select", 0);
    const int keeps_halves = kernels.gemm[SKY_WEIGHT_F16] != NULL;
    painted_coarsely = 1;
    for (int i = 0; i < 6; i++) {
        painted_dtype = dtypes[i % 3];
        sky_model *m = painted_model(isa, i < 3 ? 0 : VOCAB * 3 * D * sizeof(float));
        sky_plan *plan;
        const int64_t kept = sky_model_parameters(m, painted_dtype), floats = i % 3 ? sky_model_parameters(m, SKY_DTYPE_F32) : 0;
        n_parameters = i ? n_parameters : kept;
        /* the embedding where a table is made of it; matrices where there is no product for them */
        const int64_t embedding = VOCAB * D, matrices = n_parameters - embedding;
        const int64_t widened = i % 3 == 0 ? 0 : (i > 3 ? embedding : 0) + (keeps_halves ? 0 : matrices);
        expect(kept + floats == n_parameters && floats == widened, isa, "parameters of each type", i);
        expect(sky_plan_create(m, &painted_limits, &plan) == SKY_OK, isa, "a plan", i);
        plan->shared_work = 0;
        expect(sky_run(plan, &batch, i ? again : scores) == SKY_OK, isa, sky_plan_error(plan), i);
        expect(i == 0 || memcmp(again, scores, sizeof again) == 0, isa, "another type of weights gives other scores", i);
        sky_plan_free(plan);
        sky_model_free(m);
    }
    painted_dtype = SKY_DTYPE_F32;
    painted_coarsely = 0;
    printf("ok      %-9s dtypes\n", isa);
}

/* Whatever failed to be created can be asked for its error and freed, and refuses all else. */
static void check_handles(void)
{
    const char *isa = sky_isa_name(0);
    static const uint8_t is_global[1] = {1};
    const sky_model_params sound = {
        .d_model = 4, .d_ff = 3, .n_vocab = 5, .n_layers = 1, .n_heads = 2, .n_decision_blocks = 0, .n_decision_heads = 1,
        .window = 8, .max_positions = 9, .norm_eps = 1e-5f, .rope_base_global = 1e4f, .rope_base_local = 1e4f,
        .layer_is_global = is_global, .isa = isa};
    sky_model_params faulty[4] = {sound, sound, sound, sound};
    faulty[0].d_model = 0;
    faulty[1].isa = "sse9";
    faulty[2].layer_is_global = NULL;
    faulty[3].architecture = SKY_N_ARCHITECTURES;
    const float value = 1;
    const sky_plan_limits limits = {9, 1, 1, 9, 2};
    const int32_t ids[1] = {0}, offsets[2] = {0, 1}, types[1] = {0};
    const sky_batch batch = {1, ids, offsets, ids, offsets, types, NULL};
    float score;
    for (int i = 0; i < 5; i++) {
        sky_model *m = NULL; /* the last time round: what is left where memory ran out */
        expect(i == 4 || sky_model_create(faulty + i, &m) != SKY_OK, isa, "created a faulty model", i);
        expect(strlen(model_error(m)) > 0, isa, "no error", i);
        for (int repeat = 0; repeat < 2; repeat++) {
            expect(sky_model_set(m, "cls.bias", SKY_DTYPE_F32, 1, 4, &value) == SKY_ERR_STATE, isa, "failed model: set", i);
            expect(sky_model_set_rows(m, "token_embd.weight", SKY_DTYPE_F32, 0, 1, 4, &value) == SKY_ERR_STATE, isa,
                   "failed model: set_rows", i);
            expect(sky_model_freeze(m) == SKY_ERR_STATE, isa, "failed model: freeze", i);
            expect(sky_model_isa(m) != NULL && sky_model_bytes(m) == 0, isa, "failed model: isa, bytes", i);
        }
        for (int open = 0; open < 2; open++) { /* a plan of a model that failed, and of one that is not frozen */
            sky_model *unfrozen = NULL;
            sky_plan *plan;
            expect(!open || sky_model_create(&sound, &unfrozen) == SKY_OK, isa, "create", i);
            expect(sky_plan_create(open ? unfrozen : m, &limits, &plan) == SKY_ERR_STATE, isa, "a plan of no model", i);
            sky_plan *const plans[2] = {plan, NULL};
            for (int p = 0; p < 2; p++) {
                expect(strlen(sky_plan_error(plans[p])) > 0, isa, "no error", i);
                expect(sky_run(plans[p], &batch, &score) == SKY_ERR_STATE, isa, "failed plan: run", i);
                expect(sky_run_asks(plans[p], NULL, 0, 1, &score) == SKY_ERR_STATE, isa, "failed plan: run_asks", i);
                sky_plan_use_threads(plans[p], 2);
                sky_plan_trace(plans[p], NULL, NULL);
                expect(sky_plan_threads(plans[p]) == 0 && sky_plan_bytes(plans[p]) == 0, isa, "failed plan: threads, bytes", i);
                expect(!sky_plan_claim(plans[p]), isa, "failed plan: claim", i);
                sky_plan_release(plans[p]);
                sky_plan_free(plans[p]);
            }
            sky_model_free(unfrozen);
        }
        sky_model_free(m);
    }
    printf("ok      %-9s handles\n", isa);
}

/* The exported table names every tensor of a model, once, in the shape that the model takes. */
static void check_tensors(void)
{
    const char *isa = sky_isa_name(0);
    const sky_model_params sizes = {.d_model = D, .d_ff = FF, .n_vocab = VOCAB, .n_layers = LAYERS, .n_decision_blocks = BLOCKS};
    static sky_tensor tensors[100];
    const int n = sky_tensors(&sizes, tensors, 100);
    expect(n == 4 + (6 * LAYERS - 1) + 12 * BLOCKS + 6, isa, "number of tensors", n);
    expect(sky_tensors(&sizes, NULL, 0) == n, isa, "counts", n);
    static const uint8_t is_global[LAYERS] = {1, 0, 0, 1};
    sky_model_params params = sizes;
    params.n_heads = HEADS, params.n_decision_heads = 1, params.max_positions = 4, params.norm_eps = 1e-5f;
    params.rope_base_global = params.rope_base_local = 1e4f, params.layer_is_global = is_global;
    sky_model *m;
    expect(sky_model_create(&params, &m) == SKY_OK, isa, "create", 0);
    for (int i = 0; i < n; i++) {
        expect(sky_model_freeze(m) == SKY_ERR_STATE && strstr(model_error(m), tensors[i].name), isa, "the next that is missing", i);
        expect(sky_model_set(m, tensors[i].name, SKY_DTYPE_F32, tensors[i].rows + 1, tensors[i].cols, tensors) == SKY_ERR_SHAPE,
               isa, "a row too many", i);
        paint(m, tensors[i].name, (int)tensors[i].rows, (int)tensors[i].cols, 1, 0);
    }
    expect(sky_model_freeze(m) == SKY_OK, isa, model_error(m), 0);
    sky_model_free(m);
    static const char *const unknown[] = {"", "blk.", "blk.0", "blk.0.", "blk.0.attn_norm.weight", "blk.00.attn_qkv.weight",
                                          "blk.+1.attn_qkv.weight", "blk. 1.attn_qkv.weight", "blk.-1.attn_qkv.weight",
                                          "blk.6.attn_qkv.weight", "blk.0.attn_qkv.bias", "blk.1.token_embd.weight",
                                          "blk.0.cls.weight", "attn_qkv.weight", "cls.weightx"};
    const float value = 0;
    expect(sky_model_create(&params, &m) == SKY_OK, isa, "create", 0);
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++)
        expect(sky_model_set(m, unknown[i], SKY_DTYPE_F32, 1, 1, &value) == SKY_ERR_ARGUMENT, isa, unknown[i], (double)i);
    sky_model_free(m);
    for (int i = 0; i < 2; i++) {
        params = sizes;
        *(i ? &params.n_layers : &params.d_model) = 0;
        expect(sky_tensors(&params, tensors, 100) == 0, isa, "tensors of impossible sizes", i);
    }
    printf("ok      %-9s tensors\n", isa);
}

int main(void)
{
    check_handles();
    check_tensors();
    float expected[N_MARKERS], scores[N_MARKERS];
    for (int i = 0; sky_isa_name(i); i++) {
        sky_kernels tested;
        if (sky_kernels_select(sky_isa_name(i), &tested) != SKY_OK) {
            printf("skipped %-9s this CPU cannot run it\n", sky_isa_name(i));
            continue;
        }
        check_gemm(&tested);
        check_half_gemm(&tested, SKY_WEIGHT_F16);
        check_half_gemm(&tested, SKY_WEIGHT_BF16);
        check_norm(&tested);
        check_attention(&tested);
        check_widen(&tested);
        check_model(sky_isa_name(i), i ? expected : NULL, i ? scores : expected);
        check_dtypes(sky_isa_name(i));
    }
    return 0;
}
