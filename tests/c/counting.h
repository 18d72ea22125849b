/* Counts allocations, for programs that are linked with --wrap=malloc,--wrap=calloc,--wrap=realloc. */
#ifndef COUNTING_H
#define COUNTING_H

#include <stddef.h>

static long n_allocations;
#define COUNT_ONE() ((void)__atomic_fetch_add(&n_allocations, 1, __ATOMIC_RELAXED)) /* some programs have several threads */
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n) { COUNT_ONE(); return __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t size) { COUNT_ONE(); return __real_calloc(n, size); }
void *__wrap_realloc(void *p, size_t n) { COUNT_ONE(); return __real_realloc(p, n); }

#endif
