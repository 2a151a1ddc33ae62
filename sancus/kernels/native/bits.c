/* Rows of floats as 1, 2, 4 or 8 bits a value with a zero point and a scale a row (Sylvie eq. 3-5).
 *
 * level = floor((x - zero) / scale), or one more with the probability of the fraction; the value at column c
 * fills the bits from c * bits on, lowest first. The random number of a value is a hash of (seed, row, column)
 * and nothing else. Only operations that IEEE 754 rounds in one way are used, and no sum is contracted, so
 * the bits are the same on every machine; bits.py states the same arithmetic in torch.
 */

#include "common.h"

#include <float.h>
#include <math.h>
#include <string.h>

typedef struct {
    const float *x;
    const int64_t *row;
    uint8_t *packed, *finite;
    float *zero, *scale;
    int64_t rows, stride, columns, bytes; /* bytes of a packed row */
    uint64_t seed;
    int bits, coarse;
} packing;

typedef struct {
    const uint8_t *packed;
    const float *zero, *scale;
    float *out;
    int64_t rows, columns, bytes, stride;
    int bits;
} unpacking;

/* SplitMix64. */
static inline uint64_t mixed(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* The bf16 nearest to x on the side away from zero or towards it. */
static inline float outer_bf16(float x, int away)
{
    uint32_t word;
    memcpy(&word, &x, 4);
    if (away && (word & 0xFFFFu) && (word & 0x7FFFFFFFu) < 0x7F7F0000u)
        word += 0x10000u;
    word &= 0xFFFF0000u;
    memcpy(&x, &word, 4);
    return x;
}

typedef float four __attribute__((vector_size(16)));
typedef int32_t four_flags __attribute__((vector_size(16)));

/* a where the flag is set, else b. */
static inline __attribute__((always_inline)) four choose_four(four_flags flag, four a, four b)
{
    return (four)((flag & (four_flags)a) | (~flag & (four_flags)b));
}

/* A few bytes, the same number row after row: faster than a call of memcpy. */
static inline __attribute__((always_inline)) void copy_bytes(uint8_t *to, const uint8_t *from, int count)
{
    for (; count >= 8; count -= 8, to += 8, from += 8)
        memcpy(to, from, 8);
    if (count & 4) {
        memcpy(to, from, 4);
        to += 4;
        from += 4;
    }
    if (count & 2) {
        memcpy(to, from, 2);
        to += 2;
        from += 2;
    }
    if (count & 1)
        *to = *from;
}

#define BODY "bits_isa.h"
#include "each_isa.h"

/* x [rows, columns] with rows `stride` values apart; row [rows] numbers them for the hash. If coarse, zero points
   and scales are bf16 numbers, rounded so that the levels still enclose the row. */
EXPORT void sancus_pack(int isa, int threads, int bits, int coarse, uint64_t seed, int64_t rows, int64_t columns,
                        const float *x, int64_t stride, const int64_t *row, uint8_t *packed, float *zero,
                        float *scale, uint8_t *finite)
{
    static const worker WORKERS[ISA_COUNT] = PER_ISA(pack);
    if (isa == ISA_AVX512 && columns <= 16) /* measured (docs/kernels.md): one wide vector loses to narrow ones */
        isa = ISA_AVX2;
    packing job = {x, row, packed, finite, zero, scale, rows, stride, columns, (columns * bits + 7) / 8,
                   mixed(seed), bits, coarse};
    run_parts(WORKERS[isa], &job, parts_for(rows * (columns + 1), threads), threads);
}

/* out [rows, columns] with rows `stride` values apart. */
EXPORT void sancus_unpack(int isa, int threads, int bits, int64_t rows, int64_t columns, const uint8_t *packed,
                          const float *zero, const float *scale, float *out, int64_t stride)
{
    static const worker WORKERS[ISA_COUNT] = PER_ISA(unpack);
    unpacking job = {packed, zero, scale, out, rows, columns, (columns * bits + 7) / 8, stride, bits};
    run_parts(WORKERS[isa], &job, parts_for(rows * (columns + 1), threads), threads);
}
