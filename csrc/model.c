/* A model's tensors: one table that says for each its name, its shape, where it lives and how it is kept. Everything else about
 * tensors, here and in Python (sky_tensors), is read from that table. */
#include "float_mode.h"
#include "internal.h"
#include "kernels/compiler.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* ---- the table ---- */

typedef enum { WHOLE_MODEL, ENCODER_LAYER, DECISION_BLOCK } tensor_level; /* what a row's tensors are part of */

typedef enum {
    COPIED, /* as they are, into a float * */
    PACKED, /* into the panels of a sky_linear */
    GATED,  /* the same, up and gate rows interleaved */
} tensor_form;

typedef enum { ONE, D, D_FF, N_VOCAB, N_TYPES } tensor_size;

/* Of each layer or block of the level one tensor: `row_count` x `rows` rows of `col_count` x `cols` columns; ONE row is a
 * vector. */
typedef struct {
    tensor_level level;
    const char *name; /* without "blk.i." */
    tensor_form form;
    int row_count;
    tensor_size rows;
    int col_count;
    tensor_size cols;
    size_t place;    /* offset of the float * or sky_linear in sky_model, sky_layer or sky_block */
    size_t rest;     /* where what follows the first d_model rows (of a vector: elements) has a place of its own, or 0 */
    int first_layer; /* that has this tensor */
} tensor_row;

#define MODEL(member) offsetof(sky_model, member)
#define LAYER(member) offsetof(sky_layer, member)
#define BLOCK(member) offsetof(sky_block, member)

/* In the order of the forward pass; rows of one level that follow each other are repeated together for each layer or block. */
#define ENCODER_TENSORS \
    {WHOLE_MODEL, "token_embd.weight", COPIED, 1, N_VOCAB, 1, D, MODEL(token_embd), 0, 0}, \
    {WHOLE_MODEL, "token_embd_norm.weight", COPIED, 1, ONE, 1, D, MODEL(token_embd_norm.weight), 0, 0}, \
\
    {ENCODER_LAYER, "attn_norm.weight", COPIED, 1, ONE, 1, D, LAYER(attn_norm.weight), 0, 1}, \
    {ENCODER_LAYER, "attn_qkv.weight", PACKED, 3, D, 1, D, LAYER(attn_qkv), 0, 0}, \
    {ENCODER_LAYER, "attn_output.weight", PACKED, 1, D, 1, D, LAYER(attn_output), 0, 0}, \
    {ENCODER_LAYER, "ffn_norm.weight", COPIED, 1, ONE, 1, D, LAYER(ffn_norm.weight), 0, 0}, \
    {ENCODER_LAYER, "ffn_up.weight", GATED, 2, D_FF, 1, D, LAYER(ffn_up), 0, 0}, \
    {ENCODER_LAYER, "ffn_down.weight", PACKED, 1, D, 1, D_FF, LAYER(ffn_down), 0, 0}, \
\
    {WHOLE_MODEL, "output_norm.weight", COPIED, 1, ONE, 1, D, MODEL(output_norm.weight), 0, 0}, \
    {WHOLE_MODEL, "token_types.weight", COPIED, 1, N_TYPES, 1, D, MODEL(token_types), 0, 0}

#define CROSS_ATTENTION_TENSORS \
    {DECISION_BLOCK, "cross_attn_norm.weight", COPIED, 1, ONE, 1, D, BLOCK(cross_norm.weight), 0, 0}, \
    {DECISION_BLOCK, "cross_attn_norm.bias", COPIED, 1, ONE, 1, D, BLOCK(cross_norm.bias), 0, 0}, \
    {DECISION_BLOCK, "cross_attn_kv_norm.weight", COPIED, 1, ONE, 1, D, BLOCK(cross_kv_norm.weight), 0, 0}, \
    {DECISION_BLOCK, "cross_attn_kv_norm.bias", COPIED, 1, ONE, 1, D, BLOCK(cross_kv_norm.bias), 0, 0}, \
    {DECISION_BLOCK, "cross_attn_q.weight", PACKED, 1, D, 1, D, BLOCK(cross_q), 0, 0}, \
    {DECISION_BLOCK, "cross_attn_q.bias", COPIED, 1, ONE, 1, D, BLOCK(cross_q.bias), 0, 0}, \
    {DECISION_BLOCK, "cross_attn_kv.weight", PACKED, 2, D, 1, D, BLOCK(cross_kv), 0, 0}, \
    {DECISION_BLOCK, "cross_attn_kv.bias", COPIED, 1, ONE, 2, D, BLOCK(cross_kv.bias), 0, 0}, \
    {DECISION_BLOCK, "cross_attn_output.weight", PACKED, 1, D, 1, D, BLOCK(cross_output), 0, 0}, \
    {DECISION_BLOCK, "cross_attn_output.bias", COPIED, 1, ONE, 1, D, BLOCK(cross_output.bias), 0, 0}

