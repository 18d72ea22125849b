/* The kernel table: what an instruction set implements, and the contract of every kernel, once.
 *
 * Layout   Activations are row-major float [rows, cols] with a stride in elements. Weights are packed in *panels*: panel p
 *          holds output columns p*panel_cols .. +panel_cols-1, zero beyond n, 64-byte aligned, one panel behind the other; its
 *          layout is that of the weight type.
 * Reading  No kernel reads or writes an element outside the shapes below, not even by a masked-off vector load that
 *          could be seen (tests poison the padding with NaN and guard it with canaries).
 * Sums     Every product is accumulated in float in ascending k (by fused multiply-add everywhere but in portable.c), one
 *          accumulator for each output, or one for each part where a kernel cuts a long k; the cuts depend on k alone, so a
 *          result does not depend on the rows around it. Norms and softmax sum in a vector's lanes and then across.
 * NaN      A row that holds or comes to a NaN or infinity it cannot have (a softmax over inf) gives NaN, never a number.
 */
#ifndef SKY_KERNELS_H
#define SKY_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "../skyinfer.h" /* SKY_MAX_D_HEAD, sky_activation */
#include "../strict_math.h"

#define SKY_ALIGN 64             /* bytes; every packed tensor and plan buffer starts on it */
#define SKY_MAX_PANEL_COLS 32    /* the widest panel of any instruction set */
#define SKY_MAX_TILE_ROWS 12     /* the tallest register tile of any */
#define SKY_ROUNDER 12582912.0f  /* 1.5 * 2^23: what is added to it is rounded to an integer, which its lowest bits then are */
#define SKY_MAX_K_PART 1024      /* what a product with the linear epilogue takes of k at once, but for an end: see sky_gemm_scratch */

/* Floats [rows, cols] with `stride` elements from row to row. Whether a kernel writes to one says the kernel's contract; data
 * NULL where an optional one is not given. */
typedef struct {
    float *data;
    int stride, rows, cols;
} sky_matrix;

static inline sky_matrix sky_rows(sky_matrix m, int first, int n)
{
    return (sky_matrix){m.data + (ptrdiff_t)first * m.stride, m.stride, n, m.cols};
}

static inline sky_matrix sky_cols(sky_matrix m, int first, int n) { return (sky_matrix){m.data + first, m.stride, m.rows, n}; }

/* What a product's weights are in memory. */
typedef enum {
    SKY_WEIGHT_F32 = 0, /* panels of float [k][panel_cols] */
    SKY_WEIGHT_F16,     /* panels of IEEE half precision [k][panel_cols], which the kernel widens: the same bits as from F32 */
    SKY_WEIGHT_BF16,    /* the same of bfloat16 */
    SKY_WEIGHT_INT8,    /* panels of whole numbers with a scale for each 32 of k, see below; takes activations as whole numbers */
    SKY_WEIGHT_INT8_ROWS, /* the same with one scale for each row of the matrix */
    SKY_N_WEIGHT_TYPES
} sky_weight_type;

static inline int sky_is_int8(sky_weight_type type) { return type == SKY_WEIGHT_INT8 || type == SKY_WEIGHT_INT8_ROWS; }

/* ---- 8-bit weights ----
 *
 * A panel of INT8 is a block for every SKY_INT8_BLOCK of k, the last one padded with zeros: whole numbers q of 8 bits as
 * [SKY_INT8_BLOCK / group][panel_cols][group], each with `offset` added, then scales in half precision [panel_cols]; zeros up to
 * the next 64 bytes at the panel's end. GGUF's Q8_0 is the same blocks, stored row by row. A panel of INT8_ROWS has all its q first,
 * at most 127 in magnitude, and behind them scales in float [panel_cols]. Weight (p, col) is q times its scale.
 *
 * An activation is a whole number times a scale, both of which depend on its row alone. Where a group is 4, each block of 32 has a
 * scale and SKY_INT8_LEVELS whole numbers on each side of 0, or, where its largest element is SKY_INT8_WIDE_FROM times the row's mean
 * magnitude, without the largest of each block, SKY_INT8_WIDE_LEVELS in two digits, because one such outlier would leave the rest of its
 * block few levels. Elsewhere a row has one scale and SKY_INT8_ROW_LEVELS.
 *
 * Products of whole numbers are summed exactly over all of k that shares its scales, at most
 * SKY_INT8_SUMMED blocks; those sums, times the scales, go to a float accumulator in ascending k, lower digits last. */
enum {
    SKY_INT8_BLOCK = 32,
    SKY_INT8_LEVELS = 127,
    SKY_INT8_WIDE_LEVELS = 127 * 256, /* two digits of 8 bits */
    SKY_INT8_WIDE_FROM = 24,
    SKY_INT8_ROW_LEVELS = 1 << 14,
    SKY_INT8_SUMMED = 32, /* 32 * 32 * 127 * 2^14 fits into 32 bits */
};
#define SKY_INT8_SMALLEST 1e-30f /* the smallest magnitude that a block or row reaches its levels with */

