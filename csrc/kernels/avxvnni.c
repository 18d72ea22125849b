/* 8-bit products by AVX-VNNI, which multiplies unsigned by signed bytes: weights have 128 added, and what that adds to a sum is
 * subtracted before it begins. The 3 x 16 tile takes 6 sums, 6 float accumulators, 2 weights and a broadcast. */
#include "compiler.h"

#if SKY_X86_64

#include "avx2_vec.h"

#define TILE_ROWS 3
#define INT8_ROWS 3
#define INT8_GROUP 4
#define INT8_OFFSET 128

typedef __m256i vi, vi_weight;

SKY_INLINE vi vi_set1(int32_t x) { return _mm256_set1_epi32(x); }
SKY_INLINE vi_weight vi_weights(const char *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
SKY_INLINE vi vi_dot(vi sum, vi_weight w, vi a) { return _mm256_dpbusd_avx_epi32(sum, w, a); }
SKY_INLINE vf v_from_int(vi x) { return _mm256_cvtepi32_ps(x); }
SKY_INLINE void v_store_i32(int32_t *p, vf x) { _mm256_storeu_si256((__m256i *)(void *)p, _mm256_cvtps_epi32(x)); }
SKY_INLINE void v_store_i8(int8_t *p, vf x)
{
    const __m256i whole = _mm256_cvtps_epi32(x);
    const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64((__m128i *)(void *)p, _mm_packs_epi16(halves, halves));
}

#include "vec_tpl.h"

#include "epilogue_tpl.h"

#include "int8_tpl.h"

void sky_fill_avxvnni(sky_kernels *table)
{
    table->isa = "avxvnni";
    fill_int8(table);
}

#endif
