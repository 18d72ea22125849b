/* One attention head of one sequence over the register tile of gemm_tpl.h, while its keys, values and scores are in cache.
 *
 * Keys are rotated and turned into panels once. Then, a tile of queries at a time: rotate and scale them, QK^T over
 * the panels that the window touches, softmax in place, PV straight from v's own rows. No score leaves the tile. A few keys
 * without positions, as the options of a question are, go without panels.
 */
#ifndef SKY_ATTENTION_TPL_H
#define SKY_ATTENTION_TPL_H

#include <string.h>

/* c [rows, cols] = (a [rows, k] @ w [k, cols]) * row_scale (NULL: 1), cols <= PANEL_COLS */
SKY_INLINE void tile_matmul(const int rows, int k, const float *a, int lda, const float *w, int ldw, int cols,
                            const float *row_scale, float *c, int ldc)
{
    vf acc[TILE_ROWS][PANEL_VECTORS];
    tile_clear(rows, acc);
    if (cols >= PANEL_COLS)
        tile_accumulate(rows, k, a, lda, w, ldw, (const char *)w, ldw * (int)sizeof(float), acc);
    else if (cols == VL)
        tile_accumulate_vector(rows, k, a, lda, w, ldw, acc);
    else
        tile_accumulate_part(rows, k, a, lda, w, ldw, cols, acc);
    SKY_UNROLL
    for (int i = 0; i < rows; i++) {
        const vf scale = v_set1(row_scale ? row_scale[i] : 1.0f);
        store_cols(c + (ptrdiff_t)i * ldc, v_mul(acc[i][0], scale), v_mul(acc[i][1], scale), cols);
    }
}

#define TILE_MATMUL(R) \
    static SKY_NOINLINE void tile_matmul_##R(int k, const float *a, int lda, const float *w, int ldw, int cols, \
                                             const float *row_scale, float *c, int ldc) \
    { tile_matmul(R, k, a, lda, w, ldw, cols, row_scale, c, ldc); }
TILE_MATMUL(1) TILE_MATMUL(2) TILE_MATMUL(3) TILE_MATMUL(4)
#if TILE_ROWS > 4
TILE_MATMUL(5) TILE_MATMUL(6)
#endif
#if TILE_ROWS > 6
TILE_MATMUL(7) TILE_MATMUL(8) TILE_MATMUL(9) TILE_MATMUL(10) TILE_MATMUL(11) TILE_MATMUL(12)
#endif

typedef void tile_matmul_fn(int k, const float *a, int lda, const float *w, int ldw, int cols, const float *row_scale,
                            float *c, int ldc);
static tile_matmul_fn *const tile_matmuls[TILE_ROWS + 1] = {
    NULL, tile_matmul_1, tile_matmul_2, tile_matmul_3, tile_matmul_4,
#if TILE_ROWS > 4
    tile_matmul_5, tile_matmul_6,
#endif
#if TILE_ROWS > 6
    tile_matmul_7, tile_matmul_8, tile_matmul_9, tile_matmul_10, tile_matmul_11, tile_matmul_12,
#endif
};

/* y [d_head] = rope(x) * scale at one position; cos NULL: no rotation */
SKY_INLINE void rotate(const float *x, const float *cos, const float *sin, float scale, int d_head, float *y)
{
    const vf factor = v_set1(scale);
    if (!cos) {
        int j = 0;
        for (; j + VL <= d_head; j += VL)
            v_store(y + j, v_mul(v_load(x + j), factor));
        for (; j < d_head; j++)
            y[j] = x[j] * scale;
        return;
    }
    const int half = d_head / 2;
    int j = 0;
    for (; j + VL <= half; j += VL) {
        const vf x0 = v_mul(v_load(x + j), factor), x1 = v_mul(v_load(x + half + j), factor);
        const vf c = v_load(cos + j), s = v_load(sin + j);
        v_store(y + j, v_sub(v_mul(x0, c), v_mul(x1, s)));
        v_store(y + half + j, v_fma(x1, c, v_mul(x0, s)));
    }
    for (; j < half; j++) {
        const float x0 = x[j] * scale, x1 = x[half + j] * scale;
        y[j] = x0 * cos[j] - x1 * sin[j];
        y[half + j] = x1 * cos[j] + x0 * sin[j];
    }
}

