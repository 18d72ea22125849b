/* A model's tensors: one table that says for each its name, its shape, where it lives and how it is kept. Everything else about
 * tensors, here, in model.c and in Python (sky_tensors), is read from that table. */
#include "tensors.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* ---- the table ---- */

#define MODEL(member) offsetof(sky_model, member)
#define LAYER(member) offsetof(sky_layer, member)
#define BLOCK(member) offsetof(sky_block, member)

/* In the order of the forward pass; rows of one level that follow each other are repeated together for each layer or block. */
#define ENCODER_TENSORS \
    {WHOLE_MODEL, "token_embd.weight", LOOKED_UP, 1, N_VOCAB, 1, D, MODEL(token_embd), 0, 0}, \
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

static const architecture architectures[SKY_N_ARCHITECTURES] = {
    [SKY_ARCH_S1] = {s1_tensors, sizeof s1_tensors / sizeof s1_tensors[0], 0},
    [SKY_ARCH_S2] = {s2_tensors, sizeof s2_tensors / sizeof s2_tensors[0], 1},
};

/* ---- walking over it ---- */

tensor sky_first_tensor(const sky_model_params *p) { return (tensor){p, &architectures[p->architecture], 0, 0}; }

static int level_blocks(const tensor *t, tensor_level level)
{
    return level == WHOLE_MODEL ? 1 : level == ENCODER_LAYER ? t->params->n_layers : t->params->n_decision_blocks;
}

int sky_next_tensor(tensor *t)
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

static int64_t size_of(const sky_model_params *p, int count, tensor_size size)
{
    const int64_t sizes[] = {[ONE] = 1, [D] = p->d_model, [D_FF] = p->d_ff, [N_VOCAB] = p->n_vocab,
                             [N_TYPES] = SKY_N_QUESTION_TYPES};
    return count * sizes[size];
}

int64_t sky_tensor_rows(const tensor *t) { return size_of(t->params, row_of(t)->row_count, row_of(t)->rows); }

int64_t sky_tensor_cols(const tensor *t) { return size_of(t->params, row_of(t)->col_count, row_of(t)->cols); }

int sky_tensor_block(const tensor *t)
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

void sky_tensor_name(const tensor *t, char name[NAME_BYTES])
{
    if (sky_tensor_block(t) < 0)
        snprintf(name, NAME_BYTES, "%s", row_of(t)->name);
    else
        snprintf(name, NAME_BYTES, "blk.%d.%s", sky_tensor_block(t), row_of(t)->name);
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

int sky_find_tensor(const sky_model_params *p, const char *name, tensor *found)
{
    *found = sky_first_tensor(p);
    const char *last;
    const int blk = block_in(name, &last);
    for (found->row = 0; found->row < found->arch->n_tensors; found->row++) {
        const tensor_level level = row_of(found)->level;
        found->block = level == DECISION_BLOCK ? blk - p->n_layers : level == ENCODER_LAYER ? blk : 0;
        if (strcmp(row_of(found)->name, level == WHOLE_MODEL ? name : last) != 0 || found->block < row_of(found)->first_layer
            || found->block >= level_blocks(found, level))
            continue;
        char whole[NAME_BYTES];
        sky_tensor_name(found, whole);
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
    tensor t = sky_first_tensor(params);
    do {
        if (n < most) {
            sky_tensor_name(&t, tensors[n].name);
            tensors[n].n_dims = row_of(&t)->rows == ONE && row_of(&t)->form == COPIED ? 1 : 2;
            tensors[n].rows = sky_tensor_rows(&t);
            tensors[n].cols = sky_tensor_cols(&t);
        }
        n++;
    } while (sky_next_tensor(&t));
    return n;
}

/* ---- limits ---- */

int sky_is_limited(const char *what, int32_t value, int32_t low, int32_t high, char *fault, size_t n)
{
    if (value < low || value > high)
        snprintf(fault, n, "%s: expected %d to %d, got %d", what, low, high, value);
    return value >= low && value <= high;
}

sky_status sky_check_sizes(const sky_model_params *p, char *fault, size_t n)
{
    return sky_is_limited("architecture", (int32_t)p->architecture, 0, SKY_N_ARCHITECTURES - 1, fault, n)
                && sky_is_limited("d_model", p->d_model, 2, SKY_MAX_D_MODEL, fault, n)
                && sky_is_limited("d_ff", p->d_ff, 1, SKY_MAX_D_FF, fault, n)
                && sky_is_limited("n_vocab", p->n_vocab, 1, SKY_MAX_VOCAB, fault, n)
                && sky_is_limited("n_layers", p->n_layers, 1, SKY_MAX_BLOCKS, fault, n)
                && sky_is_limited("n_decision_blocks", p->n_decision_blocks, architectures[p->architecture].least_blocks, SKY_MAX_BLOCKS,
                              fault, n)
            ? SKY_OK
            : SKY_ERR_ARGUMENT;
}
