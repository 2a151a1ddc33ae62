/* Dropout by a hash: an entry is kept or zeroed by the key of its row and the key of its column, nothing else.
 *
 * The hash is the finaliser of MurmurHash3 of (row key ^ column key), 31 bits of it; masks.py states the same in
 * torch. Kept entries are scaled.
 */

#include "common.h"

typedef struct {
    const int32_t *row_key, *column_key;
    int64_t rows, columns;
    int32_t bucket; /* below it an entry is dropped */
    double scale;
    const char *x;
    char *out;
    int64_t x_stride, out_stride; /* in bytes */
    const int64_t *crow;
    const void *col;
} dropping;

#define BODY "drop_isa.h"
#include "each_isa.h"

/* out [rows, columns] = x with entries dropped; strides in values. */
EXPORT void sancus_drop(int isa, int threads, int wide, int64_t rows, int64_t columns, const int32_t *row_key,
                        const int32_t *column_key, int32_t bucket, double scale, const void *x, int64_t x_stride,
                        void *out, int64_t out_stride)
{
    static const worker WORKERS[2][ISA_COUNT] = {PER_ISA(drop_f32), PER_ISA(drop_f64)};
    int64_t size = wide ? 8 : 4;
    dropping job = {row_key, column_key, rows, columns, bucket, scale, x, out,
                    x_stride * size, out_stride * size, 0, 0};
    run_parts(WORKERS[wide][isa], &job, parts_for(rows * columns, threads), threads);
}

/* out [nnz] = the values of a CSR matrix with entries dropped. */
EXPORT void sancus_drop_entries(int isa, int threads, int wide, int wide_columns, int64_t rows,
                                const int64_t *crow, const void *col, const int32_t *row_key,
                                const int32_t *column_key, int32_t bucket, double scale, const void *value,
                                void *out)
{
    static const worker WORKERS[4][ISA_COUNT] = {
        PER_ISA(drop_entries_f32_i32), PER_ISA(drop_entries_f32_i64),
        PER_ISA(drop_entries_f64_i32), PER_ISA(drop_entries_f64_i64)};
    dropping job = {row_key, column_key, rows, 0, bucket, scale, value, out, 0, 0, crow, col};
    run_parts(WORKERS[2 * wide + wide_columns][isa], &job, parts_for(crow[rows] - crow[0], threads), threads);
}
