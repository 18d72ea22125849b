/* s2 in the core by itself: sets of questions made ready and states read once. A run allocates nothing, and its bits are those of
 * each question and state alone, in any mixture, passes, and threads, of one caller and of several that share a set; what is refused.
 * The numbers themselves are held against tests/reference.py by tests/test_s2.py. Prints one line a check; exits 1 at the first fault. */
#include "counting.h"
#include "painted.h"

#include <pthread.h>

enum { N_SETS = 3, N_STATES = 4, MOST_QUESTIONS = 4, MOST_OPTIONS = 24, MOST_IDS = 600, CLS_ID = 1, SEP_ID = 2, STATE_ROOM = 60 };

static const float canary = 12345.678f;

static sky_model *painted_s2(const char *isa, size_t qkv_table_bytes, sky_precision precision)
{
    static const uint8_t is_global[LAYERS] = {1, 0, 0, 1};
    const sky_model_params params = {
        .architecture = SKY_ARCH_S2, .d_model = D, .d_ff = FF, .n_vocab = VOCAB, .n_layers = LAYERS, .n_heads = HEADS,
        .n_decision_blocks = BLOCKS, .n_decision_heads = 3, .window = 8, .max_positions = MAX_LEN, .norm_eps = 1e-5f,
        .rope_base_global = 160000.0f, .rope_base_local = 10000.0f, .activation = SKY_ACT_GELU, .layer_is_global = is_global,
        .qkv_table_bytes = qkv_table_bytes, .precision = precision, .isa = isa, .n_cpus = PAINTED_CPUS};
    sky_model *m;
    expect(sky_model_create(&params, &m) == SKY_OK, isa, "sky_model_create", 0);
    const int n = sky_tensors(&params, NULL, 0);
    sky_tensor *tensors = malloc((size_t)n * sizeof *tensors);
    sky_tensors(&params, tensors, n);
    seed = 7;
    for (int i = 0; i < n; i++) {
        const int is_norm = strstr(tensors[i].name, "norm.weight") != NULL;
        expect(sky_model_freeze(m) == SKY_ERR_STATE, isa, "freeze took a model that lacks a tensor", i);
        paint(m, tensors[i].name, (int)tensors[i].rows, (int)tensors[i].cols, 0.2f, is_norm ? 1 : 0);
    }
    free(tensors);
    expect(sky_model_freeze(m) == SKY_OK, isa, model_error(m), 0);
    return m;
}

/* Lists with all that they point at. */
typedef struct {
    sky_question_list list;
    int32_t prefixes[MOST_QUESTIONS], token_offsets[MOST_QUESTIONS + 1], marker_offsets[MOST_QUESTIONS + 1], types[MOST_QUESTIONS];
    int32_t max_tokens[MOST_QUESTIONS], markers[MOST_OPTIONS], option_ids[MOST_IDS], option_offsets[MOST_OPTIONS + 1];
} painted_set;

static int random_below(int n) { return (int)((noise() + 1) / 2 * (float)n) % n; }

static void paint_set(painted_set *s, int n_questions)
{
    *s = (painted_set){.token_offsets = {0}, .marker_offsets = {0}, .option_offsets = {0}};
    int n_options = 0;
    for (int i = 0; i < n_questions; i++) {
        s->prefixes[i] = CLS_ID;
        s->token_offsets[i + 1] = i + 1;
        s->types[i] = random_below(SKY_N_QUESTION_TYPES);
        s->max_tokens[i] = STATE_ROOM;
        const int count = 1 + random_below(6);
        for (int k = 0; k < count; k++, n_options++) {
            const int begin = s->option_offsets[n_options], length = 1 + random_below(20);
            for (int t = 0; t < length; t++)
                s->option_ids[begin + t] = random_below(VOCAB);
            s->markers[n_options] = random_below(length);
            s->option_offsets[n_options + 1] = begin + length;
        }
        s->marker_offsets[i + 1] = n_options;
    }
    s->list = (sky_question_list){n_questions, SEP_ID, s->prefixes, s->token_offsets, s->markers, s->marker_offsets, NULL, s->types,
                                  s->max_tokens, s->option_ids, s->option_offsets, SKY_MAX_THREADS < 2 ? 1 : 2};
}

typedef struct {
    sky_model *model;
    sky_questions *sets[N_SETS], *alone[N_SETS][MOST_QUESTIONS];
    painted_set lists[N_SETS];
    int32_t states[N_STATES][80];
    float expected[N_STATES][N_SETS][MOST_OPTIONS]; /* of each question and state alone */
} fixture;

static const int state_lengths[N_STATES] = {0, 5, 58, 80};

