/* The forward pass: encoder, decision head, scorer, of every architecture. Reads like the models' formulas in csrc/README.md; every
 * step is one kernel call over all rows of the batch, but for attention, which goes group by group and head by head. */
#include "float_mode.h"
#include "internal.h"
#include "kernels/compiler.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- what a batch must hold ---- */

static sky_status check_offsets(sky_plan *plan, const char *what, const int32_t *offsets, int n, int smallest, int limit)
{
    if (offsets[0] != 0)
        return sky_plan_fail(plan, SKY_ERR_ARGUMENT, "%s_offsets: expected 0 first, got %d", what, offsets[0]);
    for (int i = 0; i < n; i++)
        if (offsets[i + 1] < offsets[i] || offsets[i + 1] - offsets[i] < smallest)
            return sky_plan_fail(plan, SKY_ERR_ARGUMENT, "sequence %d: expected at least %d %ss", i, smallest, what);
    if (offsets[n] > limit)
        return sky_plan_fail(plan, SKY_ERR_CAPACITY, "%d %ss: the plan holds at most %d", offsets[n], what, limit);
    return SKY_OK;
}

static sky_status check_batch(sky_plan *plan, const sky_batch *b)
{
    const sky_plan_limits *limits = &plan->limits;
    if (b->n_sequences < 1 || b->n_sequences > limits->n_sequences)
        return sky_plan_fail(plan, SKY_ERR_CAPACITY, "%d sequences: the plan holds 1 to %d", b->n_sequences, limits->n_sequences);
    sky_status status = check_offsets(plan, "token", b->token_offsets, b->n_sequences, 1, limits->n_tokens);
    if (status == SKY_OK)
        status = check_offsets(plan, "marker", b->marker_offsets, b->n_sequences, 0, limits->n_markers);
    if (status != SKY_OK)
        return status;
    for (int s = 0; s < b->n_sequences; s++) {
        const int n_tokens = b->token_offsets[s + 1] - b->token_offsets[s];
        if (n_tokens > limits->sequence_tokens)
            return sky_plan_fail(plan, SKY_ERR_CAPACITY, "sequence %d: %d tokens, the plan holds at most %d", s, n_tokens,
                        limits->sequence_tokens);
        if (b->question_types[s] < 0 || b->question_types[s] >= SKY_N_QUESTION_TYPES)
            return sky_plan_fail(plan, SKY_ERR_ARGUMENT, "sequence %d: unknown question type %d", s, b->question_types[s]);
        for (int i = b->token_offsets[s]; i < b->token_offsets[s + 1]; i++)
            if (b->token_ids[i] < 0 || b->token_ids[i] >= plan->model->params.n_vocab)
                return sky_plan_fail(plan, SKY_ERR_ARGUMENT, "sequence %d: token id %d is not in the vocabulary of %d", s,
                            b->token_ids[i], plan->model->params.n_vocab);
        if (plan->model->params.option_layout == SKY_OPTIONS_PARALLEL) {
            const int first = b->marker_offsets[s], n_markers = b->marker_offsets[s + 1] - first;
            if (!b->prefix_tokens || !sky_in_parallel(b->markers + first, n_markers, b->prefix_tokens[s]))
                return sky_plan_fail(plan, SKY_ERR_ARGUMENT,
                                     "sequence %d: expected prefix_tokens and ascending markers in front of its end, as options "
                                     "in parallel have them", s);
        }
        for (int i = b->marker_offsets[s]; i < b->marker_offsets[s + 1]; i++)
            if (b->markers[i] < 0 || b->markers[i] >= n_tokens)
                return sky_plan_fail(plan, SKY_ERR_ARGUMENT, "sequence %d: marker %d lies outside its %d tokens", s, b->markers[i],
                            n_tokens);
    }
    return SKY_OK;
}

/* ---- steps ---- */

/* part NULL: the activation is a name of its own, "output_norm" */
static void trace(const sky_plan *plan, const char *room, int i, const char *part, sky_matrix values)
{
    if (!plan->trace)
        return;
    char name[64];
    if (part)
        snprintf(name, sizeof name, "%s.%d.%s", room, i, part);
    else
        snprintf(name, sizeof name, "%s", room);
    plan->trace(plan->trace_context, name, values.data, values.rows, values.cols, values.stride);
}

