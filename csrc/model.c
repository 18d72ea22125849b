/* A model: its layout in memory, the setting of its tensors (tensors.c has the table of them), and what freeze computes. */
#include "float_mode.h"
#include "tensors.h"
#include "kernels/compiler.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- where tensors live ---- */

static int is_dtype(sky_dtype dtype)
{
#if !defined(SKY_WITHOUT_INT8)
    if (dtype == SKY_DTYPE_Q8_0)
        return 1;
#endif
    return dtype == SKY_DTYPE_F32 || dtype == SKY_DTYPE_F16 || dtype == SKY_DTYPE_BF16;
}

static sky_weight_type weight_type(sky_dtype dtype)
{
    static const sky_weight_type types[] = {[SKY_DTYPE_F32] = SKY_WEIGHT_F32, [SKY_DTYPE_F16] = SKY_WEIGHT_F16,
                                            [SKY_DTYPE_BF16] = SKY_WEIGHT_BF16, [SKY_DTYPE_Q8_0] = SKY_WEIGHT_INT8};
    return types[dtype];
}

static void *member(const sky_model *m, const tensor *t, size_t offset)
{
    switch (row_of(t)->level) {
    case WHOLE_MODEL:
        return (char *)m + offset;
    case ENCODER_LAYER:
        return (char *)&m->layers[t->block] + offset;
    default:
        return (char *)&m->blocks[t->block] + offset;
    }
}

static int keeps_dtypes(const sky_model_params *p)
{
    uint64_t n = 0;
    tensor t = sky_first_tensor(p);
    do
        if (row_of(&t)->form == PACKED || row_of(&t)->form == GATED)
            n += (uint64_t)(sky_tensor_rows(&t) * sky_tensor_cols(&t));
    while (sky_next_tensor(&t));
    return n > p->widened_bytes / sizeof(float);
}

/* An embedding of more bytes in its own type is much of a model, and in 8-bit precision has 8 bits, too; a smaller one stays what it is,
 * because its rounding would be a tenth of all. */
enum { MOST_EMBEDDING_BYTES = 32 << 20 };

/* What the model keeps a matrix in that is set in `dtype`. In 8-bit precision the scorer, which is a row of the whole model, is what it is
 * otherwise: its rounding would go straight to the scores. */
static sky_weight_type kept_type(const sky_model *m, const tensor *t, sky_dtype dtype)
{
    const sky_weight_type type = weight_type(dtype);
    const int is_int8 = m->params.precision == SKY_PRECISION_INT8;
    if (row_of(t)->form == LOOKED_UP) {
        const int64_t cols = sky_tensor_cols(t);
        const size_t most_rows = MOST_EMBEDDING_BYTES / sky_row_bytes(type, cols);
        return is_int8 && (size_t)sky_tensor_rows(t) > most_rows && cols % SKY_INT8_BLOCK == 0 ? SKY_WEIGHT_INT8 : type;
    }
    if (is_int8 && row_of(t)->level != WHOLE_MODEL)
        return type == SKY_WEIGHT_INT8 ? type : SKY_WEIGHT_INT8_ROWS;
    return type != SKY_WEIGHT_INT8 && m->kernels.gemm[type] ? type : SKY_WEIGHT_F32;
}

static void carve_panels(const sky_model *m, sky_carver *c, sky_linear *w, sky_weight_type type, int64_t rows, int64_t cols, int gated)
{
    w->type = type;
    w->n = (int)rows;
    w->k = (int)cols;
    w->gated = gated;
    w->panels = sky_carve_bytes(c, sky_n_panels(&m->kernels, w), sky_panel_bytes(&m->kernels, w));
    if (type == SKY_WEIGHT_INT8_ROWS)
        w->factors = sky_carve(c, w->k, 1);
}

