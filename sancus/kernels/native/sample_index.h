/* One hop, for one type of column numbers. */

/* Chooses among the entries of node `v`, whose number of entries is above the fan-out, or which is drawn from
 * with repetition. Writes positions to `pick`; a factor for each entry that is not the same for the whole row
 * to `value`, from `at` on. The factor of the row. */
static double NAME(choose)(const sampling *job, const hop *now, int64_t v, int64_t *pick, int64_t at,
                           int64_t *chosen)
{
    int64_t first = job->crow[v], degree = job->crow[v + 1] - first, k = now->fanout;
    uint64_t state = splitmix(now->key ^ (uint64_t)v);
    *chosen = k;
    if (job->way == UNIFORM) {
        pick_distinct(pick, k, degree, state, job->set);
        return (double)degree / (double)k;
    }
    if (job->way == REPEATED) {
        double sum = pick_repeated(job, first, k, degree, state, pick);
        if (job->by_weight && sum <= 0)
            *chosen = 0;
        for (int64_t j = 0; job->by_weight && j < *chosen; j++)
            set_real(now->value, now->wide, at + j, 1.0 / weight_of(job, first + pick[j]));
        return sum / (double)k;
    }
    const INDEX *col = (const INDEX *)job->col + first;
    uint64_t base = job->way == LEAST_OF_SOURCE ? now->key : state;
    for (int64_t i = 0; i < degree; i++) {
        double u = fraction(splitmix(base ^ (uint64_t)col[i]));
        job->rank[i] = job->by_weight ? u / weight_of(job, first + i) : u;
    }
    double limit = pick_least(job->rank, k, degree, pick);
    if (!job->by_weight)
        return (double)degree / (double)k;
    for (int64_t j = 0; j < k; j++) {
        double more = 1.0 / (limit * weight_of(job, first + pick[j]));
        set_real(now->value, now->wide, at + j, more > 1.0 ? more : 1.0);
    }
    return 1.0;
}

/* The entries of one node: columns as they are in the whole matrix, and in `value` what is not yet of its row
 * and column. The factor of the row. */
static double NAME(fill_row)(const sampling *job, const hop *now, int64_t v, const int64_t *pick,
                             int64_t chosen, double factor, int64_t at)
{
    int64_t first = job->crow[v];
    const INDEX *restrict col = (const INDEX *)job->col + first;
    int32_t *restrict out = now->col + at;
    for (int64_t j = 0; j < chosen; j++) {
        out[j] = (int32_t)col[pick ? pick[j] : j];
        __builtin_prefetch(job->table + (uint32_t)out[j], 1, 1);
        if (job->right)
            __builtin_prefetch(job->right + (uint32_t)out[j], 0, 1);
    }
    if (job->weight || job->by_weight)
        for (int64_t j = 0; j < chosen; j++) {
            double own = pick && job->by_weight ? real_at(now->value, now->wide, at + j) : 1.0;
            double weight = job->weight ? job->weight[first + (pick ? pick[j] : j)] : 1.0;
            set_real(now->value, now->wide, at + j, own * weight);
        }
    return factor * job->left[v];
}

/* Numbers the columns of a tile's rows as nodes are met, and finishes the values. */
static void NAME(number_rows)(sampling *job, const hop *now, int64_t first, int64_t last,
                              const double *row_factor)
{
    const uint64_t tag = job->stamp << 32, stamp = job->stamp;
    uint64_t *table = job->table;
    int32_t *restrict col = now->col;
    int64_t used = job->used, *restrict nodes = job->nodes;
    for (int64_t row = first; row < last; row++) {
        int64_t entry = now->crow[row], end = now->crow[row + 1];
        if (job->diagonal) {
            col[entry] = (int32_t)row;
            set_real(now->value, now->wide, entry++, job->diagonal[nodes[row]]);
        }
        int64_t begin = entry;
        for (; entry < end; entry++) {
            uint32_t u = (uint32_t)col[entry];
            uint64_t known = table[u];
            if (known >> 32 != stamp) {
                known = tag | (uint64_t)used;
                table[u] = known;
                if (job->right)
                    job->right_of[used] = job->right[u];
                nodes[used++] = u;
            }
            col[entry] = (int32_t)(uint32_t)known;
        }
        finish_row(job, now, begin, end, row_factor[row - first]);
    }
    job->used = used;
}

/* Tile by tile: row ends are fetched a tile ahead, entries and the table's places while other rows draw. */
static void NAME(one_hop)(sampling *job, const hop *now)
{
    int64_t at = 0, loop = job->diagonal != 0, all = now->fanout < 0, k = now->fanout;
    double row_factor[TILE];
    now->crow[0] = 0;
    for (int64_t first = 0; first < now->targets; first += TILE) {
        int64_t last = first + TILE < now->targets ? first + TILE : now->targets;
        int64_t chosen[TILE];
        for (int64_t t = last; t < last + TILE && t < now->targets; t++)
            __builtin_prefetch(job->crow + job->nodes[t], 0, 1);
        int64_t start = at;
        for (int64_t t = first; t < last; t++) {
            int64_t v = job->nodes[t], degree = job->crow[v + 1] - job->crow[v];
            int64_t *pick = job->pick + (t - first) * (k + 1);
            const INDEX *col = (const INDEX *)job->col + job->crow[v];
            at += loop;
            if (all || (job->way == REPEATED ? !degree : degree <= k)) {
                chosen[t - first] = degree;
                row_factor[t - first] = -1.0; /* all of them */
                for (int64_t i = 0; i < degree; i += 64 / (int64_t)sizeof *col)
                    __builtin_prefetch(col + i, 0, 1);
            } else {
                row_factor[t - first] = NAME(choose)(job, now, v, pick, at, chosen + t - first);
                for (int64_t j = 0; j < chosen[t - first]; j++)
                    __builtin_prefetch(col + pick[j], 0, 1);
            }
            at += chosen[t - first];
            now->crow[t + 1] = at;
        }
        at = start;
        for (int64_t t = first; t < last; t++) {
            double drawn = row_factor[t - first];
            const int64_t *pick = drawn < 0 ? 0 : job->pick + (t - first) * (k + 1);
            row_factor[t - first] = NAME(fill_row)(job, now, job->nodes[t], pick, chosen[t - first],
                                                   drawn < 0 ? 1.0 : drawn, at + loop);
            at = now->crow[t + 1];
        }
        NAME(number_rows)(job, now, first, last, row_factor);
    }
}