/* Items of one piece of a step: all alike, so a thread gets some pieces of several, enough of them that a thread which was
 * held up does not hold up all; or each a piece of its own, where they differ in size. */
typedef enum { EVEN_ITEMS, UNEVEN_ITEMS } item_sizes;

/* A step over n_items that do not touch each other's results, on as many threads as it has work for. */
static void share(const sky_plan *plan, int64_t multiply_adds, int n_items, item_sizes sizes, sky_task *task, void *context)
{
    enum { PIECES = 4 }; /* for each thread */
    int n_threads = SKY_MAX_THREADS > 1 && plan->most_threads > 1 ? sky_pool_share(plan->model->pool, plan->most_threads) : 1;
    if (multiply_adds < plan->shared_work)
        n_threads = 1;
    else if (multiply_adds < n_threads * (plan->shared_work / 2))
        n_threads = (int)(multiply_adds / (plan->shared_work / 2));
    const int most_pieces = PIECES * n_threads, chunk = sizes == EVEN_ITEMS ? (n_items + most_pieces - 1) / most_pieces : 1;
    const int n_pieces = chunk ? (n_items + chunk - 1) / chunk : 0;
    if (n_threads > n_pieces)
        n_threads = n_pieces;
    if (SKY_MAX_THREADS > 1 && n_threads > 1)
        sky_pool_run(plan->model->pool, n_threads, plan->most_threads, n_items, chunk, task, context);
    else
        task(context, 0, 0, n_items);
}

typedef struct {
    const sky_plan *plan;
    sky_gemm_fn *multiply;
    sky_gemm gemm;
} product_step;

static void multiply_panels(void *context, int thread, int begin, int end)
{
    const product_step *step = context;
    sky_gemm part = step->gemm;
    part.scratch = step->plan->scratch + (size_t)thread * step->plan->scratch_stride;
    step->multiply(&part, begin, end);
}

static const sky_matrix nothing; /* no residual */

typedef struct {
    const sky_kernels *kernels;
    const float *factors;
    sky_matrix a;
    char *rows;
} quantize_step;

static void quantize_rows(void *context, int thread, int begin, int end)
{
    const quantize_step *step = context;
    (void)thread;
    step->kernels->quantize_rows(sky_rows(step->a, begin, end - begin), step->factors,
                                 step->rows + (size_t)begin * sky_int8_row_bytes(step->a.cols));
}

/* a's rows as products of 8-bit weights take them, in the plan's buffer for them. */
static const char *quantized(const sky_plan *plan, const sky_linear *w, sky_matrix a)
{
    const int64_t passes = 4; /* over a row, which take about as long as products of so many columns */
    quantize_step step = {&plan->model->kernels, w->has_factors ? w->factors : NULL, a, plan->int8_rows};
    share(plan, passes * a.rows * a.cols, a.rows, EVEN_ITEMS, quantize_rows, &step);
    return plan->int8_rows;
}

/* c [m, n] = epilogue(a [m, k] @ w^T + bias) + residual, w [n, k]; a gated w gives c [m, n / 2] */
static void linear(const sky_plan *plan, const sky_linear *w, sky_matrix a, sky_matrix residual, sky_matrix c,
                   sky_epilogue epilogue)
{
    const sky_kernels *kernels = &plan->model->kernels;
    const int n_panels = sky_n_panels(kernels, w);
    product_step step = {plan, kernels->gemm[w->type],
                         {a, w->panels, w->bias, residual, c, epilogue, plan->model->params.activation, NULL,
                          sky_is_int8(w->type) ? quantized(plan, w, a) : NULL}};
    share(plan, (int64_t)a.rows * w->n * w->k, n_panels, EVEN_ITEMS, multiply_panels, &step);
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
    part.x = sky_rows(part.x, begin, end - begin);
    part.y = sky_rows(part.y, begin, end - begin);
    step->kernels->layer_norm(&part);
}

