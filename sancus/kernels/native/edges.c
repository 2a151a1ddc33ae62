/* Attention over the entries of a CSR matrix: one value an entry and head, [nnz, heads].
 *
 * sddmm      score[e, h] = <left[row(e), h, :], right[col(e), h, :]>
 * softmax    share[e, h] = exp(score[e, h] - max of its row) / sum over its row
 * softmax'   d score = share (d share - sum over the row of share d share)
 */

#include "common.h"
#include "exponential.h"

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
    /* Measured (docs/kernels.md): masked halves of wide vectors lose to whole narrow ones. */
    if (isa == ISA_AVX512 && width * (wide ? 8 : 4) < 64)
        isa = ISA_AVX2;
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
