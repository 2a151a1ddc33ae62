/* Packing and unpacking of rows, for one instruction set. */

#ifndef SANCUS_BITS_GROUP
#define SANCUS_BITS_GROUP 64 /* values quantised at a time: whole bytes for any number of bits */
#endif

#define LANES (4 << ISA_LEVEL)
#define FLOATS NAME(floats)
#define WORDS NAME(words)
#define FLAGS NAME(flags)
typedef float FLOATS __attribute__((vector_size(4 * LANES)));
typedef uint32_t WORDS __attribute__((vector_size(4 * LANES)));
typedef int32_t FLAGS __attribute__((vector_size(4 * LANES))); /* what a comparison gives: 0 or -1 */

/* a where the flag is set, else b. */
INLINE FLOATS NAME(choose)(FLAGS flag, FLOATS a, FLOATS b)
{
    return (FLOATS)((flag & (FLAGS)a) | (~flag & (FLAGS)b));
}

/* Least and greatest value, and whether all are finite (0 x is 0 only then). */
INLINE int NAME(range_of)(const float *x, int64_t columns, float *low, float *high)
{
    float least = x[0], most = x[0], nothing = 0.0f;
    int64_t column = 0;
    if (columns >= LANES) {
        FLOATS lows, highs, zeros = {0};
        memcpy(&lows, x, sizeof lows);
        highs = lows;
        for (; column + LANES <= columns; column += LANES) {
            FLOATS here;
            memcpy(&here, x + column, sizeof here);
            lows = NAME(choose)(here < lows, here, lows);
            highs = NAME(choose)(here > highs, here, highs);
            zeros += here * 0.0f;
        }
        for (int lane = 0; lane < LANES; lane++) {
            least = lows[lane] < least ? lows[lane] : least;
            most = highs[lane] > most ? highs[lane] : most;
            nothing += zeros[lane];
        }
    }
    for (; column < columns; column++) {
        least = x[column] < least ? x[column] : least;
        most = x[column] > most ? x[column] : most;
        nothing += x[column] * 0.0f;
    }
    *low = least + 0.0f; /* one zero, not two */
    *high = most + 0.0f;
    return nothing == 0.0f;
}

/* Levels of SANCUS_BITS_GROUP values that start at column `first`. */
INLINE void NAME(quantise)(const float *x, int64_t first, float zero, float inverse, float top, uint64_t key,
                           uint8_t *level)
{
    const uint32_t low = (uint32_t)key, high = (uint32_t)(key >> 32);
    uint32_t whole[SANCUS_BITS_GROUP];
    WORDS column;
    for (int lane = 0; lane < LANES; lane++)
        column[lane] = (uint32_t)first + (uint32_t)lane;
    for (int k = 0; k < SANCUS_BITS_GROUP; k += LANES, column += LANES) {
        WORDS hash = column * 0x9E3779B9u + low;
        hash = (hash ^ (hash >> 16)) * 0x7FEB352Du + high;
        hash = (hash ^ (hash >> 15)) * 0x846CA68Bu;
        hash ^= hash >> 16;
        const FLOATS uniform = __builtin_convertvector((FLAGS)(hash >> 8), FLOATS) * 0x1p-24f;
        FLOATS scaled, tops = {0};
        memcpy(&scaled, x + k, sizeof scaled);
        tops += top;
        scaled = (scaled - zero) * inverse;
        scaled = NAME(choose)(scaled < tops, scaled, tops);
        const FLAGS floored = __builtin_convertvector(scaled, FLAGS);
        const FLAGS up = uniform < scaled - __builtin_convertvector(floored, FLOATS);
        const FLAGS rounded = floored - up;
        memcpy(whole + k, &rounded, sizeof rounded);
    }
    for (int k = 0; k < SANCUS_BITS_GROUP; k++)
        level[k] = (uint8_t)whole[k];
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
    if (job->coarse)
        low = outer_bf16(low, low < 0.0f);
    const double range = (double)high - (double)low; /* capped, so that no level decodes to infinity */
    float scale = (float)((range < 0x1p127 ? range : 0x1p127) / (double)top);
    if (job->coarse)
        scale = outer_bf16(scale, 1);
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
            NAME(quantise)(x + first, first, low, inverse, top, key, level);
        } else { /* what is beyond the row counts as its minimum, level 0 */
            float padded[SANCUS_BITS_GROUP];
            for (int k = 0; k < SANCUS_BITS_GROUP; k++)
                padded[k] = k < count ? x[first + k] : low;
            NAME(quantise)(padded, first, low, inverse, top, key, level);
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

#undef LANES
#undef FLOATS
#undef WORDS
#undef FLAGS
