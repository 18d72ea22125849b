/* 8-bit products by AVX-512 VNNI, which multiplies unsigned by signed bytes: weights have 128 added, and what that adds to a sum is
 * subtracted before it begins. The 6 x 32 tile takes 12 sums, 12 float accumulators, 2 weights and a broadcast. */
#include "compiler.h"

#if SKY_X86_64

#include "avx512_vec.h"

#define TILE_ROWS 6
#define INT8_ROWS 6
#define INT8_GROUP 4
#define INT8_OFFSET 128

typedef __m512i vi, vi_weight;

SKY_INLINE vi vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
SKY_INLINE vi_weight vi_weights(const char *p) { return _mm512_loadu_si512(p); }
SKY_INLINE vi vi_dot(vi sum, vi_weight w, vi a) { return _mm512_dpbusd_epi32(sum, w, a); }
SKY_INLINE vf v_from_int(vi x) { return _mm512_cvtepi32_ps(x); }
SKY_INLINE void v_store_i32(int32_t *p, vf x) { _mm512_storeu_si512(p, _mm512_cvtps_epi32(x)); }
SKY_INLINE void v_store_i8(int8_t *p, vf x) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x))); }

#include "vec_tpl.h"

#include "epilogue_tpl.h"

#include "int8_tpl.h"

void sky_fill_avx512vnni(sky_kernels *table)
{
    table->isa = "avx512vnni";
    fill_int8(table);
}

#endif
