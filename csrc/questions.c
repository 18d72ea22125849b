/* Questions made ready for any state: the one place that lays out [prefix] [state] [SEP], cuts many such sequences into forward
 * passes, and turns their scores into probabilities; and that has s2's options encoded. Tokenizing and the prefixes' own layout belong to the caller
 * (src/skyinfer/text/sequence.py). */
#include "float_mode.h"
#include "internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sky_status fail(sky_questions *q, sky_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(q->error, sizeof q->error, format, args);
    va_end(args);
    return status;
}

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

/* ---- create ---- */

static int is_id(int32_t id, int32_t n_vocab) { return id >= 0 && id < n_vocab; }

/* Marker k of question i, counted from the question's first, in the sequence of its option. */
static sky_status check_option(sky_questions *q, const sky_model *m, const sky_question_list *list, int i, int k)
{
    const int at = list->marker_offsets[i] + k;
    const int32_t begin = list->option_offsets[at], end = list->option_offsets[at + 1], n = end > begin && begin >= 0 ? end - begin : 0;
    const int32_t n_positions = m ? m->params.max_positions : SKY_MAX_POSITIONS, n_vocab = m ? m->params.n_vocab : SKY_MAX_VOCAB;
    if (n < 1 || n > n_positions)
        return fail(q, SKY_ERR_ARGUMENT, "question %d, option %d: expected 1 to %d tokens", i, k, n_positions);
    if (list->markers[at] < 0 || list->markers[at] >= n)
        return fail(q, SKY_ERR_ARGUMENT, "question %d, option %d: marker %d lies outside its %d tokens", i, k, list->markers[at], n);
    for (int32_t t = begin; t < begin + n; t++)
        if (!is_id(list->option_ids[t], n_vocab))
            return fail(q, SKY_ERR_ARGUMENT, "question %d, option %d: token id %d is not in the vocabulary of %d", i, k,
                        list->option_ids[t], n_vocab);
    return SKY_OK;
}

/* Whether two prefixes give a state the same sequence. */
static int same_frame(const int32_t *a, int n_a, int32_t most_a, const int32_t *b, int n_b, int32_t most_b)
{
    return n_a == n_b && most_a == most_b && memcmp(a, b, (size_t)n_a * sizeof *a) == 0;
}

static sky_status check_question(sky_questions *q, const sky_model *m, const sky_question_list *list, int i)
{
    const int32_t begin = list->token_offsets[i], end = list->token_offsets[i + 1];
    const int32_t most = list->max_tokens[i];
    if (end <= begin || list->marker_offsets[i + 1] < list->marker_offsets[i])
        return fail(q, SKY_ERR_ARGUMENT, "question %d: offsets do not ascend", i);
    const int32_t n_positions = m ? m->params.max_positions : SKY_MAX_POSITIONS, n_vocab = m ? m->params.n_vocab : SKY_MAX_VOCAB;
    if (most < 1 || most > n_positions)
        return fail(q, SKY_ERR_ARGUMENT, "question %d: max_tokens: expected 1 to %d, got %d", i, n_positions, most);
    if (list->question_types[i] < 0 || list->question_types[i] >= SKY_N_QUESTION_TYPES)
        return fail(q, SKY_ERR_ARGUMENT, "question %d: unknown question type %d", i, list->question_types[i]);
    for (int32_t t = begin; t < end; t++)
        if (!is_id(list->token_ids[t], n_vocab))
            return fail(q, SKY_ERR_ARGUMENT, "question %d: token id %d is not in the vocabulary of %d", i, list->token_ids[t],
                        n_vocab);
    const int32_t n_markers = list->marker_offsets[i + 1] - list->marker_offsets[i], n = end - begin < most ? end - begin : most;
    if (m && m->params.option_layout == SKY_OPTIONS_PARALLEL
        && !sky_in_parallel(list->markers + list->marker_offsets[i], n_markers, end - begin))
        return fail(q, SKY_ERR_ARGUMENT, "question %d: expected ascending markers in front of the prefix's last token", i);
    if (list->option_ids && !same_frame(list->token_ids + begin, end - begin, most, list->token_ids, list->token_offsets[1],
                                        list->max_tokens[0]))
        return fail(q, SKY_ERR_ARGUMENT, "question %d: expected prefix and max_tokens of the first, as they share a state", i);
    for (int32_t k = 0; k < n_markers; k++) {
        const int32_t marker = list->markers[list->marker_offsets[i] + k];
        if (!list->option_ids && (marker < 0 || marker >= n))
            return fail(q, SKY_ERR_ARGUMENT, "question %d: marker %d lies outside its %d tokens", i, marker, n);
        const sky_status status = list->option_ids ? check_option(q, m, list, i, k) : SKY_OK;
        if (status != SKY_OK)
            return status;
        const int32_t option = list->options ? list->options[list->marker_offsets[i] + k] : k;
        if (option < 0 || option >= n_markers)
            return fail(q, SKY_ERR_ARGUMENT, "question %d: option %d of %d", i, option, n_markers);
    }
    return SKY_OK;
}

