/* What the files of the core share: the structs behind the public handles. */
#ifndef SKY_INTERNAL_H
#define SKY_INTERNAL_H

#include "kernels/kernels.h"
#include "skyinfer.h"

#define SKY_DECISION_NORM_EPS 1e-5f /* torch.nn.LayerNorm's default, which the decision head is trained with */

/* ---- instruction sets (cpu.c, dispatch.c) ---- */

/* What a CPU has and its operating system saves the registers of; a set is an OR of these. */
typedef enum {
    SKY_CPU_AVX2 = 1 << 0,        /* with FMA and F16C, which every CPU that has it has, too */
    SKY_CPU_AVX512 = 1 << 1,      /* F, DQ, BW and VL */
    SKY_CPU_AVX512_VNNI = 1 << 2, /* of zmm registers */
    SKY_CPU_AVX_VNNI = 1 << 3,    /* of ymm registers */
    SKY_CPU_NEON = 1 << 4,
    SKY_CPU_DOTPROD = 1 << 5,     /* of NEON */
} sky_cpu_feature;

/* The set of features of this CPU. */
unsigned sky_cpu_features(void);

/* How many CPUs the calling thread may run on, at least 1. */
int sky_cpu_count(void);

/* The table of the named set, or of the strongest for NULL. */
sky_status sky_kernels_select(const char *isa, sky_kernels *table);

/* ---- model (model.c) ---- */

typedef struct sky_pool sky_pool;

/* of a handle; only a model is ever measured, and a plan never frozen */
typedef enum { SKY_STATE_FAILED = 0, SKY_STATE_MEASURED, SKY_STATE_OPEN, SKY_STATE_FROZEN } sky_state;

/* A product's weights, [n, k] in the panels of kernels.h. */
typedef struct {
    sky_weight_type type;
    int n, k;
    int gated; /* n/2 up rows and n/2 gate rows, interleaved in half panels */
    void *panels; /* [sky_n_panels], sky_panel_bytes apart */
    float *bias; /* [n], or NULL where the model has none */
    float *factors; /* [k], of INT8_ROWS: see quantize_rows; looked at where has_factors */
    int has_factors;
} sky_linear;

/* Rows that are looked up, [n_vocab, d_model]. */
typedef struct {
    sky_weight_type type;
    void *rows;
} sky_embedding;

typedef struct {
    float *weight; /* [d_model] */
    float *bias;   /* [d_model] or NULL */
} sky_norm_weights;

typedef struct {
    int is_global;
    sky_norm_weights attn_norm; /* layer 0 has none: weight NULL */
    sky_linear attn_qkv;        /* [3 d, d]: q rows, then k, then v */
    sky_linear attn_output;     /* [d, d] */
    sky_norm_weights ffn_norm;
    sky_linear ffn_up;          /* [2 ff, d], gated */
    sky_linear ffn_down;        /* [d, ff] */
} sky_layer;

/* Queries apart from keys and values: in s1's last block only marker rows ask, and in s2 the state answers its options. */
typedef struct {
    sky_norm_weights cross_norm, cross_kv_norm; /* s2 only, as all of cross_: of the options, and of the state */
    sky_linear cross_q;      /* [d, d] */
    sky_linear cross_kv;     /* [2 d, d]: k rows, then v */
    sky_linear cross_output; /* [d, d] */
    sky_norm_weights attn_norm;
    sky_linear attn_q;      /* [d, d] */
    sky_linear attn_kv;     /* [2 d, d]: k rows, then v */
    sky_linear attn_output; /* [d, d] */
    sky_norm_weights ffn_norm;
    sky_linear ffn_up;      /* [4 d, d] */
    sky_linear ffn_down;    /* [d, 4 d] */
} sky_block;

typedef struct {
    float *cos, *sin; /* [max_positions, d_head / 2] */
} sky_rope;

/* SKY_OK, or which of the sizes that sky_tensors looks at is outside of its limits. */
sky_status sky_check_sizes(const sky_model_params *params, char *fault, size_t n_bytes);

