/* What the compilers spell differently. */
#ifndef SKY_COMPILER_H
#define SKY_COMPILER_H

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

/* A hint that the line at p will be read soon; p may point past the end of everything. */
#if defined(__GNUC__) || defined(__clang__)
#define SKY_PREFETCH_L1(p) __builtin_prefetch((p), 0, 3)
#define SKY_PREFETCH_L2(p) __builtin_prefetch((p), 0, 2)
#else
#define SKY_PREFETCH_L1(p) ((void)(p))
#define SKY_PREFETCH_L2(p) ((void)(p))
#endif

#endif
