/* The forward pass: encoder, decision head, scorer. Reads like the model's formulas in csrc/README.md; every step is one
 * kernel call over all rows of the batch, but for attention, which goes sequence by sequence and head by head. */
#include "internal.h"
#include "kernels/compiler.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static sky_status fail(sky_plan *plan, sky_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(plan->error, sizeof plan->error, format, args);
    va_end(args);
    return status;
}

/* ---- what a batch must hold ---- */

static sky_status check_offsets(sky_plan *plan, const char *what, const int32_t *offsets, int n, int smallest, int limit)
{
    if (offsets[0] != 0)
        return fail(plan, SKY_ERR_ARGUMENT, "%s_offsets: expected 0 first, got %d", what, offsets[0]);
    for (int i = 0; i < n; i++)
        if (offsets[i + 1] < offsets[i] || offsets[i + 1] - offsets[i] < smallest)
            return fail(plan, SKY_ERR_ARGUMENT, "sequence %d: expected at least %d %ss", i, smallest, what);
    if (offsets[n] > limit)
        return fail(plan, SKY_ERR_CAPACITY, "%d %ss: the plan holds at most %d", offsets[n], what, limit);
    return SKY_OK;
}

static sky_status check_batch(sky_plan *plan, const sky_batch *b)
{
    const sky_plan_limits *limits = &plan->limits;
    if (b->n_sequences < 1 || b->n_sequences > limits->n_sequences)
        return fail(plan, SKY_ERR_CAPACITY, "%d sequences: the plan holds 1 to %d", b->n_sequences, limits->n_sequences);
    sky_status status = check_offsets(plan, "token", b->token_offsets, b->n_sequences, 1, limits->n_tokens);
    if (status == SKY_OK)
        status = check_offsets(plan, "marker", b->marker_offsets, b->n_sequences, 0, limits->n_markers);
    if (status != SKY_OK)
        return status;
    for (int s = 0; s < b->n_sequences; s++) {
        const int n_tokens = b->token_offsets[s + 1] - b->token_offsets[s];
        if (n_tokens > limits->sequence_tokens)
            return fail(plan, SKY_ERR_CAPACITY, "sequence %d: %d tokens, the plan holds at most %d", s, n_tokens,
                        limits->sequence_tokens);
        if (b->question_types[s] < 0 || b->question_types[s] >= SKY_N_QUESTION_TYPES)
            return fail(plan, SKY_ERR_ARGUMENT, "sequence %d: unknown question type %d", s, b->question_types[s]);
        for (int i = b->token_offsets[s]; i < b->token_offsets[s + 1]; i++)
            if (b->token_ids[i] < 0 || b->token_ids[i] >= plan->model->params.n_vocab)
                return fail(plan, SKY_ERR_ARGUMENT, "sequence %d: token id %d is not in the vocabulary of %d", s,
                            b->token_ids[i], plan->model->params.n_vocab);
        for (int i = b->marker_offsets[s]; i < b->marker_offsets[s + 1]; i++)
            if (b->markers[i] < 0 || b->markers[i] >= n_tokens)
                return fail(plan, SKY_ERR_ARGUMENT, "sequence %d: marker %d lies outside its %d tokens", s, b->markers[i],
                            n_tokens);
    }
    return SKY_OK;
}

/* ---- steps ---- */

/* part NULL: the activation is a name of its own, "output_norm" */
static void trace(const sky_plan *plan, const char *room, int i, const char *part, const float *data, int rows, int cols,
                  int stride)
{
    if (!plan->trace)
        return;
    char name[64];
    if (part)
        snprintf(name, sizeof name, "%s.%d.%s", room, i, part);
    else
        snprintf(name, sizeof name, "%s", room);
    plan->trace(plan->trace_context, name, data, rows, cols, stride);
}

/* A step over n_items that do not touch each other's results, on the threads of the run where it is work enough. */
static void share(const sky_plan *plan, int64_t multiply_adds, int n_items, int chunk, sky_task *task, void *context)
{
    if (plan->n_threads > 1 && n_items > chunk && multiply_adds >= plan->shared_work)
        sky_pool_run(plan->pool, plan->n_threads, n_items, chunk, task, context);
    else
        task(context, 0, 0, n_items);
}

/* Pieces of a step for each thread: enough that a thread which was held up does not hold up all, few enough to be worth it */
enum { PIECES = 4 };

static int chunk_of(const sky_plan *plan, int n_items)
{
    const int pieces = PIECES * plan->n_threads;
    return (n_items + pieces - 1) / pieces;
}

typedef struct {
    const sky_kernels *kernels;
    sky_gemm gemm;
} product_step;

