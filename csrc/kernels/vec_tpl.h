/* exp, GELU, SiLU and the other activations over the vector primitives of one instruction set. A .c file defines, before it:
 *
 *   vf, VL                          a vector of VL floats
 *   v_load v_store                  VL floats, any alignment
 *   v_load_part v_store_part        the first n floats, 0 <= n < VL; the rest read as 0, and are not touched
 *   v_load_f16 v_load_bf16          VL numbers of 16 bits, any alignment, widened; the latter where HALF_WEIGHTS is 1
 *   v_set1 v_add v_sub v_mul v_div
 *   v_min v_max                     b where a is NaN, and b or NaN where b is: so a NaN comes through as the second of two
 *   v_fma(a, b, c)                  a * b + c, rounded once
 *   v_scale2(x, i)                  x * 2^n for i = SKY_ROUNDER + n, n in [-126, 127]
 *   v_keep(x, begin, end, other)    the lanes [begin, end) of x, which may lie outside of it, and those of other elsewhere
 *   v_sum v_hmax                    across the lanes
 *   v_transpose(x)                  VL vectors as rows become columns
 *
 * and where VL numbers can be looked up at once:
 *
 *   HAS_LOOKUP                      1
 *   v_lookup(table, i)              table[n] for i = SKY_ROUNDER + n, 0 <= n < VL; the table is on a boundary of its VL floats
 *   v_abs
 *
 * Errors, against double precision (tests/test_kernels.py): GELU 1.1e-6 absolute (with v_lookup 5e-7, of 16 lanes 3e-7),
 * SiLU 8 units in the last place, the other
 * activations 5e-7 absolute or 8 units in the last place.
 */
#ifndef SKY_VEC_TPL_H
#define SKY_VEC_TPL_H

/* exp for x <= 88, NaN for NaN; below -87.3 it stays at the smallest normal number. Cody-Waite reduction, then the polynomial of degree 5
 * on |r| <= ln(2)/2 whose largest relative error, 1.1e-7, is least of those that begin with 1 + r; with rounding 1.8e-7. */
SKY_INLINE vf v_exp(vf x)
{
    const vf rounder = v_set1(SKY_ROUNDER);
    x = v_min(v_set1(88.0f), v_max(v_set1(-87.336544f), x));
    const vf i = v_fma(x, v_set1(1.44269504f), rounder), n = v_sub(i, rounder);
    vf r = v_fma(n, v_set1(-0.693359375f), x);
    r = v_fma(n, v_set1(2.12194440e-4f), r);
    vf p = v_set1(0.00831250101f);
    p = v_fma(p, r, v_set1(0.0418903306f));
    p = v_fma(p, r, v_set1(0.166671157f));
    p = v_fma(p, r, v_set1(0.499992311f));
    p = v_fma(p, r, v_set1(1.0f));
    p = v_fma(p, r, v_set1(1.0f));
    return v_scale2(p, i);
}

#if HAS_LOOKUP
#include "gelu_table.h"

/* x * Phi(x) = max(x, 0) - |x| * Phi(-|x|) */
SKY_INLINE vf v_gelu(vf x)
{
    const vf u = v_abs(x), zero = v_set1(0.0f), rounder = v_set1(SKY_ROUNDER);
    const vf at = v_min(v_mul(u, v_set1(GELU_INTERVALS_IN_1)), v_set1(VL - 1));
    const vf i = v_add(at, rounder), r = v_sub(at, v_sub(i, rounder));
    vf p = v_lookup(gelu_table[GELU_COEFFICIENTS - 1], i);
    SKY_UNROLL
    for (int power = GELU_COEFFICIENTS - 2; power >= 0; power--)
        p = v_fma(p, r, v_lookup(gelu_table[power], i));
    return v_fma(v_sub(zero, u), p, v_max(zero, x)); /* of an infinity NaN */
}
#else
/* x * Phi(x), Phi(x) = (1 + erf(x / sqrt 2)) / 2. erf(x / sqrt 2) = x P(x^2) / Q(x^2), a rational minimax fit (Lawson's
 * iteration) on |x| <= 5.4 that passes 1 by 4.5e-7 at the end, so that the clamp makes the tails exactly 0 and x. */