static sky_plan *plan_for(const sky_model *m, const char *isa, const sky_ask *asks, int n_asks, int pass_tokens, int n_threads)
{
    sky_plan_limits needed;
    int64_t n_tokens, n_markers;
    sky_plan *plan;
    expect(sky_measure_asks(asks, n_asks, pass_tokens, &needed, &n_tokens, &n_markers) == SKY_OK, isa, "measure", pass_tokens);
    needed.n_threads = n_threads;
    const sky_status status = sky_plan_create(m, &needed, &plan);
    expect(status == SKY_OK, isa, sky_plan_error(plan), 0);
    plan->shared_work = 1; /* else no step is worth a second thread */
    return plan;
}

static void set_up(fixture *f, const char *isa, size_t qkv_table_bytes, sky_precision precision)
{
    f->model = painted_s2(isa, qkv_table_bytes, precision);
    seed = 21;
    for (int i = 0; i < N_STATES * 80; i++)
        f->states[i / 80][i % 80] = random_below(VOCAB);
    for (int s = 0; s < N_SETS; s++) {
        paint_set(&f->lists[s], 2 + s);
        const sky_status status = sky_questions_create(f->model, &f->lists[s].list, &f->sets[s]);
        expect(status == SKY_OK, isa, sky_questions_error(f->sets[s]), s);
        expect(sky_questions_bytes(f->sets[s]) > f->lists[s].marker_offsets[2 + s] * 2 * D * sizeof(float), isa, "bytes", s);
        for (int q = 0; q < 2 + s; q++) {
            const painted_set *l = &f->lists[s];
            const int first = l->marker_offsets[q], count = l->marker_offsets[q + 1] - first, begin = l->option_offsets[first];
            const int32_t token_offsets[2] = {0, 1}, marker_offsets[2] = {0, count};
            int32_t offsets[MOST_OPTIONS + 1];
            for (int k = 0; k <= count; k++)
                offsets[k] = l->option_offsets[first + k] - begin;
            const sky_question_list one = {1, SEP_ID, l->prefixes, token_offsets, l->markers + first, marker_offsets, NULL,
                                           l->types + q, l->max_tokens, l->option_ids + begin, offsets, 0};
            expect(sky_questions_create(f->model, &one, &f->alone[s][q]) == SKY_OK, isa, "a question alone", q);
            for (int state = 0; state < N_STATES; state++) {
                const sky_ask ask = {f->alone[s][q], 0, 1, f->states[state], state_lengths[state], state % 2};
                sky_plan *plan = plan_for(f->model, isa, &ask, 1, 1 << 20, 1);
                expect(sky_run_asks(plan, &ask, 1, 1 << 20, f->expected[state][s] + first) == SKY_OK, isa, sky_plan_error(plan), q);
                sky_plan_free(plan);
            }
        }
    }
}

static void tear_down(fixture *f)
{
    for (int s = 0; s < N_SETS; s++) {
        sky_questions_free(f->sets[s]);
        for (int q = 0; q < MOST_QUESTIONS; q++)
            sky_questions_free(f->alone[s][q]);
    }
    sky_model_free(f->model);
}

/* Every set about every state, and parts of sets, so that states are shared, cut and read anew. */
enum { N_ASKS = N_STATES * (N_SETS + 3), MOST_SCORES = N_ASKS * MOST_OPTIONS };

static int all_asks(const fixture *f, sky_ask *asks, float *expected)
{
    int n = 0, n_scores = 0;
    for (int state = 0; state < N_STATES; state++)
        for (int i = 0; i < N_SETS + 3; i++) {
            const int s = i % N_SETS, first = i < N_SETS ? 0 : s % 2, n_questions = i < N_SETS ? 2 + s : i == N_SETS ? 0 : 2;
            asks[n++] = (sky_ask){f->sets[s], first, n_questions, f->states[state], state_lengths[state], state % 2};
            const int begin = f->lists[s].marker_offsets[first], end = f->lists[s].marker_offsets[first + n_questions];
            memcpy(expected + n_scores, f->expected[state][s] + begin, (size_t)(end - begin) * sizeof(float));
            n_scores += end - begin;
        }
    return n_scores;
}

