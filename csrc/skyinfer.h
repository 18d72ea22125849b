/* skyinfer: System One decision models on a CPU. The whole public C API.
 *
 * Purpose   Token ids, marker positions and question types in; one raw score per option out. Text, files and
 *           probabilities belong to the caller (src/skyinfer).
 * Shape     A sky_model holds packed weights and never changes after sky_model_freeze, so any number of threads may
 *           read it. A sky_plan holds every byte that a forward pass writes; one thread at a time may run it.
 * Source    ModernBERT (Warner et al. 2024) with the Laya decision head, as told in csrc/README.md.
 *
 * What can fail returns a status. The message of the last failure lives in the handle and says where
 * ("blk.7.attn_qkv.weight: expected [192, 64], got [64, 192]"). A handle whose creation failed answers
 * SKY_ERR_STATE to everything but its error and free. Nothing here aborts, prints or reads the environment.
 */
#ifndef SKYINFER_H
#define SKYINFER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    SKY_OK = 0,
    SKY_ERR_ARGUMENT, /* a value outside its range, or an unknown tensor name */
    SKY_ERR_SHAPE,    /* a tensor of another shape than the model's sizes ask for */
    SKY_ERR_STATE,    /* called out of order (a tensor set after freeze, a run before it), or on a handle that failed */
    SKY_ERR_ISA,      /* an instruction set that is unknown, not built in, or not in this CPU */
    SKY_ERR_CAPACITY, /* a batch larger than the plan's limits */
    SKY_ERR_MEMORY    /* out of memory */
} sky_status;

/* Of the encoder's gated feed-forward part, as transformers' and torch's functions of these names compute them. */
typedef enum {
    SKY_ACT_GELU = 0,     /* x Phi(x), the exact one */
    SKY_ACT_SILU,         /* x sigmoid(x) */
    SKY_ACT_GELU_TANH,    /* x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
    SKY_ACT_GELU_QUICK,   /* x sigmoid(1.702 x) */
    SKY_ACT_GELU_CLIPPED, /* the exact GELU, within [-10, 10] */
    SKY_ACT_RELU,         /* max(x, 0) */
    SKY_ACT_RELU_SQUARED, /* max(x, 0)^2 */
    SKY_ACT_RELU6,        /* max(x, 0), at most 6 */
    SKY_ACT_RELU_LEAKY,   /* x, 0.01 x below 0 */
    SKY_ACT_TANH,
    SKY_ACT_SIGMOID,
    SKY_ACT_LINEAR,       /* x */
    SKY_ACT_HARDSWISH,    /* x (max(x + 3, 0), at most 6) / 6 */
    SKY_ACT_MISH,         /* x tanh(log(1 + e^x)) */
    SKY_N_ACTIVATIONS
} sky_activation;

typedef enum { SKY_QUESTION_CHOICE = 0, SKY_QUESTION_SCORE, SKY_QUESTION_NOUL, SKY_N_QUESTION_TYPES } sky_question_type;

/* s1 puts question, options and state into one sequence. s2 encodes the state once for all questions, and the options of a
 * question beforehand, as a set: their order does not matter. */
typedef enum { SKY_ARCH_S1 = 0, SKY_ARCH_S2, SKY_N_ARCHITECTURES } sky_architecture;

/* In parallel all options of a question begin at the same position, none sees another, and the encoder's windows count
 * positions; what follows them goes on behind the longest. So the order of options does not matter. */
typedef enum { SKY_OPTIONS_SEQUENTIAL = 0, SKY_OPTIONS_PARALLEL, SKY_N_OPTION_LAYOUTS } sky_option_layout;

typedef enum { SKY_DTYPE_F32 = 0, SKY_DTYPE_F16, SKY_DTYPE_BF16, SKY_DTYPE_Q8_0 } sky_dtype;

/* Exact: the numbers of the file, and sums in float. 8 bits: the matrices of layers and blocks as whole numbers of 8 bits, with a scale
 * for each 32 where they are set in Q8_0 and else one for each row, and activations rounded for each token by itself; an embedding of more
 * than 32 MB in its own type as Q8_0 (csrc/README.md). All else is as in the exact one. */
typedef enum { SKY_PRECISION_EXACT = 0, SKY_PRECISION_INT8, SKY_N_PRECISIONS } sky_precision;

/* ---- instruction sets ------------------------------------------------------------------------------------------ */

/* Names of the instruction sets that were built in, weakest first: "portable", "avx2", ...; NULL past the end. */
const char *sky_isa_name(int index);

/* 1 where this CPU and its operating system can run the named set, 0 where they cannot or it is not built in. */
int sky_isa_supported(const char *name);