/* n_ready: options that are made ready, of d_model numbers. */
static size_t lay_out(sky_questions *q, int n_tokens, int n_markers, int n_ready, int d, char *base)
{
    sky_carver c = {base, 0};
    q->option_x = (sky_matrix){sky_carve(&c, n_ready, d), d, n_ready, d};
    q->option_q = (sky_matrix){sky_carve(&c, n_ready, d), d, n_ready, d};
    q->token_ids = sky_carve_ints(&c, n_tokens);
    q->token_offsets = sky_carve_ints(&c, (size_t)q->n + 1);
    q->markers = sky_carve_ints(&c, n_markers);
    q->marker_offsets = sky_carve_ints(&c, (size_t)q->n + 1);
    q->options = sky_carve_ints(&c, n_markers);
    q->question_types = sky_carve_ints(&c, q->n);
    q->max_tokens = sky_carve_ints(&c, q->n);
    return c.used;
}

/* Options first .. last - 1 of a list, as a batch of sequences, in the plan's own buffers. *question: whose the option in front of
 * them is, or the first. */
static sky_batch options_of(const sky_plan *plan, const sky_question_list *list, int *question, int first, int last)
{
    const int32_t begin = list->option_offsets[first];
    for (int k = first; k <= last; k++) {
        plan->token_offsets[k - first] = list->option_offsets[k] - begin;
        plan->marker_offsets[k - first] = k - first;
        if (k == last)
            break;
        while (list->marker_offsets[*question + 1] <= k)
            ++*question;
        plan->question_types[k - first] = list->question_types[*question];
    }
    return (sky_batch){last - first, list->option_ids + begin, plan->token_offsets, list->markers + first, plan->marker_offsets,
                       plan->question_types, NULL};
}

/* Every option through the encoder, in passes of some length. */
static sky_status make_ready(sky_questions *q, const sky_question_list *list)
{
    enum { PASS_TOKENS = 2048 };
    const int n = q->option_x.rows;
    int question = 0;
    sky_plan_limits largest = {1, 1, 1, 1, list->n_threads > 1 ? list->n_threads : 1};
    for (int k = 0; k < n; k++)
        largest.sequence_tokens = larger(largest.sequence_tokens, list->option_offsets[k + 1] - list->option_offsets[k]);
    largest.n_tokens = larger(largest.sequence_tokens, (int)min64(PASS_TOKENS, list->option_offsets[n]));
    largest.n_sequences = largest.n_markers = (int)min64(n, largest.n_tokens);
    sky_plan *plan;
    sky_status status = sky_plan_create(q->model, &largest, &plan);
    if (status != SKY_OK)
        fail(q, status, "%s", sky_plan_error(plan));
    for (int first = 0, last; status == SKY_OK && first < n; first = last) {
        for (last = first + 1; last < n && list->option_offsets[last + 1] - list->option_offsets[first] <= largest.n_tokens; last++)
            ;
        const sky_batch batch = options_of(plan, list, &question, first, last);
        sky_prepare(plan, &batch, sky_rows(q->option_x, first, last - first), sky_rows(q->option_q, first, last - first));
    }
    sky_plan_free(plan);
    return status;
}

