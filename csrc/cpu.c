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

unsigned sky_cpu_features(void)
{
    enum { EAX, EBX, ECX, EDX };
    unsigned leaf0[4], leaf1[4], leaf7[4], leaf7_1[4] = {0}, features = 0;
    cpuid(0, 0, leaf0);
    if (leaf0[EAX] < 7)
        return 0;
    cpuid(1, 0, leaf1);
    cpuid(7, 0, leaf7);
    if (leaf7[EAX] >= 1)
        cpuid(7, 1, leaf7_1);
    const int osxsave = leaf1[ECX] >> 27 & 1, fma = leaf1[ECX] >> 12 & 1, avx = leaf1[ECX] >> 28 & 1;
    const int f16c = leaf1[ECX] >> 29 & 1, avx2 = leaf7[EBX] >> 5 & 1;
    if (osxsave && avx && fma && f16c && avx2 && (xcr0() & 0x06) == 0x06) { /* the system saves xmm and ymm */
        features |= SKY_CPU_AVX2;
        if (leaf7_1[EAX] >> 4 & 1)
            features |= SKY_CPU_AVX_VNNI;
    }
    const unsigned f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    if (features & SKY_CPU_AVX2 && (leaf7[EBX] & f_dq_bw_vl) == f_dq_bw_vl && (xcr0() & 0xE6) == 0xE6) { /* and opmask, zmm */
        features |= SKY_CPU_AVX512;
        if (leaf7[ECX] >> 11 & 1)
            features |= SKY_CPU_AVX512_VNNI;
    }
    return features;
}

#elif SKY_AARCH64

#if defined(__linux__)
#include <sys/auxv.h>
static int has_dotprod(void)
{
    const unsigned long asimd_dp = 1ul << 20; /* HWCAP_ASIMDDP, which old headers lack */
    return (getauxval(AT_HWCAP) & asimd_dp) != 0;
}
#elif defined(__APPLE__)
#include <sys/sysctl.h>
static int has_dotprod(void)
{
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname("hw.optional.arm.FEAT_DotProd", &value, &size, NULL, 0) == 0 && value;
}
#elif defined(_WIN32)
static int has_dotprod(void)
{
    const DWORD v82_dp = 43; /* PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE, which old headers lack */
    return IsProcessorFeaturePresent(v82_dp);
}
#else
static int has_dotprod(void) { return 0; }
#endif

unsigned sky_cpu_features(void) /* Advanced SIMD is part of AArch64 */
{
    return SKY_CPU_NEON | (has_dotprod() ? SKY_CPU_DOTPROD : 0);
}

#else

unsigned sky_cpu_features(void) { return 0; }

#endif
