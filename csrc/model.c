/* A model's tensors: where each lives in the arena, by what name it is set, and how matrices are packed into panels. */
#include "internal.h"
#include "kernels/compiler.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

/* ---- memory ---- */

void *sky_alloc(size_t bytes)
{
    /* Arenas ask for huge pages. With small ones a product's rows lie on more pages than the TLB has entries, and a quarter
     * of a large model's time goes there (benchmarks/LOG.md). */
    const size_t huge_page = (size_t)2 << 20, align = bytes >= huge_page / 8 ? huge_page : SKY_ALIGN;
    if (bytes > SIZE_MAX - 2 * align - sizeof(void *))
        return NULL;
    bytes = (bytes + align - 1) / align * align;
    char *raw = calloc(1, bytes + align + sizeof(void *)); /* calloc: large zeroed pages cost nothing until touched */
    if (!raw)
        return NULL;
    char *start = raw + sizeof(void *);
    start += (align - (uintptr_t)start % align) % align;
    ((void **)start)[-1] = raw;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (align > SKY_ALIGN)
        (void)madvise(start, bytes, MADV_HUGEPAGE);
#endif
    return start;
}

void sky_release(void *memory)
{
    if (memory)
        free(((void **)memory)[-1]);
}

/* ---- errors ---- */

static sky_status fail(sky_model *m, sky_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    while (SKY_TEST_AND_SET(&m->error_lock))
        ;
    vsnprintf(m->error, sizeof m->error, format, args);
    SKY_CLEAR(&m->error_lock);
    va_end(args);
    return status;
}

/* ---- layout ---- */

static int n_panels(int panel_cols, const sky_linear *w) { return (w->n + panel_cols - 1) / panel_cols; }

static void carve_linear(const sky_model *m, sky_carver *c, sky_linear *w, int n, int k, int gated, int has_bias)
{
    *w = (sky_linear){.n = n, .k = k, .gated = gated};
    w->panels = sky_carve(c, (size_t)n_panels(m->kernels.panel_cols, w) * m->kernels.panel_cols, k);
    w->bias = has_bias ? sky_carve(c, 1, n) : NULL;
}

static void carve_norm(sky_carver *c, sky_norm_weights *norm, int d, int has_bias)
{
    norm->weight = sky_carve(c, 1, d);
    norm->bias = has_bias ? sky_carve(c, 1, d) : NULL;
}

static size_t lay_out(sky_model *m, char *base)
{
    const sky_model_params *p = &m->params;
    const int d = p->d_model;
    sky_carver c = {base, 0};
    m->token_embd = sky_carve(&c, p->n_vocab, d);
    if (p->qkv_table_bytes / sizeof(float) / 3 / d >= (size_t)p->n_vocab)
        m->qkv_table = sky_carve(&c, p->n_vocab, 3 * (size_t)d);
    carve_norm(&c, &m->token_embd_norm, d, 0);
    for (int i = 0; i < p->n_layers; i++) {
        sky_layer *l = &m->layers[i];
        if (i > 0)
            carve_norm(&c, &l->attn_norm, d, 0);
        carve_linear(m, &c, &l->attn_qkv, 3 * d, d, 0, 0);
        carve_linear(m, &c, &l->attn_output, d, d, 0, 0);
        carve_norm(&c, &l->ffn_norm, d, 0);
        carve_linear(m, &c, &l->ffn_up, 2 * p->d_ff, d, 1, 0);
        carve_linear(m, &c, &l->ffn_down, d, p->d_ff, 0, 0);
    }
    carve_norm(&c, &m->output_norm, d, 0);
    m->token_types = sky_carve(&c, SKY_N_QUESTION_TYPES, d);
    for (int i = 0; i < p->n_decision_blocks; i++) {
        sky_block *b = &m->blocks[i];
        carve_norm(&c, &b->attn_norm, d, 1);
        carve_linear(m, &c, &b->attn_q, d, d, 0, 0);
        carve_linear(m, &c, &b->attn_kv, 2 * d, d, 0, 0);
        b->attn_q.bias = sky_carve(&c, 3, d); /* one vector in the file, so one here */
        b->attn_kv.bias = base ? b->attn_q.bias + d : NULL;
        carve_linear(m, &c, &b->attn_output, d, d, 0, 1);
        carve_norm(&c, &b->ffn_norm, d, 1);
        carve_linear(m, &c, &b->ffn_up, 4 * d, d, 0, 1);
        carve_linear(m, &c, &b->ffn_down, d, 4 * d, 0, 1);
    }
    carve_norm(&c, &m->cls_norm, d, 1);
    carve_linear(m, &c, &m->cls, d, d, 0, 1);
    carve_linear(m, &c, &m->cls_output, 1, d, 0, 1);
    sky_rope *ropes[] = {&m->rope_global, &m->rope_local};
    for (int i = 0; i < 2; i++) {
        ropes[i]->cos = sky_carve(&c, p->max_positions, d / p->n_heads / 2);
        ropes[i]->sin = sky_carve(&c, p->max_positions, d / p->n_heads / 2);
    }
    return c.used;
}

