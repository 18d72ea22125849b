/* A plan's arena: one allocation that holds every buffer of a forward pass, sized once for the caller's limits. */
#include "internal.h"
#include "kernels/compiler.h"

#include <stdarg.h>
#include <stdio.h>

/* Rows a multiple of 1 KB apart crowd into few sets of an L1 cache, at 4 KB into one: those are padded by a line. */
static int row_stride(int cols)
{
    const int whole = (cols + 15) / 16 * 16;
    return whole % 256 ? whole : whole + 16;
}

static int max_int(int a, int b) { return a > b ? a : b; }

static size_t max_size(size_t a, size_t b) { return a > b ? a : b; }

static sky_matrix carve_rows(sky_carver *c, size_t rows, int cols)
{
    const int stride = row_stride(cols);
    return (sky_matrix){sky_carve(c, rows, stride), stride, (int)rows, cols};
}

static size_t lay_out(sky_plan *plan, char *base)
{
    const sky_model_params *p = &plan->model->params;
    const size_t n = plan->limits.n_tokens, n_markers = plan->limits.n_markers;
    const int d = p->d_model, d_head = max_int(d / p->n_heads, d / p->n_decision_heads);
    const int options_apart = sky_architecture_of(plan->model)->reads_state_once;
    const int decision_cols = p->n_decision_blocks ? 4 * d : 0, ff_cols = max_int(p->d_ff, options_apart ? 0 : decision_cols);
    sky_carver c = {base, 0};
    plan->x = carve_rows(&c, n, d);
    plan->normed = plan->mixed = carve_rows(&c, n, d);
    sky_matrix wide = carve_rows(&c, n, max_int(3 * d, ff_cols));
    plan->qkv = (sky_matrix){wide.data, row_stride(3 * d), wide.rows, 3 * d};
    plan->ff = (sky_matrix){wide.data, row_stride(ff_cols), wide.rows, ff_cols};
    plan->marker_x = carve_rows(&c, n_markers, d);
    plan->marker_normed = carve_rows(&c, n_markers, d);
    plan->marker_q = carve_rows(&c, n_markers, d);
    plan->marker_mixed = carve_rows(&c, n_markers, d);
    plan->marker_kv = carve_rows(&c, options_apart ? n_markers : 0, 2 * d);
    plan->marker_ff = carve_rows(&c, n_markers, decision_cols);
    plan->question_offsets = sky_carve_ints(&c, options_apart ? (size_t)plan->limits.n_sequences + 1 : 0);
    plan->int8_rows = NULL;
    if (p->precision == SKY_PRECISION_INT8)
        plan->int8_rows = sky_carve_bytes(&c, max_size(n, n_markers), sky_int8_row_bytes(max_int(d, max_int(p->d_ff, 4 * d))));
    plan->token_ids = sky_carve_ints(&c, n);
    plan->token_offsets = sky_carve_ints(&c, (size_t)plan->limits.n_sequences + 1);
    plan->markers = sky_carve_ints(&c, n_markers);
    plan->marker_offsets = sky_carve_ints(&c, (size_t)plan->limits.n_sequences + 1);
    plan->question_types = sky_carve_ints(&c, plan->limits.n_sequences);
    plan->prefix_tokens = sky_carve_ints(&c, plan->limits.n_sequences);
    const int in_parallel = p->option_layout == SKY_OPTIONS_PARALLEL;
    plan->positions = sky_carve_ints(&c, in_parallel ? n : 0);
    plan->options = sky_carve_ints(&c, in_parallel ? n : 0);
    const int n_keys = max_int(plan->limits.sequence_tokens, options_apart ? plan->limits.n_markers : 0);
    const size_t attention = sky_attention_scratch(n_keys, d_head);
    size_t product = 0;
    if (sky_model_parameters(plan->model, SKY_DTYPE_F16) + sky_model_parameters(plan->model, SKY_DTYPE_BF16) > 0)
        product = max_size(sky_gemm_scratch(d, SKY_EPILOGUE_GATED), sky_gemm_scratch(max_int(ff_cols, 4 * d), SKY_EPILOGUE_LINEAR));
    if (p->precision == SKY_PRECISION_INT8 && plan->model->kernels.int8_format.group == 2)
        product = max_size(product, sky_int8_scratch(max_int(d, max_int(p->d_ff, 4 * d))));
    plan->scratch_stride = (max_size(attention, product) + 15) / 16 * 16;
    plan->scratch = sky_carve(&c, plan->limits.n_threads, plan->scratch_stride);
    return c.used;
}

sky_status sky_plan_fail(sky_plan *plan, sky_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(plan->error, sizeof plan->error, format, args);
    va_end(args);
    return status;
}

sky_status sky_plan_create(const sky_model *model, const sky_plan_limits *limits, sky_plan **out)
{
    sky_plan *plan = sky_alloc(sizeof *plan);
    *out = plan;
    if (!plan)
        return SKY_ERR_MEMORY;
    plan->state = SKY_STATE_FAILED; /* until all of it is there */
    if (!model || model->state != SKY_STATE_FROZEN)
        return sky_plan_fail(plan, SKY_ERR_STATE, "the model is not frozen");
    plan->model = model;
    plan->limits = *limits;
    if (limits->n_tokens < 1 || limits->n_sequences < 1 || limits->n_markers < 0 || limits->sequence_tokens < 1
        || limits->sequence_tokens > model->params.max_positions || limits->n_threads < 1
        || limits->n_threads > SKY_MAX_THREADS)
        return sky_plan_fail(plan, SKY_ERR_ARGUMENT,
                    "limits: expected at least one token and sequence, sequences of at most %d tokens, and 1 to %d threads",
                    model->params.max_positions, SKY_MAX_THREADS);
    plan->arena_bytes = lay_out(plan, NULL);
    plan->arena = sky_alloc(plan->arena_bytes);
    if (!plan->arena)
        return sky_plan_fail(plan, SKY_ERR_MEMORY, "out of memory: a plan for %d tokens takes %zu bytes", limits->n_tokens,
                    plan->arena_bytes);
    lay_out(plan, plan->arena);
    plan->most_threads = plan->n_threads = limits->n_threads;
    plan->shared_work = SKY_SHARED_WORK;
    plan->state = SKY_STATE_OPEN;
    return SKY_OK;
}

void sky_plan_use_threads(sky_plan *plan, int n_threads)
{
    if (!plan || plan->state != SKY_STATE_OPEN)
        return;
    plan->most_threads = n_threads < 1 ? 1 : n_threads > plan->limits.n_threads ? plan->limits.n_threads : n_threads;
}

int sky_plan_threads(const sky_plan *plan) { return plan ? plan->n_threads : 0; }

int sky_plan_claim(sky_plan *plan) { return plan && plan->state == SKY_STATE_OPEN && !SKY_TEST_AND_SET(&plan->claimed); }

void sky_plan_release(sky_plan *plan)
{
    if (plan)
        SKY_CLEAR(&plan->claimed);
}

void sky_plan_trace(sky_plan *plan, sky_trace_fn *fn, void *context)
{
    if (!plan)
        return;
    plan->trace = fn;
    plan->trace_context = context;
}

const char *sky_plan_error(const sky_plan *plan) { return plan ? plan->error : "out of memory"; }

size_t sky_plan_bytes(const sky_plan *plan) { return plan && plan->state == SKY_STATE_OPEN ? plan->arena_bytes : 0; }

void sky_plan_free(sky_plan *plan)
{
    if (!plan)
        return;
    sky_release(plan->arena);
    sky_release(plan);
}