/* y [n, d] = LN(x [n, d]) * weight + bias */
static void norm(const sky_plan *plan, const sky_norm_weights *w, const float *bias, float eps, sky_matrix x, sky_matrix y)
{
    norm_step step = {&plan->model->kernels, {x, w->weight, bias, eps, y}};
    const int64_t passes = 4; /* over a row, which take about as long as products of so many columns */
    share(plan, passes * x.rows * x.cols, x.rows, EVEN_ITEMS, norm_rows, &step);
}

/* Attention of every group and head. Group g asks by the rows query_offsets[g] to query_offsets[g + 1] of q [.., d], and the same
 * rows of mixed [.., d] take what it hears; its keys and values are the rows key_offsets[g] to key_offsets[g + 1] of kv [.., 2 d]. */
typedef struct {
    const sky_plan *plan;
    int n_groups, n_heads;
    const sky_rope *rope; /* NULL: no positions */
    int window;
    sky_matrix q;
    const int32_t *query_offsets;
    sky_matrix kv;
    const int32_t *key_offsets;
    sky_matrix mixed;
} attention_step;

/* Items are the heads of the first group, then those of the next. */
static void attend_heads(void *context, int thread, int begin, int end)
{
    const attention_step *step = context;
    const int d = step->mixed.cols, d_head = d / step->n_heads;
    /* the decision head knows no positions, and lets options see each other */
    const int in_parallel = step->rope && step->plan->model->params.option_layout == SKY_OPTIONS_PARALLEL;
    for (int item = begin; item < end; item++) {
        const int g = item / step->n_heads, col = item % step->n_heads * d_head;
        const int query = step->query_offsets[g], n_queries = step->query_offsets[g + 1] - query;
        const int key = step->key_offsets[g], n_keys = step->key_offsets[g + 1] - key;
        const sky_matrix kv = sky_rows(step->kv, key, n_keys);
        const sky_attention a = {
            .q = sky_cols(sky_rows(step->q, query, n_queries), col, d_head),
            .k = sky_cols(kv, col, d_head),
            .v = sky_cols(kv, d + col, d_head),
            .out = sky_cols(sky_rows(step->mixed, query, n_queries), col, d_head),
            .rope_cos = step->rope ? step->rope->cos : NULL,
            .rope_sin = step->rope ? step->rope->sin : NULL,
            .window = step->window,
            .scale = 1.0f / sqrtf((float)d_head),
            .scratch = step->plan->scratch + (size_t)thread * step->plan->scratch_stride,
            .position = in_parallel ? step->plan->positions + key : NULL,
            .option = in_parallel ? step->plan->options + key : NULL,
        };
        step->plan->model->kernels.attention(&a);
    }
}

static void attend(const attention_step *step)
{
    int64_t pairs = 0;
    for (int g = 0; g < step->n_groups; g++)
        pairs += (int64_t)(step->query_offsets[g + 1] - step->query_offsets[g]) * (step->key_offsets[g + 1] - step->key_offsets[g]);
    share(step->plan, 2 * pairs * step->mixed.cols, step->n_groups * step->n_heads, UNEVEN_ITEMS, attend_heads, (void *)step);
}

/* ---- encoder ---- */

/* Position and option of each token of a sequence of n, whose options lie in parallel: the k-th from markers[k] on. */
static void lay_out_in_parallel(const int32_t *markers, int n_markers, int prefix_tokens, int n, int32_t *positions,
                                int32_t *options)
{
    int32_t longest = 0;
    for (int k = 0; k < n_markers; k++) {
        const int32_t end = k + 1 < n_markers ? markers[k + 1] : prefix_tokens - 1;
        longest = end - markers[k] > longest ? end - markers[k] : longest;
    }
    for (int i = 0, k = -1; i < n; i++) {
        while (k + 1 < n_markers && i >= markers[k + 1])
            k++;
        const int is_shared = k < 0 || i >= prefix_tokens - 1;
        options[i] = is_shared ? 0 : k + 1;
        positions[i] = k < 0 ? i : markers[0] + (is_shared ? longest + i - (prefix_tokens - 1) : i - markers[k]);
    }
}

