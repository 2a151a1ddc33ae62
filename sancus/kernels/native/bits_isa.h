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

/* The first `count` values, 0 < count <= LANES, and `fill` in the other lanes. */
INLINE FLOATS NAME(load_some)(const float *x, int count, float fill)
{
#if ISA_LEVEL == 2
    return (FLOATS)_mm512_mask_loadu_ps(_mm512_set1_ps(fill), (__mmask16)(0xffffu >> (16 - count)), x);
#elif ISA_LEVEL == 1
    const __m256i mask =
        _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return (FLOATS)_mm256_blendv_ps(_mm256_set1_ps(fill), _mm256_maskload_ps(x, mask), _mm256_castsi256_ps(mask));
#else
    FLOATS here;
    float lanes[LANES];
    for (int lane = 0; lane < LANES; lane++)
        lanes[lane] = lane < count ? x[lane] : fill;
    memcpy(&here, lanes, sizeof here);
    return here;
#endif
}

/* Least and greatest value, and whether all are finite (0 x is 0 only then). */
INLINE int NAME(range_of)(const float *x, int64_t columns, float *low, float *high)
{
    enum { QUARTERS = LANES / 4 };
    FLOATS lows, highs, zeros = {0};
    int64_t column = 0;
    lows = highs = NAME(load_some)(x, columns < LANES ? (int)columns : LANES, x[0]);
    while (column < columns) {
        const int64_t left = columns - column;
        FLOATS here;
        if (left >= LANES)
            memcpy(&here, x + column, sizeof here);
        else
            here = NAME(load_some)(x + column, (int)left, x[0]);
        lows = NAME(choose)(here < lows, here, lows);
        highs = NAME(choose)(here > highs, here, highs);
        zeros += here * 0.0f;
        column += LANES;
    }
    four least[QUARTERS], most[QUARTERS], nothing[QUARTERS];
    memcpy(least, &lows, sizeof lows);
    memcpy(most, &highs, sizeof highs);
    memcpy(nothing, &zeros, sizeof zeros);
    for (int k = 1; k < QUARTERS; k++) {
        least[0] = choose_four(least[k] < least[0], least[k], least[0]);
        most[0] = choose_four(most[k] > most[0], most[k], most[0]);
        nothing[0] += nothing[k];
    }
    for (int lane = 1; lane < 4; lane++) {
        least[0][0] = least[0][lane] < least[0][0] ? least[0][lane] : least[0][0];
        most[0][0] = most[0][lane] > most[0][0] ? most[0][lane] : most[0][0];
        nothing[0][0] += nothing[0][lane];
    }
    *low = least[0][0] + 0.0f; /* one zero, not two */
    *high = most[0][0] + 0.0f;
    return nothing[0][0] == 0.0f;
}

/* Words below 256 as bytes. */
INLINE void NAME(narrow)(WORDS words, uint8_t *bytes)
{
#if ISA_LEVEL == 2
    _mm_storeu_si128((__m128i *)bytes, _mm512_cvtepi32_epi8((__m512i)words));
#elif ISA_LEVEL == 1
    const __m128i pairs = _mm_packus_epi32(_mm256_castsi256_si128((__m256i)words),
                                           _mm256_extracti128_si256((__m256i)words, 1));
    _mm_storel_epi64((__m128i *)bytes, _mm_packus_epi16(pairs, pairs));
#else
    for (int lane = 0; lane < LANES; lane++)
        bytes[lane] = (uint8_t)words[lane];
#endif
}

/* Levels of the `count` values that start at column `first`, and 0 up to the next whole eight; of at most
 * SANCUS_BITS_GROUP. */
INLINE void NAME(quantise)(const float *x, int64_t first, int count, float zero, float inverse, float top,
                           uint64_t key, uint8_t *level)
{
    enum { STEP = LANES < 8 ? 8 : LANES };
    const uint32_t low = (uint32_t)key, high = (uint32_t)(key >> 32);
    const int end = (count + STEP - 1) / STEP * STEP;
    WORDS column;
    for (int lane = 0; lane < LANES; lane++)
        column[lane] = (uint32_t)first + (uint32_t)lane;
    for (int k = 0; k < end; k += LANES, column += LANES) {
        WORDS hash = column * 0x9E3779B9u + low;
        hash = (hash ^ (hash >> 16)) * 0x7FEB352Du + high;
        hash = (hash ^ (hash >> 15)) * 0x846CA68Bu;
        hash ^= hash >> 16;
        const FLOATS uniform = __builtin_convertvector((FLAGS)(hash >> 8), FLOATS) * 0x1p-24f;
        FLOATS scaled = {0}, tops = {0};
        tops += top;
        if (count - k >= LANES)
            memcpy(&scaled, x + k, sizeof scaled);
        else if (count > k)
            scaled = NAME(load_some)(x + k, count - k, zero);
        else
            scaled += zero;
        scaled = (scaled - zero) * inverse;
        scaled = NAME(choose)(scaled < tops, scaled, tops);
        const FLAGS floored = __builtin_convertvector(scaled, FLAGS);
        const FLAGS up = uniform < scaled - __builtin_convertvector(floored, FLOATS);
        const WORDS rounded = (WORDS)(floored - up);
        NAME(narrow)(rounded, level + k);
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
        if (count == SANCUS_BITS_GROUP)
            NAME(quantise)(x + first, first, SANCUS_BITS_GROUP, low, inverse, top, key, level);
        else
            NAME(quantise)(x + first, first, count, low, inverse, top, key, level);
        uint8_t group[SANCUS_BITS_GROUP];
        for (int k = 0; k < (count + 7) / 8; k++) {
            uint64_t eight;
            memcpy(&eight, level + 8 * k, 8);
            eight = NAME(squeeze)(eight, bits);
            memcpy(group + k * bits, &eight, (size_t)bits);
        }
        copy_bytes(packed + first * bits / 8, group, (count * bits + 7) / 8);
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
