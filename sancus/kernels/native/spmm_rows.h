/* The product of one row, for one type and instruction set. */

#ifndef SANCUS_AHEAD
#define SANCUS_AHEAD 16 /* entries between a prefetch and its use */
#endif

/* `vectors` vectors of columns stay in registers while the entries [first, last) of a row pass by.
 * The last vector is partial if `partial`; `end` is the last entry that may be looked at ahead. */
INLINE void TYPED(tile)(const int vectors, const int partial, M mask, const INDEX *col, const REAL *value,
                        int64_t value_stride, int64_t first, int64_t last, int64_t end, const REAL *dense,
                        int64_t stride, REAL *out, int accumulate)
{
    V sum[REGISTERS];
    const int whole = vectors - partial;
#pragma GCC unroll 16
    for (int k = 0; k < whole; k++)
        sum[k] = accumulate ? LOAD(out + k * LANES) : SPREAD(0);
    if (partial)
        sum[whole] = accumulate ? LOAD_SOME(out + whole * LANES, mask) : SPREAD(0);
    for (int64_t entry = first; entry < last; entry++) {
        const int64_t next = entry + SANCUS_AHEAD < end ? entry + SANCUS_AHEAD : entry;
        const char *ahead = (const char *)(dense + (int64_t)col[next] * stride);
#pragma GCC unroll 16
        for (int byte = 0; byte < vectors * LANES * (int)sizeof(REAL); byte += 64)
            __builtin_prefetch(ahead + byte);
        const REAL *row = dense + (int64_t)col[entry] * stride;
        const V weight = SPREAD(value[entry * value_stride]);
#pragma GCC unroll 16
        for (int k = 0; k < whole; k++)
            sum[k] = FMA(weight, LOAD(row + k * LANES), sum[k]);
        if (partial)
            sum[whole] = FMA(weight, LOAD_SOME(row + whole * LANES, mask), sum[whole]);
    }
#pragma GCC unroll 16
    for (int k = 0; k < whole; k++)
        STORE(out + k * LANES, sum[k]);
    if (partial)
        STORE_SOME(out + whole * LANES, sum[whole], mask);
}

#define TILE(vectors, partial)                                                                              \
    TYPED(tile)                                                                                             \
    (vectors, partial, mask, col, value, value_stride, first, last, end, dense, stride, out, accumulate)

/* One row and one head: tiles from left to right, the last one as wide as what remains. */
static TARGET void TYPED(row_product)(const INDEX *col, const REAL *value, int64_t value_stride, int64_t first,
                                      int64_t last, int64_t end, const REAL *dense, int64_t stride, REAL *out,
                                      int64_t width, int accumulate)
{
    M mask = MASK(LANES);
    for (; width >= REGISTERS * LANES; width -= REGISTERS * LANES) {
        TILE(REGISTERS, 0);
        dense += REGISTERS * LANES;
        out += REGISTERS * LANES;
    }
    const int rest = (int)(width % LANES), vectors = (int)(width / LANES) + (rest > 0);
    if (rest)
        mask = MASK(rest);
    switch (2 * vectors + (rest > 0)) {
#define CASE(n)                                                                                             \
    case 2 * (n):                                                                                           \
        TILE(n, 0);                                                                                         \
        break;                                                                                              \
    case 2 * (n) + 1:                                                                                       \
        TILE(n, 1);                                                                                         \
        break;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#if REGISTERS == 16
        CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14) CASE(15) CASE(16)
#endif
#undef CASE
    default:
        break;
    }
}
#undef TILE

static TARGET void TYPED(spmm)(const void *pointer, int64_t part, int64_t parts)
{
    const product *job = pointer;
    const int64_t *crow = job->crow, heads = job->heads, width = job->width;
    const span rows = balanced_rows(crow, job->rows, part, parts);
    const REAL *value = job->value, *dense = job->dense;
    REAL *out = (REAL *)job->out + rows.first * job->out_stride;
    const int64_t end = crow[rows.last];
    for (int64_t row = rows.first; row < rows.last; row++, out += job->out_stride)
        for (int64_t head = 0; head < heads; head++)
            TYPED(row_product)
            (job->col, value + head, heads, crow[row], crow[row + 1], end, dense + head * width,
             job->dense_stride, out + head * width, width, job->accumulate);
}