/* rows [n, cols] = those of `table` [n_vocab, cols] that the token ids name */
static void gather_tokens(const sky_kernels *kernels, sky_embedding table, const int32_t *ids, sky_matrix rows)
{
    for (int i = 0; i < rows.rows; i++)
        sky_widen(kernels, table.type, table.rows, (size_t)ids[i] * rows.cols, rows.cols, rows.data + (ptrdiff_t)i * rows.stride);
}

static void embed(const sky_plan *plan, const sky_batch *b, int n)
{
    const sky_model *m = plan->model;
    const sky_matrix x = sky_rows(plan->x, 0, n);
    gather_tokens(&m->kernels, m->token_embd, b->token_ids, x);
    if (!m->qkv_table)
        norm(plan, &m->token_embd_norm, NULL, m->params.norm_eps, x, x);
    trace(plan, "embd_norm", 0, NULL, x);
}

static void encoder_layer(const sky_plan *plan, const sky_batch *b, int n, int i)
{
    const sky_model *m = plan->model;
    const sky_layer *l = &m->layers[i];
    const int d = m->params.d_model;
    const sky_matrix x = sky_rows(plan->x, 0, n), normed = sky_rows(plan->normed, 0, n), mixed = sky_rows(plan->mixed, 0, n);
    const sky_matrix qkv = sky_rows(plan->qkv, 0, n), ff = sky_cols(sky_rows(plan->ff, 0, n), 0, m->params.d_ff);

    sky_matrix a = x; /* layer 0 takes the embedding as it is */
    if (l->attn_norm.weight) {
        norm(plan, &l->attn_norm, NULL, m->params.norm_eps, x, normed);
        trace(plan, "layer", i, "attn_norm", normed);
        a = normed;
    }
    if (i == 0 && m->qkv_table)
        gather_tokens(&m->kernels, (sky_embedding){SKY_WEIGHT_F32, m->qkv_table}, b->token_ids, qkv);
    else
        linear(plan, &l->attn_qkv, a, nothing, qkv, SKY_EPILOGUE_LINEAR);
    trace(plan, "layer", i, "attn_qkv", qkv);
    const attention_step attention = {
        .plan = plan, .n_groups = b->n_sequences, .n_heads = m->params.n_heads,
        .rope = l->is_global ? &m->rope_global : &m->rope_local, .window = l->is_global ? -1 : m->params.window,
        .q = sky_cols(qkv, 0, d), .query_offsets = b->token_offsets,
        .kv = sky_cols(qkv, d, 2 * d), .key_offsets = b->token_offsets, .mixed = mixed,
    };
    attend(&attention);
    trace(plan, "layer", i, "attn", mixed);
    linear(plan, &l->attn_output, mixed, x, x, SKY_EPILOGUE_LINEAR);
    trace(plan, "layer", i, "attn_output", x);

    norm(plan, &l->ffn_norm, NULL, m->params.norm_eps, x, normed);
    trace(plan, "layer", i, "ffn_norm", normed);
    linear(plan, &l->ffn_up, normed, nothing, ff, SKY_EPILOGUE_GATED);
    trace(plan, "layer", i, "ffn", ff);
    linear(plan, &l->ffn_down, ff, x, x, SKY_EPILOGUE_LINEAR);
    trace(plan, "layer", i, "ffn_output", x);
}

/* x = LN(x) + type_emb[type of the row's question]: the type's embedding is the norm's bias */
static void output_norm_with_type(const sky_plan *plan, const sky_batch *b, int n)
{
    const sky_model *m = plan->model;
    for (int s = 0; s < b->n_sequences; s++) {
        const sky_matrix x = sky_rows(plan->x, b->token_offsets[s], b->token_offsets[s + 1] - b->token_offsets[s]);
        norm(plan, &m->output_norm, m->token_types + (size_t)b->question_types[s] * m->params.d_model, m->params.norm_eps, x, x);
    }
    trace(plan, "typed", 0, NULL, sky_rows(plan->x, 0, n));
}

/* ---- decision head ---- */

