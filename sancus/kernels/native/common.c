/* Threads, and what this machine offers. */

#include "common.h"

enum { STEPS_A_PART = 16384, PARTS_A_THREAD = 16 };

EXPORT int sancus_interface(void)
{
    return SANCUS_INTERFACE;
}

/* The widest instruction set that this machine runs. */
EXPORT int sancus_isa(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return ISA_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return ISA_AVX2;
#endif
    return ISA_BASE;
}

/* 1 where threads were compiled in. */
EXPORT int sancus_threaded(void)
{
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}

int64_t parts_for(int64_t size, int threads)
{
    int64_t most = threads > 1 ? (int64_t)threads * PARTS_A_THREAD : 1, worth = size / STEPS_A_PART;
    return worth < 1 ? 1 : worth < most ? worth : most;
}

void run_parts(worker work, const void *job, int64_t parts, int threads)
{
#ifdef _OPENMP
    if (threads > 1 && parts > 1) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
        for (int64_t part = 0; part < parts; part++)
            work(job, part, parts);
        return;
    }
#else
    (void)threads;
#endif
    for (int64_t part = 0; part < parts; part++)
        work(job, part, parts);
}