/* y [x.rows, d_head] = rope(x) * scale, whose rows are tokens from `first` on */
static void rotate_rows(const sky_attention *a, sky_matrix x, int first, float scale, float *y)
{
    const int d_head = x.cols, half = d_head / 2;
    for (int i = 0; i < x.rows; i++) {
        const ptrdiff_t at = a->position ? a->position[first + i] : first + i;
        rotate(x.data + (ptrdiff_t)i * x.stride, a->rope_cos ? a->rope_cos + at * half : NULL,
               a->rope_sin ? a->rope_sin + at * half : NULL, scale, d_head, y + (ptrdiff_t)i * d_head);
    }
}

/* keys [n_keys, d_head], rotated, as panels [d_head, PANEL_COLS], zero beyond n_keys; rows: [PANEL_COLS, d_head] */
static void pack_keys(const sky_attention *a, float *panels, float *rows)
{
    const int d_head = a->k.cols;
    for (int first = 0; first < a->k.rows; first += PANEL_COLS) {
        const int count = a->k.rows - first < PANEL_COLS ? a->k.rows - first : PANEL_COLS;
        const sky_matrix keys = sky_rows(a->k, first, count);
        if (count == PANEL_COLS && !a->rope_cos) {
            pack_panel(keys.data, keys.stride, d_head, panels);
        } else {
            rotate_rows(a, keys, first, 1.0f, rows);
            if (count < PANEL_COLS)
                memset(rows + (ptrdiff_t)count * d_head, 0, sizeof(float) * (size_t)(PANEL_COLS - count) * d_head);
            pack_panel(rows, d_head, d_head, panels);
        }
        panels += (size_t)d_head * PANEL_COLS;
    }
}

/* Rows whose softmax is computed side by side: one alone would wait for its maximum and its sum. */
enum { SOFTMAX_ROWS = 3 };

/* scores [rows, width], `stride` from row to row, width a multiple of VL: in row i those of [begin[i], end[i]) become
 * exp(score - max), all others 0; inverse_sums[i] = 1 / sum. Lanes are selected in registers, because a vector that is loaded right
 * after a store into a part of it waits for that store. */
SKY_INLINE void softmax(const int rows, float *scores, int stride, const int *begin, const int *end, int width, float *inverse_sums)
{
    int all_from = 0, all_to = width; /* vectors in between are seen whole by all rows */
    vf peak[SOFTMAX_ROWS], max[SOFTMAX_ROWS], sum[SOFTMAX_ROWS];
    SKY_UNROLL
    for (int i = 0; i < rows; i++) {
        all_from = begin[i] > all_from ? begin[i] : all_from;
        all_to = end[i] < all_to ? end[i] : all_to;
        peak[i] = v_set1(-INFINITY);
    }
    for (int j = 0; j < width; j += VL) {
        const int is_whole = j >= all_from && j + VL <= all_to;
        SKY_UNROLL
        for (int i = 0; i < rows; i++) {
            const vf x = v_load(scores + (ptrdiff_t)i * stride + j);
            peak[i] = v_max(peak[i], is_whole ? x : v_keep(x, begin[i] - j, end[i] - j, v_set1(-INFINITY)));
        }
    }
    SKY_UNROLL
    for (int i = 0; i < rows; i++) {
        max[i] = v_set1(v_hmax(peak[i]));
        sum[i] = v_set1(0.0f);
    }
    for (int j = 0; j < width; j += VL) {
        const int is_whole = j >= all_from && j + VL <= all_to;
        vf e[SOFTMAX_ROWS];
        SKY_UNROLL
        for (int i = 0; i < rows; i++)
            e[i] = v_exp(v_sub(v_load(scores + (ptrdiff_t)i * stride + j), max[i]));
        if (!is_whole) {
            SKY_UNROLL
            for (int i = 0; i < rows; i++)
                e[i] = v_keep(e[i], begin[i] - j, end[i] - j, v_set1(0.0f));
        }
        SKY_UNROLL
        for (int i = 0; i < rows; i++) {
            v_store(scores + (ptrdiff_t)i * stride + j, e[i]);
            sum[i] = v_add(sum[i], e[i]);
        }
    }
    SKY_UNROLL
    for (int i = 0; i < rows; i++)
        inverse_sums[i] = 1.0f / v_sum(sum[i]);
}

