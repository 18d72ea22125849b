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

/* Sizes of a model: sky_model_params up to max_positions, in order, then activation and layout of options. */
enum { ARCHITECTURE, D_MODEL, D_FF, N_VOCAB, N_LAYERS, N_HEADS, N_DECISION_BLOCKS, N_DECISION_HEADS, WINDOW, MAX_POSITIONS,
       ACTIVATION, OPTION_LAYOUT };

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
        .option_layout = (sky_option_layout)sizes[OPTION_LAYOUT],
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

/* ---- questions ---- */

/* As sky_questions_create, for n questions. `numbers` are the arrays of sky_question_list end to end: token_offsets,
 * marker_offsets, question_types, max_tokens, token_ids, markers, options, and of s2 option_offsets, option_ids. */
sky_questions *EXPORT(sky_web_questions)(const sky_model *model, int n, int sep_id, const int32_t *numbers)
{
    sky_question_list list = {.n_questions = n, .sep_id = sep_id};
    list.token_offsets = numbers;
    list.marker_offsets = list.token_offsets + n + 1;
    list.question_types = list.marker_offsets + n + 1;
    list.max_tokens = list.question_types + n;
    list.token_ids = list.max_tokens + n;
    list.markers = list.token_ids + list.token_offsets[n];
    list.options = list.markers + list.marker_offsets[n];
    if (model->params.architecture == SKY_ARCH_S2) {
        list.option_offsets = list.options + list.marker_offsets[n];
        list.option_ids = list.option_offsets + list.marker_offsets[n] + 1;
    }
    sky_questions *questions;
    (void)sky_questions_create(model, &list, &questions); /* a fault is in their message */
    return questions;
}

const char *EXPORT(sky_web_questions_error)(const sky_questions *questions) { return sky_questions_error(questions); }

void EXPORT(sky_web_questions_free)(sky_questions *questions) { sky_questions_free(questions); }

/* A state as numbers: how many tokens it has, 1 to keep its end, the tokens. Gives where the next one is. */
static const int32_t *read_state(const int32_t *numbers, const sky_questions *questions, sky_ask *ask)
{
    *ask = (sky_ask){
        .questions = questions, .n = questions->n, .state_ids = numbers + 2, .n_state = numbers[0], .keep_tail = numbers[1],
    };
    return ask->state_ids + ask->n_state;
}

/* As sky_ask_sequence, about one state. */
int EXPORT(sky_web_sequence)(const sky_questions *questions, int question, const int32_t *state, int32_t *token_ids,
                             int32_t *n_state_used)
{
    sky_ask ask;
    (void)read_state(state, questions, &ask);
    return sky_ask_sequence(&ask, question, token_ids, n_state_used);
}

/* ---- scores ---- */

/* One forward pass takes at most this many tokens, so that many states do not take huge buffers. */
enum { PASS_TOKENS = 2048 };

static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

/* Puts a larger plan in the place of one that does not hold `size`. What is added to it saves new ones for slightly larger
 * states. */
static sky_status make_room(const sky_model *model, sky_plan **plan, sky_plan_limits size)
{
    const sky_plan_limits now = sky_plan_bytes(*plan) ? (*plan)->limits : (sky_plan_limits){0, 0, 0, 0, 0};
    if (size.n_tokens <= now.n_tokens && size.n_sequences <= now.n_sequences && size.n_markers <= now.n_markers
        && size.sequence_tokens <= now.sequence_tokens)
        return SKY_OK;
    const int32_t most = model->params.max_positions, longest = larger(size.sequence_tokens + 255, now.sequence_tokens);
    size.n_tokens = larger(size.n_tokens + 255, now.n_tokens);
    size.n_sequences = larger(size.n_sequences + 15, now.n_sequences);
    size.n_markers = larger(size.n_markers + 63, now.n_markers);
    size.sequence_tokens = longest < most ? longest : most;
    size.n_threads = 1;
    sky_plan_free(*plan);
    return sky_plan_create(model, &size, plan);
}

/* Scores of all questions about each of n_states, as sky_run_asks. *plan: that of the last call, NULL in the first one; the
 * caller frees the last one. What fails is in its message. */
int EXPORT(sky_web_run)(const sky_model *model, sky_plan **plan, const sky_questions *questions, int n_states,
                        const int32_t *states, float *logits)
{
    sky_ask *asks = sky_alloc((size_t)n_states * sizeof *asks);
    if (!asks)
        return SKY_ERR_MEMORY;
    for (int i = 0; i < n_states; i++)
        states = read_state(states, questions, &asks[i]);
    sky_plan_limits size;
    int64_t n_tokens, n_markers;
    sky_status status = sky_measure_asks(asks, n_states, PASS_TOKENS, &size, &n_tokens, &n_markers);
    if (status == SKY_OK && n_tokens)
        status = make_room(model, plan, size);
    if (status == SKY_OK && n_tokens)
        status = sky_run_asks(*plan, asks, n_states, PASS_TOKENS, logits);
    sky_release(asks);
    return status;
}

const char *EXPORT(sky_web_plan_error)(const sky_plan *plan) { return sky_plan_error(plan); }

void EXPORT(sky_web_plan_free)(sky_plan *plan) { sky_plan_free(plan); }

/* As sky_probabilities about one state, and sky_answer_of each question: label, value and confidence, answers [n][3]. */
int EXPORT(sky_web_answers)(const sky_questions *questions, const float *logits, const double *temperatures, double *p,
                            double *answers)
{
    if (!sky_probabilities(questions, logits, temperatures, p))
        return 0;
    for (int i = 0; i < questions->n; i++) {
        const int first = questions->marker_offsets[i];
        const sky_answer answer = sky_answer_of(questions->question_types[i], p + first, questions->marker_offsets[i + 1] - first);
        *answers++ = answer.label;
        *answers++ = answer.value;
        *answers++ = answer.confidence;
    }
    return 1;
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
