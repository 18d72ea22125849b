/* SIMD128 of WebAssembly: 4 floats a vector, and as many registers as the machine below has, 16 on x86-64.
 *
 * Built twice. With relaxed SIMD a multiply-add is one instruction where the machine has one, and the tile is 6 x 8: 12
 * accumulators, 2 weights and a broadcast. Without, a product needs a register of its own, and 4 x 8 is faster (csrc/README.md).
 */
#include "compiler.h"

#if defined(__wasm_simd128__)

#include <math.h>
#include <wasm_simd128.h>

#include "kernels.h"

typedef v128_t vf;
#define VL 4
#define HALF_WEIGHTS 0 /* pages run small models, which are widened when they are set */
#if defined(__wasm_relaxed_simd__)
#define TILE_ROWS 6
#else
#define TILE_ROWS 4
#endif

SKY_INLINE vf v_set1(float x) { return wasm_f32x4_splat(x); }
SKY_INLINE vf v_load(const float *p) { return wasm_v128_load(p); }
SKY_INLINE void v_store(float *p, vf x) { wasm_v128_store(p, x); }
SKY_INLINE vf v_load_part(const float *p, int n)
{
    float lanes[4] = {0};
    for (int i = 0; i < n; i++)
        lanes[i] = p[i];
    return wasm_v128_load(lanes);
}
SKY_INLINE void v_store_part(float *p, vf x, int n)
{
    float lanes[4];
    wasm_v128_store(lanes, x);
    for (int i = 0; i < n; i++)
        p[i] = lanes[i];
}
SKY_INLINE vf v_add(vf a, vf b) { return wasm_f32x4_add(a, b); }
SKY_INLINE vf v_sub(vf a, vf b) { return wasm_f32x4_sub(a, b); }
SKY_INLINE vf v_mul(vf a, vf b) { return wasm_f32x4_mul(a, b); }
SKY_INLINE vf v_div(vf a, vf b) { return wasm_f32x4_div(a, b); }
/* one instruction on x86-64: the first operand of pmin and pmax is what a NaN gives */
SKY_INLINE vf v_min(vf a, vf b) { return wasm_f32x4_pmin(b, a); }
SKY_INLINE vf v_max(vf a, vf b) { return wasm_f32x4_pmax(b, a); }
#if defined(__wasm_relaxed_simd__)
SKY_INLINE vf v_fma(vf a, vf b, vf c) { return wasm_f32x4_relaxed_madd(a, b, c); } /* rounded once or twice, as the machine likes */
#else
SKY_INLINE vf v_fma(vf a, vf b, vf c) { return wasm_f32x4_add(wasm_f32x4_mul(a, b), c); } /* rounded twice, everywhere */
#endif
SKY_INLINE vf v_scale2(vf x, vf i) { return v_mul(x, wasm_i32x4_shl(wasm_i32x4_add(i, wasm_i32x4_splat(127)), 23)); }
/* Exponent and fraction of a half lie where a float has them after a shift by 13, but for the exponent's bias, which a product
 * corrects exactly, also where the half is subnormal; of an infinity or NaN all exponent bits are set then. */
SKY_INLINE vf v_load_f16(const uint16_t *p)
{
    const v128_t h = wasm_u32x4_load16x4(p);
    const v128_t size = wasm_i32x4_shl(wasm_v128_and(h, wasm_i32x4_splat(0x7fff)), 13);
    const v128_t is_odd = wasm_i32x4_ge(size, wasm_i32x4_splat(0x7c00 << 13));
    const v128_t value = wasm_v128_or(v_mul(size, v_set1(0x1p112f)), wasm_v128_and(is_odd, wasm_i32x4_splat(0x7f800000)));
    const v128_t sign = wasm_i32x4_shl(wasm_v128_and(h, wasm_i32x4_splat(0x8000)), 16);
    return wasm_v128_or(value, sign);
}
SKY_INLINE vf v_keep(vf x, int begin, int end, vf other)
{
    const v128_t lane = wasm_i32x4_const(0, 1, 2, 3);
    const v128_t is_inside = wasm_v128_and(wasm_i32x4_ge(lane, wasm_i32x4_splat(begin)), wasm_i32x4_lt(lane, wasm_i32x4_splat(end)));
    return wasm_v128_bitselect(x, other, is_inside);
}
SKY_INLINE float v_sum(vf x)
{
    const vf pairs = v_add(x, wasm_i32x4_shuffle(x, x, 2, 3, 0, 1));
    return wasm_f32x4_extract_lane(pairs, 0) + wasm_f32x4_extract_lane(pairs, 1);
}
SKY_INLINE float v_hmax(vf x)
{
    vf most = v_max(x, wasm_i32x4_shuffle(x, x, 2, 3, 0, 1));
    most = v_max(most, wasm_i32x4_shuffle(most, most, 1, 0, 3, 2));
    return wasm_f32x4_extract_lane(most, 0);
}

/* The element at row i, lane j goes to row j, lane i. */
SKY_INLINE void v_transpose(vf x[VL])
{
    const vf low01 = wasm_i32x4_shuffle(x[0], x[1], 0, 4, 1, 5), high01 = wasm_i32x4_shuffle(x[0], x[1], 2, 6, 3, 7);
    const vf low23 = wasm_i32x4_shuffle(x[2], x[3], 0, 4, 1, 5), high23 = wasm_i32x4_shuffle(x[2], x[3], 2, 6, 3, 7);
    x[0] = wasm_i32x4_shuffle(low01, low23, 0, 1, 4, 5);
    x[1] = wasm_i32x4_shuffle(low01, low23, 2, 3, 6, 7);
    x[2] = wasm_i32x4_shuffle(high01, high23, 0, 1, 4, 5);
    x[3] = wasm_i32x4_shuffle(high01, high23, 2, 3, 6, 7);
}

#include "vec_tpl.h"

#include "epilogue_tpl.h"

#include "gemm_tpl.h"

#include "norm_tpl.h"

#include "attention_tpl.h"

void sky_fill_wasm128(sky_kernels *table)
{
#if defined(__wasm_relaxed_simd__)
    table->isa = "wasm128_relaxed";
#else
    table->isa = "wasm128";
#endif
    fill_from_templates(table);
}

#endif
