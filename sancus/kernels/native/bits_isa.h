/* Packing and unpacking of rows, for one instruction set. */

#ifndef SANCUS_BITS_GROUP
#define SANCUS_BITS_GROUP 64 /* values quantised at a time: whole bytes for any number of bits */
#define SANCUS_BITS_LANES 16
#endif

/* Least and greatest value, and whether all are finite (0 x is 0 only then). */
INLINE int NAME(range_of)(const float *x, int64_t columns, float *low, float *high)
{
    float least[SANCUS_BITS_LANES], most[SANCUS_BITS_LANES], nothing[SANCUS_BITS_LANES];
    for (int lane = 0; lane < SANCUS_BITS_LANES; lane++) {
        least[lane] = most[lane] = x[0];
        nothing[lane] = 0.0f;
    }
    int64_t column = 0;
    for (; column + SANCUS_BITS_LANES <= columns; column += SANCUS_BITS_LANES)
        for (int lane = 0; lane < SANCUS_BITS_LANES; lane++) {
            const float value = x[column + lane];
            least[lane] = value < least[lane] ? value : least[lane];
            most[lane] = value > most[lane] ? value : most[lane];
            nothing[lane] += value * 0.0f;
        }
    for (; column < columns; column++) {
        least[0] = x[column] < least[0] ? x[column] : least[0];
        most[0] = x[column] > most[0] ? x[column] : most[0];
        nothing[0] += x[column] * 0.0f;
    }
    for (int lane = 1; lane < SANCUS_BITS_LANES; lane++) {
        least[0] = least[lane] < least[0] ? least[lane] : least[0];
        most[0] = most[lane] > most[0] ? most[lane] : most[0];
        nothing[0] += nothing[lane];
    }
    *low = least[0] + 0.0f; /* one zero, not two */
    *high = most[0] + 0.0f;
    return nothing[0] == 0.0f;
}

/* Levels of `count` values that start at column `first`. */
INLINE void NAME(quantise)(const float *x, int64_t first, int count, float zero, float inverse, float top,
                           uint64_t key, uint8_t *level)
{
    const uint32_t start = (uint32_t)first, low = (uint32_t)key, high = (uint32_t)(key >> 32);
    for (int k = 0; k < count; k++) {
        uint32_t hash = (start + (uint32_t)k) * 0x9E3779B9u + low;
        hash = (hash ^ (hash >> 16)) * 0x7FEB352Du + high;
        hash = (hash ^ (hash >> 15)) * 0x846CA68Bu;
        hash ^= hash >> 16;
        const float uniform = (float)(int32_t)(hash >> 8) * 0x1p-24f;
        const float scaled = (x[k] - zero) * inverse, inside = scaled < top ? scaled : top;
        const int32_t floored = (int32_t)inside;
        level[k] = (uint8_t)(floored + (uniform < inside - (float)floored));
    }
}

/* Eight levels of one byte each, packed into their low `bits` bytes. */
INLINE uint64_t NAME(squeeze)(uint64_t levels, const int bits)
{
    if (bits == 1)
        return (levels * 0x0102040810204080u) >> 56;
    if (bits == 2) {
        levels = (levels | (levels >> 6)) & 0x000F000F000F000Fu;
        levels = (levels | (levels >> 12)) & 0x000000FF000000FFu;
        return (levels | (levels >> 24)) & 0xFFFFu;
    }
    if (bits == 4) {
        levels = (levels | (levels >> 4)) & 0x00FF00FF00FF00FFu;
        levels = (levels | (levels >> 8)) & 0x0000FFFF0000FFFFu;
        return (levels | (levels >> 16)) & 0xFFFFFFFFu;
    }
    return levels;
}

