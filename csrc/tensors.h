/* A model's tensors as rows of one table, and the walk over them; for model.c, which says what each is to a model. */
#ifndef SKY_TENSORS_H
#define SKY_TENSORS_H

#include "internal.h"

typedef enum { WHOLE_MODEL, ENCODER_LAYER, DECISION_BLOCK } tensor_level; /* what a row's tensors are part of */

typedef enum {
    COPIED,    /* as floats, into a float * */
    LOOKED_UP, /* row by row, into a sky_embedding */
    PACKED,    /* into the panels of a sky_linear */
    GATED,     /* the same, up and gate rows interleaved */
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
    size_t place;    /* offset of the float *, sky_embedding or sky_linear in sky_model, sky_layer or sky_block */
    size_t rest;     /* where what follows the first d_model rows (of a vector: elements) has a place of its own, or 0 */
    int first_layer; /* that has this tensor */
} tensor_row;

typedef struct {
    const tensor_row *tensors;
    int n_tensors;
    int least_blocks; /* of the decision: without one s2's options would know nothing of the state */
} architecture;

/* A tensor: a row of the table, and which layer or block of the row's level. */
typedef struct {
    const sky_model_params *params;
    const architecture *arch;
    int row, block;
} tensor;

static inline const tensor_row *row_of(const tensor *t) { return &t->arch->tensors[t->row]; }

tensor sky_first_tensor(const sky_model_params *params);

/* On to the next tensor; 0 after the last. */
int sky_next_tensor(tensor *t);

/* The tensor of this name; 0 where the model has none. */
int sky_find_tensor(const sky_model_params *params, const char *name, tensor *found);

int64_t sky_tensor_rows(const tensor *t);
int64_t sky_tensor_cols(const tensor *t);

/* As GGUF numbers blocks: decision blocks follow the encoder's layers. -1 for a tensor outside of blocks. */
int sky_tensor_block(const tensor *t);

enum { NAME_BYTES = sizeof((sky_tensor *)0)->name };

void sky_tensor_name(const tensor *t, char name[NAME_BYTES]);

/* Whether low <= value <= high; else says in `fault` of n bytes what is not. */
int sky_is_limited(const char *what, int32_t value, int32_t low, int32_t high, char *fault, size_t n);

#endif
