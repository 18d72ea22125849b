/* AVX2 with FMA: 8 floats a vector, 16 registers. The 6 x 16 tile takes 12 accumulators, 2 weights and a broadcast. */
#include "compiler.h"

#if SKY_X86_64

#include "avx2_vec.h"

#define TILE_ROWS 6
#define HALF_WEIGHTS 1
#define K_PART 512 /* 32 KB a panel, beside 384 KB of A: many CPUs without AVX-512 have an L2 cache of 512 KB */
#define A_BLOCK_FLOATS (384 << 8)

/* 8-bit products without VNNI: pairs of weights, widened to 16 bits, times pairs of activations of as many, which no sum can
 * overflow. vpmaddubsw would: 255 * 127 * 2 does not fit into 16 bits. */
#define INT8_ROWS 6
#define INT8_GROUP 2
#define INT8_OFFSET 0

typedef __m256i vi, vi_weight;

SKY_INLINE vi vi_set1(int32_t x) { return _mm256_set1_epi32(x); }
SKY_INLINE vi_weight vi_weights(const char *p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p)); }
SKY_INLINE vi_weight vi_load(const int16_t *p) { return _mm256_load_si256((const __m256i *)(const void *)p); }
SKY_INLINE void vi_store(int16_t *p, vi_weight w) { _mm256_store_si256((__m256i *)(void *)p, w); }
SKY_INLINE vi vi_dot(vi sum, vi_weight w, vi a) { return _mm256_add_epi32(sum, _mm256_madd_epi16(w, a)); }
SKY_INLINE vf v_from_int(vi x) { return _mm256_cvtepi32_ps(x); }
SKY_INLINE void v_store_i16(int16_t *p, vf x)
{
    const __m256i whole = _mm256_cvtps_epi32(x);
    _mm_storeu_si128((__m128i *)(void *)p, _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1)));
}

#include "vec_tpl.h"

#include "epilogue_tpl.h"

#include "gemm_tpl.h"

#include "norm_tpl.h"

#include "attention_tpl.h"

#include "int8_tpl.h"

void sky_fill_avx2(sky_kernels *table)
{
    table->isa = "avx2";
    fill_from_templates(table);
    fill_int8(table);
}

#endif