INLINE void NAME(pack_row)(const packing *job, int64_t row, const int bits)
{
    const float *x = job->x + row * job->stride;
    uint8_t *packed = job->packed + row * job->bytes;
    const float top = (float)((1 << bits) - 1);
    float low, high;
    if (!NAME(range_of)(x, job->columns, &low, &high)) {
        job->zero[row] = job->scale[row] = NAN;
        job->finite[row] = 0;
        memset(packed, 0, (size_t)job->bytes);
        return;
    }
    const double step = ((double)high - (double)low) / (double)top;
    float scale = (float)(step < (double)FLT_MAX ? step : (double)FLT_MAX);
    job->finite[row] = 1;
    job->zero[row] = low;
    if (scale < FLT_MIN) { /* as good as constant */
        job->scale[row] = 0.0f;
        memset(packed, 0, (size_t)job->bytes);
        return;
    }
    job->scale[row] = scale;
    const float inverse = 1.0f / scale;
    const uint64_t key = mixed(job->seed ^ (uint64_t)job->row[row]);
    uint8_t level[SANCUS_BITS_GROUP];
    for (int64_t first = 0; first < job->columns; first += SANCUS_BITS_GROUP) {
        const int64_t left = job->columns - first;
        const int count = left < SANCUS_BITS_GROUP ? (int)left : SANCUS_BITS_GROUP;
        if (count == SANCUS_BITS_GROUP) {
            NAME(quantise)(x + first, first, SANCUS_BITS_GROUP, low, inverse, top, key, level);
        } else {
            memset(level, 0, sizeof level);
            NAME(quantise)(x + first, first, count, low, inverse, top, key, level);
        }
        uint8_t group[SANCUS_BITS_GROUP];
        for (int k = 0; k < SANCUS_BITS_GROUP / 8; k++) {
            uint64_t eight;
            memcpy(&eight, level + 8 * k, 8);
            eight = NAME(squeeze)(eight, bits);
            memcpy(group + k * bits, &eight, (size_t)bits);
        }
        memcpy(packed + first * bits / 8, group, (size_t)((count * bits + 7) / 8));
    }
}

static TARGET void NAME(pack)(const void *pointer, int64_t part, int64_t parts)
{
    const packing *job = pointer;
    const span rows = equal_rows(job->rows, part, parts);
    for (int64_t row = rows.first; row < rows.last; row++)
        switch (job->bits) {
        case 1: NAME(pack_row)(job, row, 1); break;
        case 2: NAME(pack_row)(job, row, 2); break;
        case 4: NAME(pack_row)(job, row, 4); break;
        default: NAME(pack_row)(job, row, 8); break;
        }
}

INLINE void NAME(unpack_row)(const unpacking *job, int64_t row, const int bits)
{
    const uint8_t *packed = job->packed + row * job->bytes;
    float *out = job->out + row * job->stride;
    const float zero = job->zero[row], scale = job->scale[row];
    const uint32_t top = (1u << bits) - 1;
    int64_t column = 0;
    if (bits == 8) {
        for (; column < job->columns; column++)
            out[column] = zero + scale * (float)packed[column];
        return;
    }
    for (; column + 8 <= job->columns; column += 8, packed += bits) {
        uint32_t eight = 0;
        memcpy(&eight, packed, (size_t)bits);
        for (int k = 0; k < 8; k++)
            out[column + k] = zero + scale * (float)(int32_t)((eight >> (k * bits)) & top);
    }
    for (int k = 0; column < job->columns; column++, k++)
        out[column] = zero + scale * (float)(((uint32_t)packed[k * bits / 8] >> (k * bits % 8)) & top);
}

static TARGET void NAME(unpack)(const void *pointer, int64_t part, int64_t parts)
{
    const unpacking *job = pointer;
    const span rows = equal_rows(job->rows, part, parts);
    for (int64_t row = rows.first; row < rows.last; row++)
        switch (job->bits) {
        case 1: NAME(unpack_row)(job, row, 1); break;
        case 2: NAME(unpack_row)(job, row, 2); break;
        case 4: NAME(unpack_row)(job, row, 4); break;
        default: NAME(unpack_row)(job, row, 8); break;
        }
}