/* ---- model ----------------------------------------------------------------------------------------------------- */

typedef struct sky_model sky_model;

/* The largest sizes; all but the last two are those of the fields of like names. */
#define SKY_MAX_D_MODEL (1 << 16)
#define SKY_MAX_D_FF (1 << 20)
#define SKY_MAX_VOCAB (1 << 24)
#define SKY_MAX_WINDOW (1 << 24)
#define SKY_MAX_POSITIONS (1 << 20)
#define SKY_MAX_BLOCKS 1024 /* encoder layers, and decision blocks */
#define SKY_MAX_D_HEAD 512  /* of one attention head */

typedef struct {
    sky_architecture architecture;
    int32_t d_model;      /* hidden size */
    int32_t d_ff;         /* width of one half of the encoder's gated feed-forward part */
    int32_t n_vocab;
    int32_t n_layers;     /* encoder layers */
    int32_t n_heads;      /* of the encoder; divides d_model, and d_model / n_heads is even */
    int32_t n_decision_blocks; /* blocks of the decision head; may be 0 in s1 */
    int32_t n_decision_heads; /* attention heads of a decision head block; divides d_model */
    int32_t window;       /* tokens that a local layer sees on each side */
    int32_t max_positions; /* longest sequence that will ever be run: the size of the rope tables */
    float norm_eps;       /* of the encoder's norms; the head's is 1e-5 */
    float rope_base_global, rope_base_local;
    sky_activation activation;
    sky_option_layout option_layout;
    sky_precision precision;
    const uint8_t *layer_is_global; /* [n_layers]: 1 full attention, 0 the window */
    const sky_dtype *dtypes; /* [sky_tensors]: what each will be set in, in their order; NULL: all in F32. Q8_0 only where rows are whole
                                blocks of 32. Matrices and embedding are kept in it, but in 8-bit precision as above, and in the exact
                                one matrices of Q8_0 in F32 */
    size_t widened_bytes; /* matrices of products that are no larger than this in F32, all together, are kept in F32 all the same */
    size_t qkv_table_bytes; /* keep layer 0's q, k and v of every token id if they fit in this many bytes; 0: never */
    const char *isa;      /* NULL: the strongest that this CPU runs */
    int32_t n_cpus;       /* threads of all its runs that compute at once, however many each may use; 0: the calling thread's CPUs */
} sky_model_params;

typedef struct {
    char name[64];      /* in GGUF: "blk.0.attn_qkv.weight" */
    int32_t n_dims;     /* 1: [cols]; 2: [rows, cols] */
    int64_t rows, cols; /* one row where n_dims is 1 */
} sky_tensor;

/* Every tensor of a model of this architecture, d_model, d_ff, n_vocab, n_layers and n_decision_blocks (no other field is
 * looked at), in the order of the forward pass: writes the first `most` of them and gives how many there are, 0 where a
 * size is outside of its limits. */
int sky_tensors(const sky_model_params *params, sky_tensor *tensors, int most);

/* Allocates room for all weights. *model is set even where the status is a failure (unless memory ran out), so that
 * sky_model_error can be asked; sky_model_free takes it in every case. */
sky_status sky_model_create(const sky_model_params *params, sky_model **model);

/* As sky_model_create, but without the room: such a model answers sky_model_isa, sky_model_bytes and sky_model_parameters, as one of these
 * parameters would that is created. All else refuses it with SKY_ERR_STATE. */
sky_status sky_model_measure(const sky_model_params *params, sky_model **model);

/* Packs one tensor. `name` is its GGUF name; `data` is row-major [rows, cols] of `dtype`, a vector being [1, cols]. Where the model
 * keeps the tensor in 16 bits it is the type that was told to sky_model_create.
 * The data is not kept. A NaN or infinite value is refused, and the tensor then counts as not set. Different tensors may be set
 * from different threads at once; where several fail, the message is that of one of them. */
sky_status sky_model_set(sky_model *model, const char *name, sky_dtype dtype, int64_t rows, int64_t cols, const void *data);

/* As sky_model_set for `rows` rows of token_embd.weight from `first_row` on, so that the largest tensor need not be unpacked
 * whole to be set. They come in order, from row 0 to the last. */
sky_status sky_model_set_rows(sky_model *model, const char *name, sky_dtype dtype, int64_t first_row, int64_t rows,
                              int64_t cols, const void *data);

/* Checks that every tensor was set and computes what depends on nothing else; from here on the model is immutable. */
sky_status sky_model_freeze(sky_model *model);

/* The message of the last create, set or freeze that failed, "" where none did: the first n_bytes - 1 bytes of it and a NUL. A
 * copy, since threads that set tensors may fail meanwhile. */