/* marker_rows [n_markers, d] = those of `rows` [n_tokens, d] where the markers lie */
static void gather_markers(const sky_batch *b, sky_matrix rows, sky_matrix marker_rows)
{
    for (int s = 0; s < b->n_sequences; s++)
        for (int i = b->marker_offsets[s]; i < b->marker_offsets[s + 1]; i++)
            memcpy(marker_rows.data + (ptrdiff_t)i * marker_rows.stride,
                   rows.data + (ptrdiff_t)(b->token_offsets[s] + b->markers[i]) * rows.stride,
                   (size_t)rows.cols * sizeof(float));
}

/* The buffers of the rows that go on: all tokens, or markers alone. */
typedef struct {
    sky_matrix x, normed, q, mixed, ff;
} decision_rows;

static decision_rows rows_of_markers(const sky_plan *plan, int n)
{
    return (decision_rows){sky_rows(plan->marker_x, 0, n), sky_rows(plan->marker_normed, 0, n), sky_rows(plan->marker_q, 0, n),
                           sky_rows(plan->marker_mixed, 0, n), sky_rows(plan->marker_ff, 0, n)};
}

static const char *const self_attention[2] = {"attn", "attn_output"};
static const char *const cross_attention[2] = {"cross_attn", "cross_attn_output"};

/* x += output(attention of x's queries), groups as in an attention_step. parts: names of the two activations. */
static void ask(const sky_plan *plan, int i, const char *const parts[2], const sky_linear *output, decision_rows r, int n_groups,
                const int32_t *query_offsets, sky_matrix kv, const int32_t *key_offsets)
{
    const attention_step attention = {
        .plan = plan, .n_groups = n_groups, .n_heads = plan->model->params.n_decision_heads, .rope = NULL, .window = -1,
        .q = r.q, .query_offsets = query_offsets, .kv = kv, .key_offsets = key_offsets, .mixed = r.mixed,
    };
    attend(&attention);
    trace(plan, "head", i, parts[0], r.mixed);
    linear(plan, output, r.mixed, r.x, r.x, SKY_EPILOGUE_LINEAR);
    trace(plan, "head", i, parts[1], r.x);
}

/* x += W2 relu(W1 LN(x)) */
static void feed_forward(const sky_plan *plan, int i, decision_rows r)
{
    const sky_block *w = &plan->model->blocks[i];
    norm(plan, &w->ffn_norm, w->ffn_norm.bias, SKY_DECISION_NORM_EPS, r.x, r.normed);
    trace(plan, "head", i, "ffn_norm", r.normed);
    linear(plan, &w->ffn_up, r.normed, nothing, r.ff, SKY_EPILOGUE_RELU);
    trace(plan, "head", i, "ffn", r.ff);
    linear(plan, &w->ffn_down, r.ff, r.x, r.x, SKY_EPILOGUE_LINEAR);
    trace(plan, "head", i, "ffn_output", r.x);
}

/* One block of s1. Every row gives keys and values; all `n` rows ask, or in the last block only the markers do, whose residual
 * stream is then marker_x and goes on alone. */
static void decision_block(const sky_plan *plan, const sky_batch *b, int n, int i, int is_last)
{
    const sky_model *m = plan->model;
    const sky_block *w = &m->blocks[i];
    const int d = m->params.d_model;
    const sky_matrix qkv = sky_rows(plan->qkv, 0, n), kv = sky_cols(qkv, d, 2 * d);
    decision_rows r = {sky_rows(plan->x, 0, n), sky_rows(plan->normed, 0, n), sky_cols(qkv, 0, d), sky_rows(plan->mixed, 0, n),
                       sky_cols(sky_rows(plan->ff, 0, n), 0, 4 * d)};
    norm(plan, &w->attn_norm, w->attn_norm.bias, SKY_DECISION_NORM_EPS, r.x, r.normed);
    trace(plan, "head", i, "attn_norm", r.normed);
    linear(plan, &w->attn_kv, r.normed, nothing, kv, SKY_EPILOGUE_LINEAR);

    const int32_t *query_offsets = b->token_offsets;
    if (is_last) {
        query_offsets = b->marker_offsets;
        gather_markers(b, r.x, plan->marker_x);
        gather_markers(b, r.normed, plan->marker_normed);
        r = rows_of_markers(plan, query_offsets[b->n_sequences]);
    }
    linear(plan, &w->attn_q, r.normed, nothing, r.q, SKY_EPILOGUE_LINEAR);
    ask(plan, i, self_attention, &w->attn_output, r, b->n_sequences, query_offsets, kv, b->token_offsets);
    feed_forward(plan, i, r);
}

