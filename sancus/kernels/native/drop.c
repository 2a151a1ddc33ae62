/* Dropout by a hash: an entry is kept or zeroed by the key of its row and the key of its column, nothing else.
 *
 * The hash is the finaliser of MurmurHash3 of (row key ^ column key), 31 bits of it; masks.py states the same in
 * torch. Kept entries are scaled.
 */

#include "common.h"
#include "noise.h"

typedef struct {
    const int32_t *row_key, *column_key;
    int64_t rows, columns;
    int32_t bucket; /* below it an entry is dropped */
    double scale;
    const char *x;
    char *out;
    int64_t x_stride, out_stride; /* in bytes */
} dropping;

typedef struct {
    const int32_t *row_key, *column_key;
    int64_t rows;
    int32_t bucket;
    double scale;
    const int64_t *crow, *kept_crow;
    const void *col, *value;
    void *kept_col, *kept_value;
    int64_t *count;
} thinning;

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
                    x_stride * size, out_stride * size};
    run_parts(WORKERS[wide][isa], &job, parts_for(rows * columns, threads), threads);
}

/* count [rows] = the entries of each row of a CSR matrix that are not dropped. */
EXPORT void sancus_count_kept(int isa, int threads, int wide_columns, int64_t rows, const int64_t *crow,
                              const void *col, const int32_t *row_key, const int32_t *column_key,
                              int32_t bucket, int64_t *count)
{
    static const worker WORKERS[2][ISA_COUNT] = {PER_ISA(count_kept_i32), PER_ISA(count_kept_i64)};
    thinning job = {.row_key = row_key, .column_key = column_key, .rows = rows, .bucket = bucket,
                    .crow = crow, .col = col, .count = count};
    run_parts(WORKERS[wide_columns][isa], &job, parts_for(crow[rows] - crow[0], threads), threads);
}

/* kept = the CSR matrix without the entries that are dropped; kept_crow sums up what sancus_count_kept says. */
EXPORT void sancus_keep_entries(int isa, int threads, int wide, int wide_columns, int64_t rows,
                                const int64_t *crow, const void *col, const int32_t *row_key,
                                const int32_t *column_key, int32_t bucket, double scale, const void *value,
                                const int64_t *kept_crow, void *kept_col, void *kept_value)
{
    static const worker WORKERS[4][ISA_COUNT] = {
        PER_ISA(keep_entries_f32_i32), PER_ISA(keep_entries_f32_i64),
        PER_ISA(keep_entries_f64_i32), PER_ISA(keep_entries_f64_i64)};
    thinning job = {row_key, column_key, rows, bucket, scale, crow, kept_crow,
                    col, value, kept_col, kept_value, 0};
    run_parts(WORKERS[2 * wide + wide_columns][isa], &job, parts_for(crow[rows] - crow[0], threads), threads);
}
