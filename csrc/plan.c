/* A plan's arena: one allocation that holds every buffer of a forward pass, sized once for the caller's limits. */
#include "internal.h"
#include "kernels/compiler.h"

#include <stdio.h>

/* Rows a multiple of 1 KB apart crowd into few sets of an L1 cache, at 4 KB into one: those are padded by a line. */
static int row_stride(int cols)
{
    const int whole = (cols + 15) / 16 * 16;
    return whole % 256 ? whole : whole + 16;
}

static int max_int(int a, int b) { return a > b ? a : b; }

static size_t lay_out(sky_plan *plan, char *base)
{
    const sky_model_params *p = &plan->model->params;
    const size_t n = plan->limits.n_tokens, n_markers = plan->limits.n_markers;
    const size_t stride = plan->stride, qkv_stride = plan->qkv_stride, ff_stride = plan->ff_stride;
    const int d_head = max_int(p->d_model / p->n_heads, p->d_model / p->n_decision_heads);
    sky_carver c = {base, 0};
    plan->x = sky_carve(&c, n, stride);
    plan->normed = sky_carve(&c, n, stride);
    plan->qkv = sky_carve(&c, n, qkv_stride > ff_stride ? qkv_stride : ff_stride);
    plan->mixed = plan->normed;
    plan->ff = plan->qkv;
    plan->marker_x = sky_carve(&c, n_markers, stride);
    plan->marker_normed = sky_carve(&c, n_markers, stride);
    plan->marker_q = sky_carve(&c, n_markers, stride);
    plan->marker_mixed = sky_carve(&c, n_markers, stride);
    plan->marker_ff = sky_carve(&c, n_markers, ff_stride);
    plan->scratch_stride = (sky_attention_scratch(plan->limits.sequence_tokens, d_head) + 15) / 16 * 16;
    plan->scratch = sky_carve(&c, plan->limits.n_threads, plan->scratch_stride);
    return c.used;
}

sky_status sky_plan_create(const sky_model *model, const sky_plan_limits *limits, sky_plan **out)
{
    sky_plan *plan = sky_alloc(sizeof *plan);
    *out = plan;
    if (!plan)
        return SKY_ERR_MEMORY;
    plan->model = model;
    plan->limits = *limits;
    const sky_model_params *p = &model->params;
    if (!model->frozen) {
        snprintf(plan->error, sizeof plan->error, "the model is not frozen");
        return SKY_ERR_STATE;
    }
    if (limits->n_tokens < 1 || limits->n_sequences < 1 || limits->n_markers < 0 || limits->sequence_tokens < 1
        || limits->sequence_tokens > p->max_positions || limits->n_threads < 1 || limits->n_threads > SKY_MAX_THREADS) {
        snprintf(plan->error, sizeof plan->error,
                 "limits: expected at least one token and sequence, sequences of at most %d tokens, and 1 to %d threads",
                 p->max_positions, SKY_MAX_THREADS);
        return SKY_ERR_ARGUMENT;
    }
    plan->stride = row_stride(p->d_model);
    plan->qkv_stride = row_stride(3 * p->d_model);
    plan->ff_stride = row_stride(max_int(p->d_ff, p->n_decision_blocks ? 4 * p->d_model : 0));
    plan->arena_bytes = lay_out(plan, NULL);
    plan->arena = sky_alloc(plan->arena_bytes);
    if (!plan->arena) {
        snprintf(plan->error, sizeof plan->error, "out of memory: a plan for %d tokens takes %zu bytes", limits->n_tokens,
                 plan->arena_bytes);
        return SKY_ERR_MEMORY;
    }
    lay_out(plan, plan->arena);
    plan->most_threads = plan->n_threads = limits->n_threads;
    plan->shared_work = SKY_SHARED_WORK;
    if (limits->n_threads > 1 && !(plan->pool = sky_pool_create(limits->n_threads - 1))) {
        snprintf(plan->error, sizeof plan->error, "out of memory");
        return SKY_ERR_MEMORY;
    }
    return SKY_OK;
}

void sky_plan_use_threads(sky_plan *plan, int n_threads)
{
    plan->most_threads = n_threads < 1 ? 1 : n_threads > plan->limits.n_threads ? plan->limits.n_threads : n_threads;
}

int sky_plan_threads(const sky_plan *plan) { return plan->n_threads; }

int sky_plan_claim(sky_plan *plan) { return !SKY_TEST_AND_SET(&plan->claimed); }

void sky_plan_release(sky_plan *plan) { SKY_CLEAR(&plan->claimed); }

void sky_plan_trace(sky_plan *plan, sky_trace_fn *fn, void *context)
{
    plan->trace = fn;
    plan->trace_context = context;
}

const char *sky_plan_error(const sky_plan *plan) { return plan->error; }

size_t sky_plan_bytes(const sky_plan *plan) { return plan->arena_bytes; }

void sky_plan_free(sky_plan *plan)
{
    if (!plan)
        return;
    sky_pool_free(plan->pool);
    sky_release(plan->arena);
    sky_release(plan);
}