/* q [n, d], with which options x [n, d] ask a state in block i */
static void ask_of_state(const sky_plan *plan, int i, sky_matrix x, sky_matrix normed, sky_matrix q)
{
    const sky_block *w = &plan->model->blocks[i];
    norm(plan, &w->cross_norm, w->cross_norm.bias, SKY_DECISION_NORM_EPS, x, normed);
    trace(plan, "head", i, "cross_attn_norm", normed);
    linear(plan, &w->cross_q, normed, nothing, q, SKY_EPILOGUE_LINEAR);
}

/* One block of s2: the options ask their state, whose `n` rows are x, then those of a question each other. */
static void set_block(const sky_plan *plan, const sky_pass *pass, int n, int i)
{
    const sky_batch *b = &pass->batch;
    const sky_block *w = &plan->model->blocks[i];
    const int d = plan->model->params.d_model, n_options = b->marker_offsets[b->n_sequences];
    const sky_matrix state = sky_rows(plan->normed, 0, n), kv = sky_cols(sky_rows(plan->qkv, 0, n), d, 2 * d);
    const decision_rows r = rows_of_markers(plan, n_options);
    norm(plan, &w->cross_kv_norm, w->cross_kv_norm.bias, SKY_DECISION_NORM_EPS, sky_rows(plan->x, 0, n), state);
    trace(plan, "head", i, "cross_attn_kv_norm", state);
    linear(plan, &w->cross_kv, state, nothing, kv, SKY_EPILOGUE_LINEAR);
    if (i > 0)
        ask_of_state(plan, i, r.x, r.normed, r.q);
    ask(plan, i, cross_attention, &w->cross_output, r, b->n_sequences, b->marker_offsets, kv, b->token_offsets);

    const sky_matrix option_kv = sky_rows(plan->marker_kv, 0, n_options);
    norm(plan, &w->attn_norm, w->attn_norm.bias, SKY_DECISION_NORM_EPS, r.x, r.normed);
    trace(plan, "head", i, "attn_norm", r.normed);
    linear(plan, &w->attn_kv, r.normed, nothing, option_kv, SKY_EPILOGUE_LINEAR);
    linear(plan, &w->attn_q, r.normed, nothing, r.q, SKY_EPILOGUE_LINEAR);
    ask(plan, i, self_attention, &w->attn_output, r, pass->n_questions, pass->question_offsets, option_kv, pass->question_offsets);
    feed_forward(plan, i, r);
}

/* logits [n_markers] = Linear_1(GELU(Linear_d(LN(x[markers])))) */
static void score_markers(const sky_plan *plan, int n_markers, float *logits)
{
    const sky_model *m = plan->model;
    const sky_matrix normed = sky_rows(plan->marker_normed, 0, n_markers), hidden = sky_rows(plan->marker_q, 0, n_markers);
    const sky_matrix scores = {logits, 1, n_markers, 1};
    norm(plan, &m->cls_norm, m->cls_norm.bias, SKY_DECISION_NORM_EPS, sky_rows(plan->marker_x, 0, n_markers), normed);
    trace(plan, "cls.norm", 0, NULL, normed);
    linear(plan, &m->cls, normed, nothing, hidden, SKY_EPILOGUE_GELU);
    linear(plan, &m->cls_output, hidden, nothing, scores, SKY_EPILOGUE_LINEAR);
    trace(plan, "logits", 0, NULL, scores);
}

/* ---- architectures ---- */

/* x [n, d] = the encoder's last layer, in front of its last norm */
static void encode(const sky_plan *plan, const sky_batch *batch)
{
    const int n = batch->token_offsets[batch->n_sequences];
    const sky_model_params *p = &plan->model->params;
    if (p->option_layout == SKY_OPTIONS_PARALLEL)
        for (int s = 0; s < batch->n_sequences; s++) {
            const int first = batch->token_offsets[s], marker = batch->marker_offsets[s];
            lay_out_in_parallel(batch->markers + marker, batch->marker_offsets[s + 1] - marker, batch->prefix_tokens[s],
                                batch->token_offsets[s + 1] - first, plan->positions + first, plan->options + first);
        }
    embed(plan, batch, n);
    for (int i = 0; i < p->n_layers; i++)
        encoder_layer(plan, batch, n, i);
}