typedef struct {
    int group, offset;
} sky_int8_format;

static inline int sky_int8_blocks(int k) { return k / SKY_INT8_BLOCK + (k % SKY_INT8_BLOCK != 0); }

static inline size_t sky_int8_panel_bytes(sky_weight_type type, int k, int panel_cols)
{
    const size_t cols = (size_t)panel_cols, digits = (size_t)sky_int8_blocks(k) * SKY_INT8_BLOCK * cols;
    const size_t scales = type == SKY_WEIGHT_INT8 ? (size_t)sky_int8_blocks(k) * sizeof(uint16_t) * cols : sizeof(float) * cols;
    return (digits + scales + SKY_ALIGN - 1) / SKY_ALIGN * SKY_ALIGN;
}

/* A row of activations in whole numbers: the memory of sky_int8_row_bytes(k) bytes on a boundary of 64. What is in `digits` and
 * `offsets` is the instruction set's own. */
typedef struct {
    char *digits;     /* [2 * SKY_INT8_BLOCK * blocks]: 16 bits each; or bytes, and then the lower digits of blocks that have two */
    float *scales;    /* [blocks], of upper digits where there are two; or of the row */
    int32_t *offsets; /* [2 * blocks], as the digits */
    int32_t *n_wide;  /* how many blocks have two digits */
    uint16_t *wide;   /* [blocks]: which ones */
} sky_int8_row;
_Static_assert(SKY_MAX_D_FF / SKY_INT8_BLOCK <= UINT16_MAX + 1, "the number of a block has 16 bits");

static inline size_t sky_int8_row_bytes(int k)
{
    const size_t each = 2 * SKY_INT8_BLOCK + sizeof(float) + 2 * sizeof(int32_t) + sizeof(uint16_t);
    const size_t bytes = (size_t)sky_int8_blocks(k) * each + sizeof(int32_t);
    const size_t whole = (bytes + SKY_ALIGN - 1) / SKY_ALIGN * SKY_ALIGN;
    return whole % 1024 ? whole : whole + SKY_ALIGN; /* as rows of floats in a plan */
}

static inline sky_int8_row sky_int8_row_at(char *memory, int k)
{
    const size_t blocks = (size_t)sky_int8_blocks(k);
    float *scales = (float *)(void *)(memory + 2 * SKY_INT8_BLOCK * blocks);
    int32_t *offsets = (int32_t *)(void *)(scales + blocks), *n_wide = offsets + 2 * blocks;
    return (sky_int8_row){memory, scales, offsets, n_wide, (uint16_t *)(void *)(n_wide + 1)};
}

typedef enum {
    SKY_EPILOGUE_LINEAR = 0, /* c = acc + bias + residual */
    SKY_EPILOGUE_RELU,       /* c = max(acc + bias, 0) */
    SKY_EPILOGUE_GELU,       /* c = gelu(acc + bias) */
    SKY_EPILOGUE_GATED       /* c[j] = act(acc of up row j) * acc of gate row j; panels packed gated, see below */
} sky_epilogue;

/* c = epilogue(a @ w^T), a [m, k], w [n, k] packed, c [m, n].
 * Gated panels hold panel_cols/2 up rows, then the panel_cols/2 gate rows of the same indices; n is then 2 * d_ff and c is
 * [m, d_ff]; bias and residual must be NULL.
 * bias [n] or NULL. residual [m, n] or NULL, and may be c itself. a must not overlap c. scratch: sky_gemm_scratch floats of the
 * calling thread, or of 8-bit weights, where the set has no product of bytes, sky_int8_scratch; 64-byte aligned. Unused with F32 and
 * by products of bytes. */
typedef struct {
    sky_matrix a;
    const void *panels; /* of the kernel's weight type */
    const float *bias;
    sky_matrix residual;
    sky_matrix c;
    sky_epilogue epilogue;
    sky_activation act; /* of the gated epilogue */
    float *scratch;
    const char *a_int8; /* a's rows as quantize_rows gives them, which 8-bit weights take: of `a` the sizes are looked at alone */
} sky_gemm;

/* Floats that a product of this k needs in scratch: the widened part of a panel that all rows are multiplied by. Parts end on whole
 * cache lines of A, so one may be longer than SKY_MAX_K_PART by less than a line. */
static inline size_t sky_gemm_scratch(int k, sky_epilogue epilogue)
{
    enum { LONGEST_PART = SKY_MAX_K_PART + SKY_ALIGN / (int)sizeof(float) - 1 };
    return (size_t)(epilogue == SKY_EPILOGUE_LINEAR && k > LONGEST_PART ? LONGEST_PART : k) * SKY_MAX_PANEL_COLS;
}

