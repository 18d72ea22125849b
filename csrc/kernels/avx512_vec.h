/* The primitives of vec_tpl.h for AVX-512F: 16 floats a vector, 32 registers. */
#ifndef SKY_AVX512_VEC_H
#define SKY_AVX512_VEC_H

#include <immintrin.h>
#include <math.h>

#include "kernels.h"

typedef __m512 vf;
#define VL 16

SKY_INLINE __mmask16 first_lanes(int n) { return (__mmask16)((1u << n) - 1u); }

SKY_INLINE vf v_set1(float x) { return _mm512_set1_ps(x); }
SKY_INLINE vf v_load(const float *p) { return _mm512_loadu_ps(p); }
SKY_INLINE void v_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
SKY_INLINE vf v_load_part(const float *p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
SKY_INLINE void v_store_part(float *p, vf x, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), x); }
SKY_INLINE vf v_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
SKY_INLINE vf v_load_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
SKY_INLINE vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
SKY_INLINE vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
SKY_INLINE vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
SKY_INLINE vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
SKY_INLINE vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
SKY_INLINE vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
SKY_INLINE vf v_abs(vf x) { return _mm512_abs_ps(x); }
SKY_INLINE vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
SKY_INLINE vf v_round(vf x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
#define HAS_LOOKUP 1
SKY_INLINE vf v_lookup(const float *table, vf i) { return _mm512_permutexvar_ps(_mm512_castps_si512(i), _mm512_load_ps(table)); }
SKY_INLINE vf v_scale2(vf x, vf i) { return _mm512_scalef_ps(x, v_sub(i, v_set1(SKY_ROUNDER))); }
SKY_INLINE vf v_keep(vf x, int begin, int end, vf other)
{
    const unsigned in_front = begin < VL ? ~0u << (begin > 0 ? begin : 0) : 0;
    const unsigned behind = end < VL ? (1u << (end > 0 ? end : 0)) - 1u : ~0u;
    return _mm512_mask_blend_ps((__mmask16)(in_front & behind), other, x);
}
SKY_INLINE float v_sum(vf x) { return _mm512_reduce_add_ps(x); }
SKY_INLINE float v_hmax(vf x) { return _mm512_reduce_max_ps(x); }

/* The element at row i, lane j goes to row j, lane i. Pairs, then fours within 128-bit lanes, then the lanes themselves. */
SKY_INLINE void v_transpose(vf x[VL])
{
    vf pairs[VL], fours[VL];
    SKY_UNROLL
    for (int i = 0; i < VL; i += 2) {
        pairs[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
    SKY_UNROLL
    for (int i = 0; i < VL; i += 4) {
        fours[i] = _mm512_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
        fours[i + 1] = _mm512_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
        fours[i + 2] = _mm512_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
        fours[i + 3] = _mm512_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
    }
    SKY_UNROLL
    for (int i = 0; i < 4; i++) {
        const vf even_low = _mm512_shuffle_f32x4(fours[i], fours[i + 4], 0x88);
        const vf odd_low = _mm512_shuffle_f32x4(fours[i], fours[i + 4], 0xDD);
        const vf even_high = _mm512_shuffle_f32x4(fours[i + 8], fours[i + 12], 0x88);
        const vf odd_high = _mm512_shuffle_f32x4(fours[i + 8], fours[i + 12], 0xDD);
        x[i] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
        x[i + 4] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
        x[i + 8] = _mm512_shuffle_f32x4(even_low, even_high, 0xDD);
        x[i + 12] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xDD);
    }
}

#endif