static SKY_NOINLINE void compute_s1(const sky_plan *plan, const sky_pass *pass, float *logits)
{
    const sky_batch *b = &pass->batch;
    const int n = b->token_offsets[b->n_sequences], n_blocks = plan->model->params.n_decision_blocks;
    encode(plan, b);
    output_norm_with_type(plan, b, n);
    for (int i = 0; i < n_blocks; i++)
        decision_block(plan, b, n, i, i == n_blocks - 1);
    if (n_blocks == 0)
        gather_markers(b, plan->x, plan->marker_x);
    score_markers(plan, b->marker_offsets[b->n_sequences], logits);
}

static SKY_NOINLINE void compute_s2(const sky_plan *plan, const sky_pass *pass, float *logits)
{
    const sky_batch *b = &pass->batch;
    const sky_model *m = plan->model;
    const int n = b->token_offsets[b->n_sequences], n_options = b->marker_offsets[b->n_sequences];
    const sky_matrix x = sky_rows(plan->x, 0, n);
    trace(plan, "options", 0, NULL, sky_rows(plan->marker_x, 0, n_options));
    encode(plan, b);
    norm(plan, &m->output_norm, NULL, m->params.norm_eps, x, x);
    trace(plan, "output_norm", 0, NULL, x);
    for (int i = 0; i < m->params.n_decision_blocks; i++)
        set_block(plan, pass, n, i);
    score_markers(plan, n_options, logits);
}

static const sky_architecture_row architectures[SKY_N_ARCHITECTURES] = {
    [SKY_ARCH_S1] = {.reads_state_once = 0, .compute = compute_s1},
    [SKY_ARCH_S2] = {.reads_state_once = 1, .compute = compute_s2},
};

const sky_architecture_row *sky_architecture_of(const sky_model *model) { return &architectures[model->params.architecture]; }

static sky_float_mode enter_pass(sky_plan *plan)
{
    const sky_float_mode before = sky_float_mode_enter();
    const int n_threads = SKY_MAX_THREADS > 1 ? plan->most_threads / sky_pool_enter(plan->model->pool) : 1;
    plan->n_threads = n_threads > 1 ? n_threads : 1;
    return before;
}

static void leave_pass(const sky_plan *plan, sky_float_mode before)
{
    if (SKY_MAX_THREADS > 1)
        sky_pool_leave(plan->model->pool);
    sky_float_mode_leave(before);
}

sky_status sky_run(sky_plan *plan, const sky_batch *batch, float *logits)
{
    if (!plan || plan->state != SKY_STATE_OPEN)
        return SKY_ERR_STATE;
    if (sky_architecture_of(plan->model)->reads_state_once)
        return sky_plan_fail(plan, SKY_ERR_ARGUMENT, "this architecture's questions are made ready beforehand: see sky_run_asks");
    const sky_pass pass = {*batch, 0, NULL};
    const sky_status status = check_batch(plan, batch);
    return status == SKY_OK ? sky_forward(plan, &pass, logits) : status;
}

sky_status sky_forward(sky_plan *plan, const sky_pass *pass, float *logits)
{
    const sky_float_mode before = enter_pass(plan);
    sky_architecture_of(plan->model)->compute(plan, pass, logits);
    leave_pass(plan, before);
    return SKY_OK;
}

void sky_prepare(sky_plan *plan, const sky_batch *batch, sky_matrix x, sky_matrix q)
{
    const sky_float_mode before = enter_pass(plan);
    const int n_markers = batch->marker_offsets[batch->n_sequences];
    encode(plan, batch);
    output_norm_with_type(plan, batch, batch->token_offsets[batch->n_sequences]);
    gather_markers(batch, plan->x, x);
    ask_of_state(plan, 0, x, sky_rows(plan->marker_normed, 0, n_markers), q);
    leave_pass(plan, before);
}
