/* What a browser's host calls (web/src/runtime/core.ts, games/flappy.ts): the public C API and the game with plain numbers for
 * structs. Addresses are those of the module's memory. No state of its own.
 */
#include <stddef.h>
#include <string.h>

#include "../games/flappy.h"
#include "../internal.h"

#define EXPORT(name) __attribute__((export_name(#name), visibility("default"))) name

/* ---- memory ---- */

void *EXPORT(sky_web_alloc)(size_t n_bytes) { return sky_alloc(n_bytes); }

void EXPORT(sky_web_free)(void *memory) { sky_release(memory); }

/* ---- model ---- */

/* Sizes of a model: sky_model_params up to max_positions, in order, then the activation. */
enum { ARCHITECTURE, D_MODEL, D_FF, N_VOCAB, N_LAYERS, N_HEADS, N_DECISION_BLOCKS, N_DECISION_HEADS, WINDOW, MAX_POSITIONS,
       ACTIVATION };

static sky_model_params params_of(const int32_t *sizes)
{
    return (sky_model_params){
        .architecture = (sky_architecture)sizes[ARCHITECTURE],
        .d_model = sizes[D_MODEL],
        .d_ff = sizes[D_FF],
        .n_vocab = sizes[N_VOCAB],
        .n_layers = sizes[N_LAYERS],
        .n_heads = sizes[N_HEADS],
        .n_decision_blocks = sizes[N_DECISION_BLOCKS],
        .n_decision_heads = sizes[N_DECISION_HEADS],
        .window = sizes[WINDOW],
        .max_positions = sizes[MAX_POSITIONS],
        .activation = (sky_activation)sizes[ACTIVATION],
    };
}

_Static_assert(sizeof(sky_tensor) == 88 && offsetof(sky_tensor, n_dims) == 64 && offsetof(sky_tensor, rows) == 72
                   && offsetof(sky_tensor, cols) == 80, "the host reads a sky_tensor by these places");

/* As sky_tensors. */
int EXPORT(sky_web_tensors)(const int32_t *sizes, sky_tensor *tensors, int most)
{
    const sky_model_params params = params_of(sizes);
    return sky_tensors(&params, tensors, most);
}

/* A new model, NULL where there is no memory; constants: norm_eps, rope_base_global, rope_base_local. */
sky_model *EXPORT(sky_web_model)(const int32_t *sizes, const float *constants, const uint8_t *layer_is_global,
                                 uint32_t qkv_table_bytes)
{
    sky_model_params params = params_of(sizes);
    params.norm_eps = constants[0];
    params.rope_base_global = constants[1];
    params.rope_base_local = constants[2];
    params.layer_is_global = layer_is_global;
    params.qkv_table_bytes = qkv_table_bytes;
    sky_model *model;
    (void)sky_model_create(&params, &model); /* a fault is in the model's message */
    return model;
}

int EXPORT(sky_web_model_set)(sky_model *model, const char *name, int dtype, int first_row, int rows, int cols,
                              const void *data, int is_part)
{
    return is_part ? sky_model_set_rows(model, name, (sky_dtype)dtype, first_row, rows, cols, data)
                   : sky_model_set(model, name, (sky_dtype)dtype, rows, cols, data);
}

int EXPORT(sky_web_model_freeze)(sky_model *model) { return sky_model_freeze(model); }

/* The message of the last call that failed, "" where none did, into `text` of n_bytes. */
void EXPORT(sky_web_model_error)(const sky_model *model, char *text, int n_bytes)
{
    sky_model_error(model, text, (size_t)n_bytes);
}

const char *EXPORT(sky_web_model_isa)(const sky_model *model) { return sky_model_isa(model); }

size_t EXPORT(sky_web_model_bytes)(const sky_model *model) { return sky_model_bytes(model); }

void EXPORT(sky_web_model_free)(sky_model *model) { sky_model_free(model); }

/* ---- plan ---- */

sky_plan *EXPORT(sky_web_plan)(const sky_model *model, int n_tokens, int n_sequences, int n_markers, int sequence_tokens)
{
    const sky_plan_limits limits = {n_tokens, n_sequences, n_markers, sequence_tokens, 1};
    sky_plan *plan;
    (void)sky_plan_create(model, &limits, &plan);
    return plan;
}

const char *EXPORT(sky_web_plan_error)(const sky_plan *plan) { return sky_plan_error(plan); }

void EXPORT(sky_web_plan_free)(sky_plan *plan) { sky_plan_free(plan); }

int EXPORT(sky_web_run)(sky_plan *plan, int n_sequences, const int32_t *token_ids, const int32_t *token_offsets,
                        const int32_t *markers, const int32_t *marker_offsets, const int32_t *question_types, float *logits)
{
    const sky_batch batch = {n_sequences, token_ids, token_offsets, markers, marker_offsets, question_types, NULL};
    return sky_run(plan, &batch, logits);
}

/* ---- the game ---- */

int EXPORT(sky_web_game_bytes)(void) { return (int)sizeof(sky_flappy); }

/* A new game of the difficulty of this number; 0 where there is none. */
int EXPORT(sky_web_game_begin)(sky_flappy *game, int difficulty, uint32_t seed_low, uint32_t seed_high)
{
    const sky_flappy_rules *rules = sky_flappy_rules_at(difficulty);
    if (rules)
        sky_flappy_begin(game, rules, (uint64_t)seed_high << 32 | seed_low);
    return rules != NULL;
}

int EXPORT(sky_web_game_step)(sky_flappy *game, int thrust) { return sky_flappy_step(game, thrust); }

int EXPORT(sky_web_game_text)(const sky_flappy *game, char *text) { return sky_flappy_text(game, text); }

int EXPORT(sky_web_game_will_crash)(const sky_flappy *game, int steps) { return sky_flappy_will_crash(game, steps); }

int EXPORT(sky_web_game_margin)(const sky_flappy *game) { return sky_flappy_margin(game); }

int EXPORT(sky_web_game_pilot)(const sky_flappy *game) { return sky_flappy_pilot(game); }

/* What a picture of the game needs, 9 numbers: alive, steps, gaps, altitude and distance in ticks, the next gap's lower edge
 * and the following one's offset from it in units, and the rules' gap and spacing. */
void EXPORT(sky_web_game_numbers)(const sky_flappy *game, int32_t *numbers)
{
    const int32_t values[] = {
        game->alive, (int32_t)game->n_steps, (int32_t)game->n_gaps, game->altitude, game->distance, game->gap_bottom,
        game->next_offset, game->rules->gap, game->rules->spacing,
    };
    memcpy(numbers, values, sizeof values);
}