static size_t lay_out(sky_model *m, char *base)
{
    const sky_model_params *p = &m->params;
    const size_t d = p->d_model;
    const int has_table = p->qkv_table_bytes / sizeof(float) / 3 / d >= (size_t)p->n_vocab;
    const sky_dtype *dtype = p->dtypes && (p->precision == SKY_PRECISION_INT8 || keeps_dtypes(p)) ? p->dtypes : NULL;
    sky_carver c = {base, 0};
    tensor t = sky_first_tensor(p);
    do {
        const tensor_row *row = row_of(&t);
        const int is_kept = (dtype || p->precision == SKY_PRECISION_INT8) && row->form != COPIED;
        const sky_weight_type type = is_kept ? kept_type(m, &t, dtype ? *dtype : SKY_DTYPE_F32) : SKY_WEIGHT_F32;
        dtype += dtype != NULL;
        void *place = member(m, &t, row->place), *rest = row->rest ? member(m, &t, row->rest) : NULL;
        if (row->form == LOOKED_UP) {
            sky_embedding *embedding = place;
            embedding->type = has_table ? SKY_WEIGHT_F32 : type;
            embedding->rows = sky_carve_bytes(&c, (size_t)sky_tensor_rows(&t), sky_row_bytes(embedding->type, sky_tensor_cols(&t)));
        } else if (row->form == COPIED) {
            float *values = sky_carve(&c, sky_tensor_rows(&t), sky_tensor_cols(&t));
            *(float **)place = values;
            if (rest)
                *(float **)rest = values ? values + d : NULL;
        } else {
            carve_panels(m, &c, place, type, rest ? (int64_t)d : sky_tensor_rows(&t), sky_tensor_cols(&t), row->form == GATED);
            if (rest)
                carve_panels(m, &c, rest, type, sky_tensor_rows(&t) - (int64_t)d, sky_tensor_cols(&t), 0);
        }
    } while (sky_next_tensor(&t));
    if (has_table)
        m->qkv_table = sky_carve(&c, p->n_vocab, 3 * d);
    sky_rope *ropes[] = {&m->rope_global, &m->rope_local};
    for (int i = 0; i < 2; i++) {
        ropes[i]->cos = sky_carve(&c, p->max_positions, d / p->n_heads / 2);
        ropes[i]->sin = sky_carve(&c, p->max_positions, d / p->n_heads / 2);
    }
    return c.used;
}

/* Rounded where transformers' ModernBERT rounds: float frequencies, float angles. */
static SKY_NOINLINE void fill_rope(const sky_model *m, sky_rope *rope, float base)
{
    const int d_head = m->params.d_model / m->params.n_heads, half = d_head / 2;
    for (int j = 0; j < half; j++) {
        const float frequency = 1.0f / powf(base, (float)(2 * j) / (float)d_head);
        for (int position = 0; position < m->params.max_positions; position++) {
            const float angle = (float)position * frequency;
            rope->cos[(size_t)position * half + j] = cosf(angle);
            rope->sin[(size_t)position * half + j] = sinf(angle);
        }
    }
}

static int n_blocks(const sky_model *m) { return m->params.n_layers + m->params.n_decision_blocks; }

/* How many of a tensor's rows, from its first on, have been set. */
static int64_t *rows_set(const sky_model *m, const tensor *t)
{
    return m->n_set + (size_t)(sky_tensor_block(t) + 1) * t->arch->n_tensors + t->row;
}

/* ---- errors ---- */

static sky_status fail(sky_model *m, sky_status status, const char *format, ...)
{
    char text[sizeof m->error];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    while (SKY_TEST_AND_SET(&m->error_lock))
        SKY_PAUSE();
    memcpy(m->error, text, sizeof text);
    SKY_CLEAR(&m->error_lock);
    return status;
}

void sky_model_error(const sky_model *model, char *text, size_t n_bytes)
{
    if (!model) {
        snprintf(text, n_bytes, "out of memory");
        return;
    }
    sky_model *m = (sky_model *)model; /* the lock, which is no part of the model */
    while (SKY_TEST_AND_SET(&m->error_lock))
        SKY_PAUSE();
    snprintf(text, n_bytes, "%s", m->error);
    SKY_CLEAR(&m->error_lock);
}

