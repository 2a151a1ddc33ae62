/* Scores of the entries of one row, for one type and instruction set. */

#include "lanes.h"

/* <left, right> over `width` values: lanes first, then their sum as a tree. */
INLINE void TYPED(dot)(const REAL *left, const REAL *right, int64_t width, M rest, REAL *to)
{
    V sum = SPREAD(0);
    int64_t column = 0;
    for (; column + LANES <= width; column += LANES)
        sum = FMA(LOAD(left + column), LOAD(right + column), sum);
    if (column < width)
        sum = FMA(LOAD_SOME(left + column, rest), LOAD_SOME(right + column, rest), sum);
    TYPED(fold)(sum, 1, to);
}

static TARGET void TYPED(sddmm)(const void *pointer, int64_t part, int64_t parts)
{
    const scoring *job = pointer;
    const int64_t *crow = job->crow, heads = job->heads, width = job->width;
    const span rows = balanced_rows(crow, job->rows, part, parts);
    const INDEX *col = job->col;
    const REAL *right = job->right;
    REAL *score = job->score;
    const int64_t end = crow[rows.last], bytes = heads * width * (int64_t)sizeof(REAL);
    const int64_t ahead = entries_ahead(job->right_rows, bytes);
    const int beyond = (int)(width % LANES);
    const M rest = MASK(beyond ? beyond : LANES);
    for (int64_t row = rows.first; row < rows.last; row++) {
        const REAL *left = (const REAL *)job->left + row * job->left_stride;
        for (int64_t entry = crow[row]; entry < crow[row + 1]; entry++) {
            if (ahead && entry + ahead < end) {
                const char *later = (const char *)(right + (int64_t)col[entry + ahead] * job->right_stride);
                for (int64_t byte = 0; byte < bytes; byte += 64)
                    __builtin_prefetch(later + byte, 0, 2);
            }
            const REAL *there = right + (int64_t)col[entry] * job->right_stride;
            for (int64_t head = 0; head < heads; head++)
                TYPED(dot)(left + head * width, there + head * width, width, rest, score + entry * heads + head);
        }
    }
}
