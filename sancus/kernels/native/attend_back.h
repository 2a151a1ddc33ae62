/* Gradients of attention, for one type and instruction set: with the share s = exp(e - log of the row's sum), the
 * factor f of dropout, and g = <gradient_i, V_j>,
 *
 *     de = s (f g - inner_i)          d V_j += s f gradient_i
 */

/* From score, log, inner, towards (g) and factor: weight = s f, second = de; all compact. */
INLINE void TYPED(slopes_of)(TYPED(scratch) *s, int64_t values, const int dropping)
{
    const int64_t padded = (values + LANES - 1) / LANES * LANES;
    for (int64_t k = 0; k < padded; k += LANES)
        STORE(s->weight + k, LOAD(s->score + k) - LOAD(s->log + k));
    for (int64_t k = 0; k < padded; k++)
        s->weight[k] = JOIN(exp, SUFFIX)(s->weight[k]);
    for (int64_t k = 0; k < padded; k += LANES) {
        const V share = LOAD(s->weight + k);
        V towards = LOAD(s->towards + k);
        if (dropping) {
            const V factor = LOAD(s->factor + k);
            towards = towards * factor;
            STORE(s->weight + k, share * factor);
        }
        STORE(s->second + k, share * (towards - LOAD(s->inner + k)));
    }
}

/* d V and d key of one source after another: out [columns | lanes]. */
static TARGET void TYPED(back_additive)(const void *pointer, int64_t part, int64_t parts)
{
    const attention *job = pointer;
    const span rows = balanced_rows(job->crow, job->rows, part, parts);
    const int64_t columns = job->columns, end = job->crow[rows.last];
    const int lanes = job->lanes, dropping = job->dropped.own != NULL;
    const int fetching = entries_ahead(job->other_rows, job->other_stride * (int64_t)sizeof(REAL)) > 0;
    const V zero = SPREAD(0), slope = SPREAD((REAL)job->slope);
    TYPED(scratch) s;
    for (int64_t row = rows.first; row < rows.last; row++) {
        REAL *out = (REAL *)job->out + row * job->out_stride, key[LANES];
        const REAL *own = (const REAL *)job->own + row * job->own_stride;
        memset(out, 0, (size_t)columns * sizeof(REAL));
        for (int lane = 0; lane < LANES; lane++)
            key[lane] = own[columns + lane % lanes];
        V d_key = zero;
        for (int64_t first = job->crow[row], last = job->crow[row + 1]; first < last; first += CHUNK) {
            const int64_t count = last - first < CHUNK ? last - first : CHUNK, values = count * lanes;
            const TYPED(gathered) others = {job->other, job->col + first, job->other_stride, count};
            TYPED(gathered) beside = others;
            if (fetching)
                TYPED(fetch)(job, first, first + count, end);
            TYPED(dots)(others, own, columns, s.full);
            TYPED(fold_all)(s.full, count, lanes, 0, s.towards);
            beside.values += columns;
            REAL *query = s.other_full; /* compact */
            TYPED(pick)(beside, lanes, -(REAL)INFINITY, query);
            beside.values += lanes;
            TYPED(pick)(beside, lanes, 0, s.log);
            beside.values += lanes;
            TYPED(pick)(beside, lanes, 0, s.inner);
            if (dropping)
                TYPED(drop_factors)(&job->dropped, row, job->col + first, count, lanes, 0, s.factor);
            for (int64_t k = 0; k < values; k += LANES) {
                const V here = LOAD(query + k) + LOAD(key);
                STORE(s.score + k, CHOOSE(here, zero, here, slope * here));
            }
            TYPED(slopes_of)(&s, values, dropping);
            for (int64_t k = 0; k < values; k += LANES) {
                const V d_score = LOAD(s.second + k);
                d_key += CHOOSE(LOAD(s.score + k), zero, d_score, slope * d_score);
            }
            TYPED(repeat_all)(s.weight, count, lanes, s.full);
            TYPED(add_rows)(others, columns, s.full, NULL, out, out);
        }
        STORE(key, d_key);
        for (int head = 0; head < lanes; head++) {
            REAL sum = 0;
            for (int lane = head; lane < LANES; lane += lanes)
                sum += key[lane];
            out[columns + head] = sum;
        }
    }
}

/* By column: d V, and d (row + own) before `mix`, out [columns | columns]; by row: the latter alone. */
INLINE void TYPED(back_mixed)(const attention *job, int64_t part, int64_t parts, const int by_row)
{
    const span rows = balanced_rows(job->crow, job->rows, part, parts);
    const int64_t columns = job->columns, end = job->crow[rows.last];
    const int lanes = job->lanes, dropping = job->dropped.own != NULL;
    const int fetching = entries_ahead(job->other_rows, job->other_stride * (int64_t)sizeof(REAL)) > 0;
    const REAL below = (REAL)job->slope;
    TYPED(scratch) s;
    for (int64_t row = rows.first; row < rows.last; row++) {
        REAL *out = (REAL *)job->out + row * job->out_stride, *d_mixed = by_row ? out : out + columns;
        const REAL *own = (const REAL *)job->own + row * job->own_stride;
        const REAL *mine = by_row ? own + columns : own; /* what a row is added to inside LeakyReLU */
        memset(out, 0, (size_t)((by_row ? 1 : 2) * columns) * sizeof(REAL));
        for (int64_t first = job->crow[row], last = job->crow[row + 1]; first < last; first += CHUNK) {
            const int64_t count = last - first < CHUNK ? last - first : CHUNK, values = count * lanes;
            const TYPED(gathered) others = {job->other, job->col + first, job->other_stride, count};
            TYPED(gathered) mixed = others, beside = others;
            if (fetching)
                TYPED(fetch)(job, first, first + count, end);
            TYPED(dots)(others, own, columns, s.full);
            TYPED(fold_all)(s.full, count, lanes, 0, s.towards);
            if (!by_row)
                mixed.values += columns;
            TYPED(mixes)(mixed, mine, job->mix, columns, below, s.full);
            TYPED(fold_all)(s.full, count, lanes, -(REAL)INFINITY, s.score);
            if (by_row) { /* the same for all entries: a row of stride 0 */
                beside.values = own;
                beside.stride = 0;
            }
            beside.values += 2 * columns;
            TYPED(pick)(beside, lanes, 0, s.log);
            beside.values += lanes;
            TYPED(pick)(beside, lanes, 0, s.inner);
            if (dropping)
                TYPED(drop_factors)(&job->dropped, row, job->col + first, count, lanes, by_row, s.factor);
            TYPED(slopes_of)(&s, values, dropping);
            if (!by_row) {
                TYPED(repeat_all)(s.weight, count, lanes, s.full);
                TYPED(add_rows)(others, columns, s.full, NULL, out, out);
            }
            TYPED(repeat_all)(s.second, count, lanes, s.full);
            TYPED(add_slopes)(mixed, mine, columns, s.full, below, d_mixed);
        }
    }
}

static TARGET void TYPED(back_dynamic)(const void *job, int64_t part, int64_t parts)
{
    TYPED(back_mixed)(job, part, parts, 0);
}

static TARGET void TYPED(back_dynamic_rows)(const void *job, int64_t part, int64_t parts)
{
    TYPED(back_mixed)(job, part, parts, 1);
}