struct sky_model {
    sky_model_params params; /* no pointer is kept: see layers, kernels, and the types of weights */
    sky_kernels kernels;
    sky_embedding token_embd; /* with a qkv_table normed already, in floats */
    sky_norm_weights token_embd_norm;
    float *qkv_table;  /* [n_vocab, 3 d]: layer 0's attn_qkv of every token id, or NULL where it would be too large */
    sky_layer *layers; /* [n_layers] */
    sky_norm_weights output_norm;
    float *token_types; /* [3, d] */
    sky_block *blocks;  /* [n_decision_blocks] */
    sky_norm_weights cls_norm;
    sky_linear cls;        /* [d, d] */
    sky_linear cls_output; /* [1, d] */
    sky_rope rope_global, rope_local;

    void *arena; /* all floats above */
    size_t arena_bytes;
    int64_t *n_set; /* rows set so far [n_layers + n_decision_blocks + 1, rows of the tensor table], see rows_set in model.c */
    sky_state state;
    sky_pool *pool; /* the threads of all its plans: all that changes after freeze */
    char error_lock; /* tensors are set from several threads, and more than one may fail */
    char error[256];
};

/* ---- threads (pool.c) ---- */

/* Multiply-adds from which a step is shared: some 100 microseconds of one core, several times what waking another takes. Each thread of it
 * has half as many at least. */
enum { SKY_SHARED_WORK = 4 << 20 };

/* Items [begin, end) of a step, on thread 0 (the caller) to n_threads - 1. */
typedef void sky_task(void *context, int thread, int begin, int end);

/* For steps that n_cpus threads compute at once, their callers included. NULL: out of memory. Starts no thread yet. */
sky_pool *sky_pool_create(int n_cpus);
void sky_pool_free(sky_pool *pool); /* after all passes */

/* Around each pass; gives how many are under way with it. In a process that was forked the first one makes the pool anew. */
int sky_pool_enter(sky_pool *pool);
void sky_pool_leave(sky_pool *pool);

/* How many of a pass's n_threads may compute now, beside the other passes that are under way. 1 to n_threads. */
int sky_pool_share(const sky_pool *pool, int n_threads);

/* Runs `task` over n_items in pieces of `chunk` and returns when all are done: on the caller's thread and on up to
 * n_threads - 1 workers, those that are idle and those that are started while fewer than most_threads - 1 run. Any number of
 * callers at once, between enter and leave. */
void sky_pool_run(sky_pool *pool, int n_threads, int most_threads, int n_items, int chunk, sky_task *task, void *context);

/* ---- plan (plan.c) ---- */

struct sky_plan {
    const sky_model *model;
    sky_state state;
    sky_plan_limits limits;
    /* strides are padded so that rows do not share a cache set */
    sky_matrix x;      /* [n_tokens, d]: the residual stream */
    sky_matrix normed; /* [n_tokens, d] */
    sky_matrix qkv;    /* [n_tokens, 3 d] */
    sky_matrix mixed;  /* [n_tokens, d]: attention's output, in the memory of normed, which no one needs by then */
    sky_matrix ff;     /* [n_tokens, max(d_ff, 4 d)], in the memory of qkv: a smaller pass leaves more of the caches to others */
    /* rows of markers, in s2 of options */
    sky_matrix marker_x, marker_normed, marker_q, marker_mixed; /* [n_markers, d] */
    sky_matrix marker_kv; /* [n_markers, 2 d], s2 only */
    sky_matrix marker_ff; /* [n_markers, 4 d] */
    int32_t *question_offsets; /* [n_sequences + 1], s2 only: see sky_pass */
    int32_t *token_ids, *token_offsets, *markers, *marker_offsets, *question_types, *prefix_tokens; /* what sky_run_asks lays out:
                                                                                                       see sky_batch */
    int32_t *positions, *options; /* [n_tokens] of the pass, where options are in parallel: see sky_attention */
    char *int8_rows;  /* [n_tokens, sky_int8_row_bytes of the longest row]: what enters a product of 8-bit weights; else NULL */
    float *scratch;   /* [limits.n_threads, scratch_stride]: sky_attention_scratch or sky_gemm_scratch for each thread */
    size_t scratch_stride;
    int most_threads; /* that the next runs may use */
    int n_threads;    /* its part of them when the run began */
    int64_t shared_work; /* multiply-adds from which a step is shared: SKY_SHARED_WORK, but in tests */