sky_status sky_questions_create(const sky_model *model, const sky_question_list *list, sky_questions **questions)
{
    sky_questions *q = sky_alloc(sizeof *q);
    *questions = q;
    if (!q)
        return SKY_ERR_MEMORY;
    q->state = SKY_STATE_FAILED; /* until all of it is there */
    if (model && model->state != SKY_STATE_FROZEN)
        return fail(q, SKY_ERR_STATE, "the model is not frozen");
    if (list->n_questions < 0 || list->token_offsets[0] != 0 || list->marker_offsets[0] != 0)
        return fail(q, SKY_ERR_ARGUMENT, "expected questions whose offsets begin with 0");
    if (list->sep_id < 0 || list->sep_id >= (model ? model->params.n_vocab : SKY_MAX_VOCAB))
        return fail(q, SKY_ERR_ARGUMENT, "sep_id %d is not in the vocabulary", list->sep_id);
    const int is_apart = list->option_ids != NULL;
    if (model && list->n_questions && is_apart != sky_architecture_of(model)->reads_state_once)
        return fail(q, SKY_ERR_ARGUMENT, "option_ids: are of s2, and of s2 alone");
    if (is_apart && list->option_offsets[0] != 0)
        return fail(q, SKY_ERR_ARGUMENT, "expected options whose offsets begin with 0");
    for (int i = 0; i < list->n_questions; i++) {
        const sky_status status = check_question(q, model, list, i);
        if (status != SKY_OK)
            return status;
    }
    q->model = model;
    q->n = list->n_questions;
    q->is_apart = is_apart;
    q->sep_id = list->sep_id;
    const int n_tokens = list->token_offsets[q->n], n_markers = list->marker_offsets[q->n];
    const int n_ready = model && is_apart ? n_markers : 0, d = model ? model->params.d_model : 0;
    q->arena_bytes = lay_out(q, n_tokens, n_markers, n_ready, d, NULL);
    q->arena = sky_alloc(q->arena_bytes);
    if (!q->arena)
        return fail(q, SKY_ERR_MEMORY, "out of memory");
    lay_out(q, n_tokens, n_markers, n_ready, d, q->arena);
    memcpy(q->token_ids, list->token_ids, (size_t)n_tokens * sizeof(int32_t));
    memcpy(q->token_offsets, list->token_offsets, ((size_t)q->n + 1) * sizeof(int32_t));
    memcpy(q->markers, list->markers, (size_t)n_markers * sizeof(int32_t));
    memcpy(q->marker_offsets, list->marker_offsets, ((size_t)q->n + 1) * sizeof(int32_t));
    memcpy(q->question_types, list->question_types, (size_t)q->n * sizeof(int32_t));
    memcpy(q->max_tokens, list->max_tokens, (size_t)q->n * sizeof(int32_t));
    for (int i = 0; i < q->n; i++)
        for (int k = q->marker_offsets[i]; k < q->marker_offsets[i + 1]; k++)
            q->options[k] = q->marker_offsets[i] + (list->options ? list->options[k] : k - q->marker_offsets[i]);
    if (n_ready) {
        const sky_status status = make_ready(q, list);
        if (status != SKY_OK)
            return status;
    }
    q->state = SKY_STATE_FROZEN;
    return SKY_OK;
}

const char *sky_questions_error(const sky_questions *q) { return q ? q->error : "out of memory"; }

size_t sky_questions_bytes(const sky_questions *q) { return q && q->state == SKY_STATE_FROZEN ? sizeof *q + q->arena_bytes : 0; }

void sky_questions_free(sky_questions *q)
{
    if (!q)
        return;
    sky_release(q->arena);
    sky_release(q);
}

/* ---- the layout ---- */

static int prefix_tokens(const sky_questions *q, int i) { return q->token_offsets[i + 1] - q->token_offsets[i]; }

/* How many of a state's tokens go behind prefix i, and how many tokens the whole sequence has. */
static int state_tokens(const sky_questions *q, int i, int64_t n_state)
{
    const int room = q->max_tokens[i] - prefix_tokens(q, i) - 1;
    return room > 0 ? (int)min64(n_state, room) : 0;
}

static int sequence_tokens(const sky_questions *q, int i, int64_t n_state)
{
    return (int)min64((int64_t)prefix_tokens(q, i) + state_tokens(q, i, n_state) + 1, q->max_tokens[i]);
}

/* ids = [prefix i] [state] [SEP]; gives how many there are. */
static int write_sequence(const sky_ask *ask, int i, int32_t *ids)
{
    const sky_questions *q = ask->questions;
    const int n_prefix = prefix_tokens(q, i), used = state_tokens(q, i, ask->n_state), n = sequence_tokens(q, i, ask->n_state);
    memcpy(ids, q->token_ids + q->token_offsets[i], (size_t)(n_prefix < n ? n_prefix : n) * sizeof *ids);
    if (used)
        memcpy(ids + n_prefix, ask->state_ids + (ask->keep_tail ? ask->n_state - used : 0), (size_t)used * sizeof *ids);
    if (n_prefix + used < n)
        ids[n_prefix + used] = q->sep_id;
    return n;
}

