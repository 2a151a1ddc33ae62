/* Steps over a chunk of entries, for one type and instruction set. Compact: `lanes` values an entry. Full: a vector
 * an entry, in which the compact values repeat. */

/* Calls STEP(n) for `lanes`, so that n is a constant. */
#undef BY_LANES
#if LANES == 16
#define BY_LANES(STEP) if (lanes == 16) STEP(16) else if (lanes == 8) STEP(8) else if (lanes == 4) STEP(4) \
                       else if (lanes == 2) STEP(2) else STEP(1)
#elif LANES == 8
#define BY_LANES(STEP) if (lanes == 8) STEP(8) else if (lanes == 4) STEP(4) else if (lanes == 2) STEP(2) else STEP(1)
#elif LANES == 4
#define BY_LANES(STEP) if (lanes == 4) STEP(4) else if (lanes == 2) STEP(2) else STEP(1)
#else
#define BY_LANES(STEP) if (lanes == 2) STEP(2) else STEP(1)
#endif

#undef ENTRIES
#define ENTRIES for (int64_t entry = 0; entry < count; entry++)

/* Rows that are gathered: `values` of row `col[entry]` start there. */
typedef struct {
    const REAL *values;
    const int32_t *col;
    int64_t stride, count;
} TYPED(gathered);

/* What a row's pass over its entries keeps; compact but for `full`. */
typedef struct {
    REAL score[CHUNK * MOST_LANES], weight[CHUNK * MOST_LANES], second[CHUNK * MOST_LANES];
    REAL log[CHUNK * MOST_LANES], inner[CHUNK * MOST_LANES], towards[CHUNK * MOST_LANES];
    REAL factor[CHUNK * MOST_LANES];
    REAL full[CHUNK * LANES], other_full[CHUNK * LANES];
} TYPED(scratch);

/* The next chunk's rows come into the second-level cache while this one is worked on. */
INLINE void TYPED(fetch)(const attention *job, int64_t first, int64_t last, int64_t end)
{
    const int64_t bytes = job->other_stride * (int64_t)sizeof(REAL);
    last = last + CHUNK < end ? last + CHUNK : end;
    for (int64_t entry = first + CHUNK; entry < last; entry++) {
        const char *row = (const char *)((const REAL *)job->other + (int64_t)job->col[entry] * job->other_stride);
        for (int64_t byte = 0; byte < bytes; byte += 64)
            __builtin_prefetch(row + byte, 0, 2);
    }
}

/* to (compact) = the first `lanes` values of every row; what is beyond the last entry is `fill`. */
static TARGET void TYPED(pick)(TYPED(gathered) from, int lanes, REAL fill, REAL *to)
{
    const int64_t count = from.count;
#define STEP(n) ENTRIES memcpy(to + entry * n, from.values + from.col[entry] * from.stride, n * sizeof(REAL));
    BY_LANES(STEP)
#undef STEP
    for (int64_t k = count * lanes; k % LANES; k++)
        to[k] = fill;
}

/* to (compact) = the sums of the lanes of each head. */
static TARGET void TYPED(fold_all)(const REAL *full, int64_t count, int lanes, REAL fill, REAL *to)
{
#define STEP(n) ENTRIES TYPED(fold)(LOAD(full + entry * LANES), n, to + entry * n);
    BY_LANES(STEP)
#undef STEP
    for (int64_t k = count * lanes; k % LANES; k++)
        to[k] = fill;
}

static TARGET void TYPED(repeat_all)(const REAL *compact, int64_t count, int lanes, REAL *full)
{
#define STEP(n) ENTRIES STORE(full + entry * LANES, TYPED(repeated)(compact + entry * n, n));
    BY_LANES(STEP)
#undef STEP
}

/* full = the products of the columns of every row with those of `own`, added up to one vector. */
static TARGET void TYPED(dots)(TYPED(gathered) rows, const REAL *own, int64_t columns, REAL *full)
{
    const int64_t count = rows.count;
    ENTRIES {
        const REAL *row = rows.values + rows.col[entry] * rows.stride;
        V even = SPREAD(0), odd = SPREAD(0);
        int64_t column = 0;
        for (; column + 2 * LANES <= columns; column += 2 * LANES) {
            even = FMA(LOAD(row + column), LOAD(own + column), even);
            odd = FMA(LOAD(row + column + LANES), LOAD(own + column + LANES), odd);
        }
        if (column < columns)
            even = FMA(LOAD(row + column), LOAD(own + column), even);
        STORE(full + entry * LANES, even + odd);
    }
}

/* full = `mix` LeakyReLU(row + own), added up to one vector. */
static TARGET void TYPED(mixes)(TYPED(gathered) rows, const REAL *own, const REAL *mix, int64_t columns,
                                REAL below, REAL *full)
{
    const int64_t count = rows.count;
    const V zero = SPREAD(0), slope = SPREAD(below);
    ENTRIES {
        const REAL *row = rows.values + rows.col[entry] * rows.stride;
        V sum = zero;
        for (int64_t column = 0; column < columns; column += LANES) {
            const V here = LOAD(row + column) + LOAD(own + column);
            sum = FMA(LOAD(mix + column), CHOOSE(here, zero, here, slope * here), sum);
        }
        STORE(full + entry * LANES, sum);
    }
}

