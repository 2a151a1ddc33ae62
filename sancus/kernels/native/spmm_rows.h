/* The product of one row, for one type and instruction set. */

/* What a row's tiles share. Rows of H are fetched `ahead` entries early, into the second-level cache: the
 * first level has too few outstanding misses to keep the memory busy. */
typedef struct {
    const INDEX *col;
    const REAL *value, *dense;
    int64_t value_stride, stride, ahead, end; /* from entry `end` on nothing is fetched early */
    int accumulate;
} TYPED(operands);

/* sum += weight row, for the entries [first, last). At each entry `vectors` vectors of a later row of H are
 * fetched if `fetching`, and `more` bytes after them. */
INLINE void TYPED(pass)(const int vectors, const int partial, const int fetching, M mask,
                        const TYPED(operands) * a, int64_t first, int64_t last, int64_t column, int64_t more,
                        V *sum)
{
    const int whole = vectors - partial, bytes = vectors * LANES * (int)sizeof(REAL);
    const INDEX *col = a->col;
    const REAL *dense = a->dense + column, *value = a->value;
    const int64_t stride = a->stride, value_stride = a->value_stride, ahead = a->ahead;
    for (int64_t entry = first; entry < last; entry++) {
        if (fetching) {
            const char *later = (const char *)(dense + (int64_t)col[entry + ahead] * stride);
#pragma GCC unroll 16
            for (int byte = 0; byte < bytes; byte += 64)
                __builtin_prefetch(later + byte, 0, 2);
            for (int64_t byte = bytes; byte < more; byte += 64)
                __builtin_prefetch(later + byte, 0, 2);
        }
        const REAL *row = dense + (int64_t)col[entry] * stride;
        const V weight = SPREAD(value[entry * value_stride]);
#pragma GCC unroll 16
        for (int k = 0; k < whole; k++)
            sum[k] = FMA(weight, LOAD(row + k * LANES), sum[k]);
        if (partial)
            sum[whole] = FMA(weight, LOAD_SOME(row + whole * LANES, mask), sum[whole]);
    }
}

/* `vectors` vectors of columns stay in registers while the entries [first, last) of a row pass by; the last
 * vector is partial if `partial`. The entries before `fetched` fetch `more` bytes of later rows. */
INLINE void TYPED(tile)(const int vectors, const int partial, M mask, const TYPED(operands) * a, int64_t first,
                        int64_t fetched, int64_t last, int64_t column, int64_t more, REAL *out)
{
    V sum[REGISTERS];
    const int whole = vectors - partial;
    out += column;
#pragma GCC unroll 16
    for (int k = 0; k < whole; k++)
        sum[k] = a->accumulate ? LOAD(out + k * LANES) : SPREAD(0);
    if (partial)
        sum[whole] = a->accumulate ? LOAD_SOME(out + whole * LANES, mask) : SPREAD(0);
    TYPED(pass)(vectors, partial, 1, mask, a, first, fetched, column, more, sum);
    TYPED(pass)(vectors, partial, 0, mask, a, fetched, last, column, more, sum);
#pragma GCC unroll 16
    for (int k = 0; k < whole; k++)
        STORE(out + k * LANES, sum[k]);
    if (partial)
        STORE_SOME(out + whole * LANES, sum[whole], mask);
}

#define TILE(vectors, partial) TYPED(tile)(vectors, partial, mask, a, first, fetched, last, column, more, out)

/* One row and one head: tiles from left to right, the last one as wide as what remains. The first tile fetches
 * whole rows, the others nothing. */
static TARGET void TYPED(row_product)(const TYPED(operands) * a, int64_t first, int64_t last, int64_t width,
                                      REAL *out)
{
    int64_t column = 0, more = width * (int64_t)sizeof(REAL), fetched = a->ahead ? a->end - a->ahead : first;
    M mask = MASK(LANES);
    fetched = fetched < first ? first : fetched > last ? last : fetched;
    for (; width - column >= REGISTERS * LANES; column += REGISTERS * LANES, fetched = first)
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

/* A row in runs of entries whose rows of H stay in the second-level cache until the last tile has used them. */
static TARGET void TYPED(spmm)(const void *pointer, int64_t part, int64_t parts)
{
    const product *job = pointer;
    const int64_t *crow = job->crow, bytes = job->width * (int64_t)sizeof(REAL);
    const int64_t run = job->width <= REGISTERS * LANES ? INT64_MAX : entries_in_cache(bytes);
    const span rows = balanced_rows(crow, job->rows, part, parts);
    TYPED(operands) a = {.col = job->col,
                         .value_stride = job->heads,
                         .stride = job->dense_stride,
                         .ahead = entries_ahead(job->dense_rows, bytes * job->heads),
                         .end = crow[rows.last]};
    REAL *out = (REAL *)job->out + rows.first * job->out_stride;
    for (int64_t row = rows.first; row < rows.last; row++, out += job->out_stride)
        for (int64_t head = 0; head < job->heads; head++) {
            a.value = (const REAL *)job->value + head;
            a.dense = (const REAL *)job->dense + head * job->width;
            a.accumulate = job->accumulate;
            int64_t first = crow[row], last = crow[row + 1];
            for (; last - first > run; first += run, a.accumulate = 1)
                TYPED(row_product)(&a, first, first + run, job->width, out + head * job->width);
            TYPED(row_product)(&a, first, last, job->width, out + head * job->width);
        }
}
