/* Attention without a value an entry in memory: scores, softmax and weighted sum of one row after another.
 *
 * Entry (i, j) of a head weighs   e = LeakyReLU(q_i + k_j)                      (additive: one number an end)
 *                                 e = sum over columns of a LeakyReLU(Q_i + V_j)   (dynamic: d numbers an end)
 *
 * `lanes` heads at a time, a power of two: columns are laid out so that the heads of one column stand side by
 * side, and lane l of every vector belongs to head l % lanes. Then no product needs to be added up across lanes
 * before the last column, and one vector of weights serves all columns. Rows of such columns are padded with
 * zeros to whole vectors.
 *
 * A row's sums live in `state`: sum [columns], tilted sum [columns] (additive), then a value a head of: greatest
 * score, sum of exponentials, tilted sum of exponentials. `tilted` counts entries of a positive score alone; it
 * gives the gradient of q without a pass of its own. Sums may go on with another matrix of the same rows.
 */

#include "common.h"
#include "exponential.h"
#include "noise.h"

#include <stddef.h>
#include <string.h>

enum { CHUNK = 64, MOST_LANES = 16 }; /* entries whose scores are in the first-level cache at a time */

/* Edge dropout by the hash of drop.c; no keys: none. */
typedef struct {
    const int32_t *own, *other;     /* keys of rows, of columns; a key a head on the side of the columns */
    int32_t bucket;
    double scale;
} dropout;

typedef struct {
    const int64_t *crow;
    const int32_t *col;
    int64_t rows;
    const void *other, *own, *mix; /* rows that are gathered; own rows; a */
    void *out;
    int64_t other_rows, other_stride, own_stride, out_stride; /* strides in values */
    int64_t columns; /* of the layout: a multiple of the vector, `lanes` a column */
    int lanes, fresh;
    double slope;
    dropout dropped;
} attention;

typedef struct {
    const void *from;
    void *to;
    const void *factor;
    int64_t rows, heads, width, lanes, from_stride, to_stride, factor_stride, padded;
} relayout;

#define BODY "attend_isa.h"
#include "each_isa.h"

#define LAY_OUT(NAME, REAL)                                                                                 \
    static void NAME(const void *pointer, int64_t part, int64_t parts)                                      \
    {                                                                                                       \
        const relayout *job = pointer;                                                                      \
        const span rows = equal_rows(job->rows, part, parts);                                               \
        const int64_t heads = job->heads, width = job->width, lanes = job->lanes;                           \
        for (int64_t row = rows.first; row < rows.last; row++) {                                            \
            const REAL *restrict from = (const REAL *)job->from + row * job->from_stride;                   \
            REAL *restrict to = (REAL *)job->to + row * job->to_stride;                                     \
            if (heads == 1 && lanes == 1) {                                                                 \
                memcpy(to, from, (size_t)width * sizeof(REAL));                                             \
                memset(to + width, 0, (size_t)(job->padded - width) * sizeof(REAL));                        \
                continue;                                                                                   \
            }                                                                                               \
            if (heads < lanes || width * lanes < job->padded)                                               \
                memset(to, 0, (size_t)job->padded * sizeof(REAL));                                          \
            for (int64_t head = 0; head < heads; head++)                                                    \
                for (int64_t column = 0; column < width; column++)                                          \
                    to[column * lanes + head] = from[head * width + column];                                \
        }                                                                                                   \
    }

LAY_OUT(lay_out_f32, float)
LAY_OUT(lay_out_f64, double)

#define TAKE_BACK(NAME, REAL)                                                                               \
    static void NAME(const void *pointer, int64_t part, int64_t parts)                                      \
    {                                                                                                       \
        const relayout *job = pointer;                                                                      \
        const span rows = equal_rows(job->rows, part, parts);                                               \
        const int64_t heads = job->heads, width = job->width, lanes = job->lanes;                           \
        for (int64_t row = rows.first; row < rows.last; row++) {                                            \
            const REAL *restrict from = (const REAL *)job->from + row * job->from_stride;                   \
            const REAL *restrict factor = (const REAL *)job->factor + row * job->factor_stride;             \
            REAL *restrict to = (REAL *)job->to + row * job->to_stride;                                     \
            for (int64_t head = 0; head < heads; head++) {                                                  \
                const REAL scale = job->factor ? factor[head] : 1;                                          \
                for (int64_t column = 0; column < width; column++)                                          \
                    to[head * width + column] = from[column * lanes + head] * scale;                        \
            }                                                                                               \
        }                                                                                                   \
    }

