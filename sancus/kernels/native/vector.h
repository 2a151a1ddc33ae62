/* Vectors of REAL_BITS floats for ISA_LEVEL; included again for each combination.
 *
 * V            a vector of LANES values
 * LOAD, STORE  unaligned
 * MASK(n)      selects the first n lanes, 1 <= n <= LANES; LOAD_SOME gives 0 in the others
 * FMA(a, b, c) a b + c, rounded once where the machine can
 * REGISTERS    accumulators that fit beside a weight and an operand
 */

#undef REAL
#undef V
#undef M
#undef LANES
#undef REGISTERS
#undef LOAD
#undef STORE
#undef MASK
#undef LOAD_SOME
#undef STORE_SOME
#undef SPREAD
#undef FMA
#undef PORTABLE

#if REAL_BITS == 32
#define REAL float
#else
#define REAL double
#endif

#if ISA_LEVEL == 2 && REAL_BITS == 32
#define V __m512
#define M __mmask16
#define LANES 16
#define REGISTERS 16
#define LOAD(p) _mm512_loadu_ps(p)
#define STORE(p, v) _mm512_storeu_ps(p, v)
#define MASK(n) ((__mmask16)(0xffffu >> (16 - (n))))
#define LOAD_SOME(p, m) _mm512_maskz_loadu_ps(m, p)
#define STORE_SOME(p, v, m) _mm512_mask_storeu_ps(p, m, v)
#define SPREAD(x) _mm512_set1_ps(x)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)

#elif ISA_LEVEL == 2
#define V __m512d
#define M __mmask8
#define LANES 8
#define REGISTERS 16
#define LOAD(p) _mm512_loadu_pd(p)
#define STORE(p, v) _mm512_storeu_pd(p, v)
#define MASK(n) ((__mmask8)(0xffu >> (8 - (n))))
#define LOAD_SOME(p, m) _mm512_maskz_loadu_pd(m, p)
#define STORE_SOME(p, v, m) _mm512_mask_storeu_pd(p, m, v)
#define SPREAD(x) _mm512_set1_pd(x)
#define FMA(a, b, c) _mm512_fmadd_pd(a, b, c)

#elif ISA_LEVEL == 1 && REAL_BITS == 32
#define V __m256
#define M __m256i
#define LANES 8
#define REGISTERS 8
#define LOAD(p) _mm256_loadu_ps(p)
#define STORE(p, v) _mm256_storeu_ps(p, v)
#define MASK(n) _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
#define LOAD_SOME(p, m) _mm256_maskload_ps(p, m)
#define STORE_SOME(p, v, m) _mm256_maskstore_ps(p, m, v)
#define SPREAD(x) _mm256_set1_ps(x)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)

#elif ISA_LEVEL == 1
#define V __m256d
#define M __m256i
#define LANES 4
#define REGISTERS 8
#define LOAD(p) _mm256_loadu_pd(p)
#define STORE(p, v) _mm256_storeu_pd(p, v)
#define MASK(n) _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3))
#define LOAD_SOME(p, m) _mm256_maskload_pd(p, m)
#define STORE_SOME(p, v, m) _mm256_maskstore_pd(p, m, v)
#define SPREAD(x) _mm256_set1_pd(x)
#define FMA(a, b, c) _mm256_fmadd_pd(a, b, c)

#else /* 16-byte vectors of the compiler: SSE2, NEON, or whatever the machine has */
#define LANES (128 / REAL_BITS)
#define REGISTERS 8
#define M int
#define MASK(n) ((int)(n))
#define SPREAD(x) PORTABLE(spread)(x)
#define LOAD(p) PORTABLE(load)(p, LANES)
#define STORE(p, v) PORTABLE(store)(p, v, LANES)
#define LOAD_SOME(p, m) PORTABLE(load)(p, m)
#define STORE_SOME(p, v, m) PORTABLE(store)(p, v, m)
#if REAL_BITS == 32
#define V vector_f32
#define PORTABLE(x) x##_f32
#else
#define V vector_f64
#define PORTABLE(x) x##_f64
#endif
#if defined(__aarch64__) && REAL_BITS == 32
#define FMA(a, b, c) vfmaq_f32(c, a, b)
#elif defined(__aarch64__)
#define FMA(a, b, c) vfmaq_f64(c, a, b)
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#endif
#endif

#ifndef SANCUS_VECTOR_H
#define SANCUS_VECTOR_H

#include <string.h>

#if defined(__aarch64__)
#include <arm_neon.h>
typedef float32x4_t vector_f32;
typedef float64x2_t vector_f64;
#else
typedef float vector_f32 __attribute__((vector_size(16)));
typedef double vector_f64 __attribute__((vector_size(16)));
#endif

#define PORTABLE_VECTOR(VECTOR, REAL_TYPE, SUFFIX)                                                          \
    static inline __attribute__((always_inline)) VECTOR spread_##SUFFIX(REAL_TYPE x)                        \
    {                                                                                                       \
        REAL_TYPE lanes[16 / sizeof(REAL_TYPE)];                                                            \
        VECTOR v;                                                                                           \
        for (size_t i = 0; i < 16 / sizeof(REAL_TYPE); i++)                                                 \
            lanes[i] = x;                                                                                   \
        memcpy(&v, lanes, 16);                                                                              \
        return v;                                                                                           \
    }                                                                                                       \
    static inline __attribute__((always_inline)) VECTOR load_##SUFFIX(const REAL_TYPE *p, int lanes)        \
    {                                                                                                       \
        VECTOR v = {0};                                                                                     \
        memcpy(&v, p, (size_t)lanes * sizeof(REAL_TYPE));                                                   \
        return v;                                                                                           \
    }                                                                                                       \
    static inline __attribute__((always_inline)) void store_##SUFFIX(REAL_TYPE *p, VECTOR v, int lanes)     \
    {                                                                                                       \
        memcpy(p, &v, (size_t)lanes * sizeof(REAL_TYPE));                                                   \
    }

PORTABLE_VECTOR(vector_f32, float, f32)
PORTABLE_VECTOR(vector_f64, double, f64)

#endif
