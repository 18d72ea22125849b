/* The thread's floating-point control word: a run computes in the default mode (to nearest, subnormals kept, nothing traps),
 * whatever another library has set in the caller's thread, and the caller gets its own mode back.
 *
 * The compiler does not know that arithmetic depends on the mode. So between enter and leave stand calls of functions that it
 * cannot inline (SKY_NOINLINE), and no arithmetic. Where the mode is the default one already, nothing is written. */
#ifndef SKY_FLOAT_MODE_H
#define SKY_FLOAT_MODE_H

#include "kernels/compiler.h"

#if SKY_X86_64

#include <xmmintrin.h>

typedef unsigned sky_float_mode; /* MXCSR */
enum { SKY_MXCSR_DEFAULT = 0x1f80, SKY_MXCSR_FLAGS = 0x3f };

static inline int sky_float_mode_is_default(sky_float_mode mode) { return (mode & ~SKY_MXCSR_FLAGS) == SKY_MXCSR_DEFAULT; }
static inline sky_float_mode sky_float_mode_get(void) { return _mm_getcsr(); }
static inline void sky_float_mode_set(sky_float_mode mode) { _mm_setcsr(mode); }
#define SKY_FLOAT_MODE_DEFAULT SKY_MXCSR_DEFAULT

#elif SKY_AARCH64

#if defined(_MSC_VER) && !defined(__clang__)
#include <intrin.h>
#endif
#include <stdint.h>

typedef uint64_t sky_float_mode; /* FPCR */

static inline int sky_float_mode_is_default(sky_float_mode mode) { return mode == 0; }
#if defined(_MSC_VER) && !defined(__clang__)
static inline sky_float_mode sky_float_mode_get(void) { return (uint64_t)_ReadStatusReg(ARM64_FPCR); }
static inline void sky_float_mode_set(sky_float_mode mode) { _WriteStatusReg(ARM64_FPCR, (__int64)mode); }
#else
static inline sky_float_mode sky_float_mode_get(void)
{
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode) : : "memory");
    return mode;
}
static inline void sky_float_mode_set(sky_float_mode mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
#endif
#define SKY_FLOAT_MODE_DEFAULT 0

#else

#include <fenv.h>

typedef int sky_float_mode; /* the rounding direction: all that C can say */

static inline int sky_float_mode_is_default(sky_float_mode mode) { return mode == FE_TONEAREST; }
static inline sky_float_mode sky_float_mode_get(void) { return fegetround(); }
static inline void sky_float_mode_set(sky_float_mode mode) { fesetround(mode); }
#define SKY_FLOAT_MODE_DEFAULT FE_TONEAREST

#endif

/* Sets the default mode; gives the one before, for leave. */
static inline sky_float_mode sky_float_mode_enter(void)
{
    const sky_float_mode before = sky_float_mode_get();
    if (!sky_float_mode_is_default(before))
        sky_float_mode_set(SKY_FLOAT_MODE_DEFAULT);
    return before;
}

static inline void sky_float_mode_leave(sky_float_mode before)
{
    if (!sky_float_mode_is_default(before))
        sky_float_mode_set(before);
}

#endif