void sky_model_error(const sky_model *model, char *text, size_t n_bytes);
const char *sky_model_isa(const sky_model *model); /* "" where creation failed before it was chosen */
size_t sky_model_bytes(const sky_model *model);    /* packed weights and tables */

/* Parameters of products and embedding that the model keeps in memory as numbers of this type; Q8_0: of 8 bits, whatever their scales. */
int64_t sky_model_parameters(const sky_model *model, sky_dtype dtype);
void sky_model_free(sky_model *model);             /* after its plans; NULL is fine */

/* out [n] = the bfloat16 numbers of in [n] */
void sky_widen_bf16(const uint16_t *in, int64_t n, float *out);

/* ---- plan ------------------------------------------------------------------------------------------------------ */

typedef struct sky_plan sky_plan;

#if defined(SKY_NO_THREADS) /* a build for a system without any: pool.c is left out */
#define SKY_MAX_THREADS 1
#else
#define SKY_MAX_THREADS 256
#endif

typedef struct {
    int32_t n_tokens;    /* of all sequences of a batch together */
    int32_t n_sequences; /* in s2, where questions about one state share its sequence, as many as there are questions */
    int32_t n_markers;   /* of all sequences together; in s2 the options of all questions */
    int32_t sequence_tokens; /* of the longest sequence; at most the model's max_positions */
    int32_t n_threads;   /* that a run may use, the caller's included. 1 to SKY_MAX_THREADS */
} sky_plan_limits;

/* One arena sized for `limits`. *plan is set as *model is above. */
sky_status sky_plan_create(const sky_model *model, const sky_plan_limits *limits, sky_plan **plan);

const char *sky_plan_error(const sky_plan *plan);
size_t sky_plan_bytes(const sky_plan *plan);
void sky_plan_free(sky_plan *plan);

/* How many threads the next runs may use, 1 to the limit (which is where a plan begins). Runs of one model's plans that are
 * under way at the same time divide theirs: each may use its number by how many there are, at least 1. A model has one set of
 * threads for all its plans, one fewer than the largest number at most, and no more than its CPUs have use for; they are
 * started when a step of a run has work for them, and end when they have been idle for some seconds. Scores have the same bits
 * for any number. */
void sky_plan_use_threads(sky_plan *plan, int n_threads);
int sky_plan_threads(const sky_plan *plan); /* that the last run might use when it began */

/* For callers whose threads could meet at one plan: 1 where this thread now holds it, until it releases it; 0 where another does.
 * sky_run does not look at it. */
int sky_plan_claim(sky_plan *plan);
void sky_plan_release(sky_plan *plan);

/* A ragged batch: sequences lie end to end, with no padding. Offsets begin with 0 and end with the total. */
typedef struct {
    int32_t n_sequences;
    const int32_t *token_ids;       /* [token_offsets[n_sequences]] */
    const int32_t *token_offsets;   /* [n_sequences + 1], each sequence at least one token */
    const int32_t *markers;         /* [marker_offsets[n_sequences]]: positions inside their own sequence */
    const int32_t *marker_offsets;  /* [n_sequences + 1]; a sequence may have none */
    const int32_t *question_types;  /* [n_sequences], sky_question_type */
    const int32_t *prefix_tokens;   /* [n_sequences]: of [CLS] question [SEP] options [SEP], all of them even where the sequence
                                       is cut. For models whose options are in parallel, with ascending markers; else unused */
} sky_batch;

/* For s1, whose sequences hold all that a question is answered from; every architecture has sky_run_asks.
 *
 * Writes one raw score per marker to logits [n_markers], in batch order. Allocates nothing (guarded by
 * tests/c/core_test.c), but for the threads that it starts. The scores of a sequence have the same bits whatever else is in the
 * batch, and whatever rounding or flush-to-zero mode the calling thread is in, which keeps it. */
sky_status sky_run(sky_plan *plan, const sky_batch *batch, float *logits);

/* ---- questions ------------------------------------------------------------------------------------------------- */

/* Questions of one model, made ready for any state. Immutable from the start, so any number of threads may read it. */
typedef struct sky_questions sky_questions;

/* Of each question its prefix, which is its sequence up to and with the separator in front of the state. In s2, where the sequence
 * is that of the state, the prefix is what opens it, the same for all questions, and each option has a sequence of its own.
 * Everything is copied. */