static void softmax_rows(int rows, float *scores, int stride, const int *begin, const int *end, int width, float *inverse_sums)
{
    int i = 0;
    for (; i + SOFTMAX_ROWS <= rows; i += SOFTMAX_ROWS)
        softmax(SOFTMAX_ROWS, scores + (ptrdiff_t)i * stride, stride, begin + i, end + i, width, inverse_sums + i);
    for (; i < rows; i++)
        softmax(1, scores + (ptrdiff_t)i * stride, stride, begin + i, end + i, width, inverse_sums + i);
}

/* The keys from the first to the last that one of the queries [first, last) may see. */
static void span_of_keys(const sky_attention *a, int first, int last, int *begin, int *end)
{
    int32_t least = a->position[first], most = least;
    for (int i = first + 1; i < last; i++) {
        least = a->position[i] < least ? a->position[i] : least;
        most = a->position[i] > most ? a->position[i] : most;
    }
    *begin = 0;
    *end = a->k.rows;
    if (a->window < 0)
        return;
    while (a->position[*begin] + a->window < least)
        ++*begin;
    while (a->position[*end - 1] - a->window > most)
        --*end;
}

/* scores [key] = value for every key of [begin, end) that the query does not see */
static void replace_hidden(const sky_attention *a, int query, int begin, int end, float value, float *scores)
{
    for (int key = begin; key < end; key++)
        if (!sky_sees(a, query, key))
            scores[key] = value;
}

/* Where there are few keys, and neither positions nor a window, packing them would take most of the time, so a score is a product of
 * two rows. */
enum { FEW_KEYS = 8 };

static void attend_to_few(const sky_attention *a)
{
    const int d_head = a->q.cols, whole = d_head / VL * VL, tail = d_head - whole, n_keys = a->k.rows;
    const int width = (n_keys + VL - 1) / VL * VL;
    float scores[FEW_KEYS + VL];
    for (int query = 0; query < a->q.rows; query++) {
        const float *q = a->q.data + (ptrdiff_t)query * a->q.stride;
        float *out = a->out.data + (ptrdiff_t)query * a->out.stride;
        for (int key = 0; key < n_keys; key++) {
            const float *k = a->k.data + (ptrdiff_t)key * a->k.stride;
            vf sum = v_set1(0.0f);
            for (int j = 0; j < whole; j += VL)
                sum = v_fma(v_load(q + j), v_load(k + j), sum);
            if (tail)
                sum = v_fma(v_load_part(q + whole, tail), v_load_part(k + whole, tail), sum);
            scores[key] = v_sum(sum) * a->scale;
        }
        const int begin = 0;
        float inverse;
        softmax(1, scores, 0, &begin, &n_keys, width, &inverse);
        const vf inverse_sum = v_set1(inverse);
        for (int j = 0; j < d_head; j += VL) {
            const float *v = a->v.data + j;
            vf sum = v_set1(0.0f);
            for (int key = 0; key < n_keys; key++, v += a->v.stride)
                sum = v_fma(v_set1(scores[key]), j < whole ? v_load(v) : v_load_part(v, tail), sum);
            if (j < whole)
                v_store(out + j, v_mul(sum, inverse_sum));
            else
                v_store_part(out + j, v_mul(sum, inverse_sum), tail);
        }
    }
}

