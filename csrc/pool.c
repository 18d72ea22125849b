/* A model's worker threads. All passes of the model share them: a step offers itself to as many idle workers as it has use
 * for, and only those are woken. Workers are started when a step has use for one more, and end when they have been idle for
 * IDLE_SECONDS. A process that was forked starts its own.
 *
 * A worker's whole state is one word, `offered`: NULL while it is idle, the step that is offered to it, TAKEN while it works
 * or does not run. The caller offers (NULL to step), the worker accepts (step to TAKEN), and the caller takes back what
 * nobody accepted (step to NULL). So a step waits only for workers that have begun, never for one that is still waking up.
 */
#include "float_mode.h"
#include "internal.h"
#include "kernels/compiler.h"

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#include <process.h>
typedef SRWLOCK lock_type;
typedef CONDITION_VARIABLE signal_type;
#define THREAD_RESULT unsigned __stdcall
#define lock_init(l) InitializeSRWLock(l)
#define lock_free(l) ((void)(l))
#define lock_take(l) AcquireSRWLockExclusive(l)
#define lock_give(l) ReleaseSRWLockExclusive(l)
#define signal_init(s) InitializeConditionVariable(s)
#define signal_free(s) ((void)(s))
#define signal_one(s) WakeConditionVariable(s)
#define signal_wait(s, l) SleepConditionVariableSRW((s), (l), INFINITE, 0)
#define signal_wait_seconds(s, l, n) SleepConditionVariableSRW((s), (l), 1000 * (n), 0)
static int process_id(void) { return 1; } /* no fork here */
#else
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>
typedef pthread_mutex_t lock_type;
typedef pthread_cond_t signal_type;
#define THREAD_RESULT void *
#define lock_init(l) pthread_mutex_init((l), NULL)
#define lock_free(l) pthread_mutex_destroy(l)
#define lock_take(l) pthread_mutex_lock(l)
#define lock_give(l) pthread_mutex_unlock(l)
#define signal_free(s) pthread_cond_destroy(s)
#define signal_one(s) pthread_cond_signal(s)
#define signal_wait(s, l) pthread_cond_wait((s), (l))
static int process_id(void) { return (int)getpid(); }
#if defined(__APPLE__)
#define signal_init(s) pthread_cond_init((s), NULL)
static int signal_wait_seconds(signal_type *s, lock_type *l, int seconds)
{
    const struct timespec time = {seconds, 0};
    return pthread_cond_timedwait_relative_np(s, l, &time) == 0;
}
#else
static void signal_init(signal_type *s)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC); /* a clock that is set must not end or keep threads */
    pthread_cond_init(s, &attributes);
    pthread_condattr_destroy(&attributes);
}
static int signal_wait_seconds(signal_type *s, lock_type *l, int seconds) /* 0: they are over */
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    time.tv_sec += seconds;
    return pthread_cond_timedwait(s, l, &time) == 0;
}
#endif
#endif

enum {
    SPINS = 1000, /* looks before sleeping: some 20 to 50 microseconds, within which the steps of a pass follow each other */
    IDLE_SECONDS = 3,
    WAITS = 1 << 16, /* of n_working: the caller sleeps until the last worker wakes it */
};

/* On its caller's stack. After a worker has counted itself out it must not look at the step, unless the caller waits. */
typedef struct {
    sky_task *task;
    void *context;
    int n_items, chunk;
    int next;      /* atomic; first item that nobody has taken */
    int n_joined;  /* atomic; workers that have begun: they are threads 1, 2, ... of the step */
    int n_working; /* atomic; workers that it is offered to and that have not finished, and WAITS */
    int finished;  /* under the pool's lock */
    signal_type done;
} step;

#define TAKEN ((step *)1)

typedef struct {
    sky_pool *pool;
    step *offered; /* atomic */
    int asleep;    /* atomic */
    int alive;     /* under the pool's lock */
    signal_type wake;
    char line[64]; /* workers look at `offered` all the time: not at each other's cache lines */
} worker;

struct sky_pool {
    int n_cpus, n_workers; /* n_cpus - 1 at most */
    int owner;     /* atomic; the process that the workers live in; its negative while it takes the pool over */
    int n_running; /* atomic; passes under way, which divide the threads */
    int n_alive;   /* atomic, changed under the lock */
    int refused;   /* atomic; the system gave no thread during this pass or one beside it */
    int ending;    /* under the lock */
    lock_type lock;
    signal_type gone; /* the last worker, while the pool is being freed */
    worker *workers;  /* [n_workers] */
};