/* Whether a tensor's rows can be of this type; else says so. Rows of Q8_0 are whole blocks. */
static int is_in_blocks(sky_model *m, const tensor *t, sky_dtype dtype)
{
    char name[NAME_BYTES];
    if (dtype != SKY_DTYPE_Q8_0 || sky_tensor_cols(t) % SKY_INT8_BLOCK == 0)
        return 1;
    sky_tensor_name(t, name);
    fail(m, SKY_ERR_SHAPE, "%s: rows of %lld are no blocks of Q8_0", name, (long long)sky_tensor_cols(t));
    return 0;
}

static sky_status check_params(sky_model *m)
{
    const sky_model_params *p = &m->params;
    char fault[128];
    if (sky_check_sizes(p, fault, sizeof fault) != SKY_OK
        || !sky_is_limited("n_heads", p->n_heads, 1, p->d_model, fault, sizeof fault)
        || !sky_is_limited("n_decision_heads", p->n_decision_heads, 1, p->d_model, fault, sizeof fault)
        || !sky_is_limited("window", p->window, 0, SKY_MAX_WINDOW, fault, sizeof fault)
        || !sky_is_limited("max_positions", p->max_positions, 1, SKY_MAX_POSITIONS, fault, sizeof fault)
        || !sky_is_limited("activation", (int32_t)p->activation, 0, SKY_N_ACTIVATIONS - 1, fault, sizeof fault)
        || !sky_is_limited("precision", (int32_t)p->precision, 0, SKY_N_PRECISIONS - 1, fault, sizeof fault)
        || !sky_is_limited("option_layout", (int32_t)p->option_layout, 0, SKY_N_OPTION_LAYOUTS - 1, fault, sizeof fault))
        return fail(m, SKY_ERR_ARGUMENT, "%s", fault);
    if (p->architecture != SKY_ARCH_S1 && p->option_layout != SKY_OPTIONS_SEQUENTIAL)
        return fail(m, SKY_ERR_ARGUMENT, "option_layout: only s1 has its options in one sequence");
    if (p->d_model % p->n_heads || p->d_model / p->n_heads % 2)
        return fail(m, SKY_ERR_ARGUMENT, "n_heads: %d does not divide d_model %d into even heads", p->n_heads, p->d_model);
    if (p->d_model % p->n_decision_heads)
        return fail(m, SKY_ERR_ARGUMENT, "n_decision_heads: %d does not divide d_model %d", p->n_decision_heads, p->d_model);
    if (p->d_model / p->n_heads > SKY_MAX_D_HEAD || p->d_model / p->n_decision_heads > SKY_MAX_D_HEAD)
        return fail(m, SKY_ERR_ARGUMENT, "d_head: at most %d, got %d", SKY_MAX_D_HEAD,
                    p->d_model / (p->n_heads < p->n_decision_heads ? p->n_heads : p->n_decision_heads));
    if (!(p->norm_eps > 0.0f && p->rope_base_global > 0.0f && p->rope_base_local > 0.0f))
        return fail(m, SKY_ERR_ARGUMENT, "norm_eps and rope bases: expected positive numbers");
    const sky_dtype *dtype = p->dtypes;
    tensor t = sky_first_tensor(p);
    do {
        if (dtype && !is_dtype(*dtype))
            return fail(m, SKY_ERR_ARGUMENT, "dtypes: unknown data type %d", (int)*dtype);
        if (dtype && !is_in_blocks(m, &t, *dtype))
            return SKY_ERR_SHAPE;
        dtype += dtype != NULL;
    } while (sky_next_tensor(&t));
    if (!p->layer_is_global)
        return fail(m, SKY_ERR_ARGUMENT, "layer_is_global: missing");
    return SKY_OK;
}

/* ---- create, set, freeze ---- */