#define DECISION_TENSORS \
    {DECISION_BLOCK, "attn_norm.weight", COPIED, 1, ONE, 1, D, BLOCK(attn_norm.weight), 0, 0}, \
    {DECISION_BLOCK, "attn_norm.bias", COPIED, 1, ONE, 1, D, BLOCK(attn_norm.bias), 0, 0}, \
    {DECISION_BLOCK, "attn_qkv.weight", PACKED, 3, D, 1, D, BLOCK(attn_q), BLOCK(attn_kv), 0}, \
    {DECISION_BLOCK, "attn_qkv.bias", COPIED, 1, ONE, 3, D, BLOCK(attn_q.bias), BLOCK(attn_kv.bias), 0}, \
    {DECISION_BLOCK, "attn_output.weight", PACKED, 1, D, 1, D, BLOCK(attn_output), 0, 0}, \
    {DECISION_BLOCK, "attn_output.bias", COPIED, 1, ONE, 1, D, BLOCK(attn_output.bias), 0, 0}, \
    {DECISION_BLOCK, "ffn_norm.weight", COPIED, 1, ONE, 1, D, BLOCK(ffn_norm.weight), 0, 0}, \
    {DECISION_BLOCK, "ffn_norm.bias", COPIED, 1, ONE, 1, D, BLOCK(ffn_norm.bias), 0, 0}, \
    {DECISION_BLOCK, "ffn_up.weight", PACKED, 4, D, 1, D, BLOCK(ffn_up), 0, 0}, \
    {DECISION_BLOCK, "ffn_up.bias", COPIED, 1, ONE, 4, D, BLOCK(ffn_up.bias), 0, 0}, \
    {DECISION_BLOCK, "ffn_down.weight", PACKED, 1, D, 4, D, BLOCK(ffn_down), 0, 0}, \
    {DECISION_BLOCK, "ffn_down.bias", COPIED, 1, ONE, 1, D, BLOCK(ffn_down.bias), 0, 0}

#define SCORER_TENSORS \
    {WHOLE_MODEL, "cls.norm.weight", COPIED, 1, ONE, 1, D, MODEL(cls_norm.weight), 0, 0}, \
    {WHOLE_MODEL, "cls.norm.bias", COPIED, 1, ONE, 1, D, MODEL(cls_norm.bias), 0, 0}, \
    {WHOLE_MODEL, "cls.weight", PACKED, 1, D, 1, D, MODEL(cls), 0, 0}, \
    {WHOLE_MODEL, "cls.bias", COPIED, 1, ONE, 1, D, MODEL(cls.bias), 0, 0}, \
    {WHOLE_MODEL, "cls.output.weight", PACKED, 1, ONE, 1, D, MODEL(cls_output), 0, 0}, \
    {WHOLE_MODEL, "cls.output.bias", COPIED, 1, ONE, 1, ONE, MODEL(cls_output.bias), 0, 0}

static const tensor_row s1_tensors[] = {ENCODER_TENSORS, DECISION_TENSORS, SCORER_TENSORS};
static const tensor_row s2_tensors[] = {ENCODER_TENSORS, CROSS_ATTENTION_TENSORS, DECISION_TENSORS, SCORER_TENSORS};

typedef struct {
    const tensor_row *tensors;
    int n_tensors;
    int least_blocks; /* of the decision: without one s2's options would know nothing of the state */
} architecture;

static const architecture architectures[SKY_N_ARCHITECTURES] = {
    [SKY_ARCH_S1] = {s1_tensors, sizeof s1_tensors / sizeof s1_tensors[0], 0},
    [SKY_ARCH_S2] = {s2_tensors, sizeof s2_tensors / sizeof s2_tensors[0], 1},
};

/* ---- walking over it ---- */

/* A tensor: a row of the table, and which layer or block of the row's level. */
typedef struct {
    const sky_model_params *params;
    const architecture *arch;
    int row, block;
} tensor;

static tensor first_tensor(const sky_model_params *p) { return (tensor){p, &architectures[p->architecture], 0, 0}; }

static int level_blocks(const tensor *t, tensor_level level)
{
    return level == WHOLE_MODEL ? 1 : level == ENCODER_LAYER ? t->params->n_layers : t->params->n_decision_blocks;
}