/* The same of a product of 8-bit weights: a panel in 16 bits. */
static inline size_t sky_int8_scratch(int k) { return (size_t)sky_int8_blocks(k) * SKY_INT8_BLOCK * SKY_MAX_PANEL_COLS / 2; }

/* y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias for each row of x [n, d]; biased variance, in two passes.
 * weight [d]; bias [d] or NULL. y [n, d] may be x. */
typedef struct {
    sky_matrix x;
    const float *weight;
    const float *bias;
    float eps;
    sky_matrix y;
} sky_norm;

/* One head of one sequence: out = softmax(rope(q) rope(k)^T * scale) v, q [n_queries, d_head], k and v [n_keys, d_head],
 * out [n_queries, d_head], softmax over all keys, or over |query - key| <= window where window >= 0 (then query i is
 * position i). rope_cos and rope_sin [n_keys, d_head/2] rotate in NeoX layout (element j pairs with j + d_head/2); both
 * NULL: no rotation. scratch: sky_attention_scratch(n_keys, d_head) floats, 64-byte aligned. out must not overlap
 * q, k or v. Where `position` and `option` are given, both [n_keys] and n_queries = n_keys: rotation and window go by the position of
 * a token, which rope_cos and rope_sin have a row for, and a token of one option (1, 2, ..; 0 is none) does not see those of
 * another. d_head <= SKY_MAX_D_HEAD, even where there is rope. */
typedef struct {
    sky_matrix q, k, v, out;
    const float *rope_cos, *rope_sin;
    int window;
    float scale;
    float *scratch;
    const int32_t *position, *option;
} sky_attention;

/* Whether a query sees a key, where `position` and `option` are given. */
static inline int sky_sees(const sky_attention *a, int query, int key)
{
    const int32_t apart = a->position[query] - a->position[key];
    const int32_t mine = a->option[query], other = a->option[key];
    return (mine == 0 || other == 0 || mine == other)
        && (a->window < 0 || (apart <= a->window && -apart <= a->window));
}

/* Enough for any instruction set: keys in panels, one tile of rotated queries, one tile of scores. */
static inline size_t sky_attention_scratch(int n_keys, int d_head)
{
    size_t keys = ((size_t)n_keys + SKY_MAX_PANEL_COLS - 1) / SKY_MAX_PANEL_COLS * SKY_MAX_PANEL_COLS;
    return keys * (size_t)d_head + SKY_MAX_TILE_ROWS * (size_t)(d_head + 16) + SKY_MAX_TILE_ROWS * (keys + 16)
         + SKY_MAX_PANEL_COLS * (size_t)(d_head + 16);
}

/* Columns [panel_begin, panel_end) of c in units of panels, so that threads can share one product. */
typedef void sky_gemm_fn(const sky_gemm *g, int panel_begin, int panel_end);

typedef struct {
    const char *isa;
    int tile_rows;  /* of the GEMM's register tile */
    int panel_cols; /* of a packed panel; even */
    sky_gemm_fn *gemm[SKY_N_WEIGHT_TYPES]; /* NULL: a model widens such weights to F32 when they are set; of INT8, has no such precision */
    /* out [x.rows, sky_int8_row_bytes(x.cols)] = rows of activations for a product of 8-bit weights, each element times its column's
     * factor; factors [x.cols] or NULL. A row with a NaN or infinity gives NaN in every column of the product. */
    void (*quantize_rows)(sky_matrix x, const float *factors, char *out);
    sky_int8_format int8_format; /* of the panels that products of 8-bit weights take */
    void (*layer_norm)(const sky_norm *n);
    void (*attention)(const sky_attention *a);
    /* panel[j * panel_cols + i] = rows[i * stride + j] for i < panel_cols and j < k */
    void (*pack_panel)(const float *rows, int stride, int k, float *panel);
    /* out [n] = the IEEE half-precision numbers of in [n] */
    void (*widen_f16)(const uint16_t *in, int n, float *out);
    /* `rounds` times tile_rows * panel_cols independent multiply-adds that touch no memory: the core's peak, by which
     * benchmarks divide. One float goes to sink. */
    void (*fma_peak)(int rounds, float *sink);
} sky_kernels;

/* Each overrides what it implements on top of the weaker row (dispatch.c). */
void sky_fill_portable(sky_kernels *table);
void sky_fill_avx2(sky_kernels *table);
void sky_fill_avx512(sky_kernels *table);
void sky_fill_avxvnni(sky_kernels *table);
void sky_fill_avx512vnni(sky_kernels *table);
void sky_fill_neon(sky_kernels *table);
void sky_fill_neondot(sky_kernels *table);
void sky_fill_wasm128(sky_kernels *table);

#endif
