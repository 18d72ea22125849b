/* AVX-512F: 16 floats a vector, 32 registers. The 12 x 32 tile takes 24 accumulators, 2 weights and broadcasts from memory. */
#include "compiler.h"

#if SKY_X86_64

#include "avx512_vec.h"

#define TILE_ROWS 12
#define HALF_WEIGHTS 1

/* 8-bit products without VNNI: pairs of weights, widened to 16 bits, times pairs of activations of as many, which no sum can
 * overflow. */
#define INT8_ROWS 6
#define INT8_GROUP 2
#define INT8_OFFSET 0

typedef __m512i vi, vi_weight;

SKY_INLINE vi vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
SKY_INLINE vi_weight vi_weights(const char *p) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)p)); }
SKY_INLINE vi_weight vi_load(const int16_t *p) { return _mm512_load_si512(p); }
SKY_INLINE void vi_store(int16_t *p, vi_weight w) { _mm512_store_si512(p, w); }
SKY_INLINE vi vi_dot(vi sum, vi_weight w, vi a) { return _mm512_add_epi32(sum, _mm512_madd_epi16(w, a)); }
SKY_INLINE vf v_from_int(vi x) { return _mm512_cvtepi32_ps(x); }
SKY_INLINE void v_store_i16(int16_t *p, vf x) { _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x))); }

#include "vec_tpl.h"

#include "epilogue_tpl.h"

#include "gemm_tpl.h"

#include "norm_tpl.h"

#include "attention_tpl.h"

#include "int8_tpl.h"

void sky_fill_avx512(sky_kernels *table)
{
    table->isa = "avx512";
    fill_from_templates(table);
    fill_int8(table);
}

#endif