/* On to the next tensor; 0 after the last. */
static int next_tensor(tensor *t)
{
    const tensor_row *rows = t->arch->tensors;
    do {
        const tensor_level level = rows[t->row].level;
        t->row++;
        if (t->row < t->arch->n_tensors && rows[t->row].level == level)
            continue;
        if (++t->block < level_blocks(t, level)) {
            do
                t->row--;
            while (t->row > 0 && rows[t->row - 1].level == level);
            continue;
        }
        t->block = 0;
        while (t->row < t->arch->n_tensors && level_blocks(t, rows[t->row].level) == 0)
            t->row++;
        if (t->row == t->arch->n_tensors)
            return 0;
    } while (t->block < rows[t->row].first_layer);
    return 1;
}

static const tensor_row *row_of(const tensor *t) { return &t->arch->tensors[t->row]; }

static int64_t size_of(const sky_model_params *p, int count, tensor_size size)
{
    const int64_t sizes[] = {[ONE] = 1, [D] = p->d_model, [D_FF] = p->d_ff, [N_VOCAB] = p->n_vocab,
                             [N_TYPES] = SKY_N_QUESTION_TYPES};
    return count * sizes[size];
}

static int64_t n_rows(const tensor *t) { return size_of(t->params, row_of(t)->row_count, row_of(t)->rows); }

static int64_t n_cols(const tensor *t) { return size_of(t->params, row_of(t)->col_count, row_of(t)->cols); }

/* As GGUF numbers blocks: decision blocks follow the encoder's layers. -1 for a tensor outside of blocks. */
static int block_number(const tensor *t)
{
    switch (row_of(t)->level) {
    case WHOLE_MODEL:
        return -1;
    case ENCODER_LAYER:
        return t->block;
    default:
        return t->params->n_layers + t->block;
    }
}

enum { NAME_BYTES = sizeof((sky_tensor *)0)->name };

static void name_of(const tensor *t, char name[NAME_BYTES])
{
    if (block_number(t) < 0)
        snprintf(name, NAME_BYTES, "%s", row_of(t)->name);
    else
        snprintf(name, NAME_BYTES, "blk.%d.%s", block_number(t), row_of(t)->name);
}

/* The number of "blk.7.rest" and where the rest begins; -1 and the whole name where it has none. */
static int block_in(const char *name, const char **rest)
{
    enum { MOST_DIGITS = 9 };
    int blk = 0, n = 4;
    *rest = name;
    if (strncmp(name, "blk.", 4) != 0)
        return -1;
    for (; n < 4 + MOST_DIGITS && name[n] >= '0' && name[n] <= '9'; n++)
        blk = 10 * blk + name[n] - '0';
    if (n == 4 || name[n] != '.')
        return -1;
    *rest = name + n + 1;
    return blk;
}

static int find_tensor(const sky_model_params *p, const char *name, tensor *found)
{
    *found = first_tensor(p);
    const char *last;
    const int blk = block_in(name, &last);
    for (found->row = 0; found->row < found->arch->n_tensors; found->row++) {
        const tensor_level level = row_of(found)->level;
        found->block = level == DECISION_BLOCK ? blk - p->n_layers : level == ENCODER_LAYER ? blk : 0;
        if (strcmp(row_of(found)->name, level == WHOLE_MODEL ? name : last) != 0 || found->block < row_of(found)->first_layer
            || found->block >= level_blocks(found, level))
            continue;
        char whole[NAME_BYTES];
        name_of(found, whole);
        return strcmp(whole, name) == 0;
    }
    return 0;
}

int sky_tensors(const sky_model_params *params, sky_tensor *tensors, int most)
{
    char fault[128];
    if (sky_check_sizes(params, fault, sizeof fault) != SKY_OK)
        return 0;
    int n = 0;
    tensor t = first_tensor(params);
    do {
        if (n < most) {
            name_of(&t, tensors[n].name);
            tensors[n].n_dims = row_of(&t)->rows == ONE && row_of(&t)->form == COPIED ? 1 : 2;
            tensors[n].rows = n_rows(&t);
            tensors[n].cols = n_cols(&t);
        }
        n++;
    } while (next_tensor(&t));
    return n;
}

/* ---- where tensors live ---- */

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

static void carve_panels(const sky_model *m, sky_carver *c, sky_linear *w, int64_t rows, int64_t cols, int gated)
{
    w->n = (int)rows;
    w->k = (int)cols;
    w->gated = gated;
    w->panels = sky_carve_bytes(c, sky_n_panels(&m->kernels, w), sky_panel_bytes(&m->kernels, w));
}

