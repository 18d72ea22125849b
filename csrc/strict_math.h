/* Refuses a compiler that may treat NaN as impossible, sums in another order or drop signed zeros. Such a build would load
 * faulty weights and answer with other bits on each compiler. Included by every C file. */
#ifndef SKY_STRICT_MATH_H
#define SKY_STRICT_MATH_H

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || defined(__ASSOCIATIVE_MATH__)         \
    || defined(__RECIPROCAL_MATH__) || defined(__NO_SIGNED_ZEROS__) || defined(_M_FP_FAST)
#error "skyinfer needs IEEE arithmetic: compile without -ffast-math, -Ofast, /fp:fast and the options that they imply"
#endif

#endif
