/* out (+)= A H for a CSR matrix A and a row-major H, and the same with one weight a head.
 *
 * Every output value is summed by one thread in the order of the stored entries, so the result is the same
 * for any number of threads, any panel width and any split of the columns.
 */

#include "common.h"

#include <string.h>

typedef struct {
    const int64_t *crow;
    const void *col, *value, *dense;
    void *out;
    int64_t rows, dense_stride, out_stride; /* strides in values */
    int64_t heads, width;                   /* `heads` groups of `width` columns, one weight a group */
    int accumulate;
} product;

typedef struct {
    const char *dense;
    char *panel;
    int64_t rows, stride, width, padded; /* in bytes, but for rows */
} panel_copy;

#define BODY "spmm_isa.h"
#include "each_isa.h"

static const worker PRODUCTS[2][2][ISA_COUNT] = {
    {PER_ISA(spmm_f32_i32), PER_ISA(spmm_f32_i64)},
    {PER_ISA(spmm_f64_i32), PER_ISA(spmm_f64_i64)},
};

static void copy_panel(const void *pointer, int64_t part, int64_t parts)
{
    const panel_copy *job = pointer;
    span rows = equal_rows(job->rows, part, parts);
    for (int64_t row = rows.first; row < rows.last; row++)
        memcpy(job->panel + row * job->padded, job->dense + row * job->stride, (size_t)job->width);
}

/* With `panel` columns > 0, the columns are taken in panels that are first copied to `scratch`
 * [dense_rows, panel]: a panel that stays in the cache is worth the copy. */
void sancus_spmm(int isa, int threads, int wide, int long_index, int64_t rows, const int64_t *crow,
                 const void *col, const void *value, const void *dense, int64_t dense_stride, void *out,
                 int64_t out_stride, int64_t heads, int64_t width, int accumulate, int64_t dense_rows,
                 int64_t panel, void *scratch)
{
    product job = {crow, col, value, dense, out, rows, dense_stride, out_stride, heads, width, accumulate};
    worker work = PRODUCTS[wide][long_index][isa];
    int64_t size = wide ? 8 : 4, entries = crow[rows] - crow[0];
    if (panel <= 0) {
        run_parts(work, &job, parts_for((entries + rows) * heads * width, threads), threads);
        return;
    }
    for (int64_t first = 0; first < width; first += panel) {
        int64_t columns = width - first < panel ? width - first : panel;
        panel_copy copy = {(const char *)dense + first * size, scratch, dense_rows, dense_stride * size,
                           columns * size, panel * size};
        run_parts(copy_panel, &copy, parts_for(dense_rows * columns, threads), threads);
        job.dense = scratch;
        job.dense_stride = panel;
        job.out = (char *)out + first * size;
        job.width = columns;
        run_parts(work, &job, parts_for((entries + rows) * columns, threads), threads);
    }
}