static size_t lay_out(sky_model *m, char *base)
{
    const sky_model_params *p = &m->params;
    const size_t d = p->d_model;
    sky_carver c = {base, 0};
    tensor t = first_tensor(p);
    do {
        const tensor_row *row = row_of(&t);
        void *place = member(m, &t, row->place), *rest = row->rest ? member(m, &t, row->rest) : NULL;
        if (row->form == COPIED) {
            float *values = sky_carve(&c, n_rows(&t), n_cols(&t));
            *(float **)place = values;
            if (rest)
                *(float **)rest = values ? values + d : NULL;
        } else {
            carve_panels(m, &c, place, rest ? (int64_t)d : n_rows(&t), n_cols(&t), row->form == GATED);
            if (rest)
                carve_panels(m, &c, rest, n_rows(&t) - (int64_t)d, n_cols(&t), 0);
        }
    } while (next_tensor(&t));
    if (p->qkv_table_bytes / sizeof(float) / 3 / d >= (size_t)p->n_vocab)
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
    return m->n_set + (size_t)(block_number(t) + 1) * t->arch->n_tensors + t->row;
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

static int is_limited(const char *what, int32_t value, int32_t low, int32_t high, char *fault, size_t n)
{
    if (value < low || value > high)
        snprintf(fault, n, "%s: expected %d to %d, got %d", what, low, high, value);
    return value >= low && value <= high;
}

sky_status sky_check_sizes(const sky_model_params *p, char *fault, size_t n)
{
    return is_limited("architecture", (int32_t)p->architecture, 0, SKY_N_ARCHITECTURES - 1, fault, n)
                && is_limited("d_model", p->d_model, 2, SKY_MAX_D_MODEL, fault, n)
                && is_limited("d_ff", p->d_ff, 1, SKY_MAX_D_FF, fault, n)
                && is_limited("n_vocab", p->n_vocab, 1, SKY_MAX_VOCAB, fault, n)
                && is_limited("n_layers", p->n_layers, 1, SKY_MAX_BLOCKS, fault, n)
                && is_limited("n_decision_blocks", p->n_decision_blocks, architectures[p->architecture].least_blocks, SKY_MAX_BLOCKS,
                              fault, n)
            ? SKY_OK
            : SKY_ERR_ARGUMENT;
}

static sky_status check_params(sky_model *m)
{
    const sky_model_params *p = &m->params;
    char fault[128];
    if (sky_check_sizes(p, fault, sizeof fault) != SKY_OK
        || !is_limited("n_heads", p->n_heads, 1, p->d_model, fault, sizeof fault)
        || !is_limited("n_decision_heads", p->n_decision_heads, 1, p->d_model, fault, sizeof fault)
        || !is_limited("window", p->window, 0, SKY_MAX_WINDOW, fault, sizeof fault)
        || !is_limited("max_positions", p->max_positions, 1, SKY_MAX_POSITIONS, fault, sizeof fault)
        || !is_limited("activation", (int32_t)p->activation, 0, SKY_N_ACTIVATIONS - 1, fault, sizeof fault)
        || !is_limited("option_layout", (int32_t)p->option_layout, 0, SKY_N_OPTION_LAYOUTS - 1, fault, sizeof fault))
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
    if (!p->layer_is_global)
        return fail(m, SKY_ERR_ARGUMENT, "layer_is_global: missing");
    return SKY_OK;
}

/* ---- create, set, freeze ---- */

sky_status sky_model_create(const sky_model_params *params, sky_model **model)
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

    m->layers = sky_alloc((size_t)params->n_layers * sizeof *m->layers);
    m->blocks = sky_alloc((size_t)(params->n_decision_blocks + 1) * sizeof *m->blocks);
    m->n_set = sky_alloc((size_t)(n_blocks(m) + 1) * architectures[params->architecture].n_tensors * sizeof *m->n_set);
    if (SKY_MAX_THREADS > 1)
        m->pool = sky_pool_create(params->n_cpus > 0 ? params->n_cpus : sky_cpu_count());
    if (!m->layers || !m->blocks || !m->n_set || (SKY_MAX_THREADS > 1 && !m->pool))
        return fail(m, SKY_ERR_MEMORY, "out of memory");
    m->arena_bytes = lay_out(m, NULL);
    m->arena = sky_alloc(m->arena_bytes);
    if (!m->arena)
        return fail(m, SKY_ERR_MEMORY, "out of memory: the packed weights take %zu bytes", m->arena_bytes);
    lay_out(m, m->arena);
    for (int i = 0; i < params->n_layers; i++)
        m->layers[i].is_global = params->layer_is_global[i];
    m->params.layer_is_global = NULL;
    m->params.isa = NULL;
    const sky_float_mode before = sky_float_mode_enter();
    fill_rope(m, &m->rope_global, params->rope_base_global);
    fill_rope(m, &m->rope_local, params->rope_base_local);
    sky_float_mode_leave(before);
    m->state = SKY_STATE_OPEN;
    return SKY_OK;
}