typedef struct {
    int32_t n_questions;
    int32_t sep_id;                /* the token that closes a sequence */
    const int32_t *token_ids;      /* [token_offsets[n_questions]] the prefixes, end to end */
    const int32_t *token_offsets;  /* [n_questions + 1], each prefix at least one token */
    const int32_t *markers;        /* [marker_offsets[n_questions]]: positions inside their own prefix, or option's sequence */
    const int32_t *marker_offsets; /* [n_questions + 1] */
    const int32_t *options;        /* [as markers]: which option of its question a marker stands for; NULL: in order */
    const int32_t *question_types; /* [n_questions], sky_question_type */
    const int32_t *max_tokens;     /* [n_questions]: of the whole sequence; a longer prefix loses its end */
    const int32_t *option_ids;     /* s2: [option_offsets[number of markers]] the options' sequences, end to end; s1: NULL */
    const int32_t *option_offsets; /* s2: [number of markers + 1], in the order of the markers, each at least one token */
    int32_t n_threads;             /* s2: that making them ready may use; 0 is 1 */
} sky_question_list;

/* *questions is set as *model is above. The model is frozen, and is freed after them; NULL for questions that are only laid out.
 * In s2 every option goes through the encoder here, and never again. */
sky_status sky_questions_create(const sky_model *model, const sky_question_list *list, sky_questions **questions);

const char *sky_questions_error(const sky_questions *questions);
size_t sky_questions_bytes(const sky_questions *questions);
void sky_questions_free(sky_questions *questions); /* NULL is fine */

/* Questions first .. first + n - 1 of a set about one state: sequences [prefix] [state] [SEP], in s2 one for all of them. */
typedef struct {
    const sky_questions *questions;
    int32_t first, n;
    const int32_t *state_ids; /* [n_state] tokens of the state's text */
    int64_t n_state;
    int32_t keep_tail; /* 1: of a state that does not fit the end is kept; 0: the beginning */
} sky_ask;

/* One such sequence, whatever first and n are: writes it where token_ids is not NULL, sets *n_state_used, where it is not NULL,
 * to how many of the state's tokens it has, and gives its length; 0 where the set or the question does not exist. */
int32_t sky_ask_sequence(const sky_ask *ask, int32_t question, int32_t *token_ids, int32_t *n_state_used);

/* Runs every sequence of the asks, in order, in as few passes of at most pass_tokens as it takes (a longer sequence goes alone),
 * and writes one raw score per marker to logits, in order. Sets may be mixed, and states, and come up more than once. In s2
 * pass_tokens limits the options of a pass, too, and asks that follow each other with the same state_ids, n_state and keep_tail
 * read the state once. Allocates nothing, as sky_run. */
sky_status sky_run_asks(sky_plan *plan, const sky_ask *asks, int32_t n_asks, int32_t pass_tokens, float *logits);

/* What a plan must hold for the largest of these passes (n_threads is 0), and the tokens and markers of all together. */
sky_status sky_measure_asks(const sky_ask *asks, int32_t n_asks, int32_t pass_tokens, sky_plan_limits *largest, int64_t *n_tokens,
                            int64_t *n_markers);

/* p = softmax(logits / temperature) of each question of the set, in double. logits: of all its markers; temperatures
 * [n_questions]; p: of all its options, in the order of `options`. Gives 0 where a score is NaN or infinite. */
int sky_probabilities(const sky_questions *questions, const float *logits, const double *temperatures, double *p);

/* Answers to all questions of a set about many states, as arrays of the caller. */
typedef struct {
    float *probabilities; /* [n_states, n_options of all questions] */
    int32_t *labels;      /* [n_states, n_questions] the most probable option; of equal ones the first */
    float *values;        /* [n_states, n_questions] choice: the label's probability; score: the mean level; noul: that it is true */
    float *confidence;    /* [n_states, n_questions] */
    uint8_t *truncated;   /* [n_states, n_questions] 1: the state did not fit */
} sky_answers;

/* logits [n, markers of all questions], n_state [n]: tokens of each state; p [n_options] is overwritten. Gives n, or the first state
 * that has a score which is NaN or infinite; those after it are not written. */
int64_t sky_write_answers(const sky_questions *questions, const float *logits, const int64_t *n_state, int64_t n,
                          const double *temperatures, double *p, const sky_answers *out);

/* ---- activations ----------------------------------------------------------------------------------------------- */

/* Shows every activation of later runs to `fn`, by the names of tests/reference.py, as [rows, cols] with `stride`
 * elements from row to row. For tests and for finding where two runtimes part; NULL turns it off. */
typedef void sky_trace_fn(void *context, const char *name, const float *data, int rows, int cols, int stride);
void sky_plan_trace(sky_plan *plan, sky_trace_fn *fn, void *context);

#ifdef __cplusplus
}
#endif
#endif
