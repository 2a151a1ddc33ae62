/* Includes BODY once for each instruction set, so that one source serves every machine.
 *
 * BODY names its functions NAME(x), marks them TARGET, and includes each_type.h or vector.h for vectors
 * of the width of ISA_LEVEL. PER_ISA(x) is then a table of the variants, indexed by the instruction set.
 */

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(x) JOIN(x, ISA)
#define INLINE static inline __attribute__((always_inline)) TARGET

#define ISA base
#define ISA_LEVEL 0
#define TARGET
#include BODY
#undef ISA
#undef ISA_LEVEL
#undef TARGET

#if defined(__x86_64__)
#include <immintrin.h>

#define ISA avx2
#define ISA_LEVEL 1
#define TARGET __attribute__((target("avx2,fma")))
#include BODY
#undef ISA
#undef ISA_LEVEL
#undef TARGET

#define ISA avx512
#define ISA_LEVEL 2
#define TARGET __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")))
#include BODY
#undef ISA
#undef ISA_LEVEL
#undef TARGET

#define PER_ISA(x) {x##_base, x##_avx2, x##_avx512}
#else
#define PER_ISA(x) {x##_base, x##_base, x##_base}
#endif