static int is_within(const sky_ask *ask)
{
    return ask->questions && ask->questions->state == SKY_STATE_FROZEN && ask->first >= 0 && ask->n >= 0
        && ask->first <= ask->questions->n - ask->n && ask->n_state >= 0;
}

int32_t sky_ask_sequence(const sky_ask *ask, int32_t question, int32_t *token_ids, int32_t *n_state_used)
{
    if (!is_within(ask) || question < 0 || question >= ask->questions->n)
        return 0;
    if (n_state_used)
        *n_state_used = state_tokens(ask->questions, question, ask->n_state);
    return token_ids ? write_sequence(ask, question, token_ids) : sequence_tokens(ask->questions, question, ask->n_state);
}

/* ---- passes ---- */

typedef struct {
    int32_t ask, question; /* the next sequence: question counts from the ask's first */
} cursor;

/* Whether an ask reads its state anew, or shares the sequence of the ask in front of it in the pass, NULL where there is none.
 * Only asks of one model are compared. */
static int reads_anew(const sky_ask *ask, const sky_ask *before)
{
    const sky_questions *q = ask->questions, *p = before ? before->questions : NULL;
    if (!before || !q->is_apart || ask->state_ids != before->state_ids || ask->n_state != before->n_state
        || ask->keep_tail != before->keep_tail)
        return 1;
    return q != p && !same_frame(q->token_ids, prefix_tokens(q, 0), q->max_tokens[0], p->token_ids, prefix_tokens(p, 0), p->max_tokens[0]);
}

/* Moves `at` over the sequences of the next pass: as many as fit into `most` tokens and into the plan's other limits, where there
 * is one, but at least one. `size` is that of the pass, its n_sequences 0 at the end; they are counted as sky_plan_limits says. */
static void next_pass(const sky_ask *asks, int n_asks, cursor *at, int64_t most, const sky_plan_limits *plan, sky_plan_limits *size)
{
    const int64_t most_markers = plan ? plan->n_markers : most;
    const sky_ask *before = NULL;
    *size = (sky_plan_limits){0, 0, 0, 0, 0};
    for (; at->ask < n_asks; at->ask++, at->question = 0) {
        const sky_ask *ask = &asks[at->ask];
        const sky_questions *q = ask->questions;
        for (; at->question < ask->n; at->question++) {
            const int i = ask->first + at->question, n_markers = q->marker_offsets[i + 1] - q->marker_offsets[i];
            const int n = reads_anew(ask, before) ? sequence_tokens(q, i, ask->n_state) : 0;
            if (size->n_sequences
                && ((n && (int64_t)size->n_tokens + n > most) || (int64_t)size->n_markers + n_markers > most_markers
                    || (plan && size->n_sequences == plan->n_sequences)))
                return;
            before = ask;
            size->n_sequences++;
            size->n_tokens += n;
            size->n_markers += n_markers;
            size->sequence_tokens = larger(size->sequence_tokens, n);
        }
    }
}

sky_status sky_measure_asks(const sky_ask *asks, int32_t n_asks, int32_t pass_tokens, sky_plan_limits *largest, int64_t *n_tokens,
                            int64_t *n_markers)
{
    *largest = (sky_plan_limits){0, 0, 0, 0, 0};
    *n_tokens = *n_markers = 0;
    for (int i = 0; i < n_asks; i++)
        if (!is_within(&asks[i]))
            return SKY_ERR_ARGUMENT;
    cursor at = {0, 0};
    sky_plan_limits size;
    for (next_pass(asks, n_asks, &at, pass_tokens, NULL, &size); size.n_sequences;
         next_pass(asks, n_asks, &at, pass_tokens, NULL, &size)) {
        largest->n_tokens = larger(largest->n_tokens, size.n_tokens);
        largest->n_sequences = larger(largest->n_sequences, size.n_sequences);
        largest->n_markers = larger(largest->n_markers, size.n_markers);
        largest->sequence_tokens = larger(largest->sequence_tokens, size.sequence_tokens);
        *n_tokens += size.n_tokens;
        *n_markers += size.n_markers;
    }
    return SKY_OK;
}

