/* The table of instruction sets, weakest first. A row fills in what it implements on top of all rows before it whose features the
 * CPU has, too. */
#include <string.h>

#include "internal.h"
#include "kernels/compiler.h"

typedef struct {
    const char *name;
    unsigned needs; /* a set of sky_cpu_feature */
    void (*fill)(sky_kernels *table);
} isa_row;

static const isa_row rows[] = {
#if !defined(SKY_WITHOUT_PORTABLE) /* where another row runs on every machine and has every kernel */
    {"portable", 0, sky_fill_portable},
#endif
#if defined(SKY_HAVE_AVX2) && SKY_X86_64
    {"avx2", SKY_CPU_AVX2, sky_fill_avx2},
#endif
#if defined(SKY_HAVE_AVXVNNI) && SKY_X86_64
    {"avxvnni", SKY_CPU_AVX2 | SKY_CPU_AVX_VNNI, sky_fill_avxvnni},
#endif
#if defined(SKY_HAVE_AVX512) && SKY_X86_64
    {"avx512", SKY_CPU_AVX512, sky_fill_avx512},
#endif
#if defined(SKY_HAVE_AVX512VNNI) && SKY_X86_64
    {"avx512vnni", SKY_CPU_AVX512 | SKY_CPU_AVX512_VNNI, sky_fill_avx512vnni},
#endif
#if defined(SKY_HAVE_NEON) && SKY_AARCH64
    {"neon", SKY_CPU_NEON, sky_fill_neon},
#endif
#if defined(SKY_HAVE_NEONDOT) && SKY_AARCH64
    {"neondot", SKY_CPU_NEON | SKY_CPU_DOTPROD, sky_fill_neondot},
#endif
#if defined(SKY_HAVE_WASM128) && defined(__wasm_relaxed_simd__)
    {"wasm128_relaxed", 0, sky_fill_wasm128},
#elif defined(SKY_HAVE_WASM128)
    {"wasm128", 0, sky_fill_wasm128},
#endif
};

enum { N_ROWS = sizeof rows / sizeof rows[0] };

static int runs(const isa_row *row, unsigned features) { return (row->needs & ~features) == 0; }

const char *sky_isa_name(int index)
{
    return index >= 0 && index < N_ROWS ? rows[index].name : NULL;
}

int sky_isa_supported(const char *name)
{
    for (int i = 0; i < N_ROWS; i++)
        if (name && strcmp(rows[i].name, name) == 0)
            return runs(&rows[i], sky_cpu_features());
    return 0;
}

sky_status sky_kernels_select(const char *isa, sky_kernels *table)
{
    const unsigned features = sky_cpu_features();
    int last = -1;
    for (int i = 0; i < N_ROWS; i++)
        if (isa ? strcmp(rows[i].name, isa) == 0 : runs(&rows[i], features))
            last = i;
    if (last < 0 || !runs(&rows[last], features))
        return SKY_ERR_ISA;
    for (int i = 0; i <= last; i++)
        if (runs(&rows[i], features))
            rows[i].fill(table);
    return SKY_OK;
}
