/* The forward pass: encoder, decision head, scorer. Reads like the model's formulas in csrc/README.md; every step is one
 * kernel call over all rows of the batch, but for attention, which goes sequence by sequence and head by head. */
#include "internal.h"

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

/* c [m, w->n] = epilogue(a [m, w->k] @ w^T + bias) + residual */
static void linear(const sky_plan *plan, const sky_linear *w, int m, const float *a, int lda, const float *residual,
                   float *c, int ldc, sky_epilogue epilogue)
{
    const sky_kernels *kernels = &plan->model->kernels;
    const sky_gemm g = {m, w->n, w->k, a, lda, w->panels, w->bias, residual, ldc, c, ldc, epilogue};
    kernels->gemm_f32(&g, 0, (w->n + kernels->panel_cols - 1) / kernels->panel_cols);
}

static void norm(const sky_plan *plan, const sky_norm_weights *w, const float *bias, float eps, int rows, const float *x,
                 float *y)
{
    const sky_norm n = {rows, plan->model->params.d_model, x, plan->stride, w->weight, bias, eps, y, plan->stride};
    plan->model->kernels.layer_norm(&n);
}

/* mixed = attention of every sequence and head. q [n_queries of the batch, d]: sequence s asks query_offsets[s] to
 * query_offsets[s + 1]; keys and values of all tokens lie in plan->qkv. */
static void attend(const sky_plan *plan, const sky_batch *b, int n_heads, const sky_rope *rope, int window, const float *q,
                   int ldq, const int32_t *query_offsets, float *mixed)
{
    const int d = plan->model->params.d_model, d_head = d / n_heads;
    for (int s = 0; s < b->n_sequences; s++) {
        const float *keys = plan->qkv + (size_t)b->token_offsets[s] * plan->qkv_stride + d;
        for (int head = 0; head < n_heads; head++) {
            const int col = head * d_head;
            const sky_attention a = {
                .n_queries = query_offsets[s + 1] - query_offsets[s],
                .n_keys = b->token_offsets[s + 1] - b->token_offsets[s],
                .d_head = d_head,
                .q = q + (size_t)query_offsets[s] * ldq + col,
                .ldq = ldq,
                .k = keys + col,
                .v = keys + d + col,
                .ldkv = plan->qkv_stride,
                .out = mixed + (size_t)query_offsets[s] * plan->stride + col,
                .ldo = plan->stride,
                .rope_cos = rope ? rope->cos : NULL,
                .rope_sin = rope ? rope->sin : NULL,
                .window = window,
                .scale = 1.0f / sqrtf((float)d_head),
                .scratch = plan->scratch,
            };
            plan->model->kernels.attention(&a);
        }
    }
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
static void head_block(const sky_plan *plan, const sky_batch *b, int n, int i, int is_last)
{
    const sky_model *m = plan->model;
    const sky_block *w = &m->blocks[i];
    const int d = m->params.d_model, stride = plan->stride;
    norm(plan, &w->attn_norm, w->attn_norm.bias, SKY_HEAD_NORM_EPS, n, plan->x, plan->normed);
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
    attend(plan, b, m->params.n_head_heads, NULL, -1, q, q_stride, query_offsets, mixed);
    trace(plan, "head", i, "attn", mixed, rows, d, stride);
    linear(plan, &w->attn_output, rows, mixed, stride, x, x, stride, SKY_EPILOGUE_LINEAR);
    trace(plan, "head", i, "attn_output", x, rows, d, stride);

    norm(plan, &w->ffn_norm, w->ffn_norm.bias, SKY_HEAD_NORM_EPS, rows, x, normed);
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
    norm(plan, &m->cls_norm, m->cls_norm.bias, SKY_HEAD_NORM_EPS, n_markers, plan->marker_x, plan->marker_normed);
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

    embed(plan, batch, n);
    for (int i = 0; i < p->n_layers; i++)
        encoder_layer(plan, batch, n, i);
    output_norm_with_type(plan, batch, n);
    for (int i = 0; i < p->n_head_blocks; i++)
        head_block(plan, batch, n, i, i == p->n_head_blocks - 1);
    if (p->n_head_blocks == 0)
        gather_markers(plan, batch, plan->x, plan->marker_x);
    score_markers(plan, n_markers, logits);
    return SKY_OK;
}