/* Rounded where transformers' ModernBERT rounds: float frequencies, float angles. */
static void fill_rope(const sky_model *m, sky_rope *rope, float base)
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

/* ---- names ---- */

/* Where a named tensor goes. A vector or table is copied; a matrix is packed, its first rows into `linear` and what is left
 * into `rest` where there is one. */
typedef struct {
    const char *name; /* without "blk.i." */
    int64_t rows, cols;
    float *copy;
    sky_linear *linear, *rest;
} tensor_slot;

enum { MAX_SLOTS = 12, MODEL_LEVEL = -1 }; /* slots of one block; the block number of tensors outside blocks */

static tensor_slot table_slot(const char *name, float *copy, int64_t rows, int64_t cols)
{
    return (tensor_slot){name, rows, cols, copy, NULL, NULL};
}

static tensor_slot matrix_slot(const char *name, sky_linear *linear, sky_linear *rest)
{
    return (tensor_slot){name, linear->n + (rest ? rest->n : 0), linear->k, NULL, linear, rest};
}

/* All tensors of block `blk`: an encoder layer, a head block after those, or MODEL_LEVEL. Returns how many. */
static int block_slots(sky_model *m, int blk, tensor_slot s[MAX_SLOTS])
{
    const int d = m->params.d_model;
    int n = 0;
    if (blk == MODEL_LEVEL) {
        s[n++] = table_slot("token_embd.weight", m->token_embd, m->params.n_vocab, d);
        s[n++] = table_slot("token_embd_norm.weight", m->token_embd_norm.weight, 1, d);
        s[n++] = table_slot("output_norm.weight", m->output_norm.weight, 1, d);
        s[n++] = table_slot("token_types.weight", m->token_types, SKY_N_QUESTION_TYPES, d);
        s[n++] = table_slot("cls.norm.weight", m->cls_norm.weight, 1, d);
        s[n++] = table_slot("cls.norm.bias", m->cls_norm.bias, 1, d);
        s[n++] = matrix_slot("cls.weight", &m->cls, NULL);
        s[n++] = table_slot("cls.bias", m->cls.bias, 1, d);
        s[n++] = matrix_slot("cls.output.weight", &m->cls_output, NULL);
        s[n++] = table_slot("cls.output.bias", m->cls_output.bias, 1, 1);
    } else if (blk < m->params.n_layers) {
        sky_layer *l = &m->layers[blk];
        if (blk > 0)
            s[n++] = table_slot("attn_norm.weight", l->attn_norm.weight, 1, d);
        s[n++] = matrix_slot("attn_qkv.weight", &l->attn_qkv, NULL);
        s[n++] = matrix_slot("attn_output.weight", &l->attn_output, NULL);
        s[n++] = table_slot("ffn_norm.weight", l->ffn_norm.weight, 1, d);
        s[n++] = matrix_slot("ffn_up.weight", &l->ffn_up, NULL);
        s[n++] = matrix_slot("ffn_down.weight", &l->ffn_down, NULL);
    } else {
        sky_block *b = &m->blocks[blk - m->params.n_layers];
        s[n++] = table_slot("attn_norm.weight", b->attn_norm.weight, 1, d);
        s[n++] = table_slot("attn_norm.bias", b->attn_norm.bias, 1, d);
        s[n++] = matrix_slot("attn_qkv.weight", &b->attn_q, &b->attn_kv);
        s[n++] = table_slot("attn_qkv.bias", b->attn_q.bias, 1, 3 * (int64_t)d);
        s[n++] = matrix_slot("attn_output.weight", &b->attn_output, NULL);
        s[n++] = table_slot("attn_output.bias", b->attn_output.bias, 1, d);
        s[n++] = table_slot("ffn_norm.weight", b->ffn_norm.weight, 1, d);
        s[n++] = table_slot("ffn_norm.bias", b->ffn_norm.bias, 1, d);
        s[n++] = matrix_slot("ffn_up.weight", &b->ffn_up, NULL);
        s[n++] = table_slot("ffn_up.bias", b->ffn_up.bias, 1, 4 * (int64_t)d);
        s[n++] = matrix_slot("ffn_down.weight", &b->ffn_down, NULL);
        s[n++] = table_slot("ffn_down.bias", b->ffn_down.bias, 1, d);
    }
    return n;
}

