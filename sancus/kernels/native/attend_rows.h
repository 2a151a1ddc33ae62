/* Scores, softmax and weighted sum of one row after another, for one type and instruction set. */

/* Brings a row's sums from the scale of `most` to that of the greatest score, which it becomes. */
INLINE void TYPED(rescale)(REAL *sums, int64_t columns, REAL *most, REAL *totals, int64_t kinds, int lanes,
                           const REAL *tops)
{
    REAL fade[LANES];
    int fades = 0;
    for (int head = 0; head < lanes; head++) {
        const REAL next = tops[head] > most[head] ? tops[head] : most[head];
        fade[head] = most[head] == next || most[head] == -(REAL)INFINITY ? 1 : JOIN(exp, SUFFIX)(most[head] - next);
        fades |= fade[head] != 1;
        most[head] = next;
    }
    if (!fades)
        return;
    for (int head = lanes; head < LANES; head++)
        fade[head] = fade[head % lanes];
    for (int64_t column = 0; column < kinds * columns; column += LANES)
        STORE(sums + column, LOAD(sums + column) * LOAD(fade));
    for (int64_t kind = 0; kind < kinds; kind++)
        for (int head = 0; head < lanes; head++)
            totals[kind * lanes + head] *= fade[head];
}

/* tops [lanes] = the greatest of `values` compact values a head. */
INLINE void TYPED(greatest)(const REAL *score, int64_t values, int lanes, REAL *tops)
{
    V top = SPREAD(-(REAL)INFINITY);
    for (int64_t k = 0; k < values; k += LANES) {
        const V here = LOAD(score + k);
        top = CHOOSE(here, top, here, top);
    }
    STORE(tops, top);
    for (int width = LANES / 2; width >= lanes; width /= 2)
        for (int lane = 0; lane < width; lane++)
            tops[lane] = tops[lane + width] > tops[lane] ? tops[lane + width] : tops[lane];
}

/* The scores of a chunk, compact; additive: the key stands behind the values. */
INLINE void TYPED(scores)(const attention *job, TYPED(gathered) rows, const REAL *own, const int dynamic,
                          TYPED(scratch) *s)
{
    const int lanes = job->lanes;
    if (dynamic) {
        TYPED(mixes)(rows, own, job->mix, job->columns, (REAL)job->slope, s->full);
        TYPED(fold_all)(s->full, rows.count, lanes, -(REAL)INFINITY, s->score);
        return;
    }
    REAL query[LANES];
    for (int lane = 0; lane < LANES; lane++)
        query[lane] = own[lane % lanes];
    rows.values += job->columns;
    TYPED(pick)(rows, lanes, -(REAL)INFINITY, s->score);
    const V mine = LOAD(query), zero = SPREAD(0), slope = SPREAD((REAL)job->slope);
    for (int64_t k = 0; k < rows.count * lanes; k += LANES) {
        const V here = LOAD(s->score + k) + mine;
        STORE(s->score + k, CHOOSE(here, zero, here, slope * here));
    }
}

INLINE void TYPED(attend)(const attention *job, int64_t part, int64_t parts, const int dynamic, const int tilted)
{
    const span rows = balanced_rows(job->crow, job->rows, part, parts);
    const int64_t columns = job->columns, kinds = 1 + tilted, end = job->crow[rows.last];
    const int lanes = job->lanes;
    const int fetching = entries_ahead(job->other_rows, job->other_stride * (int64_t)sizeof(REAL)) > 0;
    const V zero = SPREAD(0);
    TYPED(scratch) s;
    for (int64_t row = rows.first; row < rows.last; row++) {
        REAL *sums = (REAL *)job->out + row * job->out_stride, *most = sums + kinds * columns;
        REAL *totals = most + lanes;
        const REAL *own = (const REAL *)job->own + row * job->own_stride;
        if (job->fresh) {
            memset(sums, 0, (size_t)(kinds * columns + (kinds + 1) * lanes) * sizeof(REAL));
            for (int head = 0; head < lanes; head++)
                most[head] = -(REAL)INFINITY;
        }
        for (int64_t first = job->crow[row], last = job->crow[row + 1]; first < last; first += CHUNK) {
            const int64_t count = last - first < CHUNK ? last - first : CHUNK, values = count * lanes;
            const TYPED(gathered) others = {job->other, job->col + first, job->other_stride, count};
            REAL tops[LANES];
            if (fetching)
                TYPED(fetch)(job, first, first + count, end);
            TYPED(scores)(job, others, own, dynamic, &s);
            TYPED(greatest)(s.score, values, lanes, tops);
            TYPED(rescale)(sums, columns, most, totals, kinds, lanes, tops);
            for (int lane = 0; lane < LANES; lane++)
                tops[lane] = most[lane % lanes];
            const int64_t padded = (values + LANES - 1) / LANES * LANES;
            for (int64_t k = 0; k < padded; k += LANES)
                STORE(s.weight + k, LOAD(s.score + k) - LOAD(tops));
            for (int64_t k = 0; k < padded; k++)
                s.weight[k] = JOIN(exp, SUFFIX)(s.weight[k]);
            V total = zero, tilt = zero;
            if (job->dropped.own)
                TYPED(drop_factors)(&job->dropped, row, job->col + first, count, lanes, 1, s.factor);
            for (int64_t k = 0; k < padded; k += LANES) {
                V share = LOAD(s.weight + k);
                const V factor = job->dropped.own ? LOAD(s.factor + k) : SPREAD(1);
                total += share;
                if (tilted) {
                    const V positive = CHOOSE(LOAD(s.score + k), zero, share, zero);
                    tilt += positive;
                    STORE(s.second + k, positive * factor);
                }
                if (job->dropped.own)
                    STORE(s.weight + k, share * factor);
            }
            REAL folded[2 * LANES];
            STORE(folded, total);
            STORE(folded + LANES, tilt);
            for (int64_t kind = 0; kind < kinds; kind++)
                for (int lane = 0; lane < LANES; lane++)
                    totals[kind * lanes + lane % lanes] += folded[kind * LANES + lane];
            TYPED(repeat_all)(s.weight, count, lanes, s.full);
            if (tilted)
                TYPED(repeat_all)(s.second, count, lanes, s.other_full);
            TYPED(add_rows)(others, columns, s.full, tilted ? s.other_full : NULL, sums, sums + columns);
        }
    }
}

static TARGET void TYPED(attend_additive)(const void *job, int64_t part, int64_t parts)
{
    TYPED(attend)(job, part, parts, 0, 0);
}

static TARGET void TYPED(attend_tilted)(const void *job, int64_t part, int64_t parts)
{
    TYPED(attend)(job, part, parts, 0, 1);
}

static TARGET void TYPED(attend_dynamic)(const void *job, int64_t part, int64_t parts)
{
    TYPED(attend)(job, part, parts, 1, 0);
}