static void check_runs(const fixture *f, const char *isa)
{
    sky_ask asks[N_ASKS];
    float expected[MOST_SCORES], scores[MOST_SCORES + 1];
    const int n_scores = all_asks(f, asks, expected);
    for (int pass_tokens = 1; pass_tokens < 1000; pass_tokens = pass_tokens * 2 + 3)
        for (int n_threads = 1; n_threads <= (SKY_MAX_THREADS < 3 ? 1 : 3); n_threads += 2) {
            sky_plan *plan = plan_for(f->model, isa, asks, N_ASKS, pass_tokens, n_threads);
            for (int i = 0; i <= MOST_SCORES; i++)
                scores[i] = canary;
            sky_run_asks(plan, asks, N_ASKS, pass_tokens, scores); /* starts threads */
            const long before = n_allocations;
            expect(sky_run_asks(plan, asks, N_ASKS, pass_tokens, scores) == SKY_OK, isa, sky_plan_error(plan), pass_tokens);
            expect(n_threads > 1 || n_allocations == before, isa, "a run allocated", pass_tokens);
            expect(memcmp(scores, expected, (size_t)n_scores * sizeof *scores) == 0, isa, "scores differ", pass_tokens);
            expect(scores[n_scores] == canary, isa, "a score too many", pass_tokens);
            sky_plan_free(plan);
        }
    /* one state for all sets that are asked about it one after the other, and anew for a state of the same tokens elsewhere */
    sky_plan_limits needed;
    int64_t n_tokens, n_markers;
    sky_ask about[3] = {asks[N_SETS + 3], asks[N_SETS + 4], asks[N_SETS + 5]};
    expect(sky_measure_asks(about, 3, 1 << 20, &needed, &n_tokens, &n_markers) == SKY_OK && n_tokens == 5 + 2, isa, "one state", 0);
    int32_t same[5];
    memcpy(same, f->states[1], sizeof same);
    about[1].state_ids = same;
    expect(sky_measure_asks(about, 3, 1 << 20, &needed, &n_tokens, &n_markers) == SKY_OK && n_tokens == 3 * 7, isa, "three", 0);
    printf("ok      %-9s sets\n", isa);
}

/* ---- several callers at once ---- */

typedef struct {
    const fixture *f;
    const char *isa;
    pthread_t thread;
    int n_faults;
} caller;

static void *call(void *context)
{
    caller *c = context;
    sky_ask asks[N_ASKS];
    float expected[MOST_SCORES], scores[MOST_SCORES];
    const int n_scores = all_asks(c->f, asks, expected);
    sky_plan *plan = plan_for(c->f->model, c->isa, asks, N_ASKS, 100, SKY_MAX_THREADS < 2 ? 1 : 2);
    for (int round = 0; round < 5; round++) {
        c->n_faults += sky_run_asks(plan, asks, N_ASKS, 100, scores) != SKY_OK;
        c->n_faults += memcmp(scores, expected, (size_t)n_scores * sizeof *scores) != 0;
        sky_questions *own; /* made while others run */
        c->n_faults += sky_questions_create(c->f->model, &c->f->lists[round % N_SETS].list, &own) != SKY_OK;
        sky_questions_free(own);
    }
    sky_plan_free(plan);
    return NULL;
}

static void check_callers(const fixture *f, const char *isa)
{
    enum { N_CALLERS = 4 };
    caller callers[N_CALLERS];
    for (int i = 0; i < N_CALLERS; i++) {
        callers[i] = (caller){.f = f, .isa = isa};
        expect(pthread_create(&callers[i].thread, NULL, call, &callers[i]) == 0, isa, "pthread_create", i);
    }
    for (int i = 0; i < N_CALLERS; i++) {
        pthread_join(callers[i].thread, NULL);
        expect(callers[i].n_faults == 0, isa, "scores of several callers", i);
    }
    printf("ok      %-9s set callers\n", isa);
}

/* ---- what is refused ---- */

