/* What this CPU and its operating system run. Compiled with no flags of its own: it runs before anything is known. */
#if defined(__linux__)
#define _GNU_SOURCE /* sched_getaffinity */
#include <sched.h>
#endif

#include "internal.h"
#include "kernels/compiler.h"

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <unistd.h>
#endif

int sky_cpu_count(void)
{
    long n;
#if defined(_WIN32)
    n = (long)GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
#else
    n = sysconf(_SC_NPROCESSORS_ONLN);
#endif
#if defined(__linux__)
    cpu_set_t allowed; /* of up to 1024 CPUs; a larger machine's mask is refused */
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        n = CPU_COUNT(&allowed);
#endif
    return n < 1 ? 1 : n > SKY_MAX_THREADS ? SKY_MAX_THREADS : (int)n;
}

#if SKY_X86_64

#if defined(_MSC_VER)
#include <intrin.h>
static void cpuid(unsigned leaf, unsigned subleaf, unsigned r[4])
{
    int regs[4];
    __cpuidex(regs, (int)leaf, (int)subleaf);
    for (int i = 0; i < 4; i++)
        r[i] = (unsigned)regs[i];
}
static unsigned long long xcr0(void) { return _xgetbv(0); }
#else
#include <cpuid.h>
static void cpuid(unsigned leaf, unsigned subleaf, unsigned r[4])
{
    __cpuid_count(leaf, subleaf, r[0], r[1], r[2], r[3]);
}
static unsigned long long xcr0(void)
{
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (unsigned long long)high << 32 | low;
}
#endif

int sky_cpu_has(sky_cpu_feature feature)
{
    enum { EAX, EBX, ECX, EDX };
    unsigned leaf0[4], leaf1[4], leaf7[4];
    if (feature == SKY_CPU_BASELINE)
        return 1;
    if (feature == SKY_CPU_NEON)
        return 0;
    cpuid(0, 0, leaf0);
    if (leaf0[EAX] < 7)
        return 0;
    cpuid(1, 0, leaf1);
    cpuid(7, 0, leaf7);
    const int osxsave = leaf1[ECX] >> 27 & 1, fma = leaf1[ECX] >> 12 & 1, avx = leaf1[ECX] >> 28 & 1;
    const int f16c = leaf1[ECX] >> 29 & 1, avx2 = leaf7[EBX] >> 5 & 1;
    if (!(osxsave && avx && fma && f16c && avx2 && (xcr0() & 0x06) == 0x06)) /* the system saves xmm and ymm */
        return 0;
    if (feature == SKY_CPU_AVX2)
        return 1;
    const unsigned f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    return (leaf7[EBX] & f_dq_bw_vl) == f_dq_bw_vl && (xcr0() & 0xE6) == 0xE6; /* and opmask and zmm */
}

#else

int sky_cpu_has(sky_cpu_feature feature)
{
#if SKY_AARCH64
    return feature == SKY_CPU_BASELINE || feature == SKY_CPU_NEON; /* Advanced SIMD is part of AArch64 */
#else
    return feature == SKY_CPU_BASELINE;
#endif
}

#endif
