/* 8-bit precision by itself: products within what rounding to 8 bits may cost, and a model's scores with the same bits alone, in any batch
 * and on any number of threads. Prints one line a check; exits 1 at the first fault. */
#include "counting.h"
#include "painted.h"

enum { BLOCK = SKY_INT8_BLOCK };

static float largest(const float *x, int n)
{
    float most = 0;
    for (int i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
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
    for (int m = 1; m <= 14; m++)
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
            sky_linear linear = {.type = SKY_WEIGHT_INT8_ROWS, .n = n, .k = k};
            const int n_panels = (n + tested->panel_cols - 1) / tested->panel_cols;
            linear.panels = sky_alloc(n_panels * sky_panel_bytes(tested, &linear));
            linear.factors = malloc((size_t)k * sizeof *linear.factors);
            expect(sky_pack(tested, &linear, source, source == SKY_WEIGHT_F16 ? (void *)halves : w, 0), isa, "sky_pack", k);
            char *rows = sky_alloc((size_t)m * sky_int8_row_bytes(k));
            float *scratch = sky_alloc(sky_int8_scratch(k) * sizeof *scratch);
            const sky_matrix x = {a, stride, m, k};
            tested->quantize_rows(x, linear.has_factors ? linear.factors : NULL, rows);
            const sky_gemm g = {.a = x, .panels = linear.panels, .c = {c, n, m, n}, .a_int8 = rows,
                                .scratch = scratch};
            tested->gemm[SKY_WEIGHT_INT8_ROWS](&g, 0, n_panels);
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
            sky_release(linear.panels), sky_release(rows), sky_release(scratch);
            free(linear.factors), free(w), free(a), free(c), free(halves);
        }
    printf("ok      %-9s 8-bit gemm of %s\n", isa, source == SKY_WEIGHT_F32 ? "f32" : "f16");
}

static void check_model(const char *isa)
{
    painted_batch painted = paint_batch();
    const sky_batch batch = batch_of(&painted);
    float exact[N_MARKERS], scores[N_MARKERS], again[N_MARKERS];
    for (int i = 0; i < 5; i++) {
        painted_precision = i == 0 ? SKY_PRECISION_EXACT : SKY_PRECISION_INT8;
        sky_model *m = painted_model(isa, i == 4 ? VOCAB * 3 * D * sizeof(float) : 0);
        sky_plan *plan;
        sky_plan_limits limits = painted_limits;
        limits.n_threads = i == 2 ? 3 : 1;
        expect((sky_model_parameters(m, SKY_DTYPE_Q8_0) > 0) == (i > 0), isa, "parameters of 8 bits", i);
        expect(sky_plan_create(m, &limits, &plan) == SKY_OK, isa, "a plan", i);
        plan->shared_work = 0;
        float *found = i == 0 ? exact : i == 1 ? scores : again;
        expect(sky_run(plan, &batch, found) == SKY_OK, isa, sky_plan_error(plan), i);
        const long before = n_allocations;
        expect(sky_run(plan, &batch, found) == SKY_OK && (i == 2 || n_allocations == before), isa, "a run allocates", i);
        if (i == 3) /* each sequence by itself */
            for (int s = 0; s < N_SEQUENCES; s++) {
                const int32_t first = batch.token_offsets[s], marker = batch.marker_offsets[s];
                const int32_t token_offsets[] = {0, batch.token_offsets[s + 1] - first};
                const int32_t marker_offsets[] = {0, batch.marker_offsets[s + 1] - marker};
                const sky_batch one = {.n_sequences = 1, .token_ids = batch.token_ids + first, .token_offsets = token_offsets,
                                       .markers = batch.markers + marker, .marker_offsets = marker_offsets,
                                       .question_types = batch.question_types + s};
                expect(sky_run(plan, &one, again + marker) == SKY_OK, isa, sky_plan_error(plan), s);
            }
        if (i > 1)
            expect(memcmp(again, scores, sizeof scores) == 0, isa, "other bits", i);
        sky_plan_free(plan);
        sky_model_free(m);
    }
    double off = 0;
    for (int i = 0; i < N_MARKERS; i++)
        if (!(fabsf(exact[i] - scores[i]) <= off))
            off = fabsf(exact[i] - scores[i]);
    expect(off > 0 && off < 0.2, isa, "far from exact", off);
    painted_precision = SKY_PRECISION_EXACT;
    printf("ok      %-9s 8-bit model\n", isa);
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
        check_model(sky_isa_name(i));
    }
    return 0;
}
