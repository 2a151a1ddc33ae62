/* out (+)= A H for a CSR matrix A and a row-major H, and the same with one weight a head.
 *
 * Every output value is summed by one thread in the order of the stored entries, so the result is the same
 * for any number of threads and any split of the columns.
 */

#include "common.h"

typedef struct {
    const int64_t *crow;
    const void *col, *value, *dense;
    void *out;
    int64_t rows, dense_rows, dense_stride, out_stride; /* strides in values */
    int64_t heads, width;                   /* `heads` groups of `width` columns, one weight a group */
    int accumulate;
} product;

#define BODY "spmm_isa.h"
#include "each_isa.h"

static const worker PRODUCTS[2][2][ISA_COUNT] = {
    {PER_ISA(spmm_f32_i32), PER_ISA(spmm_f32_i64)},
    {PER_ISA(spmm_f64_i32), PER_ISA(spmm_f64_i64)},
};

EXPORT void sancus_spmm(int isa, int threads, int wide, int long_index, int64_t rows, const int64_t *crow,
                        const void *col, const void *value, int64_t dense_rows, const void *dense,
                        int64_t dense_stride, void *out, int64_t out_stride, int64_t heads, int64_t width,
                        int accumulate)
{
    product job = {crow, col, value, dense, out, rows, dense_rows, dense_stride, out_stride,
                   heads, width, accumulate};
    int64_t size = (crow[rows] - crow[0] + rows) * heads * width;
    run_parts(PRODUCTS[wide][long_index][isa], &job, parts_for(size, threads), threads);
}