/* rows [first_row, first_row + rows) of a tensor = data; false where a value is NaN or infinite, which are written, too */
static int store_rows(const sky_model *m, const tensor *t, sky_dtype dtype, int64_t first_row, int64_t rows, const void *data)
{
    const tensor_row *row = row_of(t);
    const int64_t cols = n_cols(t);
    void *place = member(m, t, row->place);
    int finite = 1;
    if (row->form == COPIED)
        for (int64_t i = 0; i < rows; i++)
            finite &= sky_read_floats(&m->kernels, dtype, data, (size_t)(i * cols), (int)cols,
                                      *(float **)place + (first_row + i) * cols);
    else {
        finite = sky_pack(&m->kernels, place, dtype, data, 0);
        if (row->rest)
            finite &= sky_pack(&m->kernels, member(m, t, row->rest), dtype, data, ((sky_linear *)place)->n);
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
    if (m->state == SKY_STATE_FROZEN)
        return fail(m, SKY_ERR_STATE, "%.100s: the model is frozen", name);
    if (!find_tensor(&m->params, name, &t))
        return fail(m, SKY_ERR_ARGUMENT, "%.100s: no such tensor", name);
    if (dtype != SKY_DTYPE_F32 && dtype != SKY_DTYPE_F16 && dtype != SKY_DTYPE_BF16)
        return fail(m, SKY_ERR_ARGUMENT, "%.100s: unknown data type %d", name, (int)dtype);
    int64_t *n_set = rows_set(m, &t);
    if (is_part && row_of(&t)->rows != N_VOCAB)
        return fail(m, SKY_ERR_ARGUMENT, "%.100s: is not set in parts", name);
    if (is_part && first_row != 0 && first_row != *n_set)
        return fail(m, SKY_ERR_STATE, "%.100s: expected row %lld next, got %lld", name, (long long)*n_set, (long long)first_row);
    if ((is_part ? rows < 1 || rows > n_rows(&t) - first_row : rows != n_rows(&t)) || cols != n_cols(&t))
        return fail(m, SKY_ERR_SHAPE, "%.100s: expected [%lld, %lld], got [%lld, %lld]", name,
                    (long long)(n_rows(&t) - first_row), (long long)n_cols(&t), (long long)rows, (long long)cols);
    *n_set = 0; /* from here on what was there is overwritten */
    if (!store_rows(m, &t, dtype, first_row, rows, data))
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
static SKY_NOINLINE void tabulate_tokens(sky_model *m)
{
    if (!m->qkv_table)
        return;
    const int n = m->params.n_vocab, d = m->params.d_model;
    const sky_matrix embd = {m->token_embd, d, n, d};
    const sky_norm norm = {embd, m->token_embd_norm.weight, NULL, m->params.norm_eps, embd};
    m->kernels.layer_norm(&norm);
    const sky_linear *w = &m->layers[0].attn_qkv;
    const sky_gemm g = {.a = embd, .panels = w->panels, .c = {m->qkv_table, w->n, n, w->n}, .epilogue = SKY_EPILOGUE_LINEAR};
    m->kernels.gemm[w->type](&g, 0, sky_n_panels(&m->kernels, w));
}

sky_status sky_model_freeze(sky_model *m)
{
    if (!m || m->state == SKY_STATE_FAILED)
        return SKY_ERR_STATE;
    if (m->state == SKY_STATE_FROZEN)
        return SKY_OK;
    tensor t = first_tensor(&m->params);
    do {
        char name[NAME_BYTES];
        name_of(&t, name);
        if (*rows_set(m, &t) != n_rows(&t))
            return fail(m, SKY_ERR_STATE, "%s: missing", name);
    } while (next_tensor(&t));
    const sky_float_mode before = sky_float_mode_enter();
    tabulate_tokens(m);
    sky_float_mode_leave(before);
    m->state = SKY_STATE_FROZEN;
    return SKY_OK;
}

const char *sky_model_isa(const sky_model *m) { return m && m->kernels.isa ? m->kernels.isa : ""; }

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
