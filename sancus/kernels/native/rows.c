/* Rows by number: the payloads S H of plans that pick rows, written where they are sent from, and back. */

#include "common.h"

#include <string.h>

typedef struct {
    const int64_t *index;
    const char *from;
    char *to;
    int64_t rows, from_stride, to_stride, width; /* strides in bytes, width in values */
} movement;

enum { COPY, ADD_PICKED, ADD_PLACED };
enum { AHEAD = 16 }; /* rows that are fetched early: their places are known, but not to the processor */

static inline void fetch_row(const char *row, int64_t bytes)
{
    for (int64_t byte = 0; byte < bytes; byte += 64)
        __builtin_prefetch(row + byte, 0, 2);
}

/* to[k] += from[index[k]], or to[index[k]] += from[k]. */
#define ADDITION(NAME, REAL, PLACED)                                                                        \
    static void NAME(const void *pointer, int64_t part, int64_t parts)                                      \
    {                                                                                                       \
        const movement *job = pointer;                                                                      \
        span rows = equal_rows(job->rows, part, parts);                                                     \
        for (int64_t row = rows.first; row < rows.last; row++) {                                            \
            int64_t there = job->index[row];                                                                \
            if (row + AHEAD < rows.last)                                                                    \
                fetch_row((PLACED ? job->to : job->from) +                                                  \
                              job->index[row + AHEAD] * (PLACED ? job->to_stride : job->from_stride),       \
                          job->width * (int64_t)sizeof(REAL));                                              \
            const REAL *from = (const REAL *)(job->from + (PLACED ? row : there) * job->from_stride);       \
            REAL *restrict to = (REAL *)(job->to + (PLACED ? there : row) * job->to_stride);                \
            for (int64_t column = 0; column < job->width; column++)                                         \
                to[column] += from[column];                                                                 \
        }                                                                                                   \
    }

ADDITION(add_picked_f32, float, 0)
ADDITION(add_picked_f64, double, 0)
ADDITION(add_placed_f32, float, 1)
ADDITION(add_placed_f64, double, 1)

/* to[k] = from[index[k]]. */
#define COPYING(NAME, SIZE)                                                                                 \
    static void NAME(const void *pointer, int64_t part, int64_t parts)                                      \
    {                                                                                                       \
        const movement *job = pointer;                                                                      \
        span rows = equal_rows(job->rows, part, parts);                                                     \
        size_t bytes = (size_t)(job->width * (SIZE));                                                       \
        for (int64_t row = rows.first; row < rows.last; row++) {                                            \
            if (row + AHEAD < rows.last)                                                                    \
                fetch_row(job->from + job->index[row + AHEAD] * job->from_stride, (int64_t)bytes);          \
            memcpy(job->to + row * job->to_stride, job->from + job->index[row] * job->from_stride, bytes);  \
        }                                                                                                   \
    }

COPYING(copy_f32, 4)
COPYING(copy_f64, 8)

/* `operation` is COPY, ADD_PICKED or ADD_PLACED; for ADD_PLACED the numbers are distinct. Strides in values. */
EXPORT void sancus_move_rows(int threads, int wide, int operation, int64_t rows, const int64_t *index,
                             const void *from, int64_t from_stride, void *to, int64_t to_stride, int64_t width)
{
    static const worker WORKERS[3][2] = {
        {copy_f32, copy_f64},
        {add_picked_f32, add_picked_f64},
        {add_placed_f32, add_placed_f64},
    };
    int64_t size = wide ? 8 : 4;
    movement job = {index, from, to, rows, from_stride * size, to_stride * size, width};
    run_parts(WORKERS[operation][wide], &job, parts_for(rows * width, threads), threads);
}
