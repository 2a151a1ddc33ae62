/* Dropout of dense rows and of the entries of a CSR matrix, for one instruction set. */

INLINE int32_t NAME(noise)(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
    x = (x ^ (x >> 13)) * 0xC2B2AE35u;
    return (int32_t)((x ^ (x >> 16)) & 0x7FFFFFFFu);
}

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
                int32_t here = NAME(noise)(key ^ (uint32_t)column_key[column]);                             \
                out[column] = x[column] * (here >= bucket ? scale : (REAL)0);                               \
            }                                                                                               \
        }                                                                                                   \
    }

#define DROP_ENTRIES(SUFFIX, REAL, INDEX)                                                                   \
    static TARGET void NAME(drop_entries_##SUFFIX)(const void *pointer, int64_t part, int64_t parts)        \
    {                                                                                                       \
        const dropping *job = pointer;                                                                      \
        span rows = balanced_rows(job->crow, job->rows, part, parts);                                       \
        REAL scale = (REAL)job->scale;                                                                      \
        const REAL *restrict value = (const REAL *)job->x;                                                  \
        const INDEX *restrict col = job->col;                                                               \
        REAL *restrict out = (REAL *)job->out;                                                              \
        for (int64_t row = rows.first; row < rows.last; row++) {                                            \
            uint32_t key = (uint32_t)job->row_key[row];                                                     \
            for (int64_t entry = job->crow[row]; entry < job->crow[row + 1]; entry++) {                     \
                int32_t here = NAME(noise)(key ^ (uint32_t)job->column_key[col[entry]]);                    \
                out[entry] = value[entry] * (here >= job->bucket ? scale : (REAL)0);                        \
            }                                                                                               \
        }                                                                                                   \
    }

DROP(f32, float)
DROP(f64, double)
DROP_ENTRIES(f32_i32, float, int32_t)
DROP_ENTRIES(f32_i64, float, int64_t)
DROP_ENTRIES(f64_i32, double, int32_t)
DROP_ENTRIES(f64_i64, double, int64_t)

#undef DROP
#undef DROP_ENTRIES