#undef TILE
#define TILE (REGISTERS / 2)
#undef CASES
#if REGISTERS == 16
#define CASES CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#else
#define CASES CASE(1) CASE(2) CASE(3) CASE(4)
#endif

INLINE void TYPED(add_tile)(const int vectors, const int two, TYPED(gathered) rows, const REAL *weight,
                            const REAL *second, REAL *out, REAL *other)
{
    const int64_t count = rows.count;
    V sum[TILE], more[TILE];
#pragma GCC unroll 8
    for (int k = 0; k < vectors; k++) {
        sum[k] = LOAD(out + k * LANES);
        more[k] = two ? LOAD(other + k * LANES) : sum[k];
    }
    ENTRIES {
        const REAL *row = rows.values + rows.col[entry] * rows.stride;
        const V here = LOAD(weight + entry * LANES), there = two ? LOAD(second + entry * LANES) : here;
#pragma GCC unroll 8
        for (int k = 0; k < vectors; k++) {
            const V value = LOAD(row + k * LANES);
            sum[k] = FMA(here, value, sum[k]);
            if (two)
                more[k] = FMA(there, value, more[k]);
        }
    }
#pragma GCC unroll 8
    for (int k = 0; k < vectors; k++) {
        STORE(out + k * LANES, sum[k]);
        if (two)
            STORE(other + k * LANES, more[k]);
    }
}

/* out [columns] += the sum of weight row over the entries, and the same with a second weight if there is one. */
static TARGET void TYPED(add_rows)(TYPED(gathered) rows, int64_t columns, const REAL *weight, const REAL *second,
                                   REAL *out, REAL *other)
{
    for (int64_t column = 0; column < columns; column += TILE * LANES) {
        const int64_t left = (columns - column) / LANES;
        switch (left < TILE ? left : TILE) {
#define CASE(n)                                                                                             \
    case n:                                                                                                 \
        if (second)                                                                                         \
            TYPED(add_tile)(n, 1, rows, weight, second, out + column, other + column);                      \
        else                                                                                                \
            TYPED(add_tile)(n, 0, rows, weight, weight, out + column, out + column);                        \
        break;
            CASES
#undef CASE
        }
        rows.values += TILE * LANES;
    }
}

INLINE void TYPED(slope_tile)(const int vectors, TYPED(gathered) rows, const REAL *own, const REAL *weight,
                              REAL below, REAL *out)
{
    const int64_t count = rows.count;
    const V zero = SPREAD(0), slope = SPREAD(below);
    V sum[TILE];
#pragma GCC unroll 8
    for (int k = 0; k < vectors; k++)
        sum[k] = LOAD(out + k * LANES);
    ENTRIES {
        const REAL *row = rows.values + rows.col[entry] * rows.stride;
        const V whole = LOAD(weight + entry * LANES), part = slope * whole;
#pragma GCC unroll 8
        for (int k = 0; k < vectors; k++) {
            const V here = LOAD(row + k * LANES) + LOAD(own + k * LANES);
            sum[k] += CHOOSE(here, zero, whole, part);
        }
    }
#pragma GCC unroll 8
    for (int k = 0; k < vectors; k++)
        STORE(out + k * LANES, sum[k]);
}

/* out [columns] += the sum of weight LeakyReLU'(row + own). */
static TARGET void TYPED(add_slopes)(TYPED(gathered) rows, const REAL *own, int64_t columns, const REAL *weight,
                                     REAL below, REAL *out)
{
    for (int64_t column = 0; column < columns; column += TILE * LANES) {
        const int64_t left = (columns - column) / LANES;
        switch (left < TILE ? left : TILE) {
#define CASE(n)                                                                                             \
    case n:                                                                                                 \
        TYPED(slope_tile)(n, rows, own + column, weight, below, out + column);                              \
        break;
            CASES
#undef CASE
        }
        rows.values += TILE * LANES;
    }
}

/* factor (compact) of dropout; `by_row`: own keys are those of rows, one a row. */
static TARGET void TYPED(drop_factors)(const dropout *dropped, int64_t row, const int32_t *col, int64_t count,
                                       int lanes, int by_row, REAL *factor)
{
    uint32_t key[CHUNK * MOST_LANES];
    const int32_t *other = dropped->other;
    const int64_t values = count * lanes;
    if (by_row) {
        const uint32_t own = (uint32_t)dropped->own[row];
        ENTRIES
            for (int head = 0; head < lanes; head++)
                key[entry * lanes + head] = own ^ (uint32_t)other[(int64_t)col[entry] * lanes + head];
    } else {
        const int32_t *own = dropped->own + row * lanes;
        ENTRIES
            for (int head = 0; head < lanes; head++)
                key[entry * lanes + head] = (uint32_t)own[head] ^ (uint32_t)other[col[entry]];
    }
    const int32_t bucket = dropped->bucket;
    const REAL scale = (REAL)dropped->scale;
    for (int64_t k = 0; k < values; k++)
        factor[k] = dropout_noise(key[k]) >= bucket ? scale : (REAL)0;
    for (int64_t k = values; k % LANES; k++)
        factor[k] = 0;
}