    void *arena;
    size_t arena_bytes;
    char claimed; /* by the thread that runs it */
    sky_trace_fn *trace;
    void *trace_context;
    char error[256];
};

sky_status sky_plan_fail(sky_plan *plan, sky_status status, const char *format, ...);

/* ---- forward (forward.c) ---- */

/* What is computed at once, known to be sound and within the plan's limits. */
typedef struct {
    sky_batch batch; /* s2: of states, without markers and types; rows marker_offsets[s] to marker_offsets[s + 1] ask state s */
    int32_t n_questions; /* s2 only, as what follows */
    const int32_t *question_offsets; /* [n_questions + 1]: the rows of each question, whose options see each other */
} sky_pass;

/* An architecture beside its tensors (model.c). */
typedef struct {
    int reads_state_once; /* the questions about a state share its sequence, and their options were made ready: sky_prepare */
    void (*compute)(const sky_plan *plan, const sky_pass *pass, float *logits);
} sky_architecture_row;

const sky_architecture_row *sky_architecture_of(const sky_model *model);

/* One raw score per marker. Where options were made ready, marker_x and marker_q hold theirs. */
sky_status sky_forward(sky_plan *plan, const sky_pass *pass, float *logits);

/* What depends on an option alone, for a batch of sequences of options: x [n_markers, d], the residual stream at its marker, and
 * q [n_markers, d], with which it asks a state in block 0. */
void sky_prepare(sky_plan *plan, const sky_batch *batch, sky_matrix x, sky_matrix q);

/* Whether options in parallel can lie so in a sequence: ascending, and in front of the separator that ends the prefix. */
static inline int sky_in_parallel(const int32_t *markers, int n_markers, int32_t prefix_tokens)
{
    for (int k = 0; k < n_markers; k++)
        if (markers[k] >= (k + 1 < n_markers ? markers[k + 1] : prefix_tokens - 1))
            return 0;
    return prefix_tokens > 0;
}

/* ---- questions (questions.c) ---- */

struct sky_questions {
    const sky_model *model;
    sky_state state;
    int32_t n, sep_id;
    int is_apart; /* options have sequences of their own: of s2 */
    int32_t *token_ids, *token_offsets, *markers, *marker_offsets; /* as in sky_question_list */
    int32_t *options; /* [as markers]: where a marker's probability goes among those of all questions */
    int32_t *question_types, *max_tokens;
    sky_matrix option_x, option_q; /* [number of markers, d], what sky_prepare gives; no rows where nothing is made ready */

    void *arena;
    size_t arena_bytes;
    char error[256];
};

/* What sky_answers says of one question, in double. */
typedef struct {
    int label;
    double value, confidence;
} sky_answer;

/* p [n]: its options' probabilities, in their order. */
sky_answer sky_answer_of(int type, const double *p, int n);

/* ---- packing (pack.c) ---- */

/* out [n] = the n weights of data from `first` on. */
void sky_widen(const sky_kernels *kernels, sky_weight_type type, const void *data, size_t first, int n, float *out);

/* 0 where one of n numbers is NaN or infinite. */
int sky_all_finite(sky_weight_type type, const void *data, size_t n);

static inline int sky_n_panels(const sky_kernels *kernels, const sky_linear *w)
{
    return (w->n + kernels->panel_cols - 1) / kernels->panel_cols;
}

/* Bytes of a row of k weights as a file holds them; of INT8, which are GGUF's Q8_0 there, k is a multiple of 32. */
static inline size_t sky_row_bytes(sky_weight_type type, int64_t k)
{
    return type == SKY_WEIGHT_F32    ? (size_t)k * sizeof(float)
           : type == SKY_WEIGHT_INT8 ? (size_t)k / SKY_INT8_BLOCK * (SKY_INT8_BLOCK + 2)
                                     : (size_t)k * sizeof(uint16_t);
}

