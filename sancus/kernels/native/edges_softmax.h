/* Softmax over the entries of one row, a head at a time; the entries of a row are contiguous. */

static TARGET void NAME(JOIN(softmax, KIND))(const void *pointer, int64_t part, int64_t parts)
{
    const softmax *job = pointer;
    const int64_t *crow = job->crow, heads = job->heads;
    const span rows = balanced_rows(crow, job->rows, part, parts);
    for (int64_t row = rows.first; row < rows.last; row++) {
        const int64_t values = (crow[row + 1] - crow[row]) * heads;
        const REAL *score = (const REAL *)job->score + crow[row] * heads;
        REAL *share = (REAL *)job->out + crow[row] * heads;
        for (int64_t head = 0; head < heads && values; head++) {
            REAL most = score[head];
            for (int64_t k = head; k < values; k += heads)
                most = score[k] > most ? score[k] : most;
            for (int64_t k = head; k < values; k += heads)
                share[k] = score[k] - most;
        }
        for (int64_t k = 0; k < values; k++)
            share[k] = JOIN(exp, KIND)(share[k]);
        for (int64_t head = 0; head < heads; head++) {
            REAL total = 0;
            for (int64_t k = head; k < values; k += heads)
                total += share[k];
            for (int64_t k = head; k < values; k += heads)
                share[k] /= total;
        }
    }
}

static TARGET void NAME(JOIN(softmax_back, KIND))(const void *pointer, int64_t part, int64_t parts)
{
    const softmax *job = pointer;
    const int64_t *crow = job->crow, heads = job->heads;
    const span rows = balanced_rows(crow, job->rows, part, parts);
    for (int64_t row = rows.first; row < rows.last; row++) {
        const int64_t values = (crow[row + 1] - crow[row]) * heads;
        const REAL *share = (const REAL *)job->score + crow[row] * heads;
        const REAL *gradient = (const REAL *)job->gradient + crow[row] * heads;
        REAL *out = (REAL *)job->out + crow[row] * heads;
        for (int64_t head = 0; head < heads; head++) {
            REAL total = 0;
            for (int64_t k = head; k < values; k += heads)
                total += share[k] * gradient[k];
            for (int64_t k = head; k < values; k += heads)
                out[k] = share[k] * (gradient[k] - total);
        }
    }
}
