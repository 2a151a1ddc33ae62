/* Dropout of dense rows, and of entries of a CSR matrix, for one instruction set. */

#define DROP(SUFFIX, REAL)                                                                                  \
    static TARGET void NAME(drop_##SUFFIX)(const void *pointer, int64_t part, int64_t parts)                \
    {                                                                                                       \
        const dropping *job = pointer;                                                                      \
        span rows = equal_rows(job->rows, part, parts);                                                     \
        REAL scale = (REAL)job->scale;                                                                      \
        int32_t bucket = job->bucket;                                                                       \
        const int32_t *restrict column_key = job->column_key;                                               \
        for (int64_t row = rows.first; row < rows.last; row++) {                                            \
            const REAL *restrict x = (const REAL *)(job->x + row * job->x_stride);                          \
            REAL *restrict out = (REAL *)(job->out + row * job->out_stride);                                \
            uint32_t key = (uint32_t)job->row_key[row];                                                     \
            for (int64_t column = 0; column < job->columns; column++) {                                     \
                int32_t here = dropout_noise(key ^ (uint32_t)column_key[column]);                             \
                out[column] = x[column] * (here >= bucket ? scale : (REAL)0);                               \
            }                                                                                               \
        }                                                                                                   \
    }

#define COUNT_KEPT(SUFFIX, INDEX)                                                                           \
    static TARGET void NAME(count_kept_##SUFFIX)(const void *pointer, int64_t part, int64_t parts)          \
    {                                                                                                       \
        const thinning *job = pointer;                                                                      \
        span rows = balanced_rows(job->crow, job->rows, part, parts);                                       \
        const int32_t *restrict column_key = job->column_key, bucket = job->bucket;                         \
        const INDEX *restrict col = job->col;                                                               \
        for (int64_t row = rows.first; row < rows.last; row++) {                                            \
            uint32_t key = (uint32_t)job->row_key[row];                                                     \
            int32_t kept = 0;                                                                               \
            for (int64_t entry = job->crow[row]; entry < job->crow[row + 1]; entry++)                       \
                kept += dropout_noise(key ^ (uint32_t)column_key[col[entry]]) >= bucket;                      \
            job->count[row] = kept;                                                                         \
        }                                                                                                   \
    }

/* Runs of entries are hashed, which the compiler makes vectors of, then those that are kept move up. */
#define KEEP_ENTRIES(SUFFIX, REAL, INDEX)                                                                   \
    static TARGET void NAME(keep_entries_##SUFFIX)(const void *pointer, int64_t part, int64_t parts)        \
    {                                                                                                       \
        enum { RUN = 256 };                                                                                 \
        const thinning *job = pointer;                                                                      \
        span rows = balanced_rows(job->crow, job->rows, part, parts);                                       \
        REAL scale = (REAL)job->scale;                                                                      \
        const int32_t *restrict column_key = job->column_key, bucket = job->bucket;                         \
        const REAL *restrict value = job->value;                                                            \
        const INDEX *restrict col = job->col;                                                               \
        REAL *restrict kept_value = job->kept_value;                                                        \
        INDEX *restrict kept_col = job->kept_col;                                                           \
        int32_t keep[RUN];                                                                                  \
        for (int64_t row = rows.first; row < rows.last; row++) {                                            \
            uint32_t key = (uint32_t)job->row_key[row];                                                     \
            int64_t to = job->kept_crow[row], end = job->kept_crow[row + 1], last = job->crow[row + 1];     \
            for (int64_t first = job->crow[row]; first < last; first += RUN) {                              \
                int64_t run = last - first < RUN ? last - first : RUN;                                      \
                for (int64_t i = 0; i < run; i++)                                                           \
                    keep[i] = dropout_noise(key ^ (uint32_t)column_key[col[first + i]]) >= bucket;            \
                for (int64_t i = 0; i < run && to < end; to += keep[i++]) {                                 \
                    kept_col[to] = col[first + i];                                                          \
                    kept_value[to] = value[first + i] * scale;                                              \
                }                                                                                           \
            }                                                                                               \
        }                                                                                                   \
    }

DROP(f32, float)
DROP(f64, double)
COUNT_KEPT(i32, int32_t)
COUNT_KEPT(i64, int64_t)
KEEP_ENTRIES(f32_i32, float, int32_t)
KEEP_ENTRIES(f32_i64, float, int64_t)
KEEP_ENTRIES(f64_i32, double, int32_t)
KEEP_ENTRIES(f64_i64, double, int64_t)

#undef DROP
#undef COUNT_KEPT
#undef KEEP_ENTRIES