static void attention(const sky_attention *a)
{
    if (a->k.rows <= FEW_KEYS && !a->rope_cos && !a->position && a->window < 0) {
        attend_to_few(a);
        return;
    }
    const int d_head = a->q.cols, n_keys = a->k.rows;
    const int n_panels = (n_keys + PANEL_COLS - 1) / PANEL_COLS;
    float *panels = a->scratch;
    float *queries = panels + (size_t)n_panels * PANEL_COLS * d_head; /* [TILE_ROWS, d_head] */
    float *scores = queries + (size_t)TILE_ROWS * (d_head + 16);      /* [TILE_ROWS, width] */
    float *rows = scores + (size_t)TILE_ROWS * ((size_t)n_panels * PANEL_COLS + 16);
    pack_keys(a, panels, rows);

    for (int first = 0, count; first < a->q.rows; first += count) {
        count = rows_of_tile(a->q.rows - first);
        int key_begin = 0, key_end = n_keys;
        if (a->position) {
            span_of_keys(a, first, first + count, &key_begin, &key_end);
        } else if (a->window >= 0) {
            key_begin = first - a->window > 0 ? first - a->window : 0;
            key_end = n_keys - (first + count) > a->window ? first + count + a->window : n_keys;
        }
        const int origin = key_begin / PANEL_COLS * PANEL_COLS; /* the first key of a panel */
        const int width = (key_end - origin + VL - 1) / VL * VL; /* of the scores that softmax looks at */
        const int stride = (width + PANEL_COLS - 1) / PANEL_COLS * PANEL_COLS;

        rotate_rows(a, sky_rows(a->q, first, count), first, a->scale, queries);
        for (int col = 0; col < width; col += PANEL_COLS) /* of the last panel one vector where no more is looked at */
            tile_matmuls[count](d_head, queries, d_head, panels + (size_t)(origin + col) * d_head, PANEL_COLS,
                                width - col < PANEL_COLS ? width - col : PANEL_COLS, NULL, scores + col, stride);

        int begin[TILE_ROWS], end[TILE_ROWS]; /* of the keys that a query sees, from origin on */
        for (int i = 0; i < count; i++) {
            const int query = first + i, has_window = a->window >= 0 && !a->position;
            begin[i] = a->position ? key_begin - origin : (has_window && query > a->window ? query - a->window : 0) - origin;
            end[i] = (has_window && n_keys - query > a->window + 1 ? query + a->window + 1 : key_end) - origin;
            if (a->position)
                replace_hidden(a, query, key_begin, key_end, -INFINITY, scores + (ptrdiff_t)i * stride - origin);
        }
        float inverse_sums[TILE_ROWS];
        softmax_rows(count, scores, stride, begin, end, width, inverse_sums);
        if (a->position)
            for (int i = 0; i < count; i++)
                replace_hidden(a, first + i, key_begin, key_end, 0.0f, scores + (ptrdiff_t)i * stride - origin);
        for (int col = 0; col < d_head; col += PANEL_COLS)
            tile_matmuls[count](key_end - key_begin, scores + (key_begin - origin), stride,
                                a->v.data + (ptrdiff_t)key_begin * a->v.stride + col, a->v.stride, d_head - col, inverse_sums,
                                a->out.data + (ptrdiff_t)first * a->out.stride + col, a->out.stride);
    }
}

/* What the templates give a row of the table; an instruction-set file overrides what it has better. */
static void fill_from_templates(sky_kernels *table)
{
    if (table->panel_cols != PANEL_COLS) /* a weaker row's, which takes panels of another width */
        table->gemm[SKY_WEIGHT_INT8] = table->gemm[SKY_WEIGHT_INT8_ROWS] = NULL;
    table->tile_rows = TILE_ROWS;
    table->panel_cols = PANEL_COLS;
    table->gemm[SKY_WEIGHT_F32] = gemm_f32;
#if HALF_WEIGHTS
    table->gemm[SKY_WEIGHT_F16] = gemm_f16;
    table->gemm[SKY_WEIGHT_BF16] = gemm_bf16;
#else
    table->gemm[SKY_WEIGHT_F16] = table->gemm[SKY_WEIGHT_BF16] = NULL; /* a weaker row's has other bits, and other panels */
#endif
    table->layer_norm = layer_norm;
    table->attention = attention;
    table->pack_panel = pack_panel;
    table->widen_f16 = widen_f16;
    table->fma_peak = fma_peak;
}

#endif
