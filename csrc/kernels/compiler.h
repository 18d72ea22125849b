/* What the compilers spell differently. */
#ifndef SKY_COMPILER_H
#define SKY_COMPILER_H

#include "../strict_math.h"

/* The machine that is compiled for. A build for two (macOS) compiles every file for both. */
#if defined(__x86_64__) || defined(_M_X64)
#define SKY_X86_64 1
#define SKY_AARCH64 0
#elif defined(__aarch64__) || defined(_M_ARM64)
#define SKY_X86_64 0
#define SKY_AARCH64 1
#else
#define SKY_X86_64 0
#define SKY_AARCH64 0
#endif

#if defined(__GNUC__) || defined(__clang__)
#define SKY_INLINE static inline __attribute__((always_inline))
#define SKY_NOINLINE __attribute__((noinline))
#elif defined(_MSC_VER)
#define SKY_INLINE static __forceinline
#define SKY_NOINLINE __declspec(noinline)
#else
#define SKY_INLINE static inline
#define SKY_NOINLINE
#endif

/* Before a loop over an array of registers: without it the array would live in memory. */
#if defined(__clang__)
#define SKY_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define SKY_UNROLL _Pragma("GCC unroll 16")
#else
#define SKY_UNROLL
#endif

/* A one-byte lock: sets it and gives what it was; clears it. What was written under the lock is seen by its next holder. */
#if defined(__GNUC__) || defined(__clang__)
#define SKY_TEST_AND_SET(p) __atomic_test_and_set((p), __ATOMIC_ACQUIRE)
#define SKY_CLEAR(p) __atomic_clear((p), __ATOMIC_RELEASE)
#elif defined(_MSC_VER)
#include <intrin.h>
#define SKY_TEST_AND_SET(p) _InterlockedExchange8((p), 1)
#define SKY_CLEAR(p) ((void)_InterlockedExchange8((p), 0))
#endif

/* Counters, flags and pointers shared by threads, sequentially consistent. ADD gives the new value; SWAP_IF writes `new` where
 * it finds `old`, and tells whether it did. */
#if defined(__GNUC__) || defined(__clang__)
#define SKY_ATOMIC_ADD(p, n) __atomic_add_fetch((p), (n), __ATOMIC_SEQ_CST)
#define SKY_ATOMIC_LOAD(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
#define SKY_ATOMIC_STORE(p, n) __atomic_store_n((p), (n), __ATOMIC_SEQ_CST)
#define SKY_ATOMIC_SWAP_IF(p, old, new) __sync_bool_compare_and_swap((p), (old), (new))
#define SKY_ATOMIC_LOAD_POINTER SKY_ATOMIC_LOAD
#define SKY_ATOMIC_STORE_POINTER SKY_ATOMIC_STORE
#define SKY_ATOMIC_SWAP_POINTER_IF SKY_ATOMIC_SWAP_IF
#elif defined(_MSC_VER)
#define SKY_ATOMIC_ADD(p, n) (_InterlockedExchangeAdd((volatile long *)(p), (n)) + (n))
#define SKY_ATOMIC_LOAD(p) _InterlockedOr((volatile long *)(p), 0)
#define SKY_ATOMIC_STORE(p, n) ((void)_InterlockedExchange((volatile long *)(p), (n)))
#define SKY_ATOMIC_SWAP_IF(p, old, new) (_InterlockedCompareExchange((volatile long *)(p), (new), (old)) == (old))
#define SKY_ATOMIC_LOAD_POINTER(p) _InterlockedCompareExchangePointer((void *volatile *)(p), NULL, NULL)
#define SKY_ATOMIC_STORE_POINTER(p, n) ((void)_InterlockedExchangePointer((void *volatile *)(p), (n)))
#define SKY_ATOMIC_SWAP_POINTER_IF(p, old, new) (_InterlockedCompareExchangePointer((void *volatile *)(p), (new), (old)) == (old))
#endif

/* What a loop that waits for another core does meanwhile. */
#if SKY_X86_64 && defined(_MSC_VER)
#define SKY_PAUSE() _mm_pause()
#elif SKY_X86_64
#define SKY_PAUSE() __builtin_ia32_pause()
#elif SKY_AARCH64 && !defined(_MSC_VER)
#define SKY_PAUSE() __asm__ volatile("yield")
#else
#define SKY_PAUSE() ((void)0)
#endif

/* A hint that the line at p will be read soon; p may point past the end of everything. */
#if defined(__GNUC__) || defined(__clang__)
#define SKY_PREFETCH_L1(p) __builtin_prefetch((p), 0, 3)
#define SKY_PREFETCH_L2(p) __builtin_prefetch((p), 0, 2)
#else
#define SKY_PREFETCH_L1(p) ((void)(p))
#define SKY_PREFETCH_L2(p) ((void)(p))
#endif

#endif
