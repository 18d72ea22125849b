/* Threads of the core by themselves, for ThreadSanitizer (make threads) and the other sanitizers: passes of one model in many
 * threads at once, workers that end and start again, forks, and floating-point modes that a caller's thread is in.
 *
 * Every score is compared bit by bit with those of one thread. Prints one line a check; exits 1 at the first fault. */
#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "painted.h"

#ifndef THREAD_ROUNDS
#define THREAD_ROUNDS 60
#endif

#if defined(__linux__) && !defined(__SANITIZE_THREAD__) && !defined(UNDER_EMULATOR) /* which stop a forked process's threads */
#define WITH_FORK 1
#else
#define WITH_FORK 0
#endif

static painted_batch batch;
static float expected[N_MARKERS];

static sky_plan *plan_of(const sky_model *m, int n_threads)
{
    sky_plan_limits limits = painted_limits;
    sky_plan *plan;
    limits.n_threads = n_threads;
    expect(sky_plan_create(m, &limits, &plan) == SKY_OK, sky_model_isa(m), "sky_plan_create", n_threads);
    plan->shared_work = 0; /* every step, however small */
    return plan;
}

/* Whether a run gives the expected scores. */
static int agrees(sky_plan *plan)
{
    const sky_batch b = batch_of(&batch);
    float scores[N_MARKERS];
    return sky_run(plan, &b, scores) == SKY_OK && memcmp(scores, expected, sizeof scores) == 0;
}

static void expect_from(const sky_model *m)
{
    const sky_batch b = batch_of(&batch);
    sky_plan *plan = plan_of(m, 1);
    expect(sky_run(plan, &b, expected) == SKY_OK, sky_model_isa(m), sky_plan_error(plan), 0);
    sky_plan_free(plan);
}

/* ---- callers at once ---- */

enum { CALLERS = 16, MOST_THREADS = 32 };

typedef struct {
    const sky_model *model;
    int number, faults;
    pthread_t thread;
} caller;

static void *call(void *argument)
{
    caller *self = argument;
    sky_plan *plan = plan_of(self->model, MOST_THREADS);
    for (int i = 0; i < THREAD_ROUNDS; i++) {
        sky_plan_use_threads(plan, 1 + (i * (self->number + 1)) % MOST_THREADS);
        self->faults += !agrees(plan);
    }
    sky_plan_free(plan);
    return NULL;
}

static void check_callers(const char *isa)
{
    sky_model *m = painted_model(isa, 0);
    caller callers[CALLERS];
    expect_from(m);
    for (int i = 0; i < CALLERS; i++) {
        callers[i] = (caller){m, i, 0, 0};
        expect(pthread_create(&callers[i].thread, NULL, call, &callers[i]) == 0, isa, "pthread_create", i);
    }
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(callers[i].thread, NULL);
        expect(callers[i].faults == 0, isa, "scores differ among callers at once", callers[i].faults);
    }
    sky_model_free(m); /* while its workers look for more */
    printf("ok      %-9s callers\n", isa);
}

/* ---- threads there are ---- */

#if defined(__linux__)
static int count_threads(void)
{
    DIR *folder = opendir("/proc/self/task");
    int n = 0;
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        n += entry->d_name[0] != '.';
    if (folder)
        closedir(folder);
    return n;
}

static int falls_to(int n, double seconds)
{
    const struct timespec nap = {0, 50 * 1000 * 1000};
    for (double waited = 0; waited < seconds && count_threads() > n; waited += 0.05)
        nanosleep(&nap, NULL);
    return count_threads() <= n;
}

static void check_numbers(const char *isa)
{
    sky_model *m = painted_model(isa, 0);
    expect_from(m);
    const int before = count_threads();
    sky_plan *plans[3] = {plan_of(m, 3), plan_of(m, 3), plan_of(m, 256)};
    expect(count_threads() == before, isa, "a plan starts threads", count_threads() - before);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 2; i++)
            expect(agrees(plans[i]), isa, "scores differ", i);
        expect(count_threads() == before + 2, isa, "two plans of three threads have other than two workers", count_threads());
        expect(agrees(plans[2]), isa, "scores differ", 2);
        expect(count_threads() <= before + PAINTED_CPUS - 1, isa, "more workers than CPUs", count_threads());
        expect(falls_to(before, 20), isa, "idle threads do not end", count_threads() - before);
    }
    for (int i = 0; i < 3; i++)
        sky_plan_free(plans[i]);
    sky_model_free(m);
    printf("ok      %-9s numbers\n", isa);
}
#endif

#if WITH_FORK
static void check_fork(const char *isa)
{
    sky_model *m = painted_model(isa, 0);
    expect_from(m);
    sky_plan *plan = plan_of(m, 3);
    expect(agrees(plan), isa, "scores differ", 0);
    for (int i = 0; i < 3; i++) {
        int status;
        const pid_t child = fork();
        if (child == 0) {
            const int before = count_threads(), same = agrees(plan) && agrees(plan);
            const int has_started = count_threads() > before;
            sky_plan_free(plan);
            sky_model_free(m);
            _exit(!same || !has_started);
        }
        expect(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0, isa, "a forked process", status);
        expect(agrees(plan), isa, "scores differ after a fork", i);
    }
    sky_plan_free(plan);
    sky_model_free(m);
    printf("ok      %-9s fork\n", isa);
}
#endif

