/* Questions of the core by themselves: layouts against their rule, passes of any mixture against sky_run of each sequence alone,
 * probabilities and answers about many states against double precision, and what is refused. Prints one line a check; exits 1 at the first fault. */
#include "counting.h"
#include "painted.h"

static const float canary = 12345.678f;

enum { N_QUESTIONS = 5, STATE_TOKENS = 40 };

/* [prefix] [state] [SEP] by its rule, token by token. */
static int sequence_by_rule(const sky_question_list *list, int i, const int32_t *state, int n_state, int keep_tail, int32_t *ids)
{
    const int begin = list->token_offsets[i], n_prefix = list->token_offsets[i + 1] - begin, most = list->max_tokens[i];
    int n = 0, room = most - n_prefix - 1;
    if (room > n_state)
        room = n_state;
    for (int t = 0; t < n_prefix && n < most; t++)
        ids[n++] = list->token_ids[begin + t];
    for (int t = 0; t < room; t++)
        ids[n++] = state[keep_tail ? n_state - room + t : t];
    if (n < most)
        ids[n++] = list->sep_id;
    return n;
}

/* Questions about states, mixed, in one pass and in many: bit by bit what sky_run gives for each sequence by itself. */
static void check_questions(const char *isa)
{
    static const int32_t token_offsets[N_QUESTIONS + 1] = {0, 6, 7, 30, 35, 45}, max_tokens[N_QUESTIONS] = {200, 3, 60, 9, 8};
    static const int32_t marker_offsets[N_QUESTIONS + 1] = {0, 2, 3, 6, 7, 8}, markers[8] = {2, 4, 0, 5, 9, 22, 1, 7};
    static const int32_t options[8] = {1, 0, 0, 2, 0, 1, 0, 0}, types[N_QUESTIONS] = {0, 1, 2, 0, 1};
    int32_t ids[45], states[2][STATE_TOKENS], laid[MAX_LEN];
    seed = 5;
    for (int i = 0; i < 45; i++)
        ids[i] = (int)((noise() + 1) * VOCAB / 2);
    for (int i = 0; i < 2 * STATE_TOKENS; i++)
        states[i / STATE_TOKENS][i % STATE_TOKENS] = (int)((noise() + 1) * VOCAB / 2);
    const sky_question_list list = {N_QUESTIONS, 3, ids, token_offsets, markers, marker_offsets, options, types, max_tokens,
                                    NULL, NULL, 0};
    sky_model *m = painted_model(isa, 0);
    sky_questions *q, *same;
    expect(sky_questions_create(m, &list, &q) == SKY_OK && sky_questions_create(m, &list, &same) == SKY_OK, isa, "questions", 0);
    expect(sky_questions_bytes(q) > 45 * sizeof(int32_t), isa, "bytes of questions", 0);

    const sky_ask asks[] = {
        {q, 0, N_QUESTIONS, states[0], STATE_TOKENS, 0}, {q, 2, 1, states[1], STATE_TOKENS, 1}, {same, 1, 3, states[1], 3, 1},
        {same, 4, 1, NULL, 0, 0}, {q, 3, 0, NULL, 0, 0}, {q, 0, 2, states[0] + 5, 20, 1}};
    enum { N_ASKS = sizeof asks / sizeof asks[0] };
    float expected[30], scores[30];
    int n_scores = 0, n_all = 0, longest = 0;
    const sky_plan_limits one_of = {MAX_LEN, 1, 8, MAX_LEN, 1};
    sky_plan *plan;
    expect(sky_plan_create(m, &one_of, &plan) == SKY_OK, isa, "a plan", 0);
    for (int a = 0; a < N_ASKS; a++)
        for (int i = asks[a].first; i < asks[a].first + asks[a].n; i++) {
            int32_t own[MAX_LEN], used;
            const int n = sequence_by_rule(&list, i, asks[a].state_ids, (int)asks[a].n_state, asks[a].keep_tail, own);
            expect(sky_ask_sequence(&asks[a], i, laid, &used) == n && memcmp(laid, own, n * sizeof *own) == 0, isa, "laid out", i);
            expect(sky_ask_sequence(&asks[a], i, NULL, NULL) == n && used >= 0 && used <= asks[a].n_state, isa, "length", i);
            const int n_markers = marker_offsets[i + 1] - marker_offsets[i];
            const int32_t tokens[2] = {0, n}, marked[2] = {0, n_markers};
            const sky_batch alone = {1, own, tokens, markers + marker_offsets[i], marked, types + i, NULL};
            expect(sky_run(plan, &alone, expected + n_scores) == SKY_OK, isa, sky_plan_error(plan), i);
            n_scores += n_markers;
            n_all += n;
            longest = n > longest ? n : longest;
        }
    for (int pass_tokens = 1; pass_tokens < 400; pass_tokens += 13) {
        sky_plan_limits needed;
        int64_t n_tokens, n_markers;
        sky_plan *own;
        expect(sky_measure_asks(asks, N_ASKS, pass_tokens, &needed, &n_tokens, &n_markers) == SKY_OK, isa, "measure", 0);
        expect(n_tokens == n_all && n_markers == n_scores && needed.sequence_tokens == longest, isa, "measured", pass_tokens);
        expect(needed.n_tokens <= (pass_tokens > longest ? pass_tokens : longest), isa, "a pass too long", pass_tokens);
        needed.n_threads = 1;
        expect(sky_plan_create(m, &needed, &own) == SKY_OK, isa, "a plan of the size that was measured", 0);
        for (int i = 0; i < 30; i++)
            scores[i] = canary;
        const long before = n_allocations;
        expect(sky_run_asks(own, asks, N_ASKS, pass_tokens, scores) == SKY_OK, isa, sky_plan_error(own), pass_tokens);
        expect(n_allocations == before, isa, "sky_run_asks allocated", 0);
        expect(memcmp(scores, expected, n_scores * sizeof *scores) == 0, isa, "asks differ", pass_tokens);
        expect(scores[n_scores] == canary, isa, "a score too many", pass_tokens);
        sky_plan_free(own);
    }
    /* a plan for one sequence runs them one by one; a smaller one refuses */
    expect(sky_run_asks(plan, asks, N_ASKS, 1 << 20, scores) == SKY_OK, isa, sky_plan_error(plan), 0);
    expect(memcmp(scores, expected, n_scores * sizeof *scores) == 0, isa, "one by one", 0);
    const sky_plan_limits too_small[3] = {{46, 9, 30, 46, 1}, {400, 9, 30, 46, 1}, {400, 9, 2, 100, 1}};
    for (int i = 0; i < 3; i++) {
        sky_plan *small;
        expect(sky_plan_create(m, &too_small[i], &small) == SKY_OK, isa, "a plan", 0);
        expect(sky_run_asks(small, asks, N_ASKS, 1 << 20, scores) == SKY_ERR_CAPACITY, isa, "more than the plan holds", i);
        sky_plan_free(small);
    }
    const int32_t outside[2][1] = {{VOCAB}, {-1}};
    const sky_ask faulty[] = {{q, 0, 6, NULL, 0, 0}, {q, -1, 2, NULL, 0, 0}, {q, 5, 1, NULL, 0, 0}, {q, 1, -1, NULL, 0, 0},
                              {NULL, 0, 1, NULL, 0, 0}, {q, 0, 1, outside[0], 1, 0}, {q, 0, 1, outside[1], 1, 0}};
    for (int i = 0; i < 7; i++)
        expect(sky_run_asks(plan, faulty + i, 1, 99, scores) == SKY_ERR_ARGUMENT, isa, "took a faulty ask", i);
    expect(sky_ask_sequence(faulty, -1, NULL, NULL) == 0 && sky_ask_sequence(asks, 5, NULL, NULL) == 0, isa, "no such question", 0);

    const double temperatures[N_QUESTIONS] = {1, 0.5, 3, 1, 2};
    double p[8];
    expect(sky_probabilities(q, expected, temperatures, p) == 1, isa, "probabilities", 0);
    for (int i = 0; i < N_QUESTIONS; i++) {
        double total = 0;
        for (int k = marker_offsets[i]; k < marker_offsets[i + 1]; k++)
            total += exp(expected[k] / temperatures[i]);
        for (int k = marker_offsets[i]; k < marker_offsets[i + 1]; k++)
            expect(fabs(p[marker_offsets[i] + options[k]] - exp(expected[k] / temperatures[i]) / total) < 1e-14, isa, "p", k);
    }
    expected[7] = NAN;
    expect(sky_probabilities(q, expected, temperatures, p) == 0, isa, "probabilities of NaN", 0);

    /* what is refused, and what a set that was refused still takes */
    int32_t wrong_ids[45], wrong[8];
    sky_question_list lists[6] = {list, list, list, list, list, list};
    memcpy(wrong_ids, ids, sizeof ids);
    wrong_ids[44] = VOCAB;
    lists[0].token_ids = wrong_ids;
    lists[1].sep_id = VOCAB;
    memcpy(wrong, markers, sizeof wrong);
    wrong[7] = 8; /* in the prefix, but behind max_tokens */
    lists[2].markers = wrong;
    lists[3].options = markers;
    lists[4].token_offsets = marker_offsets + 1;
    lists[5].n_questions = -1;
    for (int i = 0; i < 7; i++) {
        sky_questions *bad = NULL; /* the last: what is left where memory ran out */
        expect(i == 6 || sky_questions_create(m, lists + i, &bad) == SKY_ERR_ARGUMENT, isa, "took faulty questions", i);
        const sky_ask ask = {bad, 0, 1, NULL, 0, 0};
        expect(strlen(sky_questions_error(bad)) > 0 && sky_questions_bytes(bad) == 0, isa, "no error", i);
        expect(sky_ask_sequence(&ask, 0, NULL, NULL) == 0, isa, "failed questions: sequence", i);
        expect(sky_run_asks(plan, &ask, 1, 99, scores) == SKY_ERR_ARGUMENT, isa, "failed questions: run", i);
        sky_questions_free(bad);
    }
    sky_questions *loose;
    expect(sky_questions_create(NULL, &list, &loose) == SKY_OK, isa, "questions of no model", 0);
    const sky_ask ask = {loose, 0, 1, states[0], 4, 0};
    expect(sky_ask_sequence(&ask, 0, NULL, NULL) == 11 && sky_run_asks(plan, &ask, 1, 99, scores) == SKY_ERR_ARGUMENT, isa,
           "questions of no model are laid out only", 0);
    sky_questions_free(loose);
    sky_questions_free(q);
    sky_questions_free(same);
    sky_plan_free(plan);
    sky_model_free(m);
    printf("ok      %-9s questions\n", isa);
}

