/* A plan's worker threads: they are started by its first pass that is shared, sleep between passes, share the items of one
 * step at a time, and are made anew in a process that was forked.
 *
 * A step is announced by a generation number. A worker that has just finished one looks for the next for some microseconds
 * (steps of one pass follow each other within those) and then sleeps; the caller waits for its workers likewise.
 */
#include "internal.h"
#include "kernels/compiler.h"

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#include <process.h>
typedef SRWLOCK lock_type;
typedef CONDITION_VARIABLE signal_type;
typedef HANDLE thread_type;
#define THREAD_RESULT unsigned __stdcall
#define lock_init(l) InitializeSRWLock(l)
#define lock_take(l) AcquireSRWLockExclusive(l)
#define lock_give(l) ReleaseSRWLockExclusive(l)
#define signal_init(s) InitializeConditionVariable(s)
#define signal_all(s) WakeAllConditionVariable(s)
#define signal_wait(s, l) SleepConditionVariableSRW((s), (l), INFINITE, 0)
static int process_id(void) { return 0; } /* no fork here */
#else
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
typedef pthread_mutex_t lock_type;
typedef pthread_cond_t signal_type;
typedef pthread_t thread_type;
#define THREAD_RESULT void *
#define lock_init(l) pthread_mutex_init((l), NULL)
#define lock_take(l) pthread_mutex_lock(l)
#define lock_give(l) pthread_mutex_unlock(l)
#define signal_init(s) pthread_cond_init((s), NULL)
#define signal_all(s) pthread_cond_broadcast(s)
#define signal_wait(s, l) pthread_cond_wait((s), (l))
static int process_id(void) { return (int)getpid(); }
#endif

enum {
    SPINS = 1000,      /* looks before sleeping: some 20 to 50 microseconds */
    THREADS_BITS = 10, /* of an announcement, below the generation */
    NO_PROCESS = -1,
};

typedef struct {
    sky_pool *pool;
    int index; /* 1 and up; the caller is 0 */
    thread_type thread;
} worker;

struct sky_pool {
    int n_wanted, n_workers; /* asked for; started */
    int owner; /* the process that the workers live in; NO_PROCESS before they are started */
    worker *workers;
    lock_type lock;
    signal_type started, finished;
    int64_t announced; /* atomic; the step's generation and how many threads share it, in one word: a worker that has no part
                          in a step must not look at anything else, since nobody waits for it */
    int n_working; /* atomic; workers that have a part and have not finished */
    int next;      /* atomic; first item that nobody has taken */
    /* the step */
    sky_task *task;
    void *context;
    int n_items, chunk;
};

static void take_items(sky_pool *pool, int thread)
{
    for (;;) {
        const int end = SKY_ATOMIC_ADD(&pool->next, pool->chunk), begin = end - pool->chunk;
        if (begin >= pool->n_items)
            return;
        pool->task(pool->context, thread, begin, end < pool->n_items ? end : pool->n_items);
    }
}

static THREAD_RESULT work(void *argument)
{
    const worker *self = argument;
    sky_pool *pool = self->pool;
    int64_t seen = 0;
    for (;;) {
        for (int i = 0; i < SPINS && SKY_ATOMIC_LOAD64(&pool->announced) == seen; i++)
            SKY_PAUSE();
        if (SKY_ATOMIC_LOAD64(&pool->announced) == seen) {
            lock_take(&pool->lock);
            while (SKY_ATOMIC_LOAD64(&pool->announced) == seen)
                signal_wait(&pool->started, &pool->lock);
            lock_give(&pool->lock);
        }
        seen = SKY_ATOMIC_LOAD64(&pool->announced);
        const int n_threads = (int)(seen & ((1 << THREADS_BITS) - 1));
        if (n_threads == 0) /* the pool is being freed */
            return 0;
        if (self->index >= n_threads)
            continue;
        take_items(pool, self->index);
        if (SKY_ATOMIC_ADD(&pool->n_working, -1) == 0) {
            lock_take(&pool->lock);
            signal_all(&pool->finished);
            lock_give(&pool->lock);
        }
    }
}

static int start(worker *w)
{
#if defined(_WIN32)
    w->thread = (HANDLE)_beginthreadex(NULL, 0, work, w, 0, NULL);
    return w->thread != NULL;
#else
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before); /* signals are the caller's business */
    const int status = pthread_create(&w->thread, NULL, work, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status == 0;
#endif
}

static void join(worker *w)
{
#if defined(_WIN32)
    WaitForSingleObject(w->thread, INFINITE);
    CloseHandle(w->thread);
#else
    pthread_join(w->thread, NULL);
#endif
}

static void start_workers(sky_pool *pool)
{
    lock_init(&pool->lock);
    signal_init(&pool->started);
    signal_init(&pool->finished);
    pool->owner = process_id();
    pool->announced = 0;
    for (pool->n_workers = 0; pool->n_workers < pool->n_wanted; pool->n_workers++) {
        worker *w = &pool->workers[pool->n_workers];
        w->pool = pool;
        w->index = pool->n_workers + 1;
        if (!start(w))
            break; /* a system that gives no more threads still gives answers */
    }
}

sky_pool *sky_pool_create(int n_workers)
{
    sky_pool *pool = sky_alloc(sizeof *pool);
    if (!pool)
        return NULL;
    pool->workers = sky_alloc((size_t)n_workers * sizeof *pool->workers);
    if (!pool->workers) {
        sky_release(pool);
        return NULL;
    }
    pool->n_wanted = n_workers;
    pool->owner = NO_PROCESS;
    return pool;
}

/* The next generation, for n_threads; 0 ends the workers. */
static void announce(sky_pool *pool, int n_threads)
{
    const int64_t generation = (SKY_ATOMIC_LOAD64(&pool->announced) >> THREADS_BITS) + 1;
    lock_take(&pool->lock);
    SKY_ATOMIC_STORE64(&pool->announced, generation << THREADS_BITS | n_threads);
    signal_all(&pool->started);
    lock_give(&pool->lock);
}

void sky_pool_ready(sky_pool *pool)
{
    if (pool->owner != process_id())
        start_workers(pool); /* after a fork, too: the workers stayed behind, and so did their lock's state */
}

void sky_pool_run(sky_pool *pool, int n_threads, int n_items, int chunk, sky_task *task, void *context)
{
    pool->task = task;
    pool->context = context;
    pool->n_items = n_items;
    pool->chunk = chunk;
    pool->next = 0;
    if (n_threads > pool->n_workers + 1)
        n_threads = pool->n_workers + 1;
    pool->n_working = n_threads - 1;
    announce(pool, n_threads);
    take_items(pool, 0);
    for (int i = 0; i < SPINS && SKY_ATOMIC_LOAD(&pool->n_working); i++)
        SKY_PAUSE();
    if (SKY_ATOMIC_LOAD(&pool->n_working)) {
        lock_take(&pool->lock);
        while (SKY_ATOMIC_LOAD(&pool->n_working))
            signal_wait(&pool->finished, &pool->lock);
        lock_give(&pool->lock);
    }
}

void sky_pool_free(sky_pool *pool)
{
    if (!pool)
        return;
    if (pool->owner == process_id()) {
        announce(pool, 0);
        for (int i = 0; i < pool->n_workers; i++)
            join(&pool->workers[i]);
    }
    sky_release(pool->workers);
    sky_release(pool);
}
