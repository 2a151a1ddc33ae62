/* The product of one row, for one type and instruction set. */

/* What a row's tiles share. Rows of H are fetched `ahead` entries early, into the second-level cache: the
 * first level has too few outstanding misses to keep the memory busy. */
typedef struct {
    const INDEX *col;
    const REAL *value, *dense;
    int64_t value_stride, stride, ahead, end; /* no entry from `end` on is looked at */
    int accumulate;
} TYPED(operands);

/* `vectors` vectors of columns stay in registers while the entries [first, last) of a row pass by; the last
 * vector is partial if `partial`. `fetch` bytes of a later row of H are asked for at each entry. */
INLINE void TYPED(tile)(const int vectors, const int partial, M mask, const TYPED(operands) * a, int64_t first,
                        int64_t last, int64_t column, int64_t fetch, REAL *out)
{
    V sum[REGISTERS];
    const int whole = vectors - partial;
    out += column;
#pragma GCC unroll 16
    for (int k = 0; k < whole; k++)
        sum[k] = a->accumulate ? LOAD(out + k * LANES) : SPREAD(0);
    if (partial)
        sum[whole] = a->accumulate ? LOAD_SOME(out + whole * LANES, mask) : SPREAD(0);
    for (int64_t entry = first; entry < last; entry++) {
        if (fetch && entry + a->ahead < a->end) {
            const char *later = (const char *)(a->dense + (int64_t)a->col[entry + a->ahead] * a->stride);
            for (int64_t byte = 0; byte < fetch; byte += 64)
                __builtin_prefetch(later + byte, 0, 2);
        }
        const REAL *row = a->dense + (int64_t)a->col[entry] * a->stride + column;
        const V weight = SPREAD(a->value[entry * a->value_stride]);
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

#define TILE(vectors, partial) TYPED(tile)(vectors, partial, mask, a, first, last, column, fetch, out)

/* One row and one head: tiles from left to right, the last one as wide as what remains. */
static TARGET void TYPED(row_product)(const TYPED(operands) * a, int64_t first, int64_t last, int64_t width,
                                      REAL *out)
{
    int64_t column = 0, fetch = width * (int64_t)sizeof(REAL);
    M mask = MASK(LANES);
    for (; width - column >= REGISTERS * LANES; column += REGISTERS * LANES, fetch = 0)
        TILE(REGISTERS, 0);
    const int rest = (int)((width - column) % LANES), vectors = (int)((width - column) / LANES) + (rest > 0);
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
    const int64_t *crow = job->crow;
    const span rows = balanced_rows(crow, job->rows, part, parts);
    TYPED(operands) a = {job->col, job->value, job->dense, job->heads, job->dense_stride,
                         entries_ahead(job->width * job->heads * (int64_t)sizeof(REAL)), crow[rows.last],
                         job->accumulate};
    REAL *out = (REAL *)job->out + rows.first * job->out_stride;
    for (int64_t row = rows.first; row < rows.last; row++, out += job->out_stride)
        for (int64_t head = 0; head < job->heads; head++) {
            a.value = (const REAL *)job->value + head;
            a.dense = (const REAL *)job->dense + head * job->width;
            TYPED(row_product)(&a, crow[row], crow[row + 1], job->width, out + head * job->width);
        }
}
