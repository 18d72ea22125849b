/* The primitives of vec_tpl.h for AVX2 with FMA: 8 floats a vector, 16 registers. */
#ifndef SKY_AVX2_VEC_H
#define SKY_AVX2_VEC_H

#include <immintrin.h>
#include <math.h>

#include "kernels.h"

typedef __m256 vf;
#define VL 8

/* all ones in the first n of 8 lanes */
SKY_INLINE __m256i first_lanes(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

SKY_INLINE vf v_set1(float x) { return _mm256_set1_ps(x); }
SKY_INLINE vf v_load(const float *p) { return _mm256_loadu_ps(p); }
SKY_INLINE void v_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
SKY_INLINE vf v_load_part(const float *p, int n) { return _mm256_maskload_ps(p, first_lanes(n)); }
SKY_INLINE void v_store_part(float *p, vf x, int n) { _mm256_maskstore_ps(p, first_lanes(n), x); }
SKY_INLINE vf v_load_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
SKY_INLINE vf v_load_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
SKY_INLINE vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
SKY_INLINE vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
SKY_INLINE vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
SKY_INLINE vf v_div(vf a, vf b) { return _mm256_div_ps(a, b); }
SKY_INLINE vf v_min(vf a, vf b) { return _mm256_min_ps(a, b); }
SKY_INLINE vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); }
SKY_INLINE vf v_abs(vf x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
SKY_INLINE vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
SKY_INLINE vf v_round(vf x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
#define HAS_LOOKUP 1
SKY_INLINE vf v_lookup(const float *table, vf i) { return _mm256_permutevar8x32_ps(_mm256_load_ps(table), _mm256_castps_si256(i)); }
SKY_INLINE vf v_scale2(vf x, vf i)
{
    const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_castps_si256(i), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(x, _mm256_castsi256_ps(exponent));
}
SKY_INLINE vf v_keep(vf x, int begin, int end, vf other)
{
    const __m256i is_inside = _mm256_andnot_si256(first_lanes(begin), first_lanes(end));
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(is_inside));
}
SKY_INLINE float v_sum(vf x)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
SKY_INLINE float v_hmax(vf x)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

/* The element at row i, lane j goes to row j, lane i. Pairs, then fours within 128-bit lanes, then the lanes themselves. */
SKY_INLINE void v_transpose(vf x[VL])
{
    vf pairs[VL], fours[VL];
    SKY_UNROLL
    for (int i = 0; i < VL; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    SKY_UNROLL
    for (int i = 0; i < VL; i += 4) {
        fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
        fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
        fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
        fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
    }
    SKY_UNROLL
    for (int i = 0; i < 4; i++) {
        x[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
        x[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
    }
}

#endif
