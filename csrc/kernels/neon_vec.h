/* The primitives of vec_tpl.h for Advanced SIMD of AArch64: 4 floats a vector, 32 registers. */
#ifndef SKY_NEON_VEC_H
#define SKY_NEON_VEC_H

#include <arm_neon.h>
#include <math.h>
#include <string.h>

#include "kernels.h"

typedef float32x4_t vf;
#define VL 4

SKY_INLINE vf v_set1(float x) { return vdupq_n_f32(x); }
SKY_INLINE vf v_load(const float *p) { return vld1q_f32(p); }
SKY_INLINE void v_store(float *p, vf x) { vst1q_f32(p, x); }
SKY_INLINE vf v_load_part(const float *p, int n)
{
    float lanes[4] = {0};
    for (int i = 0; i < n; i++)
        lanes[i] = p[i];
    return vld1q_f32(lanes);
}
SKY_INLINE void v_store_part(float *p, vf x, int n)
{
    float lanes[4];
    vst1q_f32(lanes, x);
    for (int i = 0; i < n; i++)
        p[i] = lanes[i];
}
SKY_INLINE vf v_load_f16(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
SKY_INLINE vf v_load_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
SKY_INLINE vf v_add(vf a, vf b) { return vaddq_f32(a, b); }
SKY_INLINE vf v_sub(vf a, vf b) { return vsubq_f32(a, b); }
SKY_INLINE vf v_mul(vf a, vf b) { return vmulq_f32(a, b); }
SKY_INLINE vf v_div(vf a, vf b) { return vdivq_f32(a, b); }
SKY_INLINE vf v_min(vf a, vf b) { return vminq_f32(a, b); }
SKY_INLINE vf v_max(vf a, vf b) { return vmaxq_f32(a, b); }
SKY_INLINE vf v_abs(vf x) { return vabsq_f32(x); }
SKY_INLINE vf v_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
SKY_INLINE vf v_round(vf x) { return vrndnq_f32(x); }
SKY_INLINE vf v_scale2(vf x, vf i)
{
    const int32x4_t exponent = vshlq_n_s32(vaddq_s32(vreinterpretq_s32_f32(i), vdupq_n_s32(127)), 23);
    return vmulq_f32(x, vreinterpretq_f32_s32(exponent));
}
SKY_INLINE vf v_keep(vf x, int begin, int end, vf other)
{
    const int32_t lanes[4] = {0, 1, 2, 3};
    const int32x4_t lane = vld1q_s32(lanes);
    return vbslq_f32(vandq_u32(vcgeq_s32(lane, vdupq_n_s32(begin)), vcltq_s32(lane, vdupq_n_s32(end))), x, other);
}
SKY_INLINE float v_sum(vf x) { return vaddvq_f32(x); }
SKY_INLINE float v_hmax(vf x) { return vmaxvq_f32(x); }

/* The element at row i, lane j goes to row j, lane i. */
SKY_INLINE void v_transpose(vf x[VL])
{
    const float32x4x2_t low = vtrnq_f32(x[0], x[1]), high = vtrnq_f32(x[2], x[3]);
    x[0] = vcombine_f32(vget_low_f32(low.val[0]), vget_low_f32(high.val[0]));
    x[1] = vcombine_f32(vget_low_f32(low.val[1]), vget_low_f32(high.val[1]));
    x[2] = vcombine_f32(vget_high_f32(low.val[0]), vget_high_f32(high.val[0]));
    x[3] = vcombine_f32(vget_high_f32(low.val[1]), vget_high_f32(high.val[1]));
}

#endif