TAKE_BACK(take_back_f32, float)
TAKE_BACK(take_back_f64, double)

/* to [rows, padded] in the layout of the kernels, from [rows, heads * width] of heads one after another. */
EXPORT void sancus_lay_out_heads(int threads, int wide, int64_t rows, int64_t heads, int64_t width, int64_t lanes,
                                 int64_t padded, const void *from, int64_t from_stride, void *to,
                                 int64_t to_stride)
{
    relayout job = {.from = from, .to = to, .rows = rows, .heads = heads, .width = width, .lanes = lanes,
                    .from_stride = from_stride, .to_stride = to_stride, .padded = padded};
    run_parts(wide ? lay_out_f64 : lay_out_f32, &job, parts_for(rows * padded, threads), threads);
}

/* The way back, times a factor [rows, heads] where there is one. */
EXPORT void sancus_take_back_heads(int threads, int wide, int64_t rows, int64_t heads, int64_t width,
                                   int64_t lanes, const void *from, int64_t from_stride, const void *factor,
                                   int64_t factor_stride, void *to, int64_t to_stride)
{
    relayout job = {.from = from, .to = to, .factor = factor, .rows = rows, .heads = heads, .width = width,
                    .lanes = lanes, .from_stride = from_stride, .to_stride = to_stride,
                    .factor_stride = factor_stride};
    run_parts(wide ? take_back_f64 : take_back_f32, &job, parts_for(rows * lanes * width, threads), threads);
}

/* One pass over the entries. `form` 0 to 2 adds to the sums of the rows (ADDITIVE, TILTED, DYNAMIC): `other` holds
 * values, then keys (additive); `own` queries; `out` the state, which starts anew if `fresh`. Forms 3 to 5 are
 * gradients, each from its own rows alone:
 *
 *   3  additive, by column   other: gradient, query, log of the sum, inner    own: values, key
 *                            out:   gradient of the values, of the key
 *   4  dynamic, by column    other: gradient, query, log of the sum, inner    own: values
 *                            out:   gradient of the values, of the key before `mix`
 *   5  dynamic, by row       other: values    own: gradient, query, log of the sum, inner
 *                            out:   gradient of the query before `mix` */
EXPORT void sancus_attend(int isa, int threads, int wide, int form, int64_t rows, const int64_t *crow,
                          const int32_t *col, int64_t other_rows, const void *other, int64_t other_stride,
                          const void *own, int64_t own_stride, const void *mix, void *out, int64_t out_stride,
                          int64_t columns, int lanes, double slope, int fresh, const int32_t *own_key,
                          const int32_t *other_key, int32_t bucket, double scale)
{
    static const worker WORKERS[2][6][ISA_COUNT] = {
        {PER_ISA(attend_additive_f32), PER_ISA(attend_tilted_f32), PER_ISA(attend_dynamic_f32),
         PER_ISA(back_additive_f32), PER_ISA(back_dynamic_f32), PER_ISA(back_dynamic_rows_f32)},
        {PER_ISA(attend_additive_f64), PER_ISA(attend_tilted_f64), PER_ISA(attend_dynamic_f64),
         PER_ISA(back_additive_f64), PER_ISA(back_dynamic_f64), PER_ISA(back_dynamic_rows_f64)},
    };
    attention job = {crow, col, rows, other, own, mix, out, other_rows, other_stride, own_stride, out_stride,
                     columns, lanes, fresh, slope, {own_key, other_key, bucket, scale}};
    int64_t size = (crow[rows] - crow[0] + rows) * (columns + 16 * lanes);
    run_parts(WORKERS[wide][form][isa], &job, parts_for(size, threads), threads);
}