static void multiply_panels(void *context, int thread, int begin, int end)
{
    const product_step *step = context;
    (void)thread;
    step->kernels->gemm_f32(&step->gemm, begin, end);
}

/* c [m, w->n] = epilogue(a [m, w->k] @ w^T + bias) + residual */
static void linear(const sky_plan *plan, const sky_linear *w, int m, const float *a, int lda, const float *residual,
                   float *c, int ldc, sky_epilogue epilogue)
{
    const sky_kernels *kernels = &plan->model->kernels;
    const int n_panels = (w->n + kernels->panel_cols - 1) / kernels->panel_cols;
    product_step step = {kernels, {m, w->n, w->k, a, lda, w->panels, w->bias, residual, ldc, c, ldc, epilogue}};
    share(plan, (int64_t)m * w->n * w->k, n_panels, chunk_of(plan, n_panels), multiply_panels, &step);
}

typedef struct {
    const sky_kernels *kernels;
    sky_norm norm;
} norm_step;

static void norm_rows(void *context, int thread, int begin, int end)
{
    const norm_step *step = context;
    sky_norm part = step->norm;
    (void)thread;
    part.rows = end - begin;
    part.x += (size_t)begin * part.ldx;
    part.y += (size_t)begin * part.ldy;
    step->kernels->layer_norm(&part);
}

static void norm(const sky_plan *plan, const sky_norm_weights *w, const float *bias, float eps, int rows, const float *x,
                 float *y)
{
    norm_step step = {&plan->model->kernels,
                      {rows, plan->model->params.d_model, x, plan->stride, w->weight, bias, eps, y, plan->stride}};
    const int64_t passes = 4; /* over a row, which take about as long as products of so many columns */
    share(plan, passes * rows * plan->model->params.d_model, rows, chunk_of(plan, rows), norm_rows, &step);
}

/* Attention of every sequence and head. q [queries of the batch, d]: sequence s asks query_offsets[s] to query_offsets[s + 1];
 * keys and values of all tokens lie in plan->qkv. */
typedef struct {
    const sky_plan *plan;
    const sky_batch *batch;
    int n_heads;
    const sky_rope *rope; /* NULL: no positions */
    int window;
    const float *q;
    int ldq;
    const int32_t *query_offsets;
    float *mixed;
} attention_step;

/* Items are the heads of the first sequence, then those of the next. */
static void attend_heads(void *context, int thread, int begin, int end)
{
    const attention_step *step = context;
    const sky_plan *plan = step->plan;
    const sky_batch *b = step->batch;
    const int d = plan->model->params.d_model, d_head = d / step->n_heads;
    for (int item = begin; item < end; item++) {
        const int s = item / step->n_heads, col = item % step->n_heads * d_head;
        const float *keys = plan->qkv + (size_t)b->token_offsets[s] * plan->qkv_stride + d;
        const sky_attention a = {
            .n_queries = step->query_offsets[s + 1] - step->query_offsets[s],
            .n_keys = b->token_offsets[s + 1] - b->token_offsets[s],
            .d_head = d_head,
            .q = step->q + (size_t)step->query_offsets[s] * step->ldq + col,
            .ldq = step->ldq,
            .k = keys + col,
            .v = keys + d + col,
            .ldkv = plan->qkv_stride,
            .out = step->mixed + (size_t)step->query_offsets[s] * plan->stride + col,
            .ldo = plan->stride,
            .rope_cos = step->rope ? step->rope->cos : NULL,
            .rope_sin = step->rope ? step->rope->sin : NULL,
            .window = step->window,
            .scale = 1.0f / sqrtf((float)d_head),
            .scratch = plan->scratch + (size_t)thread * plan->scratch_stride,
        };
        plan->model->kernels.attention(&a);
    }
}

static void attend(const sky_plan *plan, const sky_batch *b, int n_heads, const sky_rope *rope, int window, const float *q,
                   int ldq, const int32_t *query_offsets, float *mixed)
{
    attention_step step = {plan, b, n_heads, rope, window, q, ldq, query_offsets, mixed};
    int64_t pairs = 0;
    for (int s = 0; s < b->n_sequences; s++)
        pairs += (int64_t)(query_offsets[s + 1] - query_offsets[s]) * (b->token_offsets[s + 1] - b->token_offsets[s]);
    share(plan, 2 * pairs * plan->model->params.d_model, b->n_sequences * n_heads, 1, attend_heads, &step);
}

/* ---- encoder ---- */