/* ---- workers ---- */

static void take_items(step *s, int thread)
{
    for (;;) {
        const int end = SKY_ATOMIC_ADD(&s->next, s->chunk), begin = end - s->chunk;
        if (begin >= s->n_items)
            return;
        s->task(s->context, thread, begin, end < s->n_items ? end : s->n_items);
    }
}

/* What is offered to the worker, as soon as something is; NULL where it has ended. */
static step *await_offer(worker *self)
{
    sky_pool *pool = self->pool;
    step *offered;
    for (int i = 0; i < SPINS; i++) {
        if ((offered = SKY_ATOMIC_LOAD_POINTER(&self->offered)))
            return offered;
        SKY_PAUSE();
    }
    lock_take(&pool->lock);
    SKY_ATOMIC_STORE(&self->asleep, 1); /* before it looks, as the caller offers before it looks who sleeps */
    while (!(offered = SKY_ATOMIC_LOAD_POINTER(&self->offered))) {
        const int is_over = pool->ending || !signal_wait_seconds(&self->wake, &pool->lock, IDLE_SECONDS);
        if (is_over && SKY_ATOMIC_SWAP_POINTER_IF(&self->offered, NULL, TAKEN)) {
            self->alive = 0;
            if (SKY_ATOMIC_ADD(&pool->n_alive, -1) == 0)
                signal_one(&pool->gone);
            break;
        }
    }
    SKY_ATOMIC_STORE(&self->asleep, 0);
    lock_give(&pool->lock);
    return offered;
}

static THREAD_RESULT work(void *argument)
{
    worker *self = argument;
    sky_pool *pool = self->pool;
    sky_float_mode_enter(); /* for good: where a system gives a thread another mode than that of the run that creates it */
    for (step *s; (s = await_offer(self));) {
        if (!SKY_ATOMIC_SWAP_POINTER_IF(&self->offered, s, TAKEN))
            continue; /* taken back */
        take_items(s, SKY_ATOMIC_ADD(&s->n_joined, 1));
        SKY_ATOMIC_STORE_POINTER(&self->offered, NULL); /* before the caller goes on to its next step */
        if (SKY_ATOMIC_ADD(&s->n_working, -1) == WAITS) {
            lock_take(&pool->lock);
            s->finished = 1;
            signal_one(&s->done);
            lock_give(&pool->lock);
        }
    }
    return 0;
}

static int start(worker *w)
{
#if defined(_WIN32)
    const HANDLE thread = (HANDLE)_beginthreadex(NULL, 0, work, w, 0, NULL);
    if (thread)
        CloseHandle(thread);
    return thread != NULL;
#else
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes))
        return 0;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before); /* signals are the caller's business */
    const int status = pthread_create(&thread, &attributes, work, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return status == 0;
#endif
}

/* Starts a worker for the step, where fewer than `most` run. A system that gives no more threads still gives answers. */
static worker *start_for(sky_pool *pool, step *s, int most)
{
    worker *started = NULL;
    if (SKY_ATOMIC_LOAD(&pool->n_alive) >= most || SKY_ATOMIC_LOAD(&pool->refused))
        return NULL;
    lock_take(&pool->lock);
    for (int i = 0; i < pool->n_workers && !started && SKY_ATOMIC_LOAD(&pool->n_alive) < most; i++) {
        worker *w = &pool->workers[i];
        if (w->alive)
            continue;
        SKY_ATOMIC_STORE_POINTER(&w->offered, s);
        if (!start(w)) {
            SKY_ATOMIC_STORE_POINTER(&w->offered, TAKEN);
            SKY_ATOMIC_STORE(&pool->refused, 1);
            break;
        }
        w->alive = 1;
        SKY_ATOMIC_ADD(&pool->n_alive, 1);
        started = w;
    }
    lock_give(&pool->lock);
    return started;
}

/* ---- the pool ---- */

/* No thread of this process has seen the pool yet: locks and workers as new. */
static void make_anew(sky_pool *pool)
{
    lock_init(&pool->lock);
    signal_init(&pool->gone);
    for (int i = 0; i < pool->n_workers; i++) {
        worker *w = &pool->workers[i];
        w->pool = pool;
        w->offered = TAKEN;
        w->asleep = w->alive = 0;
        signal_init(&w->wake);
    }
    pool->n_running = pool->n_alive = pool->refused = pool->ending = 0;
}