SKY_INLINE vf v_gelu(vf x)
{
    const vf z = v_min(v_max(x, v_set1(-5.4f)), v_set1(5.4f));
    const vf t = v_mul(z, z);
    vf p = v_set1(3.860811034e-08f);
    p = v_fma(p, t, v_set1(1.280124090e-05f));
    p = v_fma(p, t, v_set1(4.005621696e-04f));
    p = v_fma(p, t, v_set1(9.742241291e-03f));
    p = v_fma(p, t, v_set1(7.424351481e-02f));
    p = v_fma(p, t, v_set1(7.978846515e-01f));
    vf q = v_set1(1.099134413e-06f);
    q = v_fma(q, t, v_set1(8.275450158e-05f));
    q = v_fma(q, t, v_set1(2.066033210e-03f));
    q = v_fma(q, t, v_set1(3.049845491e-02f));
    q = v_fma(q, t, v_set1(2.597164287e-01f));
    q = v_fma(q, t, v_set1(1.0f));
    const vf erf_z = v_min(v_max(v_div(v_mul(z, p), q), v_set1(-1.0f)), v_set1(1.0f));
    const vf half_x = v_mul(x, v_set1(0.5f));
    return v_fma(half_x, erf_z, half_x);
}
#endif

SKY_INLINE vf v_silu(vf x)
{
    return v_div(x, v_add(v_set1(1.0f), v_exp(v_sub(v_set1(0.0f), x))));
}

/* 1 / (1 + e^-x): 0 and 1 at the ends, where v_exp stays within its range */
SKY_INLINE vf v_sigmoid(vf x)
{
    const vf one = v_set1(1.0f);
    return v_div(one, v_add(one, v_exp(v_sub(v_set1(0.0f), x))));
}

/* 2 sigmoid(2x) - 1 */
SKY_INLINE vf v_tanh(vf x)
{
    const vf two = v_set1(2.0f);
    return v_fma(two, v_sigmoid(v_mul(two, x)), v_set1(-1.0f));
}

/* x/2 (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3) */
SKY_INLINE vf v_gelu_tanh(vf x)
{
    const vf cubic = v_fma(v_mul(v_mul(x, x), x), v_set1(0.044715f), x);
    return v_div(x, v_add(v_set1(1.0f), v_exp(v_mul(cubic, v_set1(-1.5957691216f)))));
}

SKY_INLINE vf v_between(vf x, float least, float most) { return v_min(v_set1(most), v_max(v_set1(least), x)); }

/* tanh(log(1 + e)) = e (e + 2) / (e (e + 2) + 2); from e^20 on it is 1 */
SKY_INLINE vf v_mish(vf x)
{
    const vf two = v_set1(2.0f), e = v_exp(v_min(v_set1(20.0f), x)), n = v_mul(e, v_add(e, two));
    return v_mul(x, v_div(n, v_add(n, two)));
}

/* The functions of sky_activation. */
SKY_INLINE vf v_activation(sky_activation act, vf x)
{
    const vf zero = v_set1(0.0f);
    switch (act) {
    case SKY_ACT_SILU:
        return v_silu(x);
    case SKY_ACT_GELU_TANH:
        return v_gelu_tanh(x);
    case SKY_ACT_GELU_QUICK:
        return v_div(x, v_add(v_set1(1.0f), v_exp(v_mul(x, v_set1(-1.702f)))));
    case SKY_ACT_GELU_CLIPPED:
        return v_between(v_gelu(x), -10.0f, 10.0f);
    case SKY_ACT_RELU:
        return v_max(zero, x);
    case SKY_ACT_RELU_SQUARED:
        return v_mul(v_max(zero, x), v_max(zero, x));
    case SKY_ACT_RELU6:
        return v_between(x, 0.0f, 6.0f);
    case SKY_ACT_RELU_LEAKY:
        return v_max(v_mul(x, v_set1(0.01f)), x);
    case SKY_ACT_TANH:
        return v_tanh(x);
    case SKY_ACT_SIGMOID:
        return v_sigmoid(x);
    case SKY_ACT_LINEAR:
        return x;
    case SKY_ACT_HARDSWISH:
        return v_div(v_mul(x, v_between(v_add(x, v_set1(3.0f)), 0.0f, 6.0f)), v_set1(6.0f));
    case SKY_ACT_MISH:
        return v_mish(x);
    default:
        return v_gelu(x);
    }
}

#endif