static void check_refusals(const fixture *f, const char *isa)
{
    static painted_set s;
    sky_questions *bad;
    for (int fault = 0; fault < 9; fault++) {
        seed = 33;
        paint_set(&s, 3);
        switch (fault) {
        case 0: s.option_ids[s.option_offsets[1] - 1] = VOCAB; break;
        case 1: s.option_ids[0] = -1; break;
        case 2: s.markers[0] = s.option_offsets[1]; break;
        case 3: s.markers[s.marker_offsets[3] - 1] = -1; break;
        case 4: s.option_offsets[1] = 0; break;
        case 5: s.option_offsets[0] = 1; break;
        case 6: s.prefixes[1] = SEP_ID; break;
        case 7: s.max_tokens[2]--; break;
        default: s.list.option_ids = NULL; break;
        }
        expect(sky_questions_create(f->model, &s.list, &bad) == SKY_ERR_ARGUMENT, isa, "took a faulty set", fault);
        expect(strlen(sky_questions_error(bad)) > 0 && sky_questions_bytes(bad) == 0, isa, "no error", fault);
        sky_questions_free(bad);
    }
    paint_set(&s, 3); /* a sequence longer than the model's */
    s.list.n_questions = 1;
    s.marker_offsets[1] = 1;
    s.markers[0] = 0;
    s.option_offsets[1] = MAX_LEN + 1;
    expect(sky_questions_create(f->model, &s.list, &bad) == SKY_ERR_ARGUMENT, isa, "took a long option", 0);
    sky_questions_free(bad);

    sky_model *s1 = painted_model(isa, 0);
    paint_set(&s, 2);
    expect(sky_questions_create(s1, &s.list, &bad) == SKY_ERR_ARGUMENT, isa, "s1 took options of their own", 0);
    sky_questions_free(bad);
    sky_questions *loose;
    expect(sky_questions_create(NULL, &s.list, &loose) == SKY_OK, isa, "questions of no model", 0);
    int32_t laid[STATE_ROOM], used;
    const sky_ask ask = {loose, 0, 2, f->states[3], 80, 1};
    expect(sky_ask_sequence(&ask, 1, laid, &used) == STATE_ROOM && used == STATE_ROOM - 2, isa, "a state's sequence", used);
    expect(laid[0] == CLS_ID && laid[STATE_ROOM - 1] == SEP_ID && memcmp(laid + 1, f->states[3] + 22, 58 * sizeof *laid) == 0, isa,
           "the end of a state", 0);
    sky_questions_free(loose);
    sky_model_free(s1);

    float scores[MOST_OPTIONS];
    const sky_ask about = {f->sets[2], 0, 4, f->states[2], 58, 0};
    sky_plan *plan = plan_for(f->model, isa, &about, 1, 1 << 20, 1);
    const int32_t ids[3] = {1, 2, 3}, offsets[2] = {0, 3}, marked[2] = {0, 1}, types[1] = {0};
    const sky_batch batch = {1, ids, offsets, ids, marked, types, NULL};
    expect(sky_run(plan, &batch, scores) == SKY_ERR_ARGUMENT && strstr(sky_plan_error(plan), "sky_run_asks"), isa, "sky_run", 0);
    sky_plan_free(plan);
    const sky_plan_limits small[2] = {{59, 4, 24, 59, 1}, {60, 4, 1, 60, 1}};
    for (int i = 0; i < 2; i++) {
        expect(sky_plan_create(f->model, &small[i], &plan) == SKY_OK, isa, "a plan", i);
        const sky_status status = sky_run_asks(plan, &about, 1, 1 << 20, scores);
        expect(status == SKY_ERR_CAPACITY, isa, "more than the plan holds", i);
        sky_plan_free(plan);
    }
    sky_model *none;
    const uint8_t is_global[1] = {1};
    sky_model_params params = {.architecture = SKY_ARCH_S2, .d_model = 8, .d_ff = 8, .n_vocab = 8, .n_layers = 1, .n_heads = 1,
                               .n_decision_heads = 1, .max_positions = 8, .norm_eps = 1e-5f, .rope_base_global = 1e4f,
                               .rope_base_local = 1e4f, .layer_is_global = is_global, .isa = isa};
    expect(sky_model_create(&params, &none) == SKY_ERR_ARGUMENT, isa, "s2 without a block", 0);
    sky_model_free(none);
    params.n_decision_blocks = 1;
    params.option_layout = SKY_OPTIONS_PARALLEL;
    expect(sky_model_create(&params, &none) == SKY_ERR_ARGUMENT, isa, "s2 with options in one sequence", 0);
    sky_model_free(none);
    printf("ok      %-9s set refusals\n", isa);
}

int main(void)
{
    static fixture f;
#if defined(UNDER_EMULATOR) /* where it takes minutes: without the row that every machine has, and without the table */
    enum { FIRST_ROW = 1, STEP = 2 };
#else
    enum { FIRST_ROW = 0, STEP = 1 };
#endif
    for (int i = FIRST_ROW; sky_isa_name(i); i++)
        if (sky_isa_supported(sky_isa_name(i)))
            for (int kind = 0; kind < 3; kind += STEP) { /* as it is, with a table of tokens, with 8-bit weights */
                set_up(&f, sky_isa_name(i), kind == 1 ? 1 << 20 : 0, kind == 2 ? SKY_PRECISION_INT8 : SKY_PRECISION_EXACT);
                check_runs(&f, sky_isa_name(i));
#if defined(UNDER_EMULATOR) /* where threads that wait take most of the time */
                if (kind == 0 && strcmp(sky_isa_name(i), "neon") == 0)
#endif
                    check_callers(&f, sky_isa_name(i));
                check_refusals(&f, sky_isa_name(i));
                tear_down(&f);
                f = (fixture){0};
            }
    return 0;
}
