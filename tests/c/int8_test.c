/* 8-bit precision by itself: products within what rounding to 8 bits may cost, and of Q8_0's blocks against whole numbers; the ends of
 * all ranges; rows of Q8_0; and a model's scores with the same bits alone, in any batch and on any number of threads. Prints one line a
 * check; exits 1 at the first fault. */
#include "counting.h"
#include "painted.h"

enum { BLOCK = SKY_INT8_BLOCK, GUARD_BYTES = SKY_ALIGN, GUARD = 0xA5, MOST_ROWS = 14 };

static const double eps = 1.0 / (1 << 24); /* unit roundoff of float */

static float largest(const float *x, int n)
{
    float most = 0;
    for (int i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}

/* Memory with a guard behind it, which shows a write where no sanitizer does. */
static void *guarded(size_t bytes)
{
    char *memory = sky_alloc(bytes + GUARD_BYTES);
    memset(memory, GUARD, bytes + GUARD_BYTES);
    return memory;
}

static void release_guarded(void *memory, size_t bytes, const char *isa, const char *what)
{
    for (size_t i = bytes; i < bytes + GUARD_BYTES; i++)
        expect(((unsigned char *)memory)[i] == GUARD, isa, what, (double)(i - bytes));
    sky_release(memory);
}

static sky_linear linear_of(sky_weight_type type, int n, int k, int gated)
{
    sky_linear linear = {.type = type, .n = n, .k = k, .gated = gated};
    linear.factors = malloc((size_t)k * sizeof *linear.factors);
    return linear;
}

/* c [a.rows, n] = a w^T, n / 2 columns of up * gate where gated; `weights` as numbers of `source`. */
static void multiply(const sky_kernels *tested, sky_linear *linear, sky_weight_type source, const void *weights, sky_matrix a, float *c)
{
    const char *isa = tested->isa;
    const int n_panels = sky_n_panels(tested, linear), cols = linear->gated ? linear->n / 2 : linear->n;
    const size_t panel_bytes = n_panels * sky_panel_bytes(tested, linear), row_bytes = (size_t)a.rows * sky_int8_row_bytes(a.cols);
    const size_t scratch_bytes = sky_int8_scratch(a.cols) * sizeof(float), c_bytes = (size_t)a.rows * cols * sizeof *c;
    char *panels = guarded(panel_bytes), *rows = guarded(row_bytes), *scratch = guarded(scratch_bytes), *out = guarded(c_bytes);
    linear->panels = panels;
    expect(sky_pack(tested, linear, source, weights, 0), isa, "sky_pack", linear->k);
    tested->quantize_rows(a, linear->has_factors ? linear->factors : NULL, rows);
    const sky_gemm g = {.a = a, .panels = panels, .c = {(float *)(void *)out, cols, a.rows, cols}, .a_int8 = rows,
                        .epilogue = linear->gated ? SKY_EPILOGUE_GATED : SKY_EPILOGUE_LINEAR, .act = SKY_ACT_LINEAR,
                        .scratch = (float *)(void *)scratch};
    tested->gemm[linear->type](&g, 0, n_panels);
    memcpy(c, out, c_bytes);
    release_guarded(panels, panel_bytes, isa, "wrote behind its panels");
    release_guarded(rows, row_bytes, isa, "wrote behind its quantized rows");
    release_guarded(scratch, scratch_bytes, isa, "wrote behind its scratch");
    release_guarded(out, c_bytes, isa, "wrote behind its output");
    linear->panels = NULL;
}

/* a . w of k numbers, and by how much it may be off where each number is half a step off: of its block in a, where `of_bytes`, else of
 * all of a; and of all of w */
static double rounded_dot(const float *a, const float *w, int k, int of_bytes, double *off)
{
    double sum = 0;
    const double w_off = 0.505 / SKY_INT8_LEVELS * largest(w, k), row_off = 0.505 / SKY_INT8_ROW_LEVELS * largest(a, k);
    *off = 0;
    for (int first = 0; first < k; first += BLOCK) {
        const int n = k - first < BLOCK ? k - first : BLOCK;
        const double a_off = of_bytes ? 0.505 / SKY_INT8_LEVELS * largest(a + first, n) : row_off;
        for (int i = first; i < first + n; i++) {
            sum += (double)a[i] * w[i];
            *off += fabs(a[i]) * w_off + fabs(w[i]) * a_off + a_off * w_off;
        }
    }
    return sum;
}

static void check_gemm(const sky_kernels *tested, sky_weight_type source)
{
    const char *isa = tested->isa;
    for (int m = 1; m <= MOST_ROWS; m++)
        for (int shape = 0; shape < 12; shape++) {
            const int n = (int[]){1, tested->panel_cols - 1, tested->panel_cols + 1}[shape % 3];
            const int k = (int[]){19, 32, 97, 1024 + 19}[shape / 3], stride = k + 3;
            float *w = noisy((size_t)n * k), *a = noisy((size_t)m * stride), *c = malloc((size_t)m * n * sizeof *c);
            uint16_t *halves = malloc((size_t)n * k * sizeof *halves);
            if (shape % 2)
                for (int i = 0; i < m; i++)
                    a[(size_t)i * stride + (i * 7 + 3) % k] *= 300; /* which takes two digits in a long row */
            for (int i = 0; i < n * k; i++)
                halves[i] = (uint16_t)((int)(w[i] * 32767) & 0xBBFF);
            if (source == SKY_WEIGHT_F16)
                sky_widen(tested, source, halves, 0, n * k, w);
            for (int i = 0; i < m; i++)
                for (int j = k; j < stride; j++)
                    a[(size_t)i * stride + j] = NAN;
            const int faulty = shape % 4 == 3 && m > 1 ? m - 1 : -1; /* a row with a fault beside those of two digits */
            if (faulty > 0)
                a[(size_t)faulty * stride] = m % 2 ? NAN : INFINITY;
            sky_linear linear = linear_of(SKY_WEIGHT_INT8_ROWS, n, k, 0);
            const sky_matrix x = {a, stride, m, k};
            multiply(tested, &linear, source, source == SKY_WEIGHT_F16 ? (void *)halves : w, x, c);
            for (int j = 0; j < k && linear.has_factors; j++) { /* what was rounded */
                for (int i = 0; i < m; i++)
                    a[(size_t)i * stride + j] *= linear.factors[j];
                for (int i = 0; i < n; i++)
                    w[(size_t)i * k + j] /= linear.factors[j];
            }
            for (int j = 0; j < n && faulty > 0; j++)
                expect(isnan(c[faulty * n + j]), isa, "8-bit product of a faulty row", j);
            for (int i = 0; i < m - (faulty > 0); i++)
                for (int j = 0; j < n; j++) {
                    double off;
                    const double want = rounded_dot(a + (size_t)i * stride, w + (size_t)j * k, k, tested->int8_format.group == 4, &off);
                    expect(fabs(c[i * n + j] - want) <= off, isa, "8-bit product, in bounds", fabs(c[i * n + j] - want) / off);
                }
            free(linear.factors), free(w), free(a), free(c), free(halves);
        }
    printf("ok      %-9s 8-bit gemm of %s\n", isa, source == SKY_WEIGHT_F32 ? "f32" : "f16");
}

/* ---- against whole numbers ---- */

static double half_value(uint16_t half)
{
    const int exponent = half >> 10 & 31, fraction = half & 1023;
    const double size = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return half & 0x8000 ? -size : size;
}

static uint16_t scale_of(const uint8_t *block) { return (uint16_t)(block[0] | block[1] << 8); }

/* out [k] = what a row of activations is rounded to, by kernels.h's definition. Gives the largest whole number of it. */
static double quantized(const float *x, int k, int of_bytes, double *out)
{
    double rest = 0, most = 0; /* of magnitudes, without the largest of each block */
    for (int i = 0; i < k; i++)
        rest += fabs(x[i]) - (i % BLOCK ? 0 : largest(x + i, k - i < BLOCK ? k - i : BLOCK));
    const double wide_from = SKY_INT8_WIDE_FROM * rest / (k - sky_int8_blocks(k));
    for (int first = 0; first < k; first += BLOCK) {
        const int n = k - first < BLOCK ? k - first : BLOCK;
        const float size = of_bytes ? largest(x + first, n) : largest(x, k);
        const float levels = !of_bytes ? SKY_INT8_ROW_LEVELS : size > wide_from ? SKY_INT8_WIDE_LEVELS : SKY_INT8_LEVELS;
        const float factor = levels / (size > SKY_INT8_SMALLEST ? size : SKY_INT8_SMALLEST);
        for (int i = first; i < first + n; i++) {
            const float whole = rintf(x[i] * factor);
            most = fmax(most, fabs(whole));
            out[i] = whole * ((double)size / levels);
        }
    }
    return most;
}

/* x . w, and how far a float sum over blocks may be off, where lower digits, of at most 128, are terms of their own */
static double dot_in_blocks(const double *x, const double *w, int k, double *off)
{
    double sum = 0, sizes = 0;
    for (int first = 0; first < k; first += BLOCK) {
        double term = 0, most = 0, weights = 0;
        for (int i = first; i < first + BLOCK && i < k; i++) {
            term += x[i] * w[i];
            most = fmax(most, fabs(x[i]));
            weights += fabs(w[i]);
        }
        sum += term;
        sizes += fabs(term) + 2 * 128.0 / SKY_INT8_WIDE_LEVELS * most * weights;
    }
    *off = (k / BLOCK + 8) * eps * sizes;
    return sum;
}

/* The products of a with a matrix whose numbers are w [n, k] and which `weights` holds as `source`: by the kernels and by the definition.
 * Row `faulty`, if any, has to be NaN. Gives the largest whole number that an activation became. */
static double expect_products(const sky_kernels *tested, sky_linear *linear, sky_weight_type source, const void *weights, const double *w,
                              sky_matrix a, int faulty, const char *what)
{
    const int gated = linear->gated, cols = gated ? linear->n / 2 : linear->n, k = linear->k;
    float *c = malloc((size_t)a.rows * cols * sizeof *c);
    double *x = malloc((size_t)k * sizeof *x), most = 0;
    multiply(tested, linear, source, weights, a, c);
    expect(!linear->has_factors, tested->isa, "factors for columns of one size", k);
    for (int i = 0; i < a.rows; i++) {
        if (i != faulty)
            most = fmax(most, quantized(a.data + (size_t)i * a.stride, k, tested->int8_format.group == 4, x));
        for (int j = 0; j < cols; j++) {
            const float found = c[(size_t)i * cols + j];
            if (i == faulty) {
                expect(isnan(found), tested->isa, "8-bit product of a faulty row", j);
                continue;
            }
            double off, gate_off, want = dot_in_blocks(x, w + (size_t)j * k, k, &off);
            if (gated) {
                const double gate = dot_in_blocks(x, w + (size_t)(cols + j) * k, k, &gate_off);
                off = off * fabs(gate) + (fabs(want) + off) * gate_off + eps * fabs(want * gate);
                want *= gate;
            }
            expect(fabs(found - want) <= off, tested->isa, what, fabs(found - want) / off);
        }
    }
    free(x), free(c);
    return most;
}

/* blocks [n_blocks] of Q8_0 with every whole number there is and scales of many sizes, some of them 0, subnormal or negative; and what
 * they hold, in w */
static uint8_t *noisy_blocks(size_t n_blocks, double *w)
{
    uint8_t *blocks = malloc(n_blocks * Q8_0_BYTES);
    for (size_t b = 0; b < n_blocks; b++) {
        uint8_t *block = blocks + b * Q8_0_BYTES;
        const int exponent = b % 7 == 3 ? 0 : 6 + (int)((noise() + 1) * 4), fraction = (int)((noise() + 1) * 511);
        const uint16_t half = b % 11 == 5 ? 0 : (uint16_t)((b % 5 == 2) << 15 | exponent << 10 | fraction);
        memcpy(block, (uint8_t[]){(uint8_t)half, (uint8_t)(half >> 8)}, 2);
        for (int i = 0; i < BLOCK; i++) {
            const int q = i == 7 ? -128 : (int)floorf(noise() * 127.99f); /* noise may be rounded to 1 */
            block[2 + i] = (uint8_t)q;
            w[b * BLOCK + i] = q * half_value(half);
        }
    }
    return blocks;
}

static void check_blocks(const sky_kernels *tested)
{
    for (int m = 1; m <= MOST_ROWS; m++)
        for (int shape = 0; shape < 18; shape++) {
            const int gated = shape % 2, k = (int[]){32, 96, 1024 + 32}[shape / 6], stride = k + 3;
            const int n = (int[]){1, tested->panel_cols - 1, tested->panel_cols + 1}[shape / 2 % 3] * (gated + 1);
            double *w = malloc((size_t)n * k * sizeof *w);
            float *a = noisy((size_t)m * stride);
            uint8_t *blocks = noisy_blocks((size_t)n * k / BLOCK, w);
            const int faulty = shape % 5 == 4 && m > 1 ? m - 1 : -1;
            for (int i = 0; i < m; i++) {
                if (shape / 2 % 2)
                    a[(size_t)i * stride + (i * 7 + 3) % k] *= 300; /* which takes two digits in a long row */
                for (int j = k; j < stride; j++)
                    a[(size_t)i * stride + j] = NAN;
            }
            if (faulty > 0)
                a[(size_t)faulty * stride + k - 1] = m % 2 ? NAN : -INFINITY;
            sky_linear linear = linear_of(SKY_WEIGHT_INT8, n, k, gated);
            expect_products(tested, &linear, SKY_WEIGHT_INT8, blocks, w, (sky_matrix){a, stride, m, k}, faulty, "product of Q8_0's blocks");
            free(linear.factors), free(w), free(a), free(blocks);
        }
    printf("ok      %-9s 8-bit gemm of q8_0\n", tested->isa);
}

/* Element i of a row whose numbers are the largest that there are: of one sign or both, in all blocks or in the first one alone, which then
 * has two digits where there are such, the lower one at its own ends. */
static float extreme(int kind, int i)
{
    static const float fours[] = {1, 1, -1, -1}, twos[] = {1, -1};
    const float lowest = i == 0 ? 1 : (SKY_INT8_WIDE_LEVELS - 128) / (float)SKY_INT8_WIDE_LEVELS; /* a lower digit of -128, and of 127 */
    const float highest = i == 0 ? 1 : (SKY_INT8_WIDE_LEVELS - 129) / (float)SKY_INT8_WIDE_LEVELS;
    const float all[] = {1, -1, fours[i % 4], twos[i % 2]};
    const float first[] = {1, -1, fours[i % 4], lowest, -lowest, highest, -highest, fours[i % 4] * lowest};
    return kind < 4 ? all[kind] : i < BLOCK ? first[kind - 4] : 0;
}

enum { N_EXTREMES = 12 };

/* Sums that would overflow 16 bits, or 32 if more of k were summed, and pairs and fours that cancel to 0 unless a part of them saturates. */
static void check_extremes(const sky_kernels *tested)
{
    const int of_bytes = tested->int8_format.group == 4, n = 2 * tested->panel_cols + 3;
    for (int shape = 0; shape < 4; shape++)
        for (int m = MOST_ROWS - 4; m <= MOST_ROWS; m += 2)
            for (int by_rows = 0; by_rows < 2; by_rows++) {
                const int k = (int[]){64, 1023, 1024, 2080}[shape], lowest = by_rows ? -127 : -128;
                if (k % BLOCK && !by_rows)
                    continue;
                const size_t n_weights = (size_t)n * k;
                float *a = malloc((size_t)m * k * sizeof *a), *floats = malloc(n_weights * sizeof *floats);
                double *w = malloc(n_weights * sizeof *w);
                uint8_t *blocks = calloc(n_weights / BLOCK + 1, Q8_0_BYTES);
                for (int i = 0; i < m * k; i++)
                    a[i] = (float)(1 + i / k) * extreme((i / k + m) % N_EXTREMES, i % k);
                for (size_t i = 0; i < n_weights; i++) {
                    const int q = extreme((int)(i / k) % 4, (int)(i % k)) > 0 ? 127 : lowest;
                    floats[i] = q / 254.0f;
                    w[i] = by_rows ? q / 254.0 : 0.5 * q;
                    blocks[i / BLOCK * Q8_0_BYTES + 1] = 0x38; /* 0.5 */
                    blocks[i / BLOCK * Q8_0_BYTES + 2 + i % BLOCK] = (uint8_t)q;
                }
                sky_linear linear = linear_of(by_rows ? SKY_WEIGHT_INT8_ROWS : SKY_WEIGHT_INT8, n, k, 0);
                const double most = expect_products(tested, &linear, by_rows ? SKY_WEIGHT_F32 : SKY_WEIGHT_INT8,
                                                    by_rows ? (void *)floats : blocks, w, (sky_matrix){a, k, m, k}, -1, "products at the ends");
                expect(most == (!of_bytes ? SKY_INT8_ROW_LEVELS : k > 1000 ? SKY_INT8_WIDE_LEVELS : SKY_INT8_LEVELS), tested->isa,
                       "not at the ends", most);
                free(linear.factors), free(a), free(floats), free(w), free(blocks);
            }
    printf("ok      %-9s 8-bit extremes\n", tested->isa);
}

/* ---- rows of Q8_0 ---- */

/* Block b of x [32] as Q8_0: a scale that is the nearest to 1/127 of the largest, and numbers that are the nearest by it. */
static void expect_nearest(const char *isa, const double *x, const uint8_t *block, int b)
{
    double most = 0;
    for (int i = 0; i < BLOCK; i++)
        most = fmax(most, fabs(x[i]));
    const double scale = half_value(scale_of(block)), want = most / 127;
    const int exponent = want >= ldexp(1, -14) ? ilogb(want) : -14;
    expect(fabs(scale - want) <= ldexp(0.5, exponent - 10) + 2 * eps * want, isa, "scale of Q8_0", b);
    for (int i = 0; i < BLOCK; i++) {
        const int q = (int8_t)block[2 + i];
        const double beyond = fabs(x[i]) - 127 * scale;
        expect(fabs(x[i] - q * scale) <= (0.5 + 256 * eps) * scale + (beyond > 0 ? beyond : 0), isa, "number of Q8_0", b);
        expect(q != -128 && (scale > 0 || q == 0), isa, "whole number of Q8_0", q);
    }
}

static void check_rows(const sky_kernels *tested)
{
    enum { N_BLOCKS = 40, N = N_BLOCKS * BLOCK };
    const char *isa = tested->isa;
    for (sky_weight_type type = SKY_WEIGHT_F32; type <= SKY_WEIGHT_BF16; type++) {
        double x[N];
        float *floats = malloc(N * sizeof *floats);
        uint16_t *halves = malloc(N * sizeof *halves);
        uint8_t *blocks = malloc(N_BLOCKS * Q8_0_BYTES);
        void *data = type == SKY_WEIGHT_F32 ? (void *)floats : halves;
        for (int i = 0; i < N; i++) {
            const int b = i / BLOCK;
            const float number = b == 5 ? 0 : ldexpf(noise(), b == 6 ? 22 : b - 30); /* from less than any scale to the largest that fits */
            const uint32_t random = (uint32_t)((noise() + 1) * 32768);
            uint32_t bits;
            memcpy(&bits, &number, sizeof bits);
            halves[i] = type == SKY_WEIGHT_BF16 ? (uint16_t)(bits >> 16) : (uint16_t)((random & 0x83FF) | (uint32_t)(b % 31) << 10);
            const uint32_t upper = (uint32_t)halves[i] << 16;
            floats[i] = number;
            memcpy(&bits, &upper, sizeof bits);
            float of_upper;
            memcpy(&of_upper, &bits, sizeof of_upper);
            x[i] = type == SKY_WEIGHT_F32 ? number : type == SKY_WEIGHT_BF16 ? of_upper : half_value(halves[i]);
        }
        expect(sky_to_q8_0(tested, type, data, N, blocks), isa, "sky_to_q8_0", type);
        expect(sky_q8_0_finite(blocks, N_BLOCKS), isa, "sky_q8_0_finite", type);
        for (int b = 0; b < N_BLOCKS; b++)
            expect_nearest(isa, x + b * BLOCK, blocks + b * Q8_0_BYTES, b);
        for (int first = 0; first < 70; first += 7)
            for (int n = 1; n < 100; n += 11) {
                float *wide = malloc((size_t)n * sizeof *wide);
                sky_widen(tested, SKY_WEIGHT_INT8, blocks, (size_t)first, n, wide);
                for (int i = 0; i < n; i++) {
                    const uint8_t *block = blocks + (first + i) / BLOCK * Q8_0_BYTES;
                    expect(wide[i] == half_value(scale_of(block)) * (int8_t)block[2 + (first + i) % BLOCK], isa, "sky_widen of Q8_0", i);
                }
                free(wide);
            }
        for (int fault = 0; fault < 3 && type == SKY_WEIGHT_F32; fault++) {
            floats[N - 1] = (float[]){NAN, -INFINITY, 127.0f * 65536.0f}[fault];
            expect(!sky_to_q8_0(tested, type, floats, N, blocks), isa, "made Q8_0 of no numbers", fault);
        }
        memcpy(blocks + (N_BLOCKS - 1) * Q8_0_BYTES, (uint8_t[]){0, 0xFC}, 2);
        expect(!sky_q8_0_finite(blocks, N_BLOCKS), isa, "an infinite scale", type);
        free(floats), free(halves), free(blocks);
    }
    printf("ok      %-9s q8_0 rows\n", isa);
}

/* An embedding that is larger than what stays in its own type, set in parts. */
static void check_large_embedding(const sky_kernels *tested)
{
    enum { WIDTH = 32, AT_ONCE = 4096, N_PARTS = 65, ROW_BYTES = WIDTH / BLOCK * Q8_0_BYTES };
    const uint8_t is_global[] = {1};
    const sky_model_params params = {
        .d_model = WIDTH, .d_ff = 8, .n_vocab = N_PARTS * AT_ONCE, .n_layers = 1, .n_heads = 1, .n_decision_heads = 1, .max_positions = 4,
        .norm_eps = 1e-5f, .rope_base_global = 10000, .rope_base_local = 10000, .layer_is_global = is_global,
        .precision = SKY_PRECISION_INT8, .isa = tested->isa};
    sky_model *m;
    expect(sky_model_create(&params, &m) == SKY_OK, tested->isa, "sky_model_create", 0);
    float *numbers = noisy((AT_ONCE + N_PARTS) * WIDTH); /* part p begins at row p of them */
    uint8_t *rows = malloc((AT_ONCE + N_PARTS) * ROW_BYTES);
    expect(sky_to_q8_0(tested, SKY_WEIGHT_F32, numbers, (AT_ONCE + N_PARTS) * WIDTH, rows), tested->isa, "sky_to_q8_0", 0);
    for (int p = 0; p < N_PARTS; p++)
        expect(sky_model_set_rows(m, "token_embd.weight", SKY_DTYPE_F32, p * AT_ONCE, AT_ONCE, WIDTH, numbers + p * WIDTH) == SKY_OK,
               tested->isa, model_error(m), p);
    expect(m->token_embd.type == SKY_WEIGHT_INT8, tested->isa, "a large embedding's type", m->token_embd.type);
    for (int p = 0; p < N_PARTS; p++)
        expect(memcmp((char *)m->token_embd.rows + (size_t)p * AT_ONCE * ROW_BYTES, rows + p * ROW_BYTES, AT_ONCE * ROW_BYTES) == 0,
               tested->isa, "rows of a large embedding", p);
    free(numbers), free(rows);
    sky_model_free(m);
    printf("ok      %-9s large embedding\n", tested->isa);
}

/* ---- a whole model ---- */

/* Of painted numbers or, `in_blocks`, of those of Q8_0, the embedding as well, which is gathered where there is no table of its rows. */
static void check_model(const char *isa, int in_blocks)
{
    painted_batch painted = paint_batch();
    const sky_batch batch = batch_of(&painted);
    float floats[N_MARKERS], exact[N_MARKERS], scores[N_MARKERS], again[N_MARKERS];
    float *const found[] = {floats, exact, scores, again, again, again};
    painted_in_blocks = in_blocks;
    painted_d = in_blocks ? 64 : D;
    painted_ff = in_blocks ? 96 : FF;
    for (int i = 0; i < 6; i++) {
        painted_dtype = in_blocks && i > 0 ? SKY_DTYPE_Q8_0 : SKY_DTYPE_F32;
        painted_precision = i < 2 ? SKY_PRECISION_EXACT : SKY_PRECISION_INT8;
        sky_model *m = painted_model(isa, i == 5 ? VOCAB * 3 * painted_d * sizeof(float) : 0);
        sky_plan *plan;
        sky_plan_limits limits = painted_limits;
        limits.n_threads = i == 3 ? 3 : 1;
        const int64_t in_8_bits = sky_model_parameters(m, SKY_DTYPE_Q8_0), embedding = in_blocks && i > 0 ? VOCAB * painted_d : 0;
        expect(i < 2 ? in_8_bits == embedding : in_8_bits > embedding, isa, "parameters of 8 bits", i);
        expect(sky_plan_create(m, &limits, &plan) == SKY_OK, isa, "a plan", i);
        plan->shared_work = 0;
        expect(sky_run(plan, &batch, found[i]) == SKY_OK, isa, sky_plan_error(plan), i);
        const long before = n_allocations;
        if (i > 1)
            expect(sky_run(plan, &batch, found[i]) == SKY_OK && (i == 3 || n_allocations == before), isa, "a run allocates", i);
        if (i == 4) /* each sequence by itself */
            for (int s = 0; s < N_SEQUENCES; s++) {
                const int32_t first = batch.token_offsets[s], marker = batch.marker_offsets[s];
                const int32_t token_offsets[] = {0, batch.token_offsets[s + 1] - first};
                const int32_t marker_offsets[] = {0, batch.marker_offsets[s + 1] - marker};
                const sky_batch one = {.n_sequences = 1, .token_ids = batch.token_ids + first, .token_offsets = token_offsets,
                                       .markers = batch.markers + marker, .marker_offsets = marker_offsets,
                                       .question_types = batch.question_types + s};
                expect(sky_run(plan, &one, again + marker) == SKY_OK, isa, sky_plan_error(plan), s);
            }
        if (i > 2)
            expect(memcmp(again, scores, sizeof scores) == 0, isa, "other bits", i);
        sky_plan_free(plan);
        sky_model_free(m);
    }
    expect(memcmp(exact, floats, sizeof exact) == 0, isa, "other bits from the same numbers", 0);
    double off = 0;
    for (int i = 0; i < N_MARKERS; i++)
        if (!(fabsf(exact[i] - scores[i]) <= off))
            off = fabsf(exact[i] - scores[i]);
    expect(off > 0 && off < 0.2, isa, "far from exact", off);
    painted_in_blocks = 0;
    painted_d = D;
    painted_ff = FF;
    painted_dtype = SKY_DTYPE_F32;
    painted_precision = SKY_PRECISION_EXACT;
    printf("ok      %-9s 8-bit model%s\n", isa, in_blocks ? " of q8_0" : "");
}

int main(void)
{
    for (int i = 0; sky_isa_name(i); i++) {
        sky_kernels tested;
        if (!sky_isa_supported(sky_isa_name(i)))
            continue;
        expect(sky_kernels_select(sky_isa_name(i), &tested) == SKY_OK, sky_isa_name(i), "select", 0);
        check_gemm(&tested, SKY_WEIGHT_F32);
        check_gemm(&tested, SKY_WEIGHT_F16);
        check_blocks(&tested);
        check_extremes(&tested);
        check_rows(&tested);
        if (i == 0) /* by the kernels of any */
            check_large_embedding(&tested);
#if defined(UNDER_EMULATOR) /* where threads that wait take most of the time: without the row that every machine has */
        if (i == 0)
            continue;
#endif
        check_model(sky_isa_name(i), 0);
        check_model(sky_isa_name(i), 1);
    }
    return 0;
}