sky_status sky_model_measure(const sky_model_params *params, sky_model **model)
{
    sky_model *m = sky_alloc(sizeof *m);
    *model = m;
    if (!m)
        return SKY_ERR_MEMORY;
    m->state = SKY_STATE_FAILED; /* until all of it is there */
    m->params = *params;
    const sky_status status = check_params(m);
    if (status != SKY_OK)
        return status;
    if (sky_kernels_select(params->isa, &m->kernels) != SKY_OK)
        return fail(m, SKY_ERR_ISA, "instruction set \"%.40s\" is not one that this build and CPU can run",
                    params->isa ? params->isa : "");
    if (params->precision == SKY_PRECISION_INT8 && !m->kernels.gemm[SKY_WEIGHT_INT8])
        return fail(m, SKY_ERR_ISA, "instruction set \"%s\" has no products of 8-bit weights", m->kernels.isa);

    m->layers = sky_alloc((size_t)params->n_layers * sizeof *m->layers);
    m->blocks = sky_alloc((size_t)(params->n_decision_blocks + 1) * sizeof *m->blocks);
    if (!m->layers || !m->blocks)
        return fail(m, SKY_ERR_MEMORY, "out of memory");
    m->arena_bytes = lay_out(m, NULL);
    m->state = SKY_STATE_MEASURED;
    return SKY_OK;
}

sky_status sky_model_create(const sky_model_params *params, sky_model **model)
{
    const sky_status status = sky_model_measure(params, model);
    sky_model *m = *model;
    if (status != SKY_OK)
        return status;
    m->state = SKY_STATE_FAILED;
    m->n_set = sky_alloc((size_t)(n_blocks(m) + 1) * sky_first_tensor(params).arch->n_tensors * sizeof *m->n_set);
    if (SKY_MAX_THREADS > 1)
        m->pool = sky_pool_create(params->n_cpus > 0 ? params->n_cpus : sky_cpu_count());
    if (!m->n_set || (SKY_MAX_THREADS > 1 && !m->pool))
        return fail(m, SKY_ERR_MEMORY, "out of memory");
    m->arena = sky_alloc(m->arena_bytes);
    if (!m->arena)
        return fail(m, SKY_ERR_MEMORY, "out of memory: the packed weights take %zu bytes", m->arena_bytes);
    lay_out(m, m->arena);
    for (int i = 0; i < params->n_layers; i++)
        m->layers[i].is_global = params->layer_is_global[i];
    m->params.layer_is_global = NULL;
    m->params.isa = NULL;
    m->params.dtypes = NULL;
    const sky_float_mode before = sky_float_mode_enter();
    fill_rope(m, &m->rope_global, params->rope_base_global);
    fill_rope(m, &m->rope_local, params->rope_base_local);
    sky_float_mode_leave(before);
    m->state = SKY_STATE_OPEN;
    return SKY_OK;
}

/* What a tensor is kept in. */
static sky_weight_type type_of(const sky_model *m, const tensor *t)
{
    const void *place = member(m, t, row_of(t)->place);
    switch (row_of(t)->form) {
    case COPIED:
        return SKY_WEIGHT_F32;
    case LOOKED_UP:
        return ((const sky_embedding *)place)->type;
    default:
        return ((const sky_linear *)place)->type;
    }
}

/* rows [first_row, first_row + rows) of a tensor = data, whose type it is kept in, or it is kept in floats or in 8 bits; false where a value
 * is NaN or infinite, which may be written, too */
static int store_rows(const sky_model *m, const tensor *t, sky_weight_type type, int64_t first_row, int64_t rows, const void *data)
{
    const tensor_row *row = row_of(t);
    const int64_t cols = sky_tensor_cols(t);
    void *place = member(m, t, row->place);
    int finite = 1;
    if (row->form == COPIED || row->form == LOOKED_UP) {
        const sky_weight_type kept = type_of(m, t);
        const size_t row_bytes = sky_row_bytes(kept, cols);
        char *out = row->form == COPIED ? *(char **)place : ((sky_embedding *)place)->rows;
        out += (size_t)first_row * row_bytes;
        for (int64_t i = 0; i < rows; i++, out += row_bytes) {
            const char *from = (const char *)data + (size_t)i * sky_row_bytes(type, cols);
            if (kept == SKY_WEIGHT_INT8 && type != kept) {
                finite &= sky_to_q8_0(&m->kernels, type, from, (size_t)cols, out);
                continue;
            }
            if (kept == SKY_WEIGHT_F32)
                sky_widen(&m->kernels, type, from, 0, (int)cols, (float *)(void *)out);
            else
                memcpy(out, from, row_bytes);
            finite &= sky_all_finite(kept, out, (size_t)cols);
        }
    } else {
        finite = sky_pack(&m->kernels, place, type, data, 0);
        if (row->rest)
            finite &= sky_pack(&m->kernels, member(m, t, row->rest), type, data, ((sky_linear *)place)->n);
    }
    return finite;
}

