/* Attention over the entries of a CSR matrix: one value an entry and head, [nnz, heads].
 *
 * sddmm      score[e, h] = <left[row(e), h, :], right[col(e), h, :]>
 * softmax    share[e, h] = exp(score[e, h] - max of its row) / sum over its row
 * softmax'   d score = share (d share - sum over the row of share d share)
 */

#include "common.h"

#include <math.h>
#include <string.h>

typedef struct {
    const int64_t *crow;
    const void *col, *left, *right;
    void *score;
    int64_t rows, right_rows, left_stride, right_stride;
    int64_t heads, width; /* `heads` groups of `width` columns */
} scoring;

typedef struct {
    const int64_t *crow;
    const void *score, *gradient;
    void *out;
    int64_t rows, heads;
} softmax;

/* exp for x <= 0, within 2 units of the last place; 0 below the smallest normal number. Branch-free, so that
 * the compiler makes vectors of it. */
static inline __attribute__((always_inline)) float exp_f32(float x)
{
    const float shift = 12582912.0f; /* 1.5 2^23: adding it rounds to a whole number */
    float clamped = x < -104.0f ? -104.0f : x;
    float shifted = clamped * 1.44269504f + shift, power = shifted - shift;
    float r = clamped - power * 0.693359375f - power * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    uint32_t bits, offset;
    memcpy(&bits, &shifted, 4);
    memcpy(&offset, &shift, 4);
    bits = (bits - offset + 127u) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return power < -126.0f ? 0.0f : p * scale;
}

static inline __attribute__((always_inline)) double exp_f64(double x)
{
    return exp(x);
}

#define BODY "edges_isa.h"
#include "each_isa.h"

EXPORT void sancus_sddmm(int isa, int threads, int wide, int long_index, int64_t rows, const int64_t *crow,
                         const void *col, const void *left, int64_t left_stride, int64_t right_rows,
                         const void *right, int64_t right_stride, int64_t heads, int64_t width, void *score)
{
    static const worker WORKERS[2][2][ISA_COUNT] = {
        {PER_ISA(sddmm_f32_i32), PER_ISA(sddmm_f32_i64)},
        {PER_ISA(sddmm_f64_i32), PER_ISA(sddmm_f64_i64)},
    };
    scoring job = {crow, col, left, right, score, rows, right_rows, left_stride, right_stride, heads, width};
    int64_t size = (crow[rows] - crow[0] + rows) * heads * (width + 1);
    run_parts(WORKERS[wide][long_index][isa], &job, parts_for(size, threads), threads);
}

EXPORT void sancus_edge_softmax(int isa, int threads, int wide, int64_t rows, const int64_t *crow,
                                const void *score, int64_t heads, void *share)
{
    static const worker WORKERS[2][ISA_COUNT] = {PER_ISA(softmax_f32), PER_ISA(softmax_f64)};
    softmax job = {crow, score, NULL, share, rows, heads};
    int64_t size = (crow[rows] - crow[0] + rows) * heads * 8;
    run_parts(WORKERS[wide][isa], &job, parts_for(size, threads), threads);
}

EXPORT void sancus_edge_softmax_backward(int isa, int threads, int wide, int64_t rows, const int64_t *crow,
                                         const void *share, const void *gradient, int64_t heads, void *out)
{
    static const worker WORKERS[2][ISA_COUNT] = {PER_ISA(softmax_back_f32), PER_ISA(softmax_back_f64)};
    softmax job = {crow, share, gradient, out, rows, heads};
    int64_t size = (crow[rows] - crow[0] + rows) * heads * 2;
    run_parts(WORKERS[wide][isa], &job, parts_for(size, threads), threads);
}