/* rows [n, cols] = those of `table` [n_vocab, cols] that the token ids name */
static void gather_tokens(const float *table, int cols, const int32_t *ids, int n, float *rows, int stride)
{
    for (int i = 0; i < n; i++)
        memcpy(rows + (size_t)i * stride, table + (size_t)ids[i] * cols, (size_t)cols * sizeof(float));
}

static void embed(const sky_plan *plan, const sky_batch *b, int n)
{
    const int d = plan->model->params.d_model;
    gather_tokens(plan->model->token_embd, d, b->token_ids, n, plan->x, plan->stride);
    if (!plan->model->qkv_table)
        norm(plan, &plan->model->token_embd_norm, NULL, plan->model->params.norm_eps, n, plan->x, plan->x);
    trace(plan, "embd_norm", 0, NULL, plan->x, n, d, plan->stride);
}

static void encoder_layer(const sky_plan *plan, const sky_batch *b, int n, int i)
{
    const sky_model *m = plan->model;
    const sky_layer *l = &m->layers[i];
    const int d = m->params.d_model, stride = plan->stride;
    const sky_epilogue glu = m->params.activation == SKY_ACT_GELU ? SKY_EPILOGUE_GEGLU : SKY_EPILOGUE_SWIGLU;
    const float *a = plan->x;
    if (l->attn_norm.weight) {
        norm(plan, &l->attn_norm, NULL, m->params.norm_eps, n, plan->x, plan->normed);
        trace(plan, "layer", i, "attn_norm", plan->normed, n, d, stride);
        a = plan->normed;
    }
    if (i == 0 && m->qkv_table)
        gather_tokens(m->qkv_table, 3 * d, b->token_ids, n, plan->qkv, plan->qkv_stride);
    else
        linear(plan, &l->attn_qkv, n, a, stride, NULL, plan->qkv, plan->qkv_stride, SKY_EPILOGUE_LINEAR);
    trace(plan, "layer", i, "attn_qkv", plan->qkv, n, 3 * d, plan->qkv_stride);
    attend(plan, b, m->params.n_heads, l->is_global ? &m->rope_global : &m->rope_local,
           l->is_global ? -1 : m->params.window, plan->qkv, plan->qkv_stride, b->token_offsets, plan->mixed);
    trace(plan, "layer", i, "attn", plan->mixed, n, d, stride);
    linear(plan, &l->attn_output, n, plan->mixed, stride, plan->x, plan->x, stride, SKY_EPILOGUE_LINEAR);
    trace(plan, "layer", i, "attn_output", plan->x, n, d, stride);

    norm(plan, &l->ffn_norm, NULL, m->params.norm_eps, n, plan->x, plan->normed);
    trace(plan, "layer", i, "ffn_norm", plan->normed, n, d, stride);
    linear(plan, &l->ffn_up, n, plan->normed, stride, NULL, plan->ff, plan->ff_stride, glu);
    trace(plan, "layer", i, "ffn", plan->ff, n, m->params.d_ff, plan->ff_stride);
    linear(plan, &l->ffn_down, n, plan->ff, plan->ff_stride, plan->x, plan->x, stride, SKY_EPILOGUE_LINEAR);
    trace(plan, "layer", i, "ffn_output", plan->x, n, d, stride);
}

/* x = LN(x) + type_emb[type of the row's question]: the type's embedding is the norm's bias */
static void output_norm_with_type(const sky_plan *plan, const sky_batch *b, int n)
{
    const int d = plan->model->params.d_model;
    for (int s = 0; s < b->n_sequences; s++) {
        float *x = plan->x + (size_t)b->token_offsets[s] * plan->stride;
        norm(plan, &plan->model->output_norm, plan->model->token_types + (size_t)b->question_types[s] * d,
             plan->model->params.norm_eps, b->token_offsets[s + 1] - b->token_offsets[s], x, x);
    }
    trace(plan, "typed", 0, NULL, plan->x, n, d, plan->stride);
}

/* ---- decision head ---- */

static void gather_markers(const sky_plan *plan, const sky_batch *b, const float *rows, float *marker_rows)
{
    for (int s = 0; s < b->n_sequences; s++)
        for (int i = b->marker_offsets[s]; i < b->marker_offsets[s + 1]; i++)
            memcpy(marker_rows + (size_t)i * plan->stride,
                   rows + (size_t)(b->token_offsets[s] + b->markers[i]) * plan->stride,
                   (size_t)plan->model->params.d_model * sizeof(float));
}

/* One block. Every row gives keys and values; all `n` rows ask, or in the last block only the markers do, whose residual
 * stream is then marker_x and goes on alone. */