/* Sets rows first_row .. first_row + rows - 1 of a tensor; `is_part` where they need not be all of them. */
static SKY_NOINLINE sky_status set_rows(sky_model *m, const char *name, sky_dtype dtype, int64_t first_row, int64_t rows, int64_t cols,
                           const void *data, int is_part)
{
    tensor t;
    if (!m || m->state == SKY_STATE_FAILED)
        return SKY_ERR_STATE;
    if (m->state == SKY_STATE_MEASURED)
        return fail(m, SKY_ERR_STATE, "the model has no room for weights");
    if (m->state == SKY_STATE_FROZEN)
        return fail(m, SKY_ERR_STATE, "%.100s: the model is frozen", name);
    if (!sky_find_tensor(&m->params, name, &t))
        return fail(m, SKY_ERR_ARGUMENT, "%.100s: no such tensor", name);
    if (!is_dtype(dtype))
        return fail(m, SKY_ERR_ARGUMENT, "%.100s: unknown data type %d", name, (int)dtype);
    const sky_weight_type kept = type_of(m, &t);
    const int takes_any = kept == SKY_WEIGHT_F32 || kept == SKY_WEIGHT_INT8_ROWS || (kept == SKY_WEIGHT_INT8 && row_of(&t)->form == LOOKED_UP);
    if (!takes_any && kept != weight_type(dtype))
        return fail(m, SKY_ERR_ARGUMENT, "%.100s: is not of the data type that the model was created for", name);
    int64_t *n_set = rows_set(m, &t);
    if (is_part && row_of(&t)->rows != N_VOCAB)
        return fail(m, SKY_ERR_ARGUMENT, "%.100s: is not set in parts", name);
    if (is_part && first_row != 0 && first_row != *n_set)
        return fail(m, SKY_ERR_STATE, "%.100s: expected row %lld next, got %lld", name, (long long)*n_set, (long long)first_row);
    if ((is_part ? rows < 1 || rows > sky_tensor_rows(&t) - first_row : rows != sky_tensor_rows(&t)) || cols != sky_tensor_cols(&t))
        return fail(m, SKY_ERR_SHAPE, "%.100s: expected [%lld, %lld], got [%lld, %lld]", name,
                    (long long)(sky_tensor_rows(&t) - first_row), (long long)sky_tensor_cols(&t), (long long)rows, (long long)cols);
    if (!is_in_blocks(m, &t, dtype))
        return SKY_ERR_SHAPE;
    *n_set = 0; /* from here on what was there is overwritten */
    if (!store_rows(m, &t, weight_type(dtype), first_row, rows, data))
        return fail(m, SKY_ERR_ARGUMENT, "%.100s: holds a NaN or infinite value", name);
    *n_set = first_row + rows;
    return SKY_OK;
}

sky_status sky_model_set(sky_model *m, const char *name, sky_dtype dtype, int64_t rows, int64_t cols, const void *data)
{
    const sky_float_mode before = sky_float_mode_enter();
    const sky_status status = set_rows(m, name, dtype, 0, rows, cols, data, 0);
    sky_float_mode_leave(before);
    return status;
}

sky_status sky_model_set_rows(sky_model *m, const char *name, sky_dtype dtype, int64_t first_row, int64_t rows, int64_t cols,
                              const void *data)
{
    const sky_float_mode before = sky_float_mode_enter();
    const sky_status status = set_rows(m, name, dtype, first_row, rows, cols, data, 1);
    sky_float_mode_leave(before);
    return status;
}

