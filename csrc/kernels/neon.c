/* Advanced SIMD of AArch64: 4 floats a vector, 32 registers. The 12 x 8 tile takes 24 accumulators, 2 weights and a broadcast. Products of
 * 8-bit weights are those of portable.c, whose panels are as wide, where the CPU has no dot products (neondot.c). */
#include "compiler.h"

#if SKY_AARCH64

#include "neon_vec.h"

#define TILE_ROWS 12
#define HALF_WEIGHTS 1

#include "vec_tpl.h"

#include "epilogue_tpl.h"

#include "gemm_tpl.h"

#include "norm_tpl.h"

#include "attention_tpl.h"

void sky_fill_neon(sky_kernels *table)
{
    table->isa = "neon";
    fill_from_templates(table);
}

#endif