/* ---- floating-point modes ---- */

#if SKY_X86_64
/* flush to zero with subnormals read as zero; up; to zero with both; nothing masked, so that what is inexact would trap */
static const sky_float_mode modes[] = {0x9fc0, 0x5f80, 0xffc0, 0};
#elif SKY_AARCH64
static const sky_float_mode modes[] = {1 << 24, 1 << 22, 1 << 24 | 3 << 22};
#else
static const sky_float_mode modes[] = {FE_UPWARD};
#endif

static void check_modes(const char *isa)
{
    painted_scorer = 1e-40f;
    const size_t table_bytes = VOCAB * 3 * D * sizeof(float);
    sky_model *m = painted_model(isa, table_bytes);
    expect_from(m);
    int n_subnormal = 0;
    for (int i = 0; i < N_MARKERS; i++)
        n_subnormal += expected[i] != 0 && fabsf(expected[i]) < 1.17549435e-38f;
    expect(n_subnormal > N_MARKERS / 2, isa, "the model gives no subnormal scores", n_subnormal);
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        painted_mode = modes[i];
        sky_model *made = painted_model(isa, table_bytes); /* in that mode */
        painted_mode = SKY_FLOAT_MODE_DEFAULT;
        sky_plan *plans[] = {plan_of(m, 1), plan_of(m, 4), plan_of(made, 1), plan_of(made, 4)};
        for (int k = 0; k < 4; k++) {
            sky_float_mode_set(modes[i]); /* the workers of `made` begin with it */
            const int same = agrees(plans[k]);
            const sky_float_mode after = sky_float_mode_get();
            sky_float_mode_set(SKY_FLOAT_MODE_DEFAULT);
            expect(after == modes[i], isa, "the caller's mode is another after a run", (double)after);
            expect(same, isa, "scores depend on the caller's mode", (double)(10 * i + k));
        }
        for (int k = 0; k < 4; k++)
            sky_plan_free(plans[k]);
        sky_model_free(made);
    }
    sky_model_free(m);
    painted_scorer = 1;
    printf("ok      %-9s modes\n", isa);
}

/* ---- packers ---- */

static const char *const refused[] = {"output_norm.weight", "cls.norm.weight", "cls.norm.bias", "cls.bias"};

typedef struct {
    sky_model *model;
    int number, faults;
    pthread_t thread;
} packer;

/* Sets a NaN over and over, and reads the error: always one whole message of some thread's. */
static void *refuse(void *argument)
{
    packer *self = argument;
    float values[D] = {0};
    values[D - 1] = NAN;
    for (int i = 0; i < 100 * THREAD_ROUNDS; i++) {
        char text[256], whole[256];
        int known = 0;
        self->faults += sky_model_set(self->model, refused[self->number], SKY_DTYPE_F32, 1, D, values) != SKY_ERR_ARGUMENT;
        sky_model_error(self->model, text, sizeof text);
        for (int k = 0; k < 4; k++) {
            snprintf(whole, sizeof whole, "%s: holds a NaN or infinite value", refused[k]);
            known |= strcmp(text, whole) == 0;
        }
        self->faults += !known;
    }
    return NULL;
}

static void check_packers(const char *isa)
{
    static const uint8_t is_global[1] = {1};
    const sky_model_params params = {
        .d_model = D, .d_ff = FF, .n_vocab = VOCAB, .n_layers = 1, .n_heads = HEADS, .n_decision_heads = 1, .max_positions = 4,
        .norm_eps = 1e-5f, .rope_base_global = 1e4f, .rope_base_local = 1e4f, .layer_is_global = is_global, .isa = isa};
    packer packers[4];
    sky_model *m;
    expect(sky_model_create(&params, &m) == SKY_OK, isa, "sky_model_create", 0);
    for (int i = 0; i < 4; i++) {
        packers[i] = (packer){.model = m, .number = i};
        expect(pthread_create(&packers[i].thread, NULL, refuse, &packers[i]) == 0, isa, "pthread_create", i);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(packers[i].thread, NULL);
        expect(packers[i].faults == 0, isa, "an error was read that is no thread's", packers[i].faults);
    }
    char text[8] = "canary";
    sky_model_error(m, text, 4);
    expect(strlen(text) == 3 && text[4] == 'r', isa, "an error that is cut", 0);
    sky_model_free(m);
    printf("ok      %-9s packers\n", isa);
}

int main(void)
{
    batch = paint_batch();
    for (int i = 0; sky_isa_name(i); i++) {
        const char *isa = sky_isa_name(i);
        if (!sky_isa_supported(isa))
            continue;
#if defined(UNDER_EMULATOR) /* where threads that wait take most of the time: the row that only it runs, which neondot's floats are, too */
        if (strcmp(isa, "neon") != 0)
            continue;
#endif
        check_callers(isa);
        check_modes(isa);
    }
    const char *isa = sky_isa_name(0);
    check_packers(isa);
#if defined(__linux__)
    check_numbers(isa);
#endif
#if WITH_FORK
    check_fork(isa);
#endif
    return 0;
}