/* Layer 0's input depends on the token id alone: where there is room for the table, norm and multiply every id's row now. By
 * the kernels of a forward pass, so the bits are those that it would compute. */
static SKY_NOINLINE sky_status tabulate_tokens(sky_model *m)
{
    if (!m->qkv_table)
        return SKY_OK;
    const int n = m->params.n_vocab, d = m->params.d_model;
    const sky_matrix embd = {m->token_embd.rows, d, n, d};
    const sky_norm norm = {embd, m->token_embd_norm.weight, NULL, m->params.norm_eps, embd};
    m->kernels.layer_norm(&norm);
    const sky_linear *w = &m->layers[0].attn_qkv;
    float *scratch = sky_alloc((sky_is_int8(w->type) ? sky_int8_scratch(w->k) : sky_gemm_scratch(w->k, SKY_EPILOGUE_LINEAR)) * sizeof *scratch);
    char *rows = sky_alloc(sky_is_int8(w->type) ? (size_t)n * sky_int8_row_bytes(d) : 1);
    if (scratch && rows) {
        if (sky_is_int8(w->type))
            m->kernels.quantize_rows(embd, w->has_factors ? w->factors : NULL, rows);
        const sky_gemm g = {.a = embd, .panels = w->panels, .c = {m->qkv_table, w->n, n, w->n}, .epilogue = SKY_EPILOGUE_LINEAR,
                            .scratch = scratch, .a_int8 = rows};
        m->kernels.gemm[w->type](&g, 0, sky_n_panels(&m->kernels, w));
    }
    const int done = scratch && rows;
    sky_release(scratch);
    sky_release(rows);
    return done ? SKY_OK : fail(m, SKY_ERR_MEMORY, "out of memory");
}

sky_status sky_model_freeze(sky_model *m)
{
    if (!m || m->state == SKY_STATE_FAILED)
        return SKY_ERR_STATE;
    if (m->state == SKY_STATE_MEASURED)
        return fail(m, SKY_ERR_STATE, "the model has no room for weights");
    if (m->state == SKY_STATE_FROZEN)
        return SKY_OK;
    tensor t = sky_first_tensor(&m->params);
    do {
        char name[NAME_BYTES];
        sky_tensor_name(&t, name);
        if (*rows_set(m, &t) != sky_tensor_rows(&t))
            return fail(m, SKY_ERR_STATE, "%s: missing", name);
    } while (sky_next_tensor(&t));
    const sky_float_mode before = sky_float_mode_enter();
    const sky_status status = tabulate_tokens(m);
    sky_float_mode_leave(before);
    if (status == SKY_OK)
        m->state = SKY_STATE_FROZEN;
    return status;
}

const char *sky_model_isa(const sky_model *m) { return m && m->kernels.isa ? m->kernels.isa : ""; }

int64_t sky_model_parameters(const sky_model *m, sky_dtype dtype)
{
    int64_t n = 0;
    if (!m || m->state == SKY_STATE_FAILED || !is_dtype(dtype))
        return 0;
    tensor t = sky_first_tensor(&m->params);
    do
        if (row_of(&t)->form != COPIED
            && (type_of(m, &t) == weight_type(dtype) || (dtype == SKY_DTYPE_Q8_0 && type_of(m, &t) == SKY_WEIGHT_INT8_ROWS)))
            n += sky_tensor_rows(&t) * sky_tensor_cols(&t);
    while (sky_next_tensor(&t));
    return n;
}

size_t sky_model_bytes(const sky_model *m) { return m && m->state != SKY_STATE_FAILED ? m->arena_bytes : 0; }

void sky_model_free(sky_model *m)
{
    if (!m)
        return;
    if (SKY_MAX_THREADS > 1)
        sky_pool_free(m->pool);
    sky_release(m->arena);
    sky_release(m->layers);
    sky_release(m->blocks);
    sky_release(m->n_set);
    sky_release(m);
}
