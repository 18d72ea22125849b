/* 8-bit products by the dot products of NEON, of signed bytes. The 6 x 8 tile takes 12 sums, 12 float accumulators, 2 weights and a
 * broadcast. */
#include "compiler.h"

#if SKY_AARCH64

#include "neon_vec.h"

#define TILE_ROWS 6
#define INT8_ROWS 6
#define INT8_GROUP 4
#define INT8_OFFSET 0

typedef int32x4_t vi;
typedef int8x16_t vi_weight;

SKY_INLINE vi vi_set1(int32_t x) { return vdupq_n_s32(x); }
SKY_INLINE vi_weight vi_weights(const char *p) { return vld1q_s8((const int8_t *)p); }
SKY_INLINE vi vi_dot(vi sum, vi_weight w, vi a) { return vdotq_s32(sum, w, vreinterpretq_s8_s32(a)); }
SKY_INLINE vf v_from_int(vi x) { return vcvtq_f32_s32(x); }
SKY_INLINE void v_store_i8(int8_t *p, vf x)
{
    const int16x4_t halves = vqmovn_s32(vcvtq_s32_f32(x));
    const int32x2_t bytes = vreinterpret_s32_s8(vqmovn_s16(vcombine_s16(halves, halves)));
    const int32_t four = vget_lane_s32(bytes, 0);
    memcpy(p, &four, sizeof four);
}

#include "vec_tpl.h"

#include "epilogue_tpl.h"

#include "int8_tpl.h"

void sky_fill_neondot(sky_kernels *table)
{
    table->isa = "neondot";
    fill_int8(table);
}

#endif