/* rows [.., d] from `first` on = those of ready [n, d] */
static void copy_rows(sky_matrix rows, int first, sky_matrix ready)
{
    for (int k = 0; k < ready.rows; k++)
        memcpy(rows.data + (ptrdiff_t)(first + k) * rows.stride, ready.data + (ptrdiff_t)k * ready.stride,
               (size_t)ready.cols * sizeof(float));
}

/* The sequences from `at` to `end` into the plan's own buffers, and options that were made ready. */
static sky_pass lay_out_pass(sky_plan *plan, const sky_ask *asks, cursor at, cursor end)
{
    int n = 0, n_tokens = 0, n_markers = 0, n_questions = 0;
    const sky_ask *before = NULL;
    for (; at.ask <= end.ask; at.ask++, at.question = 0) {
        if (at.ask == end.ask && at.question == end.question)
            break;
        const sky_ask *ask = &asks[at.ask];
        const sky_questions *q = ask->questions;
        for (; at.question < (at.ask == end.ask ? end.question : ask->n); at.question++) {
            const int i = ask->first + at.question, first = q->marker_offsets[i], count = q->marker_offsets[i + 1] - first;
            if (reads_anew(ask, before)) {
                n_tokens += write_sequence(ask, i, plan->token_ids + n_tokens);
                plan->prefix_tokens[n] = prefix_tokens(q, i);
                plan->question_types[n++] = q->question_types[i];
                plan->token_offsets[n] = n_tokens;
            }
            before = ask;
            if (q->is_apart) {
                copy_rows(plan->marker_x, n_markers, sky_rows(q->option_x, first, count));
                copy_rows(plan->marker_q, n_markers, sky_rows(q->option_q, first, count));
                plan->question_offsets[++n_questions] = n_markers + count;
            } else {
                memcpy(plan->markers + n_markers, q->markers + first, (size_t)count * sizeof(int32_t));
            }
            n_markers += count;
            plan->marker_offsets[n] = n_markers;
        }
    }
    const sky_batch batch = {n, plan->token_ids, plan->token_offsets, plan->markers, plan->marker_offsets, plan->question_types,
                             plan->prefix_tokens};
    return (sky_pass){batch, n_questions, plan->question_offsets};
}

static sky_status check_asks(sky_plan *plan, const sky_ask *asks, int n_asks)
{
    const int n_vocab = plan->model->params.n_vocab;
    for (int i = 0; i < n_asks; i++) {
        if (!is_within(&asks[i]))
            return sky_plan_fail(plan, SKY_ERR_ARGUMENT, "ask %d: its set has no %d questions from %d on", i, asks[i].n,
                                 asks[i].first);
        if (asks[i].questions->model != plan->model)
            return sky_plan_fail(plan, SKY_ERR_ARGUMENT, "ask %d: its questions were made ready for another model", i);
        if (i && asks[i].state_ids == asks[i - 1].state_ids && asks[i].n_state <= asks[i - 1].n_state)
            continue; /* looked at before */
        for (int64_t t = 0; t < asks[i].n_state; t++)
            if (asks[i].state_ids[t] < 0 || asks[i].state_ids[t] >= n_vocab)
                return sky_plan_fail(plan, SKY_ERR_ARGUMENT, "token id %d is not in the vocabulary of %d", asks[i].state_ids[t],
                                     n_vocab);
    }
    return SKY_OK;
}

sky_status sky_run_asks(sky_plan *plan, const sky_ask *asks, int32_t n_asks, int32_t pass_tokens, float *logits)
{
    if (!plan || plan->state != SKY_STATE_OPEN)
        return SKY_ERR_STATE;
    sky_status status = check_asks(plan, asks, n_asks);
    const sky_plan_limits *limits = &plan->limits;
    const int most = pass_tokens < limits->n_tokens ? pass_tokens : limits->n_tokens;
    for (cursor at = {0, 0}, begin = at; status == SKY_OK; begin = at) {
        sky_plan_limits size;
        next_pass(asks, n_asks, &at, most, limits, &size);
        if (size.n_sequences == 0)
            break;
        if (size.n_tokens > limits->n_tokens || size.n_markers > limits->n_markers
            || size.sequence_tokens > limits->sequence_tokens)
            return sky_plan_fail(plan, SKY_ERR_CAPACITY,
                                 "a sequence of %d tokens and %d markers: the plan holds at most %d tokens, %d of a sequence, "
                                 "and %d markers",
                                 size.n_tokens, size.n_markers, limits->n_tokens, limits->sequence_tokens, limits->n_markers);
        const sky_pass pass = lay_out_pass(plan, asks, begin, at);
        status = sky_forward(plan, &pass, logits);
        logits += size.n_markers;
    }
    return status;
}