sky_pool *sky_pool_create(int n_cpus)
{
    sky_pool *pool = sky_alloc(sizeof *pool);
    if (!pool)
        return NULL;
    pool->n_cpus = n_cpus < 1 ? 1 : n_cpus > SKY_MAX_THREADS ? SKY_MAX_THREADS : n_cpus;
    pool->n_workers = pool->n_cpus - 1;
    pool->workers = sky_alloc((size_t)pool->n_cpus * sizeof *pool->workers);
    if (!pool->workers) {
        sky_release(pool);
        return NULL;
    }
    make_anew(pool);
    pool->owner = process_id();
    return pool;
}

int sky_pool_enter(sky_pool *pool)
{
    const int self = process_id();
    for (int owner; (owner = SKY_ATOMIC_LOAD(&pool->owner)) != self;) {
        if (owner == -self || !SKY_ATOMIC_SWAP_IF(&pool->owner, owner, -self)) {
            SKY_PAUSE(); /* another thread is at it */
            continue;
        }
        make_anew(pool); /* after a fork: the workers stayed behind, and so did passes and whoever held the lock */
        SKY_ATOMIC_STORE(&pool->owner, self);
    }
    SKY_ATOMIC_STORE(&pool->refused, 0);
    return SKY_ATOMIC_ADD(&pool->n_running, 1);
}

void sky_pool_leave(sky_pool *pool) { SKY_ATOMIC_ADD(&pool->n_running, -1); }

int sky_pool_share(const sky_pool *pool, int n_threads)
{
    const int at_once = n_threads < pool->n_cpus ? n_threads : pool->n_cpus, n_running = SKY_ATOMIC_LOAD(&pool->n_running);
    return at_once > n_running ? at_once / n_running : 1;
}

void sky_pool_run(sky_pool *pool, int n_threads, int most_threads, int n_items, int chunk, sky_task *task, void *context)
{
    worker *asked[SKY_MAX_THREADS];
    int n_asked = 0, n_asleep = 0, n_back = 0;
    const int wanted = n_threads - 1;
    step s = {.task = task, .context = context, .n_items = n_items, .chunk = chunk, .n_working = wanted};
    for (int i = 0; i < pool->n_workers && n_asked < wanted; i++)
        if (SKY_ATOMIC_SWAP_POINTER_IF(&pool->workers[i].offered, NULL, &s)) /* the first ones: those that are left over end */
            asked[n_asked++] = &pool->workers[i];
    for (int i = 0; i < n_asked; i++)
        n_asleep += SKY_ATOMIC_LOAD(&asked[i]->asleep);
    if (n_asleep) {
        lock_take(&pool->lock); /* who has looked in vain waits for its signal by now */
        lock_give(&pool->lock);
        for (int i = 0; i < n_asked; i++)
            if (SKY_ATOMIC_LOAD(&asked[i]->asleep))
                signal_one(&asked[i]->wake);
    }
    while (n_asked < wanted && (asked[n_asked] = start_for(pool, &s, most_threads - 1)))
        n_asked++;

    take_items(&s, 0);
    for (int i = 0; i < n_asked; i++)
        n_back += SKY_ATOMIC_SWAP_POINTER_IF(&asked[i]->offered, &s, NULL);
    SKY_ATOMIC_ADD(&s.n_working, -(wanted - n_asked + n_back));
    for (int i = 0; i < SPINS && SKY_ATOMIC_LOAD(&s.n_working); i++)
        SKY_PAUSE();
    if (SKY_ATOMIC_LOAD(&s.n_working) == 0)
        return;
    signal_init(&s.done);
    if (SKY_ATOMIC_ADD(&s.n_working, WAITS) != WAITS) {
        lock_take(&pool->lock);
        while (!s.finished)
            signal_wait(&s.done, &pool->lock);
        lock_give(&pool->lock);
    }
    signal_free(&s.done);
}

void sky_pool_free(sky_pool *pool)
{
    if (!pool)
        return;
    if (SKY_ATOMIC_LOAD(&pool->owner) == process_id()) { /* else a fork left the workers behind */
        lock_take(&pool->lock);
        pool->ending = 1;
        for (int i = 0; i < pool->n_workers; i++)
            signal_one(&pool->workers[i].wake);
        while (SKY_ATOMIC_LOAD(&pool->n_alive))
            signal_wait(&pool->gone, &pool->lock);
        lock_give(&pool->lock);
        for (int i = 0; i < pool->n_workers; i++)
            signal_free(&pool->workers[i].wake);
        signal_free(&pool->gone);
        lock_free(&pool->lock);
    }
    sky_release(pool->workers);
    sky_release(pool);
}