static void decision_block(const sky_plan *plan, const sky_batch *b, int n, int i, int is_last)
{
    const sky_model *m = plan->model;
    const sky_block *w = &m->blocks[i];
    const int d = m->params.d_model, stride = plan->stride;
    norm(plan, &w->attn_norm, w->attn_norm.bias, SKY_DECISION_NORM_EPS, n, plan->x, plan->normed);
    trace(plan, "head", i, "attn_norm", plan->normed, n, d, stride);
    linear(plan, &w->attn_kv, n, plan->normed, stride, NULL, plan->qkv + d, plan->qkv_stride, SKY_EPILOGUE_LINEAR);

    float *x = plan->x, *normed = plan->normed, *q = plan->qkv, *mixed = plan->mixed, *ff = plan->ff;
    int rows = n, q_stride = plan->qkv_stride;
    const int32_t *query_offsets = b->token_offsets;
    if (is_last) {
        x = plan->marker_x;
        normed = plan->marker_normed;
        q = plan->marker_q;
        mixed = plan->marker_mixed;
        ff = plan->marker_ff;
        rows = b->marker_offsets[b->n_sequences];
        q_stride = stride;
        query_offsets = b->marker_offsets;
        gather_markers(plan, b, plan->x, x);
        gather_markers(plan, b, plan->normed, normed);
    }
    linear(plan, &w->attn_q, rows, normed, stride, NULL, q, q_stride, SKY_EPILOGUE_LINEAR);
    attend(plan, b, m->params.n_decision_heads, NULL, -1, q, q_stride, query_offsets, mixed);
    trace(plan, "head", i, "attn", mixed, rows, d, stride);
    linear(plan, &w->attn_output, rows, mixed, stride, x, x, stride, SKY_EPILOGUE_LINEAR);
    trace(plan, "head", i, "attn_output", x, rows, d, stride);

    norm(plan, &w->ffn_norm, w->ffn_norm.bias, SKY_DECISION_NORM_EPS, rows, x, normed);
    trace(plan, "head", i, "ffn_norm", normed, rows, d, stride);
    linear(plan, &w->ffn_up, rows, normed, stride, NULL, ff, plan->ff_stride, SKY_EPILOGUE_RELU);
    trace(plan, "head", i, "ffn", ff, rows, 4 * d, plan->ff_stride);
    linear(plan, &w->ffn_down, rows, ff, plan->ff_stride, x, x, stride, SKY_EPILOGUE_LINEAR);
    trace(plan, "head", i, "ffn_output", x, rows, d, stride);
}

/* logits = Linear_1(GELU(Linear_d(LN(x[markers])))) */
static void score_markers(const sky_plan *plan, int n_markers, float *logits)
{
    const sky_model *m = plan->model;
    const int d = m->params.d_model;
    norm(plan, &m->cls_norm, m->cls_norm.bias, SKY_DECISION_NORM_EPS, n_markers, plan->marker_x, plan->marker_normed);
    trace(plan, "cls.norm", 0, NULL, plan->marker_normed, n_markers, d, plan->stride);
    linear(plan, &m->cls, n_markers, plan->marker_normed, plan->stride, NULL, plan->marker_q, plan->stride,
           SKY_EPILOGUE_GELU);
    linear(plan, &m->cls_output, n_markers, plan->marker_q, plan->stride, NULL, logits, 1, SKY_EPILOGUE_LINEAR);
    trace(plan, "logits", 0, NULL, logits, n_markers, 1, 1);
}

sky_status sky_run(sky_plan *plan, const sky_batch *batch, float *logits)
{
    const sky_status status = check_batch(plan, batch);
    if (status != SKY_OK)
        return status;
    const int n = batch->token_offsets[batch->n_sequences], n_markers = batch->marker_offsets[batch->n_sequences];
    const sky_model_params *p = &plan->model->params;
    int *n_running = (int *)&plan->model->n_running;
    const int share = plan->most_threads / SKY_ATOMIC_ADD(n_running, 1);
    plan->n_threads = share > 1 ? share : 1;
    if (plan->n_threads > 1)
        sky_pool_ready(plan->pool);

    embed(plan, batch, n);
    for (int i = 0; i < p->n_layers; i++)
        encoder_layer(plan, batch, n, i);
    output_norm_with_type(plan, batch, n);
    for (int i = 0; i < p->n_decision_blocks; i++)
        decision_block(plan, batch, n, i, i == p->n_decision_blocks - 1);
    if (p->n_decision_blocks == 0)
        gather_markers(plan, batch, plan->x, plan->marker_x);
    score_markers(plan, n_markers, logits);
    SKY_ATOMIC_ADD(n_running, -1);
    return SKY_OK;
}