/* Arrays of answers about states of several lengths against the formulas in double precision: those of the Laya runtime for labels,
 * values and cuts, and for confidence those of System One (choice: max(0, (p_max - 1/n) / (1 - 1/n)); score: max(0, 1 - D/D_uniform),
 * D the mean distance from the mode, D_uniform that of the uniform distribution from the middle). */
static void check_answers(void)
{
    enum { N = 4, OPTIONS = 12, STATES = 50 };
    static const int32_t token_offsets[N + 1] = {0, 6, 12, 20, 22}, marker_offsets[N + 1] = {0, 4, 9, 11, 12};
    static const int32_t markers[OPTIONS] = {2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 0}, max_tokens[N] = {40, 13, 12, 30};
    static const int32_t options[OPTIONS] = {2, 0, 3, 1, 0, 1, 2, 3, 4, 1, 0, 0}; /* in the order of the answer */
    static const int32_t types[N] = {SKY_QUESTION_CHOICE, SKY_QUESTION_SCORE, SKY_QUESTION_NOUL, SKY_QUESTION_CHOICE};
    static const double temperatures[N] = {1, 0.5, 2.5, 5};
    int32_t ids[22] = {0};
    const sky_question_list list = {N, 3, ids, token_offsets, markers, marker_offsets, options, types, max_tokens,
                                    NULL, NULL, 0};
    sky_questions *q;
    expect(sky_questions_create(NULL, &list, &q) == SKY_OK, "answers", "questions", 0);
    float logits[STATES * OPTIONS], p[STATES * OPTIONS + 1], values[STATES * N + 1], confidence[STATES * N + 1];
    int32_t labels[STATES * N + 1];
    uint8_t truncated[STATES * N + 1];
    int64_t lengths[STATES];
    double scratch[OPTIONS];
    const sky_answers out = {p, labels, values, confidence, truncated};
    seed = 9;
    for (int s = 0; s < STATES; s++) {
        lengths[s] = s; /* of which 33, 6, 3 and 27 have room: max_tokens less the prefix and [SEP] */
        for (int k = 0; k < OPTIONS; k++)
            logits[s * OPTIONS + k] = 8 * noise();
    }
    for (int k = 0; k < OPTIONS; k++) { /* equal ones; and such as float cannot tell from certain, and from impossible */
        logits[k] = 1;
        logits[OPTIONS + k] = k % 2 ? 300 : -300;
    }
    p[STATES * OPTIONS] = values[STATES * N] = confidence[STATES * N] = canary;
    labels[STATES * N] = truncated[STATES * N] = 77;
    const long before = n_allocations;
    expect(sky_write_answers(q, logits, lengths, STATES, temperatures, scratch, &out) == STATES, "answers", "all states", 0);
    expect(n_allocations == before, "answers", "sky_write_answers allocated", 0);
    for (int s = 0; s < STATES; s++)
        for (int i = 0; i < N; i++) {
            const int begin = marker_offsets[i], n = marker_offsets[i + 1] - begin, at = s * N + i;
            double own[8], total = 0, mean = 0, spread = 0, uniform = 0;
            int best = 0;
            for (int k = 0; k < n; k++)
                total += exp(logits[s * OPTIONS + begin + k] / temperatures[i]);
            for (int k = 0; k < n; k++)
                own[options[begin + k]] = exp(logits[s * OPTIONS + begin + k] / temperatures[i]) / total;
            for (int k = 0; k < n; k++) {
                best = own[k] > own[best] * (1 + 1e-12) ? k : best;
                mean += k * own[k];
            }
            for (int k = 0; k < n; k++) {
                spread += own[k] * abs(k - best);
                uniform += fabs(k - (n - 1) / 2.0) / n;
                expect(fabs(p[s * OPTIONS + begin + k] - own[k]) < 1e-7, "answers", "p", s);
            }
            const double of_choice = n == 1 ? 1 : fmax(0, (own[best] - 1.0 / n) / (1 - 1.0 / n)), of_score = fmax(0, 1 - spread / uniform);
            const double value = i == 0 || i == 3 ? own[best] : i == 1 ? mean : own[1];
            expect(labels[at] == best, "answers", "label", at);
            expect(fabs(values[at] - value) < 1e-6, "answers", "value", at);
            expect(fabs(confidence[at] - (i == 1 ? of_score : of_choice)) < 1e-6, "answers", "confidence", at);
            expect(truncated[at] == (lengths[s] > max_tokens[i] - (token_offsets[i + 1] - token_offsets[i]) - 1), "answers", "cut", at);
        }
    expect(labels[0] == 0 && labels[1] == 0 && labels[2] == 0 && p[0] == 0.25f, "answers", "of equal ones the first", 0);
    expect(p[STATES * OPTIONS] == canary && values[STATES * N] == canary && confidence[STATES * N] == canary && labels[STATES * N] == 77
               && truncated[STATES * N] == 77, "answers", "wrote too much", 0);

    /* a score that is not finite: its number, those before it written, it and those after it not */
    const float faulty[3] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        logits[20 * OPTIONS + 11 - i] = faulty[i];
        labels[19 * N] = labels[20 * N] = 77;
        p[21 * OPTIONS] = canary;
        expect(sky_write_answers(q, logits, lengths, STATES, temperatures, scratch, &out) == 20, "answers", "a faulty score", i);
        expect(labels[19 * N] != 77 && labels[20 * N] == 77 && p[21 * OPTIONS] == canary, "answers", "beside a faulty score", i);
        logits[20 * OPTIONS + 11 - i] = 0;
    }
    expect(sky_write_answers(q, logits, lengths, 0, temperatures, scratch, &out) == 0, "answers", "of no state", 0);
    sky_questions_free(q);
    printf("ok      portable  answers\n");
}

int main(void)
{
    for (int i = 0; sky_isa_name(i); i++)
        if (sky_isa_supported(sky_isa_name(i)))
            check_questions(sky_isa_name(i));
    check_answers();
    return 0;
}