/* Bytes from one panel of w to the next, as its type asks for. */
size_t sky_panel_bytes(const sky_kernels *kernels, const sky_linear *w);

/* data [.., k]: w takes its n rows from first_row on. They are of w's type, or w's is F32 or INT8_ROWS. 0 where a value is NaN or infinite. */
int sky_pack(const sky_kernels *kernels, sky_linear *w, sky_weight_type type, const void *data, int first_row);

/* The row of w that stands in column `col` of panel `panel`, or -1 for padding. */
int sky_panel_row(const sky_linear *w, int panel_cols, int panel, int col);

/* ---- 8-bit weights (pack_int8.c) ---- */

/* sky_pack into w of INT8 from that, or of INT8_ROWS from any type. */
int sky_pack_int8(const sky_kernels *kernels, sky_linear *w, sky_weight_type type, const void *data, int first_row);

/* out = n numbers of another type, a multiple of 32, as Q8_0. 0 where one is NaN or infinite, or too large for a scale in half precision. */
int sky_to_q8_0(const sky_kernels *kernels, sky_weight_type type, const void *data, size_t n, void *out);

/* 0 where a scale is NaN or infinite. */
int sky_q8_0_finite(const void *data, size_t n_blocks);

/* sky_widen of Q8_0 */
void sky_widen_q8_0(const sky_kernels *kernels, const void *data, size_t first, int n, float *out);

#if defined(SKY_WITHOUT_INT8) /* a build without pack_int8.c, whose kernels have no product of 8-bit weights; nothing calls these */
#define sky_pack_int8(kernels, w, type, data, first_row) 0
#define sky_to_q8_0(kernels, type, data, n, out) 0
#define sky_q8_0_finite(data, n_blocks) 0
#define sky_widen_q8_0(kernels, data, first, n, out) ((void)0)
#endif

/* ---- memory (memory.c) ---- */

void *sky_alloc(size_t bytes); /* SKY_ALIGN-ed; zeroed; NULL where there is none */
void sky_release(void *memory);

/* Hands out aligned pieces of an arena. With no base it only counts, so one function lays out and measures. A count that
 * would wrap stays at SIZE_MAX, which sky_alloc refuses. */
typedef struct {
    char *base;
    size_t used; /* bytes */
} sky_carver;

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
enum { SKY_RED_ZONE = 4 * SKY_ALIGN }; /* bytes behind each piece that must not be touched */
#define SKY_POISON(p, n) __asan_poison_memory_region((p), (n))
#else
enum { SKY_RED_ZONE = 0 };
#define SKY_POISON(p, n) ((void)(p))
#endif

static inline void *sky_carve_bytes(sky_carver *c, size_t n, size_t bytes_each)
{
    const size_t room = SIZE_MAX - c->used - 2 * SKY_ALIGN - SKY_RED_ZONE;
    if (c->used > SIZE_MAX / 2 || (bytes_each && n > room / bytes_each)) {
        c->used = SIZE_MAX;
        return NULL;
    }
    const size_t bytes = (n * bytes_each + SKY_ALIGN - 1) / SKY_ALIGN * SKY_ALIGN;
    char *piece = c->base ? c->base + c->used : NULL;
    if (piece)
        SKY_POISON(c->base + c->used + bytes, SKY_RED_ZONE);
    c->used += bytes + SKY_RED_ZONE;
    return piece;
}

static inline float *sky_carve(sky_carver *c, size_t rows, size_t cols)
{
    return sky_carve_bytes(c, rows, cols > SIZE_MAX / sizeof(float) ? SIZE_MAX : cols * sizeof(float));
}

static inline int32_t *sky_carve_ints(sky_carver *c, size_t n) { return sky_carve_bytes(c, n, sizeof(int32_t)); }

#endif