static int n_blocks(const sky_model *m) { return m->params.n_layers + m->params.n_decision_blocks; }

static int64_t *rows_set(sky_model *m, int blk, int slot) { return m->n_set + (size_t)(blk + 1) * MAX_SLOTS + slot; }

static int find_slot(sky_model *m, const char *name, tensor_slot *found, int64_t **n_set)
{
    int blk = MODEL_LEVEL, length = 0;
    if (sscanf(name, "blk.%9d.%n", &blk, &length) >= 1 && length > 0 && blk >= 0 && blk < n_blocks(m))
        name += length;
    else
        blk = MODEL_LEVEL;
    tensor_slot slots[MAX_SLOTS];
    const int n = block_slots(m, blk, slots);
    for (int i = 0; i < n; i++)
        if (strcmp(slots[i].name, name) == 0) {
            *found = slots[i];
            *n_set = rows_set(m, blk, i);
            return 1;
        }
    return 0;
}

/* ---- packing ---- */

static float from_bf16(uint16_t h)
{
    const uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* out [n] = the n elements of data from `first` on, as floats; false where one is NaN or infinite */
static int read_floats(const sky_kernels *kernels, const void *data, sky_dtype dtype, size_t first, int n, float *out)
{
    const uint16_t *half = (const uint16_t *)data + first;
    if (dtype == SKY_DTYPE_F32)
        memcpy(out, (const float *)data + first, (size_t)n * sizeof(float));
    else if (dtype == SKY_DTYPE_F16)
        kernels->widen_f16(half, n, out);
    else
        for (int i = 0; i < n; i++)
            out[i] = from_bf16(half[i]);
    float worst = 0.0f; /* x - x is 0 for every number, and NaN for what is none; a sum of those stays NaN */
    for (int i = 0; i < n; i++)
        worst += out[i] - out[i];
    return worst == 0.0f;
}

/* The row of w that stands in column `col` of panel `panel`, or -1 for padding. */
static int panel_row(const sky_linear *w, int panel_cols, int panel, int col)
{
    const int half = panel_cols / 2;
    int row;
    if (!w->gated) {
        row = panel * panel_cols + col;
        return row < w->n ? row : -1;
    }
    row = panel * half + col % half;
    if (row >= w->n / 2)
        return -1;
    return col < half ? row : row + w->n / 2;
}

int sky_pack(const sky_kernels *kernels, sky_linear *w, sky_dtype dtype, const void *data, int first_row)
{
    enum { K_BLOCK = 128 }; /* rows of a panel by this many columns stay in the L1 cache */
    const int cols = kernels->panel_cols;
    int finite = 1;
    for (int panel = 0; panel < n_panels(cols, w); panel++)
        for (int k0 = 0; k0 < w->k; k0 += K_BLOCK) {
            const int count = w->k - k0 < K_BLOCK ? w->k - k0 : K_BLOCK;
            float rows[SKY_MAX_PANEL_COLS * K_BLOCK];
            for (int col = 0; col < cols; col++) {
                const int row = panel_row(w, cols, panel, col);
                float *out = rows + col * K_BLOCK;
                if (row < 0)
                    memset(out, 0, (size_t)count * sizeof *out);
                else
                    finite &= read_floats(kernels, data, dtype, (size_t)(first_row + row) * w->k + k0, count, out);
            }
            kernels->pack_panel(rows, K_BLOCK, count, w->panels + ((size_t)panel * w->k + k0) * cols);
        }
    return finite;
}

/* ---- public ---- */

static sky_status check_params(sky_model *m)
{
    const sky_model_params *p = &m->params;
    const struct {
        const char *name;
        int32_t value, low, high;
    } limits[] = {
        {"d_model", p->d_model, 2, 1 << 16},
        {"d_ff", p->d_ff, 1, 1 << 20},
        {"n_vocab", p->n_vocab, 1, 1 << 24},
        {"n_layers", p->n_layers, 1, 1024},
        {"n_heads", p->n_heads, 1, p->d_model},
        {"n_decision_blocks", p->n_decision_blocks, 0, 1024},
        {"n_decision_heads", p->n_decision_heads, 1, p->d_model},
        {"window", p->window, 0, 1 << 24},
        {"max_positions", p->max_positions, 1, 1 << 20},
        {"activation", (int32_t)p->activation, SKY_ACT_GELU, SKY_ACT_SILU},
    };
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        if (limits[i].value < limits[i].low || limits[i].value > limits[i].high)
            return fail(m, SKY_ERR_ARGUMENT, "%s: expected %d to %d, got %d", limits[i].name, limits[i].low,
                        limits[i].high, limits[i].value);
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

sky_status sky_model_create(const sky_model_params *params, sky_model **model)
{
    sky_model *m = sky_alloc(sizeof *m);
    *model = m;
    if (!m)
        return SKY_ERR_MEMORY;
    m->params = *params;
    const sky_status status = check_params(m);
    if (status != SKY_OK)
        return status;
    if (sky_kernels_select(params->isa, &m->kernels) != SKY_OK)
        return fail(m, SKY_ERR_ISA, "instruction set \"%.40s\" is not one that this build and CPU can run",
                    params->isa ? params->isa : "");

    m->layers = sky_alloc((size_t)params->n_layers * sizeof *m->layers);
    m->blocks = sky_alloc((size_t)(params->n_decision_blocks + 1) * sizeof *m->blocks);
    m->n_set = sky_alloc((size_t)(n_blocks(m) + 1) * MAX_SLOTS * sizeof *m->n_set);
    if (!m->layers || !m->blocks || !m->n_set)
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
    fill_rope(m, &m->rope_global, params->rope_base_global);
    fill_rope(m, &m->rope_local, params->rope_base_local);
    return SKY_OK;
}

/* Sets rows first_row .. first_row + rows - 1 of a tensor; `is_part` where they need not be all of them. */
static sky_status set_rows(sky_model *m, const char *name, sky_dtype dtype, int64_t first_row, int64_t rows, int64_t cols,
                           const void *data, int is_part)
{
    tensor_slot slot;
    int64_t *n_set;
    if (m->frozen)
        return fail(m, SKY_ERR_STATE, "%.100s: the model is frozen", name);
    if (!find_slot(m, name, &slot, &n_set))
        return fail(m, SKY_ERR_ARGUMENT, "%.100s: no such tensor", name);
    if (dtype != SKY_DTYPE_F32 && dtype != SKY_DTYPE_F16 && dtype != SKY_DTYPE_BF16)
        return fail(m, SKY_ERR_ARGUMENT, "%.100s: unknown data type %d", name, (int)dtype);
    if (is_part && slot.copy != m->token_embd)
        return fail(m, SKY_ERR_ARGUMENT, "%.100s: is not set in parts", name);
    if (is_part && first_row != 0 && first_row != *n_set)
        return fail(m, SKY_ERR_STATE, "%.100s: expected row %lld next, got %lld", name, (long long)*n_set, (long long)first_row);
    if ((is_part ? rows < 1 || rows > slot.rows - first_row : rows != slot.rows) || cols != slot.cols)
        return fail(m, SKY_ERR_SHAPE, "%.100s: expected [%lld, %lld], got [%lld, %lld]", name,
                    (long long)(slot.rows - first_row), (long long)slot.cols, (long long)rows, (long long)cols);
    int finite = 1;
    if (slot.copy)
        for (int64_t row = 0; row < rows; row++)
            finite &= read_floats(&m->kernels, data, dtype, (size_t)(row * cols), (int)cols,
                                  slot.copy + (first_row + row) * cols);
    else {
        finite = sky_pack(&m->kernels, slot.linear, dtype, data, 0);
        if (slot.rest)
            finite &= sky_pack(&m->kernels, slot.rest, dtype, data, slot.linear->n);
    }
    if (!finite)
        return fail(m, SKY_ERR_ARGUMENT, "%.100s: holds a NaN or infinite value", name);
    *n_set = first_row + rows;
    return SKY_OK;
}

sky_status sky_model_set(sky_model *m, const char *name, sky_dtype dtype, int64_t rows, int64_t cols, const void *data)
{
    return set_rows(m, name, dtype, 0, rows, cols, data, 0);
}

sky_status sky_model_set_rows(sky_model *m, const char *name, sky_dtype dtype, int64_t first_row, int64_t rows, int64_t cols,
                              const void *data)
{
    return set_rows(m, name, dtype, first_row, rows, cols, data, 1);
}

/* Layer 0's input depends on the token id alone: where there is room for the table, norm and multiply every id's row now. By
 * the kernels of a forward pass, so the bits are those that it would compute. */
static void tabulate_tokens(sky_model *m)
{
    if (!m->qkv_table)
        return;
    const int n = m->params.n_vocab, d = m->params.d_model;
    const sky_norm norm = {n, d, m->token_embd, d, m->token_embd_norm.weight, NULL, m->params.norm_eps, m->token_embd, d};
    m->kernels.layer_norm(&norm);
    const sky_linear *w = &m->layers[0].attn_qkv;
    const sky_gemm g = {.m = n, .n = w->n, .k = d, .a = m->token_embd, .lda = d, .panels = w->panels,
                        .c = m->qkv_table, .ldc = w->n, .epilogue = SKY_EPILOGUE_LINEAR};
    m->kernels.gemm_f32(&g, 0, n_panels(m->kernels.panel_cols, w));
}

sky_status sky_model_freeze(sky_model *m)
{
    if (m->frozen)
        return SKY_OK;
    for (int blk = MODEL_LEVEL; blk < n_blocks(m); blk++) {
        tensor_slot slots[MAX_SLOTS];
        const int n = block_slots(m, blk, slots);
        for (int i = 0; i < n; i++)
            if (*rows_set(m, blk, i) != slots[i].rows)
                return blk == MODEL_LEVEL ? fail(m, SKY_ERR_STATE, "%s: missing", slots[i].name)
                                          : fail(m, SKY_ERR_STATE, "blk.%d.%s: missing", blk, slots[i].name);
    }
    tabulate_tokens(m);
    m->frozen = 1;
    return SKY_OK;
}

const char *sky_model_error(const sky_model *m) { return m->error; }

const char *sky_model_isa(const sky_model *m) { return m->kernels.isa; }

size_t sky_model_bytes(const sky_model *m) { return m->arena_bytes; }

void sky_model_free(sky_model *m)
{
    if (!m)
        return;
    sky_release(m->arena);
    sky_release(m->layers);
    sky_release(m->blocks);
    sky_release(m->n_set);
    sky_release(m);
}