/* ---- probabilities ---- */

/* The sum of x [n], exact to the last bit but for one case in some 10^14: what is rounded away is summed, too. */
static double exact_sum(const double *x, int n)
{
    double sum = 0.0, rest = 0.0;
    for (int i = 0; i < n; i++) {
        const double total = sum + x[i], back = total - sum;
        rest += (sum - (total - back)) + (x[i] - back);
        sum = total;
    }
    return sum + rest;
}

int sky_probabilities(const sky_questions *q, const float *logits, const double *temperatures, double *p)
{
    const sky_float_mode before = sky_float_mode_enter();
    int finite = 1;
    for (int i = 0; i < q->n; i++) {
        const int begin = q->marker_offsets[i], end = q->marker_offsets[i + 1];
        double peak = -INFINITY;
        for (int k = begin; k < end; k++) {
            finite &= isfinite(logits[k]) != 0;
            peak = logits[k] > peak ? logits[k] : peak;
        }
        for (int k = begin; k < end; k++)
            p[q->options[k]] = exp((logits[k] - peak) / temperatures[i]);
        const double total = exact_sum(p + begin, end - begin);
        for (int k = begin; k < end; k++)
            p[k] /= total;
    }
    sky_float_mode_leave(before);
    return finite;
}

/* ---- answers ---- */

/* How far the best of n is above chance: as choice_confidence of src/skyinfer/runtime/answers.py. */
static double choice_confidence(double best, int n)
{
    const double chance = 1.0 / n, confidence = n > 1 ? (best - chance) / (1.0 - chance) : 1.0;
    return confidence > 0.0 ? confidence : 0.0;
}

/* As score_confidence there: how near p [n] lies to its mode, against a uniform one. */
static double score_confidence(const double *p, int mode, int n)
{
    double spread = 0.0, uniform = 0.0;
    if (n == 1)
        return 1.0;
    for (int i = 0; i < n; i++) {
        spread += p[i] * abs(i - mode);
        uniform += fabs(i - (n - 1) / 2.0);
    }
    const double confidence = 1.0 - spread / (uniform / n);
    return confidence > 0.0 ? confidence : 0.0;
}

sky_answer sky_answer_of(int type, const double *p, int n)
{
    int best = 0;
    double level = 0.0;
    for (int i = 0; i < n; i++) {
        best = p[i] > p[best] ? i : best;
        level += i * p[i];
    }
    return (sky_answer){
        .label = best,
        .value = type == SKY_QUESTION_SCORE ? level : type == SKY_QUESTION_NOUL ? p[n - 1] : p[best],
        .confidence = type == SKY_QUESTION_SCORE ? score_confidence(p, best, n) : choice_confidence(p[best], n),
    };
}

int64_t sky_write_answers(const sky_questions *q, const float *logits, const int64_t *n_state, int64_t n,
                          const double *temperatures, double *p, const sky_answers *out)
{
    const int n_options = q->marker_offsets[q->n];
    const sky_float_mode before = sky_float_mode_enter();
    int64_t s = 0;
    for (; s < n && sky_probabilities(q, logits + s * n_options, temperatures, p); s++) {
        for (int k = 0; k < n_options; k++)
            out->probabilities[s * n_options + k] = (float)p[k];
        for (int i = 0; i < q->n; i++) {
            const int first = q->marker_offsets[i], count = q->marker_offsets[i + 1] - first;
            const sky_answer answer = sky_answer_of(q->question_types[i], p + first, count);
            out->labels[s * q->n + i] = answer.label;
            out->values[s * q->n + i] = (float)answer.value;
            out->confidence[s * q->n + i] = (float)answer.confidence;
            out->truncated[s * q->n + i] = state_tokens(q, i, n_state[s]) < n_state[s];
        }
    }
    sky_float_mode_leave(before);
    return s;
}
